//! All sensors of one card: which one is closest to its limit, and which other sensor substitutes for one that is not
//! trusted.
//! Not here: how fast the card may compute. Read next: `card.rs`.

use crate::limits::Limits;
use crate::note::NoteKind;
use crate::order::TooHot;
use crate::reading::{Reading, Sensor};
use crate::tracker::{Context, SensorValue, Tracker};

/// Minimum distance between the held temperature and the maximum, °C, even if the throttle temperature is closer: a
/// whole-degree sensor that fluctuates by one degree, plus a margin.
const BELOW_MAX_C: f64 = 3.0;

/// Margin added to an estimate of the die temperature, °C. Hot spots follow the die closely, memory does not.
const BY_HOTSPOT_C: f64 = 1.0;
const BY_MEMORY_C: f64 = 5.0;

/// How hot a card is, relative to its limits.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Heat {
    /// The sensor closest to its limit.
    pub sensor: Sensor,
    /// Its temperature, °C.
    pub celsius: f64,
    /// Temperature minus the held temperature, °C.
    pub excess_c: f64,
    /// Maximum minus the held temperature, °C.
    pub room_c: f64,
    /// Held temperature minus the resume temperature, °C.
    pub depth_c: f64,
    /// Whether the temperature was read in this sample.
    pub fresh: bool,
}

/// The sensors of one card.
#[derive(Debug, Clone)]
pub(crate) struct Sensors {
    trackers: [Tracker; 3],
    /// Mean difference between the die and each other sensor, °C; `None` until both were trusted at once.
    core_over_c: [Option<f64>; 3],
    /// Number of consecutive samples above the maximum.
    above: [u32; 3],
    estimating: bool,
}

/// Summary of one sample of all sensors of a card.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Summary {
    /// The sensor closest to its limit; `None` if no sensor is trusted.
    pub heat: Option<Heat>,
    /// A sensor above its maximum, and the number of consecutive samples above it.
    pub too_hot: Option<(TooHot, u32)>,
    /// Whether the die temperature is unknown: neither the die sensor, nor the hot spot sensor, nor an estimate is
    /// available.
    pub die_unknown: bool,
}

impl Sensors {
    pub(crate) fn new() -> Self {
        Self { trackers: Sensor::ALL.map(Tracker::new), core_over_c: [None; 3], above: [0; 3], estimating: false }
    }

    /// Mean temperature of each trusted sensor, °C.
    pub(crate) fn means(&self) -> [Option<f64>; 3] {
        [self.trackers[0].mean_c(), self.trackers[1].mean_c(), self.trackers[2].mean_c()]
    }

    /// How long the sensor has reported the same value, s; 0 if the sensor is not trusted.
    pub(crate) fn same_s(&self, sensor: Sensor) -> f64 {
        self.trackers[sensor as usize].same_s()
    }

    /// Stops trusting a sensor that did not react to a change of load.
    pub(crate) fn suspect(&mut self, sensor: Sensor) -> NoteKind {
        self.trackers[sensor as usize].suspect()
    }

    /// Processes a sample.
    pub(crate) fn observe(
        &mut self,
        card: usize,
        reading: &Reading,
        limits: &Limits,
        context: &Context,
        emit: &mut impl FnMut(NoteKind),
    ) -> Summary {
        let mut values = [SensorValue::Untrusted; 3];
        let mut too_hot = None;
        for sensor in Sensor::ALL {
            let at = sensor as usize;
            values[at] = self.trackers[at].observe(reading.of(sensor), limits.of(sensor).resume_c, context, &mut *emit);
            let max_c = limits.of(sensor).max_c;
            self.above[at] = match values[at] {
                SensorValue::Fresh(celsius) if celsius > max_c => self.above[at] + 1,
                // A missing sample does not count as one below the maximum.
                SensorValue::Recent(_) => self.above[at],
                _ => 0,
            };
            if let (SensorValue::Fresh(celsius), times @ 1..) = (values[at], self.above[at])
                && too_hot.is_none_or(|(_, so_far)| so_far < times)
            {
                too_hot = Some((TooHot { card, sensor, celsius, max_c }, times));
            }
        }
        self.learn(&values);
        let estimate = self.estimate(&values, emit);
        let mut heat: Option<Heat> = None;
        for (at, sensor) in Sensor::ALL.into_iter().enumerate() {
            let here = match (values[at], estimate) {
                (SensorValue::Fresh(celsius), _) => Some((celsius, true)),
                (SensorValue::Recent(celsius), _) => Some((celsius, false)),
                (SensorValue::Untrusted, Some((celsius, fresh))) if sensor == Sensor::Core => Some((celsius, fresh)),
                (SensorValue::Untrusted, _) => None,
            };
            let here = here.map(|(celsius, fresh)| heat_of(sensor, celsius, fresh, limits));
            if let Some(here) = here
                && heat.is_none_or(|h| h.excess_c < here.excess_c)
            {
                heat = Some(here);
            }
        }
        let is_known = |sensor: Sensor| values[sensor as usize] != SensorValue::Untrusted;
        let die_unknown = !is_known(Sensor::Core) && !is_known(Sensor::Hotspot) && estimate.is_none();
        Summary { heat, too_hot, die_unknown }
    }

    /// Updates the mean differences between the die and the other sensors, while all of them are trusted.
    fn learn(&mut self, values: &[SensorValue; 3]) {
        let core = self.trackers[Sensor::Core as usize].mean_c();
        let fresh = |value: SensorValue| matches!(value, SensorValue::Fresh(_));
        for at in [Sensor::Memory as usize, Sensor::Hotspot as usize] {
            if let (Some(core), Some(other)) = (core, self.trackers[at].mean_c())
                && fresh(values[Sensor::Core as usize])
                && fresh(values[at])
            {
                self.core_over_c[at] = Some(core - other);
            }
        }
    }

    /// Estimate of the die temperature from another sensor, °C, and whether that sensor was read in this sample. `None`
    /// while the die sensor is trusted.
    fn estimate(&mut self, values: &[SensorValue; 3], emit: &mut impl FnMut(NoteKind)) -> Option<(f64, bool)> {
        let core = Sensor::Core as usize;
        if values[core] != SensorValue::Untrusted || !self.trackers[core].was_seen() {
            self.estimating = false;
            return None;
        }
        for (by, margin_c) in [(Sensor::Hotspot, BY_HOTSPOT_C), (Sensor::Memory, BY_MEMORY_C)] {
            let (other_c, fresh) = match values[by as usize] {
                SensorValue::Fresh(celsius) => (celsius, true),
                SensorValue::Recent(celsius) => (celsius, false),
                SensorValue::Untrusted => continue,
            };
            let Some(over_c) = self.core_over_c[by as usize] else { continue };
            let celsius = other_c + over_c + margin_c;
            if !self.estimating {
                emit(NoteKind::Estimated { by, celsius });
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
