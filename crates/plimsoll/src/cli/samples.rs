//! Messages about samples of GPUs and machine that could not be written to a run's folder.

use crate::streams::talk;
use std::io;

pub(super) fn say_not_kept(error: &io::Error) {
    talk(format_args!("note: samples are not saved: {error}"));
}

pub(super) fn say_lost(error: &io::Error) {
    talk(format_args!("warning: samples of the GPU and the system are no longer saved: {error}"));
}
