//! What is said of the disk's room for checkpoints before the first step.

use crate::cli::Failure;
use crate::streams::talk;
use plimsoll_session::DiskRoom;
use std::path::Path;

/// Errors: there is no room to write a checkpoint next to the one before it. Warns if there is not for all that are to be kept.
pub(super) fn check_room(room: &DiskRoom, run: &Path) -> Result<(), Failure> {
    let DiskRoom { checkpoint, free, fit, written, .. } = room;
    let path = run.display();
    if let Some(lacking) = room.lacking() {
        let message = format!("a checkpoint of this run takes {checkpoint}, and the disk of {path} has {free} left");
        let failure = Failure::device(message);
        let failure = match fit {
            1.. if *written > 1 => {
                failure.hint("`--checkpoint-every 0` writes only the last one; before another, two must fit at a time")
            }
            _ => failure,
        };
        return Err(failure.hint(format!("free {lacking}, or keep runs on another disk with `--runs-dir PATH`")));
    }
    if let Some(keeps) = room.keeps_fewer() {
        talk(format_args!(
            "warning: the disk of {path} has {free} left for checkpoints of {checkpoint}; where another does not fit, older ones \
             go first, all but the newest\nhint: `--keep-checkpoints {keeps}` keeps as many as fit"
        ));
    }
    Ok(())
}
