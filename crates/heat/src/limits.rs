//! Temperature limits at which a card is slowed, resumed and stopped: the user's settings, capped by the card's own
//! thresholds.
//! Not here: the reaction to exceeded limits. Read next: `guard.rs`.

use crate::reading::Sensor;

/// Margin between the card's slowdown threshold and the maximum, °C. At its slowdown threshold a card halves its
/// clocks, which is slower than a duty that keeps the card below the threshold. Sensors report whole degrees.
const BELOW_SLOWDOWN_C: f64 = 2.0;

/// Margin between the card's shutdown threshold and the maximum, °C, for cards that report no slowdown threshold.
/// ADLINK's manual of the EGX-MXM-RTX5000 (table 1-4) puts the slowdown 5 °C below the shutdown; the other 2 °C are the
/// margin above.
const BELOW_SHUTDOWN_C: f64 = 7.0;

/// How much hotter than the die's mean its hottest point may be, °C. 10 to 15 °C are usual under load; more than 20 °C
/// means poor contact with the cooler.
const HOTSPOT_ABOVE_CORE_C: f64 = 20.0;

/// Accepted range of the settings, °C. Cards idle below it, and silicon is not rated above it.
const SETTINGS_C: (f64, f64) = (30.0, 120.0);

/// Plausible range of the thresholds that a card reports, °C. Values outside of it are ignored.
const THRESHOLDS_C: (f64, f64) = (50.0, 130.0);

/// Smallest distance between two limits, °C. Sensors report whole degrees and cannot resolve less.
const APART_C: f64 = 1.0;

/// The user's temperature settings, °C.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Settings {
    /// The run stops when the die is above this temperature.
    pub max_c: f64,
    /// The run slows down when the die reaches this temperature, and is then held at it.
    pub throttle_c: f64,
    /// A slowed run returns to full speed when the die is below this temperature.
    pub resume_c: f64,
    /// The run stops when the memory is above this temperature. The memory's throttle and resume temperatures keep the
    /// same distances to the maximum as the die's.
    pub memory_max_c: f64,
}

impl Default for Settings {
    fn default() -> Self {
        Self { max_c: 83.0, throttle_c: 78.0, resume_c: 70.0, memory_max_c: 100.0 }
    }
}

/// Thresholds that a card reports about itself, °C.
#[derive(Debug, Default, Clone, Copy, PartialEq)]
pub struct Thresholds {
    /// Die temperature at which the card lowers its own clocks.
    pub slowdown_c: Option<f64>,
    /// Die temperature at which the card shuts down.
    pub shutdown_c: Option<f64>,
    /// Memory temperature at which the card lowers its own clocks.
    pub memory_slowdown_c: Option<f64>,
}

/// Source of a maximum.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum LimitSource {
    /// The user's setting, which is below the card's thresholds.
    Setting,
    /// The card's slowdown threshold, given here in °C, minus a margin.
    Slowdown(f64),
    /// The card's shutdown threshold, given here in °C, minus a margin.
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
    /// A slowed run returns to full speed below this temperature.
    pub resume_c: f64,
    /// The run slows down at or above this temperature.
    pub throttle_c: f64,
    /// The run stops above this temperature.
    pub max_c: f64,
}

/// How hot a card is, relative to its limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Band {
    /// Below the resume temperature.
    Normal,
    /// Between the resume and the throttle temperature.
    Warm,
    /// At or above the throttle temperature.
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

    /// The same span, shifted so that its maximum is `max_c`.
    fn with_max(self, max_c: f64) -> Self {
        let by = max_c - self.max_c;
        Self { resume_c: self.resume_c + by, throttle_c: self.throttle_c + by, max_c }
    }
}

/// The limits of one card.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Limits {
    /// Limits of the die.
    pub core: Span,
    /// Limits of the memory.
    pub memory: Span,
    /// Limits of the hottest point of the die.
    pub hotspot: Span,
    /// Source of the die's maximum.
    pub core_from: LimitSource,
    /// Source of the memory's maximum.
    pub memory_from: LimitSource,
}

/// Why settings were rejected.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
pub enum LimitsError {
    /// A temperature outside of the accepted range.
    #[error("the {what} of {celsius} °C is not between {low} and {high} °C")]
    OutOfRange {
        /// Name of the setting.
        what: &'static str,
        /// Its value.
        celsius: f64,
        /// Lowest accepted value.
        low: f64,
        /// Highest accepted value.
        high: f64,
    },
    /// Two settings in the wrong order, or too close for the sensors to resolve.
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
    /// The limits of a card for these settings. If the card's thresholds are lower than the settings, all three limits
    /// of a sensor move down together and keep their distances.
    /// Errors: a setting that is not finite or out of range, or two in the wrong order.
    pub fn new(settings: &Settings, card: &Thresholds) -> Result<Self, LimitsError> {
        let Settings { max_c, throttle_c, resume_c, memory_max_c } = *settings;
        let max = ("maximum temperature", max_c);
        let throttle = ("throttle temperature", throttle_c);
        let resume = ("resume temperature", resume_c);
        let memory = ("maximum memory temperature", memory_max_c);
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

/// The lowest of the setting and the card's thresholds, and its source. Implausible thresholds are ignored.
fn lowest(setting_c: f64, slowdown_c: Option<f64>, shutdown_c: Option<f64>) -> (f64, LimitSource) {
    let plausible = |celsius: &f64| (THRESHOLDS_C.0..=THRESHOLDS_C.1).contains(celsius);
    let slowdown = slowdown_c.filter(plausible).map(|c| (c - BELOW_SLOWDOWN_C, LimitSource::Slowdown(c)));
    let shutdown = shutdown_c.filter(plausible).map(|c| (c - BELOW_SHUTDOWN_C, LimitSource::Shutdown(c)));
    let mut lowest = (setting_c, LimitSource::Setting);
    for threshold in [slowdown, shutdown].into_iter().flatten() {
        if threshold.0 < lowest.0 {
            lowest = threshold;
        }
    }
    lowest
}
