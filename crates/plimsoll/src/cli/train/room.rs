//! Whether the disk has room for the run's checkpoints, before its first step.

use super::Session;
use crate::cli::Failure;
use crate::streams::talk;
use ::plimsoll_train::checkpoint::{list, room};
use ::plimsoll_train::{Engine, Start};
use plimsoll_files::free_space;
use plimsoll_units::Bytes;

/// What a run's checkpoints need of a disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Needs {
    /// What is on the disk at a time, beside what is there already.
    most: u64,
    /// Of these, without which the last one can't be written safely: beside the one before it.
    least: u64,
    /// Old ones that may go for it.
    removable: u64,
}

/// A run that writes so many checkpoints and keeps `keep` of them, where `there` lie already. A new one is written before
/// an old one goes.
fn needs(written: u64, keep: u64, there: u64) -> Needs {
    let at_once = written.saturating_add(there).min(keep.saturating_add(1));
    let least = if there == 0 { written.min(2) } else { 1 };
    Needs { most: at_once.saturating_sub(there).max(1), least, removable: there.saturating_sub(1) }
}

impl Session {
    /// What a checkpoint takes. Errors: there is no room to write one beside the one before it. Says it where there is not for all
    /// that are to be kept. `others`: what else is written before the first step.
    pub(super) fn check_room(&self, engine: &Engine, others: Bytes) -> Result<Bytes, Failure> {
        let folder = self.folder.checkpoints();
        let each = room(engine, &self.trainer.model_folder);
        let Ok(free) = free_space(&folder) else { return Ok(each) };
        let free = Bytes(free.0.saturating_sub(others.0));
        let there = match &self.start {
            Start::Resume(_) => list(&folder)?.len() as u64,
            Start::Fresh | Start::Weights(_) => 0,
        };
        let needs = needs(self.checkpoints_to_come(), self.trainer.keep_checkpoints as u64, there);
        let fit = free.0 / each.0.max(1);
        let (path, written) = (self.folder.path().display(), self.checkpoints_to_come());
        if fit.saturating_add(needs.removable) < needs.least {
            let message = format!("a checkpoint of this run takes {each}, and the disk of {path} has {free} left");
            let failure = Failure::device(message);
            let failure = match fit {
                1.. if written > 1 => failure
                    .hint("`--checkpoint-every 0` writes only the last one; before another, two must fit at a time"),
                _ => failure,
            };
            return Err(failure.hint(format!(
                "free {}, or keep runs on another disk with `--runs-dir PATH`",
                Bytes(each.0.saturating_mul(needs.least).saturating_sub(free.0))
            )));
        }
        if fit < needs.most {
            talk(format_args!(
                "warning: the disk of {path} has {free} left for checkpoints of {each}; where another does not fit, older ones \
                 go first, all but the newest\nhint: `--keep-checkpoints {}` keeps as many as fit",
                fit.saturating_add(there).saturating_sub(1).max(1)
            ));
        }
        Ok(each)
    }

    /// How many checkpoints the run writes at most.
    fn checkpoints_to_come(&self) -> u64 {
        match (self.last_step(), self.trainer.checkpoint_every) {
            (_, None) => 1,
            (Some(last), Some(every)) => last.div_ceil(every),
            (None, Some(_)) => u64::MAX,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_checkpoint_is_written_beside_the_one_before_it() {
        for (written, keep, there, expected) in [
            (1, 3, 0, (1, 1, 0)),
            (2, 3, 0, (2, 2, 0)),
            (9, 3, 0, (4, 2, 0)),
            (9, 1, 0, (2, 2, 0)),
            (9, 3, 1, (3, 1, 0)),
            (9, 3, 3, (1, 1, 2)),
            (u64::MAX, 3, 5, (1, 1, 4)),
            (1, usize::MAX as u64, 0, (1, 1, 0)),
        ] {
            let (most, least, removable) = expected;
            assert_eq!(needs(written, keep, there), Needs { most, least, removable }, "{written} {keep} {there}");
        }
    }
}
