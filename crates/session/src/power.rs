//! Settings of the run's card that are held while the session lasts. Not here: how they are set and recorded
//! (`plimsoll-power`).

use plimsoll_heat::PowerRange;
use plimsoll_power::{HeldSettings, Knob, PutBack, Range, StepOutcome};
use plimsoll_telemetry::CardSample;

/// Milliwatts of a watt.
const MW: f64 = 1000.0;

/// What is set of the run's card.
pub struct CardPower {
    /// UUID of the card.
    pub uuid: String,
    /// The settings that are put back at the end.
    pub held: HeldSettings,
    /// The bounds of the power limit, mW, if it follows the heat.
    pub auto: Option<Range>,
}

impl CardPower {
    /// The bounds within which a card's power limit is lowered for heat; `None` if it is not.
    pub(crate) fn range_of(&self, card: &CardSample) -> Option<PowerRange> {
        let watts = |milliwatts: i64| milliwatts as f64 / MW;
        let range = self.auto.filter(|_| self.uuid == card.uuid)?;
        Some(PowerRange { least_w: watts(range.min), most_w: watts(range.max) })
    }

    /// Moves the power limit. Returns why it can't be moved any more, if so.
    pub(crate) fn limit(&self, limit_mw: i64) -> Option<String> {
        match self.held.step(Knob::PowerLimit, limit_mw) {
            StepOutcome::Set(_) | StepOutcome::Nothing => None,
            StepOutcome::ChangedByOthers(now) => {
                Some(format!("another program set its power limit to {:.0} W, which stays", now as f64 / MW))
            }
            StepOutcome::Failed(reason) => Some(format!("its power limit can't be moved any longer: {reason}")),
        }
    }

    pub(crate) fn put_back(&self) -> Vec<PutBack> {
        self.held.put_back()
    }
}

/// A limit in whole milliwatts.
pub(crate) fn milliwatts(watts: f64) -> i64 {
    (watts * MW).round() as i64
}
