//! The run's history from its journal: the losses per step, along the branches that lead to its current state, and the
//! step times of its last session. A session stores neither, so that its memory does not grow with its steps.

use crate::checkpoint::CheckpointError;
use crate::{Evaluation, MemoryAtStep, TrainError};
use plimsoll_telemetry::{Event, JournalError, Lineage, Record, for_each_record};
use std::path::Path;

/// How many losses may be missing, as after the journal was lost. A checkpoint that claims more is not trusted: its
/// step determines the length of the list of losses.
const MOST_MISSING: u64 = 1 << 24;

/// Losses up to a step.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct History {
    /// The loss of each step from the first; `None` if the journal lost it.
    pub losses: Vec<Option<f64>>,
    /// Held-out losses.
    pub eval: Vec<Evaluation>,
    /// Milliseconds per step since the last start or resume.
    pub step_ms: Vec<f64>,
    /// Tokens per second of the same steps.
    pub tokens_per_s: Vec<f64>,
    /// The memory at steps whose numbers are powers of ten, and at the last one.
    pub memory: Vec<MemoryAtStep>,
    /// Number of steps without a loss.
    missing: u64,
}

fn is_power_of_ten(step: u64) -> bool {
    10_u64.checked_pow(step.max(1).ilog10()) == Some(step)
}

impl History {
    /// Reads the steps of `lineage` from a journal, up to the step of the checkpoint at `checkpoint`.
    /// Errors: the journal can't be read; `NoHistory`.
    pub fn read(journal: &Path, lineage: &Lineage, last: u64, checkpoint: &Path) -> Result<Self, TrainError> {
        let mut history = Self::read_known(journal, lineage, last)?;
        let known = history.losses.len() as u64 - history.missing;
        if last - known > MOST_MISSING {
            let path = checkpoint.to_owned();
            return Err(CheckpointError::NoHistory { path, step: last, known, most: MOST_MISSING }.into());
        }
        history.losses.resize(last as usize, None);
        Ok(history)
    }

    /// Like [`read`](Self::read), without a checkpoint that determines the length: up to the last step in the journal.
    /// Errors: the journal can't be read.
    pub fn read_known(journal: &Path, lineage: &Lineage, last: u64) -> Result<Self, JournalError> {
        let mut history = Self::default();
        for_each_record(journal, |record| history.take(lineage, last, &record))?;
        Ok(history)
    }

    fn take(&mut self, lineage: &Lineage, last: u64, record: &Record) {
        let is_ours = |step: u64| step <= last && lineage.has(record.branch, step);
        match record.event {
            Event::RunStarted { .. } => (self.step_ms, self.tokens_per_s) = (vec![], vec![]),
            Event::Step { step, step_ms, tokens_per_s, memory_bytes, .. } if is_ours(step) => {
                self.memory.retain(|known| known.step < step && is_power_of_ten(known.step));
                self.memory.push(MemoryAtStep { step, memory_bytes });
                self.step_ms.push(step_ms);
                self.tokens_per_s.push(tokens_per_s);
            }
            _ => {}
        }
        match record.event {
            // A session repeats steps that an earlier one made after the same checkpoint.
            Event::RunStarted { first_step, .. } if is_ours(first_step) => self.forget_from(first_step),
            Event::Step { step, loss, .. } | Event::UpdateSkipped { step, loss, .. } if is_ours(step) => {
                self.set(step, loss);
            }
            Event::Evaluated { step, loss, average_loss, .. } if is_ours(step) => {
                self.eval.retain(|e| e.step != step);
                self.eval.push(Evaluation { step, loss, average_loss });
            }
            _ => {}
        }
    }

    fn forget_from(&mut self, step: u64) {
        self.losses.truncate(step.saturating_sub(1) as usize);
        self.missing = self.losses.iter().filter(|loss| loss.is_none()).count() as u64;
        self.eval.retain(|e| e.step < step);
        self.memory.retain(|known| known.step < step);
    }

    fn set(&mut self, step: u64, loss: f64) {
        // Steps count from 1, but the journal is untrusted.
        let Some(index) = step.checked_sub(1) else { return };
        let length = self.losses.len() as u64;
        if step > length {
            let between = index - length;
            if self.missing + between > MOST_MISSING {
                return;
            }
            self.missing += between + 1;
            self.losses.resize(step as usize, None);
        }
        if self.losses[index as usize].replace(loss).is_none() {
            self.missing -= 1;
        }
    }
}
