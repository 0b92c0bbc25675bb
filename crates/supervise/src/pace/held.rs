//! Stops processes for heat and continues them. Records the processes in the run's folder before stopping them: if the
//! supervisor is killed meanwhile, the keeper or the next supervisor continues them. Processes that the user paused are
//! not in that file and stay stopped.

use plimsoll_files::read_trusted;
use plimsoll_registry::{Group, Process, Row};
use plimsoll_units::Bytes;
use rustix::process::Signal;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How often to look for processes that were started while others were being stopped.
const LOOKS: u32 = 5;

/// How often to look whether the processes are still stopped.
const AGAIN: Duration = Duration::from_secs(1);

/// Size limit of the record; real ones are far smaller.
const LONGEST: Bytes = Bytes::mib(1);

/// Processes that were stopped for heat.
#[derive(Debug)]
pub(crate) struct Held {
    path: PathBuf,
    leader: Process,
    /// In the order of stopping.
    stopped: Vec<Process>,
    since: Instant,
    looked: Instant,
}

impl Held {
    /// Stops a worker's running processes. Also returns whether the record was written: without it, they stay stopped
    /// if this process is killed.
    pub(crate) fn new(folder: &Path, worker: usize, group: &Group) -> (Self, io::Result<()>) {
        let path = path(folder, worker);
        // What a killed supervisor left is of no use any more.
        let _ = fs::remove_file(&path);
        let now = Instant::now();
        let mut held = Self { path, leader: group.leader.clone(), stopped: vec![], since: now, looked: now };
        let written = held.stop(group);
        (held, written)
    }

    /// Stops the worker's processes that run again: another program may have continued them, and new ones may have started.
    /// Errors: the record can't be written.
    pub(crate) fn keep(&mut self, group: &Group) -> io::Result<()> {
        if self.looked.elapsed() < AGAIN {
            return Ok(());
        }
        self.looked = Instant::now();
        self.stop(group)
    }

    /// Stops the worker's running processes, and records them first.
    fn stop(&mut self, group: &Group) -> io::Result<()> {
        let mut written = Ok(());
        let stopped = stop_each(group, |processes| {
            let lines = processes.iter().map(|process| format!("{} {}\n", process.pid, process.started));
            let lines = lines.collect::<String>();
            // No sync needed: the page cache outlives this process, and after a power cut no process is left.
            let record = File::options().append(true).create(true).open(&self.path);
            let appended = record.and_then(|mut record| record.write_all(lines.as_bytes()));
            written = std::mem::replace(&mut written, Ok(())).and(appended);
        });
        for process in stopped {
            if !self.stopped.contains(&process) {
                self.stopped.push(process);
            }
        }
        written
    }

    /// Continues the processes. Returns how long they were stopped.
    pub(crate) fn release(self) -> Duration {
        continue_each(&self.leader, &self.stopped);
        self.leave()
    }

    /// Leaves them stopped, for the user. Returns how long they were stopped for heat.
    pub(crate) fn leave(self) -> Duration {
        // A leftover record is harmless: continuing a running process has no effect.
        let _ = fs::remove_file(&self.path);
        self.since.elapsed()
    }
}

fn path(folder: &Path, worker: usize) -> PathBuf {
    folder.join(format!("held-{worker}"))
}

/// Continues processes that a killed supervisor had stopped for heat. `leader`: the worker's first process.
pub(crate) fn release_left(folder: &Path, worker: usize, leader: &Process) {
    let path = path(folder, worker);
    let Ok(bytes) = read_trusted(&path, LONGEST) else { return };
    continue_each(leader, &parse(&String::from_utf8_lossy(&bytes)));
    let _ = fs::remove_file(&path);
}

/// Parses a record. Skips incomplete lines.
fn parse(record: &str) -> Vec<Process> {
    let lines = record.split_inclusive('\n').filter_map(|line| line.strip_suffix('\n')?.split_once(' '));
    lines.filter_map(|(pid, started)| Some(Process { pid: pid.parse().ok()?, started: started.to_owned() })).collect()
}

/// Stops all running processes of a worker, for the user.
pub(crate) fn stop_all(group: &Group) {
    stop_each(group, |_| {});
}

/// Continues all processes of a worker.
pub(crate) fn continue_all(group: &Group) {
    let mut rows = group.members().into_iter().map(|member| member.row).collect::<Vec<_>>();
    rows.sort_by_key(|row| (row.started, row.pid));
    continue_each(&group.leader, &rows.iter().map(process).collect::<Vec<_>>());
}

fn process(row: &Row) -> Process {
    Process { pid: row.pid, started: row.started.to_string() }
}

/// Stops running processes, the oldest first: a parent stops before it can see a stopped child. Calls `before_stop`
/// with processes before it stops them. Returns all of them.
fn stop_each(group: &Group, mut before_stop: impl FnMut(&[Process])) -> Vec<Process> {
    if !cfg!(target_os = "linux") {
        let leader = vec![group.leader.clone()];
        before_stop(&leader);
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
        before_stop(&new);
        new.iter().for_each(|process| process.signal(Signal::STOP));
        stopped.extend(new);
    }
    stopped
}

/// Continues processes, the youngest first: a child runs before its parent can check on it.
fn continue_each(leader: &Process, stopped: &[Process]) {
    if !cfg!(target_os = "linux") {
        // Only the process group is known here.
        Group { leader: leader.clone(), mark: String::new(), keeper: None }.signal(Signal::CONT);
        return;
    }
    stopped.iter().rev().for_each(|process| process.signal(Signal::CONT));
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn an_incomplete_line_is_skipped() {
        let process = |pid, started: &str| Process { pid, started: started.to_owned() };
        assert_eq!(parse("7 120\n8 130\n9 14"), [process(7, "120"), process(8, "130")]);
        assert_eq!(parse("\n7\nx 1\n-1 2\n"), []);
    }

    proptest! {
        #[test]
        fn any_record_is_parsed(text in ".{0,200}") {
            let _ = parse(&text);
        }
    }
}
