//! Checks the disk space for checkpoints before the first step.

use crate::cli::Failure;
use crate::streams::talk;
use plimsoll_session::DiskRoom;
use std::path::Path;

/// Errors: no space for a checkpoint in addition to the one before it. Warns if the checkpoints to keep do not all fit.
pub(super) fn check_room(room: &DiskRoom, run: &Path) -> Result<(), Failure> {
    let DiskRoom { checkpoint, free, fit, written, .. } = room;
    let path = run.display();
    if let Some(lacking) = room.lacking() {
        let message = format!("a checkpoint of this run needs {checkpoint}, but the disk of {path} has {free} free");
        let failure = Failure::device(message);
        let failure = match fit {
            1.. if *written > 1 => {
                failure.hint("`--checkpoint-every 0` writes only the last one; otherwise two must fit at a time")
            }
            _ => failure,
        };
        return Err(failure.hint(format!("free {lacking}, or store runs on another disk with `--runs-dir PATH`")));
    }
    if let Some(keeps) = room.keeps_fewer() {
        talk(format_args!(
            "warning: the disk of {path} has {free} free for checkpoints of {checkpoint}; if another does not fit, older ones \
             are deleted, except the newest\nhint: `--keep-checkpoints {keeps}` keeps as many as fit"
        ));
    }
    Ok(())
}
