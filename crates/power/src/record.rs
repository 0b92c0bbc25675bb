//! A card's old values and the values that we set: to restore the old ones, and to distinguish our values from those of
//! other processes.

use crate::knob::{Knob, KnobError, Knobs};
use crate::owner::{Life, Owner};
use serde::{Deserialize, Serialize};
use std::io;
use std::path::PathBuf;

/// Version of the record. Other versions are rejected.
pub(crate) const VERSION: u32 = 1;

/// How many of our values to remember: the last ones, and what the card rounded them to.
const OURS: usize = 4;

/// A card's record.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// Version of the record.
    pub v: u32,
    /// The card's UUID.
    pub card: String,
    /// The process that changed the card.
    pub owner: Owner,
    /// The changed settings.
    pub kept: Vec<SavedSetting>,
}

/// A changed setting.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SavedSetting {
    /// The setting.
    pub knob: Knob,
    /// The old value, in its unit.
    pub before: i64,
    /// The values that we have set or are about to set, the newest last.
    pub ours: Vec<i64>,
}

/// Why a record can't be used.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// A system call failed.
    #[error("{path}: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's error.
        #[source]
        source: io::Error,
    },
    /// The file is not a valid record.
    #[error("{path} is damaged: {reason}")]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The reason.
        reason: String,
    },
    /// Another process holds the folder for too long.
    #[error("{path} is in use")]
    Busy {
        /// The folder.
        path: PathBuf,
    },
    /// A card's UUID is invalid.
    #[error("a GPU's UUID can't be {card:?}")]
    BadName {
        /// The UUID.
        card: String,
    },
}

/// The outcome of restoring a setting.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PutBack {
    /// It was restored.
    Done {
        /// The setting.
        knob: Knob,
        /// The restored value.
        value: i64,
    },
    /// It already had the old value.
    Already {
        /// The setting.
        knob: Knob,
    },
    /// Another process changed it meanwhile, so it is not touched.
    ChangedByOthers {
        /// The setting.
        knob: Knob,
        /// The current value.
        now: i64,
        /// The old value.
        before: i64,
    },
    /// The machine was rebooted, which reset the card.
    Forgotten {
        /// The setting.
        knob: Knob,
    },
    /// The card rejected it. It will be retried.
    Failed {
        /// The setting.
        knob: Knob,
        /// The old value.
        before: i64,
        /// The card's error.
        error: KnobError,
    },
}

impl SavedSetting {
    /// Records a value that is about to be set.
    pub(crate) fn will_be(&mut self, value: i64) {
        self.ours.retain(|known| *known != value);
        self.ours.push(value);
        let surplus = self.ours.len().saturating_sub(OURS);
        self.ours.drain(..surplus);
    }

    /// Whether a value is ours or the old one.
    pub(crate) fn knows(&self, value: i64) -> bool {
        value == self.before || self.ours.contains(&value)
    }

    fn put_back(&self, card: &dyn Knobs) -> PutBack {
        let Self { knob, before, .. } = *self;
        let failed = |error| PutBack::Failed { knob, before, error };
        match card.get(knob) {
            Err(error) => failed(error),
            Ok(now) if now == before => PutBack::Already { knob },
            Ok(now) if !self.ours.contains(&now) => PutBack::ChangedByOthers { knob, now, before },
            Ok(_) => match card.set(knob, before) {
                Ok(()) => PutBack::Done { knob, value: before },
                Err(error) => failed(error),
            },
        }
    }
}

impl Record {
    /// The error in a record for this card; `None` if it is valid.
    pub(crate) fn problem(&self, card: &str) -> Option<&'static str> {
        let mut knobs = self.kept.iter().map(|kept| kept.knob).collect::<Vec<_>>();
        knobs.sort_unstable();
        match self {
            _ if self.v != VERSION => Some("it has another version"),
            _ if self.card != card => Some("it is for another GPU"),
            _ if knobs.windows(2).any(|pair| pair[0] == pair[1]) => Some("it contains a setting twice"),
            _ => None,
        }
    }

    /// Restores all settings that still have our values. Failed ones stay in the record.
    pub(crate) fn put_back(&mut self, card: &dyn Knobs) -> Vec<PutBack> {
        let is_forgotten = self.owner.life() == Life::BeforeReboot;
        // Restore the power limit last: clock offsets are the risky settings.
        let mut kept = std::mem::take(&mut self.kept);
        kept.sort_by_key(|kept| std::cmp::Reverse(kept.knob));
        let back = |kept: &SavedSetting| match is_forgotten {
            true => PutBack::Forgotten { knob: kept.knob },
            false => kept.put_back(card),
        };
        let done = kept.iter().map(back).collect::<Vec<_>>();
        let failed = |outcome: &PutBack| matches!(outcome, PutBack::Failed { .. });
        self.kept = kept.into_iter().zip(&done).filter(|(_, outcome)| failed(outcome)).map(|(kept, _)| kept).collect();
        done
    }
}
