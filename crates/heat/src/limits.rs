//! The temperatures at which a card is slowed, resumed and stopped: what the user asks for, never above what the card
//! itself bears.
//! Not here: what is done about them. Read next: `guard.rs`.

use crate::reading::Sensor;

/// How far below the card's own slowdown the maximum stays, °C: at its slowdown a card halves its clocks, which is
/// slower than any duty that would have kept it from there, and sensors tell whole degrees.
const BELOW_SLOWDOWN_C: f64 = 2.0;

/// How far below the card's shutdown the maximum stays, °C, where it tells no slowdown. ADLINK's manual of the
/// EGX-MXM-RTX5000 (table 1-4) has the slowdown 5 °C below the shutdown; the other two are the margin above.
const BELOW_SHUTDOWN_C: f64 = 7.0;

/// How much hotter than the mean of the die its hottest place may be, °C. 10 to 15 °C are usual under load, and
/// beyond 20 °C the contact with the cooler is bad.
const HOTSPOT_ABOVE_CORE_C: f64 = 20.0;

/// Temperatures that a setting may name, °C. Below, a card is idle; above, silicon is not rated.
const SETTINGS_C: (f64, f64) = (30.0, 120.0);

/// Thresholds that a card may tell, °C; whatever else it says is not a temperature.
const THRESHOLDS_C: (f64, f64) = (50.0, 130.0);

/// The smallest distance between two limits, °C: sensors tell whole degrees, and can't tell less apart.
const APART_C: f64 = 1.0;

/// What the user asks for, °C.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Settings {
    /// Above this temperature of the die, the run stops.
    pub max_c: f64,
    /// From this temperature of the die on, the run is slowed; it is held here.
    pub throttle_c: f64,
    /// Below this temperature of the die, a run that was slowed runs freely again.
    pub resume_c: f64,
    /// Above this temperature of the memory, the run stops. It is slowed and resumed as far below as the die is.
    pub memory_max_c: f64,
}

impl Default for Settings {
    fn default() -> Self {
        Self { max_c: 83.0, throttle_c: 78.0, resume_c: 70.0, memory_max_c: 100.0 }
    }
}

/// What a card tells of its own limits, °C.
#[derive(Debug, Default, Clone, Copy, PartialEq)]
pub struct Thresholds {
    /// The die's temperature from which the card lowers its clocks by itself.
    pub slowdown_c: Option<f64>,
    /// The die's temperature at which the card switches itself off.
    pub shutdown_c: Option<f64>,
    /// The memory's temperature from which the card lowers its clocks by itself.
    pub memory_slowdown_c: Option<f64>,
}

/// Where a maximum comes from.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Taken {
    /// The setting, which is low enough.
    Setting,
    /// The card's slowdown, at this temperature in °C, less a margin.
    Slowdown(f64),
    /// The card's shutdown, at this temperature in °C, less a margin.
    Shutdown(f64),
}

/// The limits of one sensor, °C: resume < throttle < max.
///
/// ```text
///         normal      |        warm       |   hot    | above for two samples: stop
///   ───────────────resume──────────────throttle─────max───────────────────────────► °C
/// ```
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Span {
    /// Below this, a slowed run runs freely again.
    pub resume_c: f64,
    /// From here on, the run is slowed.
    pub throttle_c: f64,
    /// Above this, the run stops.
    pub max_c: f64,
}

/// How hot a card is, in a word.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Band {
    /// Below the temperature at which a slowed run runs freely again.
    Normal,
    /// Between that and the temperature at which it is slowed.
    Warm,
    /// At the temperature at which it is slowed, or above.
    Hot,
}

impl Span {
    /// The band of a temperature in °C.
    pub fn band(&self, celsius: f64) -> Band {
        if celsius >= self.throttle_c {
            Band::Hot
        } else if celsius >= self.resume_c {
            Band::Warm
        } else {
            Band::Normal
        }
    }

    /// The same span, moved so that its maximum is `max_c`.
    fn with_max(self, max_c: f64) -> Self {
        let by = max_c - self.max_c;
        Self { resume_c: self.resume_c + by, throttle_c: self.throttle_c + by, max_c }
    }
}

