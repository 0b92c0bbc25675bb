//! Data of preferences, which can't be trained on. Not here: how it is detected (`format.rs`, `detect.rs`).

use std::fmt;

/// Preference data, by its training method.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Preferences {
    /// `chosen` and `rejected`.
    Dpo,
    /// `prompt`, `completion` and a boolean `label`.
    Kto,
}

impl fmt::Display for Preferences {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Dpo => "DPO: its rows have `chosen` and `rejected`",
            Self::Kto => "KTO: its rows have `completion` and `label`",
        })
    }
}
