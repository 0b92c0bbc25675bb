//! Words for samples of cards and machine that are not kept in a run's folder.

use crate::streams::talk;
use std::io;

pub(super) fn say_not_kept(error: &io::Error) {
    talk(format_args!("note: samples are not kept: {error}"));
}

pub(super) fn say_lost(error: &io::Error) {
    talk(format_args!("warning: samples of the card and the system are no longer kept: {error}"));
}
