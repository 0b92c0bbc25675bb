//! The file of what failed on this user's devices, and of runs that train now: a run that ended without a word is found by
//! the next one. Not here: what failures mean (`plimsoll_plan::DeviceFailures`).

use crate::cli::state::state_folder;
use crate::streams::talk;
use ::plimsoll_plan::{DeviceFailures, FailureKind};
use plimsoll_files::{read_if_there, update};
use plimsoll_registry::Process;
use plimsoll_telemetry::{now_s, oom_kills};
use plimsoll_units::{Bytes, Seconds};
use serde::{Deserialize, Serialize};
use std::io;
use std::path::PathBuf;

/// Version of the file's format.
const VERSION: u32 = 1;

/// Its entries are bounded and short.
const LONGEST_FILE: Bytes = Bytes::mib(1);

/// Runs that train at a time, at most.
const MOST_RUNNING: usize = 64;

/// The file, in the user's state folder; `None` if no home folder is known: nothing is remembered then.
#[derive(Debug, Clone)]
pub(in crate::cli) struct Limits {
    path: Option<PathBuf>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Contents {
    v: u32,
    #[serde(flatten)]
    failures: DeviceFailures,
    #[serde(default)]
    running: Vec<Running>,
}

/// A run that trains.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Running {
    #[serde(flatten)]
    process: Process,
    /// Its name.
    run: String,
    device: String,
    /// Its budget.
    bytes: Bytes,
    /// Processes of the control group that the kernel had killed before.
    oom_kills: Option<u64>,
}

impl Contents {
    fn empty() -> Self {
        Self { v: VERSION, failures: DeviceFailures::default(), running: vec![] }
    }

    fn parse(text: &str) -> Result<Self, String> {
        let contents = serde_json::from_str::<Self>(text).map_err(|error| error.to_string())?;
        match contents.v {
            VERSION => Ok(contents),
            other => Err(format!("it has version {other}, not {VERSION}")),
        }
    }

    /// Takes out the runs that ended without a word, and records those that the kernel killed for lack of memory.
    fn settle(&mut self, kills: Option<u64>, is_alive: impl Fn(&Process) -> bool, now: Seconds) {
        let (running, ended) = std::mem::take(&mut self.running).into_iter().partition(|run| is_alive(&run.process));
        self.running = running;
        for Running { run, device, bytes, oom_kills, .. } in ended {
            if oom_kills.zip(kills).is_some_and(|(before, now)| now > before) {
                let what = format!("the run {run} was killed");
                self.failures.record(&device, FailureKind::Killed, bytes, &what, now);
            }
        }
    }
}

impl Limits {
    /// The user's file.
    pub(in crate::cli) fn open() -> Self {
        Self { path: state_folder().map(|folder| folder.join("limits.json")) }
    }

    /// Its path.
    pub(super) fn path(&self) -> Option<&PathBuf> {
        self.path.as_ref()
    }

    /// What is remembered, after a look for runs that were killed. A file that can't be used counts as empty, with a message.
    pub(in crate::cli) fn known(&self) -> DeviceFailures {
        let Some(path) = &self.path else { return DeviceFailures::default() };
        let read = || {
            let text = read_if_there(path, LONGEST_FILE).map_err(|error| error.to_string());
            text.and_then(|text| text.map_or(Ok(Contents::empty()), |text| Contents::parse(&text)))
        };
        let mut contents = read();
        let has_ended = |contents: &Contents| contents.running.iter().any(|run| !run.process.is_alive());
        if contents.as_ref().is_ok_and(has_ended) && self.change(|_| ()).is_ok() {
            contents = read();
        }
        contents.map(|contents| contents.failures).unwrap_or_else(|error| {
            talk(format_args!("warning: {} is ignored: {error}", path.display()));
            DeviceFailures::default()
        })
    }

    /// Records that this process trains a run with this budget.
    pub(in crate::cli) fn begin(&self, run: &str, device: &str, bytes: Bytes) {
        let running = Running {
            process: Process::own(),
            run: run.to_owned(),
            device: device.to_owned(),
            bytes,
            oom_kills: oom_kills(),
        };
        let written = self.change(|contents| {
            contents.running.push(running);
            let surplus = contents.running.len().saturating_sub(MOST_RUNNING);
            contents.running.drain(..surplus);
        });
        if let (Err(error), Some(path)) = (written, &self.path) {
            talk(format_args!("note: failures are not remembered: {}: {error}", path.display()));
        }
    }

    /// Records that this process trains no longer, and more. A failed write was reported at the start of the run.
    pub(in crate::cli) fn end(&self, record: impl FnOnce(&mut DeviceFailures, Seconds)) {
        let _ = self.change(|contents| {
            contents.running.retain(|run| run.process != Process::own());
            record(&mut contents.failures, Seconds(now_s()));
        });
    }

    /// Changes what is remembered. Errors: the file can't be written, on which no run depends.
    pub(in crate::cli) fn record(&self, record: impl FnOnce(&mut DeviceFailures, Seconds)) -> io::Result<()> {
        self.change(|contents| record(&mut contents.failures, Seconds(now_s())))
    }

    fn change(&self, change: impl FnOnce(&mut Contents)) -> io::Result<()> {
        let Some(path) = &self.path else { return Ok(()) };
        update(path, LONGEST_FILE, |text| {
            let before = text.ok().flatten().and_then(|text| Contents::parse(&text).ok());
            let mut contents = before.unwrap_or_else(Contents::empty);
            contents.settle(oom_kills(), Process::is_alive, Seconds(now_s()));
            change(&mut contents);
            serde_json::to_string_pretty(&contents).map_err(io::Error::other)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_that_the_kernel_killed_is_found_and_one_that_a_user_killed_is_not() {
        let running = |pid, oom_kills| Running {
            process: Process { pid, started: "1".to_owned() },
            run: format!("run-{pid}"),
            device: "CPU".to_owned(),
            bytes: Bytes::gib(u64::from(pid)),
            oom_kills,
        };
        for (before, now, found) in
            [(Some(3), Some(4), true), (Some(3), Some(3), false), (None, Some(4), false), (Some(3), None, false)]
        {
            let mut contents = Contents::empty();
            contents.running = vec![running(1, before), running(2, before)];
            contents.settle(now, |process| process.pid == 1, Seconds(5.0));
            assert_eq!(contents.running, [running(1, before)]);
            let failures = &contents.failures.failures;
            let sizes = failures.iter().map(|failure| (failure.size, &*failure.what)).collect::<Vec<_>>();
            let expected = [(Bytes::gib(2), "the run run-2 was killed")];
            assert_eq!(sizes, expected[..usize::from(found)], "{before:?} {now:?}");
            let text = serde_json::to_string(&contents).expect("plain data");
            let again = Contents::parse(&text).expect("what was written");
            assert_eq!((again.failures, again.running), (contents.failures, contents.running));
        }
    }

    #[test]
    fn other_files_are_refused() {
        for text in ["", "[]", "{", "null", r#"{"v":2,"failures":[],"safe":[]}"#, r#"{"v":1}"#] {
            assert!(Contents::parse(text).is_err(), "{text}");
        }
    }
}
