//! The sensors of one card together: which of them is nearest to its limit, and what stands in for one that is not
//! believed.
//! Not here: how fast the card may go then. Read next: `card.rs`.

use crate::limits::Limits;
use crate::note::What;
use crate::order::TooHot;
use crate::reading::{Reading, Sensor};
use crate::tracker::{Around, Said, Tracker};

/// How far below the maximum temperatures are held at least, °C, however close the throttle temperature is to it: a
/// sensor of whole degrees that swings by one, and one more.
const BELOW_MAX_C: f64 = 3.0;

/// What is added to an estimate of the die's temperature, °C: hot spots follow the die closely, memory does not.
const BY_HOTSPOT_C: f64 = 1.0;
const BY_MEMORY_C: f64 = 5.0;

/// How hot a card is, against its limits.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Heat {
    /// The sensor that is nearest to its limit.
    pub sensor: Sensor,
    /// What it says, °C.
    pub celsius: f64,
    /// How far that is above the temperature that is held, °C.
    pub excess_c: f64,
    /// How far its maximum is above the temperature that is held, °C.
    pub room_c: f64,
    /// How far below the temperature that is held a slowed run runs freely again, °C.
    pub depth_c: f64,
    /// Whether it was read now.
    pub fresh: bool,
}

/// The sensors of one card.
#[derive(Debug, Clone)]
pub(crate) struct Sensors {
    trackers: [Tracker; 3],
    /// By how much the die is hotter than each sensor, in the mean, °C; unknown until both were believed.
    core_over_c: [Option<f64>; 3],
    /// Samples in a row above the maximum.
    above: [u32; 3],
    estimating: bool,
}

/// What sensors say of a card.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Look {
    /// The nearest to its limit; nothing if no sensor is believed.
    pub heat: Option<Heat>,
    /// A sensor is above its maximum, for so many samples in a row.
    pub too_hot: Option<(TooHot, u32)>,
    /// Nothing is believed that tells the die's temperature: neither it, nor its hot spot, nor an estimate.
    pub die_unseen: bool,
}

impl Sensors {
    pub(crate) fn new() -> Self {
        Self { trackers: Sensor::ALL.map(Tracker::new), core_over_c: [None; 3], above: [0; 3], estimating: false }
    }

    /// Means of the sensors that are believed, °C.
    pub(crate) fn means(&self) -> [Option<f64>; 3] {
        [self.trackers[0].mean_c(), self.trackers[1].mean_c(), self.trackers[2].mean_c()]
    }

    /// For how long the sensor has said exactly the same, s; 0 if it is not believed.
    pub(crate) fn same_s(&self, sensor: Sensor) -> f64 {
        self.trackers[sensor as usize].same_s()
    }

    /// The sensor did not answer to what must have changed it.
    pub(crate) fn suspect(&mut self, sensor: Sensor) -> What {
        self.trackers[sensor as usize].suspect()
    }

    /// What the sensors say now.
    pub(crate) fn look(
        &mut self,
        card: usize,
        reading: &Reading,
        limits: &Limits,
        around: &Around,
        tell: &mut impl FnMut(What),
    ) -> Look {
        let mut said = [Said::Nothing; 3];
        let mut too_hot = None;
        for sensor in Sensor::ALL {
            let at = sensor as usize;
            said[at] = self.trackers[at].look(reading.of(sensor), limits.of(sensor).resume_c, around, &mut *tell);
            let max_c = limits.of(sensor).max_c;
            self.above[at] = match said[at] {
                Said::Now(celsius) if celsius > max_c => self.above[at] + 1,
                // A sample that is missing is no sample below the maximum.
                Said::Before(_) => self.above[at],
                _ => 0,
            };
            if let (Said::Now(celsius), times @ 1..) = (said[at], self.above[at])
                && too_hot.is_none_or(|(_, so_far)| so_far < times)
            {
                too_hot = Some((TooHot { card, sensor, celsius, max_c }, times));
            }
        }
        self.learn(&said);
        let estimate = self.estimate(&said, tell);
        let mut heat: Option<Heat> = None;
        for (at, sensor) in Sensor::ALL.into_iter().enumerate() {
            let here = match (said[at], estimate) {
                (Said::Now(celsius), _) => Some((celsius, true)),
                (Said::Before(celsius), _) => Some((celsius, false)),
                (Said::Nothing, Some((celsius, fresh))) if sensor == Sensor::Core => Some((celsius, fresh)),
                (Said::Nothing, _) => None,
            };
            let here = here.map(|(celsius, fresh)| heat_of(sensor, celsius, fresh, limits));
            if let Some(here) = here
                && heat.is_none_or(|h| h.excess_c < here.excess_c)
            {
                heat = Some(here);
            }
        }
        let sees = |sensor: Sensor| said[sensor as usize] != Said::Nothing;
        let die_unseen = !sees(Sensor::Core) && !sees(Sensor::Hotspot) && estimate.is_none();
        Look { heat, too_hot, die_unseen }
    }

    /// Keeps by how much the die is hotter than the others, while all are believed.
    fn learn(&mut self, said: &[Said; 3]) {
        let core = self.trackers[Sensor::Core as usize].mean_c();
        let fresh = |said: Said| matches!(said, Said::Now(_));
        for at in [Sensor::Memory as usize, Sensor::Hotspot as usize] {
            if let (Some(core), Some(other)) = (core, self.trackers[at].mean_c())
                && fresh(said[Sensor::Core as usize])
                && fresh(said[at])
            {
                self.core_over_c[at] = Some(core - other);
            }
        }
    }

    /// The die's temperature by another sensor, °C, and whether that was read now, if the die's own is not believed.
    fn estimate(&mut self, said: &[Said; 3], tell: &mut impl FnMut(What)) -> Option<(f64, bool)> {
        let core = Sensor::Core as usize;
        if said[core] != Said::Nothing || !self.trackers[core].was_seen() {
            self.estimating = false;
            return None;
        }
        for (by, margin_c) in [(Sensor::Hotspot, BY_HOTSPOT_C), (Sensor::Memory, BY_MEMORY_C)] {
            let (other_c, fresh) = match said[by as usize] {
                Said::Now(celsius) => (celsius, true),
                Said::Before(celsius) => (celsius, false),
                Said::Nothing => continue,
            };
            let Some(over_c) = self.core_over_c[by as usize] else { continue };
            let celsius = other_c + over_c + margin_c;
            if !self.estimating {
                tell(What::Estimated { by, celsius });
            }
            self.estimating = true;
            return Some((celsius, fresh));
        }
        self.estimating = false;
        None
    }
}

fn heat_of(sensor: Sensor, celsius: f64, fresh: bool, limits: &Limits) -> Heat {
    let span = limits.of(sensor);
    let held_c = span.throttle_c.min(span.max_c - BELOW_MAX_C);
    let depth_c = (held_c - span.resume_c).max(0.0);
    Heat { sensor, celsius, excess_c: celsius - held_c, room_c: span.max_c - held_c, depth_c, fresh }
}
