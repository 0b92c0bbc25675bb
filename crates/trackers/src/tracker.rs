//! The list of trackers.

use std::fmt;
use std::str::FromStr;

/// A tool that Plimsoll writes metrics for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Tracker {
    /// TensorBoard's event files.
    TensorBoard,
    /// An offline run of Weights & Biases.
    Wandb,
    /// MLflow's file store, or its server.
    Mlflow,
    /// JSON lines, one per log.
    Jsonl,
    /// Comma-separated values.
    Csv,
}

/// An unknown tracker name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown tracker `{name}`; expected one of {}", Tracker::ALL.map(Tracker::name).join(", "))]
pub struct UnknownTracker {
    /// The name as given.
    pub name: String,
}

impl Tracker {
    /// All trackers.
    pub const ALL: [Self; 5] = [Self::TensorBoard, Self::Wandb, Self::Mlflow, Self::Jsonl, Self::Csv];

    /// Its name in settings.
    pub fn name(self) -> &'static str {
        match self {
            Self::TensorBoard => "tensorboard",
            Self::Wandb => "wandb",
            Self::Mlflow => "mlflow",
            Self::Jsonl => "jsonl",
            Self::Csv => "csv",
        }
    }
}

impl fmt::Display for Tracker {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name())
    }
}

impl FromStr for Tracker {
    type Err = UnknownTracker;

    fn from_str(text: &str) -> Result<Self, UnknownTracker> {
        let name = text.trim().to_ascii_lowercase();
        let known = Self::ALL.into_iter().find(|tracker| tracker.name() == name);
        known.ok_or_else(|| UnknownTracker { name: text.to_owned() })
    }
}
