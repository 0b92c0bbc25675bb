//! What of a card can be set. Not here: how NVML does it (`nvml.rs`).

use serde::{Deserialize, Serialize};

/// Something that can be set. Values are whole: milliwatts of a power limit, MHz of an offset.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Knob {
    /// The power that the card may draw, mW.
    PowerLimit,
    /// What is added to the clock of the multiprocessors at each voltage, MHz.
    ClockOffset,
    /// What is added to the clock of the memory, MHz.
    MemoryClockOffset,
}

impl Knob {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::PowerLimit, Self::ClockOffset, Self::MemoryClockOffset];
}

/// What a card takes of a setting, in its unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Range {
    /// The least.
    pub least: i64,
    /// The most.
    pub most: i64,
    /// What the card comes with, where it tells.
    pub usual: Option<i64>,
}

impl Range {
    /// Whether a value is within.
    pub fn has(&self, value: i64) -> bool {
        (self.least..=self.most).contains(&value)
    }
}

/// Why a card did not tell or take a setting.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum KnobError {
    /// Only an administrator may.
    #[error("no permission")]
    NoPermission,
    /// The card or its driver has no such setting.
    #[error("the card or its driver has no such setting")]
    NotSupported,
    /// There is no driver, or the card does not answer.
    #[error("{reason}")]
    Failed {
        /// What the driver said.
        reason: String,
    },
}

/// A card that can be told something. Each call may fail on its own.
pub trait Knobs: Send {
    /// What the card takes. Errors: it does not tell.
    fn range(&self, knob: Knob) -> Result<Range, KnobError>;

    /// What is set. Errors: it does not tell.
    fn get(&self, knob: Knob) -> Result<i64, KnobError>;

    /// Sets it. The card may round. Errors: it does not take it.
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
