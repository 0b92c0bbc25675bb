//! Whether the disk has room for the run's checkpoints, before its first step.

use crate::observer::Setup;
use plimsoll_files::free_space;
use plimsoll_train::checkpoint::{CheckpointError, list, room};
use plimsoll_train::{Engine, Start};
use plimsoll_units::Bytes;

/// Room for a run's checkpoints on its disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DiskRoom {
    /// Size of a checkpoint.
    pub checkpoint: Bytes,
    /// Free bytes of the disk, less what is written before the first step.
    pub free: Bytes,
    /// Checkpoints that fit in the free bytes.
    pub fit: u64,
    /// Checkpoints that the run writes, at most.
    pub written: u64,
    /// Checkpoints that are there already.
    pub there: u64,
    needs: Needs,
}

impl DiskRoom {
    /// `None` if the system does not say how much is free. `others`: bytes that are written before the first step.
    pub(crate) fn of<B>(setup: &Setup<'_, B>, engine: &Engine, others: Bytes) -> Result<Option<Self>, CheckpointError> {
        let folder = setup.folder.checkpoints();
        let checkpoint = room(engine, &setup.trainer.model_folder);
        let Ok(free) = free_space(&folder) else { return Ok(None) };
        let free = Bytes(free.0.saturating_sub(others.0));
        let there = match setup.start {
            Start::Resume(_) => list(&folder)?.len() as u64,
            Start::Fresh | Start::Weights(_) => 0,
        };
        let written = match (setup.last_step(), setup.trainer.checkpoint_every) {
            (_, None) => 1,
            (Some(last), Some(every)) => last.div_ceil(every),
            (None, Some(_)) => u64::MAX,
        };
        let needs = needs(written, setup.trainer.keep_checkpoints as u64, there);
        Ok(Some(Self { checkpoint, free, fit: free.0 / checkpoint.0.max(1), written, there, needs }))
    }

    /// Bytes that must become free before the run can save its state safely; `None` if there is room.
    pub fn lacking(&self) -> Option<Bytes> {
        let Self { checkpoint, free, fit, needs, .. } = self;
        let is_room = fit.saturating_add(needs.removable) >= needs.least;
        (!is_room).then(|| Bytes(checkpoint.0.saturating_mul(needs.least).saturating_sub(free.0)))
    }

    /// How many checkpoints the run can keep, if that is fewer than it is asked to.
    pub fn keeps_fewer(&self) -> Option<u64> {
        (self.fit < self.needs.most).then(|| self.fit.saturating_add(self.there).saturating_sub(1).max(1))
    }
}

/// How many checkpoints of a run need room on a disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Needs {
    /// On the disk at a time, in addition to those that are there already.
    most: u64,
    /// Of these, the ones without which the last one can't be written safely, next to the one before it.
    least: u64,
    /// Old ones that may be removed for it.
    removable: u64,
}

/// Of a run that writes `written` checkpoints and keeps `keep` of them, if `there` are on the disk already. A new one is written
/// before an old one is removed.
fn needs(written: u64, keep: u64, there: u64) -> Needs {
    let at_once = written.saturating_add(there).min(keep.saturating_add(1));
    let least = if there == 0 { written.min(2) } else { 1 };
    Needs { most: at_once.saturating_sub(there).max(1), least, removable: there.saturating_sub(1) }
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