/// The limits of one card.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Limits {
    /// Of the die.
    pub core: Span,
    /// Of the memory.
    pub memory: Span,
    /// Of the hottest place of the die.
    pub hotspot: Span,
    /// Where the die's maximum comes from.
    pub core_from: Taken,
    /// Where the memory's maximum comes from.
    pub memory_from: Taken,
}

/// Why settings are no limits.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
pub enum LimitsError {
    /// A temperature at which nothing runs, or nothing should.
    #[error("the {what} of {celsius} °C is not between {low} and {high} °C")]
    OutOfRange {
        /// Which setting.
        what: &'static str,
        /// Its value.
        celsius: f64,
        /// The lowest that is accepted.
        low: f64,
        /// The highest that is accepted.
        high: f64,
    },
    /// Two settings in the wrong order, or too close for sensors to tell apart.
    #[error("the {lower} of {lower_c} °C must be at least {APART_C} °C below the {upper} of {upper_c} °C")]
    Order {
        /// The setting that must be lower.
        lower: &'static str,
        /// Its value.
        lower_c: f64,
        /// The setting that must be higher.
        upper: &'static str,
        /// Its value.
        upper_c: f64,
    },
}

impl Limits {
    /// The limits of a card under these settings. Where the card bears less than they ask for, all three limits of the
    /// sensor move down together, so that what lies between them stays as it was set.
    /// Errors: a setting that is not finite or out of range, or two in the wrong order.
    pub fn new(settings: &Settings, card: &Thresholds) -> Result<Self, LimitsError> {
        let Settings { max_c, throttle_c, resume_c, memory_max_c } = *settings;
        let max = ("maximum temperature", max_c);
        let throttle = ("throttle temperature", throttle_c);
        let resume = ("resume temperature", resume_c);
        let memory = ("maximum temperature of the memory", memory_max_c);
        let (low, high) = SETTINGS_C;
        for (what, celsius) in [max, throttle, resume, memory] {
            if !(low..=high).contains(&celsius) {
                return Err(LimitsError::OutOfRange { what, celsius, low, high });
            }
        }
        for ((lower, lower_c), (upper, upper_c)) in [(resume, throttle), (throttle, max)] {
            if upper_c - lower_c < APART_C {
                return Err(LimitsError::Order { lower, lower_c, upper, upper_c });
            }
        }
        let asked = Span { resume_c, throttle_c, max_c };
        let (core_max_c, core_from) = lowest(max_c, card.slowdown_c, card.shutdown_c);
        let core = asked.with_max(core_max_c);
        let (memory_max_c, memory_from) = lowest(memory_max_c, card.memory_slowdown_c, None);
        let memory = asked.with_max(memory_max_c);
        let hotspot = core.with_max(core_max_c + HOTSPOT_ABOVE_CORE_C);
        Ok(Self { core, memory, hotspot, core_from, memory_from })
    }

    /// The limits of a sensor.
    pub fn of(&self, sensor: Sensor) -> &Span {
        match sensor {
            Sensor::Core => &self.core,
            Sensor::Memory => &self.memory,
            Sensor::Hotspot => &self.hotspot,
        }
    }
}

/// The lowest of a setting and what a card bears, and which it is. Thresholds that can't be temperatures are ignored.
fn lowest(setting_c: f64, slowdown_c: Option<f64>, shutdown_c: Option<f64>) -> (f64, Taken) {
    let plausible = |celsius: &f64| (THRESHOLDS_C.0..=THRESHOLDS_C.1).contains(celsius);
    let slowdown = slowdown_c.filter(plausible).map(|c| (c - BELOW_SLOWDOWN_C, Taken::Slowdown(c)));
    let shutdown = shutdown_c.filter(plausible).map(|c| (c - BELOW_SHUTDOWN_C, Taken::Shutdown(c)));
    let mut lowest = (setting_c, Taken::Setting);
    for told in [slowdown, shutdown].into_iter().flatten() {
        if told.0 < lowest.0 {
            lowest = told;
        }
    }
    lowest
}
