//! The files of a run's folder with its programs' output.

use crate::progress::{Progress, last_progress};
use plimsoll_files::read_end_inside;
use plimsoll_units::Bytes;
use std::path::{Path, PathBuf};

/// Path of a worker's output in a run's folder.
pub fn output_of(folder: &Path, worker: usize, workers: usize) -> PathBuf {
    folder.join(if workers == 1 { "output.log".to_owned() } else { format!("output-{worker}.log") })
}

/// How much of the end of an output is searched for progress.
const END: Bytes = Bytes(16 << 10);

/// Progress of the slowest worker of a run, read from its output.
pub fn progress_of(folder: &Path, workers: usize) -> Option<Progress> {
    let outputs = (0..workers).map(|worker| output_of(folder, worker, workers));
    outputs.map(|output| last_progress(&read_end_inside(&output, 1, END).ok()?)).min().flatten()
}
