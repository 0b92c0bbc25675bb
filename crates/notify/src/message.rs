//! A notification, as a value. Not here: its wording (`words.rs`) and sending it.

use plimsoll_telemetry::{EnergyUse, Sample};
use plimsoll_units::{Bytes, Seconds};
use serde::Serialize;

/// What a message is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// The run started or was resumed.
    Start,
    /// Progress.
    Progress,
    /// A checkpoint was saved.
    Checkpoint,
    /// A card is hot, and how the run reacted.
    Heat,
    /// A problem of a card or the machine that costs speed, or the end of one.
    Health,
    /// The run would not have fitted, and was changed so that it fits.
    OutOfMemoryAverted,
    /// A failure.
    Failure,
    /// The run finished.
    End,
    /// The run was stopped on request.
    Stopped,
    /// A test of whether messages arrive.
    Test,
}

impl Kind {
    /// Priority in a full queue: the lowest rank is dropped first. Failures, ends and tests are never dropped.
    pub(crate) fn rank(self) -> u8 {
        match self {
            Self::Progress => 0,
            Self::Checkpoint => 1,
            Self::Start => 2,
            Self::Heat | Self::Health | Self::OutOfMemoryAverted => 3,
            Self::Failure | Self::End | Self::Stopped | Self::Test => u8::MAX,
        }
    }

    /// Color of the message's edge, as 0xRRGGBB: red for failures, amber for warnings, green for success, blue for the
    /// rest.
    pub(crate) fn color(self) -> u32 {
        match self {
            Self::Failure => 0xc0_392b,
            Self::Heat | Self::Health | Self::OutOfMemoryAverted | Self::Stopped => 0xe6_7e22,
            Self::End => 0x27_ae60,
            Self::Start | Self::Progress | Self::Checkpoint | Self::Test => 0x29_80b9,
        }
    }

    /// Whether the queue must never drop it.
    pub(crate) fn is_kept(self) -> bool {
        self.rank() == u8::MAX
    }
}

/// A card of the machine, with the readings that it provides.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Card {
    /// Product name, with the card's index if there are several.
    pub name: String,
    /// Core temperature, °C.
    pub temperature_c: Option<f64>,
    /// Memory temperature, °C.
    pub memory_temperature_c: Option<f64>,
    /// Power draw, W.
    pub power_w: Option<f64>,
    /// Power limit, W.
    pub power_limit_w: Option<f64>,
    /// Recent utilization: percent of the time that a kernel ran.
    pub busy_percent: Option<u32>,
    /// Memory used by processes.
    #[serde(rename = "used_bytes")]
    pub used: Option<Bytes>,
    /// Total memory.
    #[serde(rename = "total_bytes")]
    pub total: Option<Bytes>,
}

impl Card {
    /// The cards of a sample.
    pub fn of_sample(sample: &Sample) -> Vec<Self> {
        let several = sample.cards.len() > 1;
        let of_card = |card: &plimsoll_telemetry::CardSample| Self {
            name: if several { format!("{} {}", card.index, card.name) } else { card.name.clone() },
            temperature_c: card.temperature_c,
            memory_temperature_c: card.memory_temperature_c,
            power_w: card.power_w,
            power_limit_w: card.power_limit_w,
            busy_percent: card.busy_percent,
            used: card.used,
            total: card.total,
        };
        sample.cards.iter().map(of_card).collect()
    }
}

/// A point of the loss curve.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct LossPoint {
    /// The step.
    pub step: u64,
    /// Loss in nats per token, the mean over the steps since the previous point.
    pub loss: f64,
}

/// A notification. Unknown values are `None`, never zero.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Message {
    /// What it is about.
    pub kind: Kind,
    /// Name of the run.
    pub run: String,
    /// What happened, in one or more sentences; may be empty.
    pub text: String,
    /// What to do about it.
    pub advice: Option<String>,
    /// Unix time in seconds, UTC.
    pub time_s: f64,
    /// The last completed step.
    pub step: Option<u64>,
    /// The planned last step.
    pub last_step: Option<u64>,
    /// Mean loss per token of the last completed step, nats.
    pub loss: Option<f64>,
    /// Tokens trained on per second.
    pub tokens_per_s: Option<f64>,
    /// Estimated time until the last step, at the current pace.
    #[serde(rename = "time_left_s")]
    pub time_left: Option<Seconds>,
    /// Memory that the run uses on its device.
    #[serde(rename = "memory_bytes")]
    pub memory: Option<Bytes>,
    /// The cards of the machine.
    pub cards: Vec<Card>,
    /// Energy used by the run's cards so far.
    pub energy: Option<EnergyUse>,
    /// The losses so far, downsampled.
    pub curve: Vec<LossPoint>,
    /// Number of messages that were dropped or merged before this one.
    pub dropped_messages: u64,
}

impl Message {
    /// A message with only these values.
    pub fn new(kind: Kind, run: impl Into<String>, text: impl Into<String>, time_s: f64) -> Self {
        Self {
            kind,
            run: run.into(),
            text: text.into(),
            advice: None,
            time_s,
            step: None,
            last_step: None,
            loss: None,
            tokens_per_s: None,
            time_left: None,
            memory: None,
            cards: vec![],
            energy: None,
            curve: vec![],
            dropped_messages: 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_telemetry::CardSample;

    #[test]
    fn only_a_success_is_green_and_only_a_failure_red() {
        let all = [
            (Kind::Failure, 0xc0_392b),
            (Kind::Heat, 0xe6_7e22),
            (Kind::Stopped, 0xe6_7e22),
            (Kind::End, 0x27_ae60),
            (Kind::Progress, 0x29_80b9),
        ];
        assert!(all.iter().all(|(kind, color)| kind.color() == *color));
    }

    #[test]
    fn cards_have_the_values_of_their_samples() {
        let card = |index| CardSample {
            index,
            name: "RTX 3090".to_owned(),
            temperature_c: Some(71.0),
            memory_temperature_c: Some(84.0),
            power_w: Some(310.0),
            power_limit_w: Some(350.0),
            busy_percent: Some(98),
            used: Some(Bytes(1)),
            total: Some(Bytes(2)),
            ..CardSample::default()
        };
        let expected = Card {
            name: "RTX 3090".to_owned(),
            temperature_c: Some(71.0),
            memory_temperature_c: Some(84.0),
            power_w: Some(310.0),
            power_limit_w: Some(350.0),
            busy_percent: Some(98),
            used: Some(Bytes(1)),
            total: Some(Bytes(2)),
        };
        let of = |cards| Card::of_sample(&Sample { cards, ..Sample::default() });
        assert_eq!(of(vec![card(0)]), [expected]);
        let names = of(vec![card(0), card(1)]).into_iter().map(|card| card.name).collect::<Vec<_>>();
        assert_eq!(names, ["0 RTX 3090", "1 RTX 3090"]);
    }
}
