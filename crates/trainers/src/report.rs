//! What reading a trainer's settings reports about their keys.

use crate::kind::TrainerKind;
use crate::unsure::Effect;

/// A key that was used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UsedKey {
    /// The trainer or layer.
    pub kind: TrainerKind,
    /// The key with underscores. Dots separate nested keys.
    pub key: String,
    /// The value, for display.
    pub value: String,
    /// The line, from 1; `None` for an argument.
    pub line: Option<u64>,
}

/// An unknown key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnknownKey {
    /// The trainer or layer.
    pub kind: TrainerKind,
    /// The key.
    pub key: String,
    /// The line, from 1; `None` for an argument.
    pub line: Option<u64>,
    /// The known key with a similar spelling, if any.
    pub near: Option<String>,
}

/// A key that affects memory and is not modeled exactly.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnmodeledKey {
    /// The trainer or layer.
    pub kind: TrainerKind,
    /// The key.
    pub key: String,
    /// The line, from 1; `None` for an argument.
    pub line: Option<u64>,
    /// How the memory needed may differ from the estimate.
    pub effect: Effect,
    /// What it does, and how it is counted instead.
    pub why: String,
}

/// An invalid value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BadValue {
    /// The trainer or layer.
    pub kind: TrainerKind,
    /// The key.
    pub key: String,
    /// The line, from 1; `None` for an argument.
    pub line: Option<u64>,
    /// The error.
    pub what: String,
}
