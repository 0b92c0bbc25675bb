//! What a card had before something was set, and what it has from us since: what is needed to put it back, and to tell our
//! settings from those of somebody else.

use crate::knob::{Knob, KnobError, Knobs};
use crate::owner::{Life, Owner};
use serde::{Deserialize, Serialize};
use std::io;
use std::path::PathBuf;

/// Version of the record; another one's is not read.
pub(crate) const VERSION: u32 = 1;

/// How many of our own values are known again: the last one, the one before, and what the card made of it.
const OURS: usize = 4;

/// A card's record.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// Version of the record.
    pub v: u32,
    /// The card's UUID.
    pub card: String,
    /// Who set something.
    pub owner: Owner,
    /// What was set.
    pub kept: Vec<Kept>,
}

/// A setting before and since.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Kept {
    /// Which.
    pub knob: Knob,
    /// What was there before, in its unit.
    pub before: i64,
    /// What was set since, or is about to be, the newest last.
    pub ours: Vec<i64>,
}

/// Why a record can't be used.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// The system refused.
    #[error("{path}: {source}")]
    Io {
        /// What was read or written.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// What is there is no record.
    #[error("{path} is damaged: {reason}")]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// Somebody has the folder for longer than anybody needs it.
    #[error("{path} is in use")]
    Busy {
        /// The folder.
        path: PathBuf,
    },
    /// A card's UUID is not one.
    #[error("a card's UUID can't be {card:?}")]
    BadName {
        /// What it says it is.
        card: String,
    },
}

/// What came of putting a setting back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PutBack {
    /// It is as it was.
    Done {
        /// Which.
        knob: Knob,
        /// What it is again.
        value: i64,
    },
    /// It was so already.
    Already {
        /// Which.
        knob: Knob,
    },
    /// Somebody else changed it meanwhile: it is left as it is.
    ChangedByOthers {
        /// Which.
        knob: Knob,
        /// What it is now.
        now: i64,
        /// What it was before ours.
        before: i64,
    },
    /// The machine was started again since, so that the card has forgotten it.
    Forgotten {
        /// Which.
        knob: Knob,
    },
    /// The card did not take it; it will be tried again.
    Failed {
        /// Which.
        knob: Knob,
        /// What it was before.
        before: i64,
        /// What the card said.
        error: KnobError,
    },
}

impl Kept {
    /// Another value of ours is about to be set.
    pub(crate) fn will_be(&mut self, value: i64) {
        self.ours.retain(|known| *known != value);
        self.ours.push(value);
        let surplus = self.ours.len().saturating_sub(OURS);
        self.ours.drain(..surplus);
    }

    /// Whether a value is ours, or what was there before.
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
    /// What is wrong with a record that is to be of this card.
    pub(crate) fn problem(&self, card: &str) -> Option<&'static str> {
        let mut knobs = self.kept.iter().map(|kept| kept.knob).collect::<Vec<_>>();
        knobs.sort_unstable();
        match self {
            _ if self.v != VERSION => Some("it is of another version"),
            _ if self.card != card => Some("it is of another card"),
            _ if knobs.windows(2).any(|pair| pair[0] == pair[1]) => Some("it has a setting twice"),
            _ => None,
        }
    }

    /// Puts everything back that is still ours; what failed stays in the record.
    pub(crate) fn put_back(&mut self, card: &dyn Knobs) -> Vec<PutBack> {
        let is_forgotten = self.owner.life() == Life::BeforeReboot;
        // The power limit last: offsets are what may harm.
        let mut kept = std::mem::take(&mut self.kept);
        kept.sort_by_key(|kept| std::cmp::Reverse(kept.knob));
        let back = |kept: &Kept| match is_forgotten {
            true => PutBack::Forgotten { knob: kept.knob },
            false => kept.put_back(card),
        };
        let done = kept.iter().map(back).collect::<Vec<_>>();
        let failed = |came: &PutBack| matches!(came, PutBack::Failed { .. });
        self.kept = kept.into_iter().zip(&done).filter(|(_, came)| failed(came)).map(|(kept, _)| kept).collect();
        done
    }
}
