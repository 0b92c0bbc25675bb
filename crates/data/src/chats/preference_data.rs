//! The kinds of preference data. Not here: reading their rows (`preferences.rs`).

use std::fmt;

/// Preference data, by its training method.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PreferenceData {
    /// `chosen` and `rejected`.
    Paired,
    /// `prompt`, `completion` and a boolean `label`.
    Judged,
}

impl fmt::Display for PreferenceData {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Paired => "DPO: its rows have `chosen` and `rejected`",
            Self::Judged => "KTO: its rows have `completion` and `label`",
        })
    }
}
