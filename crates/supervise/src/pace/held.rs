//! Processes that are stopped for a while, and go on again. Who stopped them for heat is written down in the run's folder before
//! it is done: where the supervisor is killed meanwhile, the keeper lets them go on, or the supervisor that comes next.
//! What a person stopped is not in that file, and stays stopped.

use crate::processes::{Group, Process, Row};
use crate::stop::signal_process;
use plimsoll_files::read_trusted;
use plimsoll_units::Bytes;
use rustix::process::Signal;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Looks at processes that may have been started while the others were stopped.
const LOOKS: u32 = 5;

/// Far more than such a file has.
const LONGEST: Bytes = Bytes::mib(1);

/// Processes that were stopped for heat.
#[derive(Debug)]
pub(crate) struct Held {
    path: PathBuf,
    leader: Process,
    /// In the order in which they were stopped.
    stopped: Vec<Process>,
    since: Instant,
}

impl Held {
    /// Stops what runs of a worker's processes. Beside it comes why that is not written down, if it is not: then they stay
    /// stopped if this process is killed.
    pub(crate) fn new(folder: &Path, worker: usize, group: &Group) -> (Self, io::Result<()>) {
        let path = path(folder, worker);
        let mut record = File::create(&path);
        let mut written = Ok(());
        let stopped = stop_each(group, |processes| {
            let lines = processes.iter().map(|process| format!("{} {}\n", process.pid, process.started));
            let lines = lines.collect::<String>();
            // Not synced: what outlives this process is in memory, and after a power cut nothing is stopped.
            if let Ok(record) = &mut record {
                written = std::mem::replace(&mut written, Ok(())).and(record.write_all(lines.as_bytes()));
            }
        });
        let written = record.map(drop).and(written);
        (Self { path, leader: group.leader.clone(), stopped, since: Instant::now() }, written)
    }

    /// Lets them go on; returns how long they were stopped.
    pub(crate) fn release(self) -> Duration {
        continue_each(&self.leader, &self.stopped);
        self.leave()
    }

    /// Leaves them stopped, for a person; returns how long they were.
    pub(crate) fn leave(self) -> Duration {
        // What stays names processes that run then, which can be let go on at any time.
        let _ = fs::remove_file(&self.path);
        self.since.elapsed()
    }
}

fn path(folder: &Path, worker: usize) -> PathBuf {
    folder.join(format!("held-{worker}"))
}

/// Lets go on what a supervisor stopped for heat that was killed before it did so. `leader`: the worker's first process.
pub(crate) fn release_left(folder: &Path, worker: usize, leader: &Process) {
    let path = path(folder, worker);
    let Ok(bytes) = read_trusted(&path, LONGEST) else { return };
    continue_each(leader, &parse(&String::from_utf8_lossy(&bytes)));
    let _ = fs::remove_file(&path);
}

/// The processes of a record; what is no whole line is left out.
fn parse(record: &str) -> Vec<Process> {
    let lines = record.split_inclusive('\n').filter_map(|line| line.strip_suffix('\n')?.split_once(' '));
    lines.filter_map(|(pid, started)| Some(Process { pid: pid.parse().ok()?, started: started.to_owned() })).collect()
}

/// Stops all processes of a worker that run, as a person asks for it.
pub(crate) fn stop_all(group: &Group) {
    stop_each(group, |_| {});
}

/// Lets all processes of a worker go on.
pub(crate) fn continue_all(group: &Group) {
    let mut rows = group.members().into_iter().map(|member| member.row).collect::<Vec<_>>();
    rows.sort_by_key(|row| (row.started, row.pid));
    continue_each(&group.leader, &rows.iter().map(process).collect::<Vec<_>>());
}

fn process(row: &Row) -> Process {
    Process { pid: row.pid, started: row.started.to_string() }
}

/// Stops what runs, the oldest first: a parent is stopped before its children, so that it sees none of them stopped. `tell` is
/// told of processes before they are stopped. Returns them.
fn stop_each(group: &Group, mut tell: impl FnMut(&[Process])) -> Vec<Process> {
    if !cfg!(target_os = "linux") {
        let leader = vec![group.leader.clone()];
        tell(&leader);
        group.signal(Signal::STOP);
        return leader;
    }
    let mut stopped = Vec::new();
    for _ in 0..LOOKS {
        let mut rows = group.members().into_iter().map(|member| member.row).collect::<Vec<_>>();
        rows.retain(|row| !row.is_stopped && !stopped.contains(&process(row)));
        if rows.is_empty() {
            break;
        }
        rows.sort_by_key(|row| (row.started, row.pid));
        let new = rows.iter().map(process).collect::<Vec<_>>();
        tell(&new);
        new.iter().for_each(|process| signal_process(process, Signal::STOP));
        stopped.extend(new);
    }
    stopped
}

/// Lets processes go on, the youngest first: a child runs before its parent looks for it.
fn continue_each(leader: &Process, stopped: &[Process]) {
    if !cfg!(target_os = "linux") {
        // Of the others nothing is known but their group.
        Group { leader: leader.clone(), mark: String::new(), keeper: None }.signal(Signal::CONT);
        return;
    }
    stopped.iter().rev().for_each(|process| signal_process(process, Signal::CONT));
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_line_that_was_not_written_to_its_end_is_left_out() {
        let process = |pid, started: &str| Process { pid, started: started.to_owned() };
        assert_eq!(parse("7 120\n8 130\n9 14"), [process(7, "120"), process(8, "130")]);
        assert_eq!(parse("\n7\nx 1\n-1 2\n"), []);
    }

    proptest! {
        #[test]
        fn no_record_is_too_odd(text in ".{0,200}") {
            let _ = parse(&text);
        }
    }
}
