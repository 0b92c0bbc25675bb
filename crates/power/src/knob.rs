//! Settings of a card. Not here: the calls of NVML (`nvml.rs`).

use serde::{Deserialize, Serialize};

/// A setting. Values are integers: milliwatts for the power limit, MHz for an offset.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Knob {
    /// The power limit, mW.
    PowerLimit,
    /// The offset of the multiprocessor clock at each voltage, MHz.
    ClockOffset,
    /// The offset of the memory clock, MHz.
    MemoryClockOffset,
}

impl Knob {
    /// All settings.
    pub const ALL: [Self; 3] = [Self::PowerLimit, Self::ClockOffset, Self::MemoryClockOffset];
}

/// The range of a setting, in its unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Range {
    /// The minimum.
    pub min: i64,
    /// The maximum.
    pub max: i64,
    /// The card's default, if it reports one.
    pub default: Option<i64>,
}

impl Range {
    /// Whether a value is in the range.
    pub fn has(&self, value: i64) -> bool {
        (self.min..=self.max).contains(&value)
    }
}

/// Why reading or changing a setting failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum KnobError {
    /// Only an administrator may change it.
    #[error("no permission")]
    NoPermission,
    /// The card or its driver has no such setting.
    #[error("the GPU or its driver has no such setting")]
    NotSupported,
    /// There is no driver, or the card does not answer.
    #[error("{reason}")]
    Failed {
        /// The driver's error.
        reason: String,
    },
}

/// A card with settings. Each call may fail on its own.
pub trait Knobs: Send {
    /// The range of a setting. Errors: the card does not report it.
    fn range(&self, knob: Knob) -> Result<Range, KnobError>;

    /// The current value. Errors: the card does not report it.
    fn get(&self, knob: Knob) -> Result<i64, KnobError>;

    /// Changes a value. The card may round it. Errors: the card rejects it.
    fn set(&self, knob: Knob, value: i64) -> Result<(), KnobError>;
}

impl<K: Knobs + ?Sized> Knobs for Box<K> {
    fn range(&self, knob: Knob) -> Result<Range, KnobError> {
        (**self).range(knob)
    }

    fn get(&self, knob: Knob) -> Result<i64, KnobError> {
        (**self).get(knob)
    }

    fn set(&self, knob: Knob, value: i64) -> Result<(), KnobError> {
        (**self).set(knob, value)
    }
}
