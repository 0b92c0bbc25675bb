//! The run's disk: it records all operations, fails some of them, and ends the process before others.

use crate::schedule::{Crash, Files, When};
use crate::world::{State, World};
use plimsoll_fake_disk::{Recorded, Recorder};
use plimsoll_files::{Operation, Watch};
use std::io::{self, Write};
use std::panic::resume_unwind;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// The end of a process without warning: unwinds to the simulator.
pub struct Crashed(pub Crash);

/// A disk of a run.
#[derive(Debug)]
pub struct FaultyDisk {
    pub world: World,
    pub recorder: Arc<Recorder>,
}

impl Watch for FaultyDisk {
    fn before(&self, operation: Operation<'_>) -> io::Result<()> {
        if self.world.lock().is_crashed {
            return Err(io::Error::other("the process has ended"));
        }
        let (number, crash) = {
            let mut state = self.world.lock();
            state.operations += 1;
            let crash = state.schedule.crashes.iter().find(|(when, _)| is_now(&state, *when));
            let crash = crash.map(|(_, crash)| *crash);
            state.is_renamed = matches!(operation, Operation::Rename(_, to) if is_checkpoint(to));
            state.renames += u64::from(state.is_renamed);
            (state.operations, crash)
        };
        if let Some(crash) = crash {
            self.world.note(format!("{crash:?} before operation {number}, {}", name_of(operation)));
            self.tear(operation);
            self.world.lock().is_crashed = true;
            resume_unwind(Box::new(Crashed(crash)));
        }
        if let Some(code) = self.fault(operation) {
            self.world.note(format!("error {code} of operation {number}, {}", name_of(operation)));
            self.tear(operation);
            let mut state = self.world.lock();
            state.facts.disk_errors += 1;
            state.facts.journal_errors += u32::from(is_of(operation, Files::Journal));
            return Err(io::Error::from_raw_os_error(code));
        }
        self.recorder.before(operation)
    }
}

impl FaultyDisk {
    /// The error of this operation.
    fn fault(&self, operation: Operation<'_>) -> Option<i32> {
        let mut state = self.world.lock();
        let now = state.now;
        for index in 0..state.schedule.disk.len() {
            let fault = state.schedule.disk[index];
            let has_begun = match fault.first {
                When::Operation(number) => state.operations >= number,
                When::AfterRename(number) => state.renames >= number && !state.is_renamed,
            };
            if !has_begun || !is_of(operation, fault.files) {
                continue;
            }
            let since = *state.disk_since[index].get_or_insert(now);
            let is_over = fault.lasts_s.is_finite() && now > since + Duration::from_secs_f64(fault.lasts_s);
            if !is_over {
                return Some(fault.code);
            }
        }
        None
    }

    /// Appends a part of what an operation would have appended.
    fn tear(&self, operation: Operation<'_>) {
        if let Operation::Append(path, bytes) = operation {
            let half = &bytes[..bytes.len() / 2];
            let file = std::fs::File::options().append(true).open(path);
            file.and_then(|mut file| file.write_all(half)).expect("a file in memory");
            self.recorder.push(Recorded::Append(path.to_owned(), half.to_owned()));
        }
    }
}

fn is_now(state: &State, when: When) -> bool {
    match when {
        When::Operation(number) => state.operations == number,
        When::AfterRename(number) => state.is_renamed && state.renames == number,
    }
}

fn is_checkpoint(path: &Path) -> bool {
    path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("step-"))
}

fn path_of<'a>(operation: Operation<'a>) -> &'a Path {
    match operation {
        Operation::CreateFolder(path)
        | Operation::CreateFile(path)
        | Operation::CreateLink(path, _)
        | Operation::Append(path, _)
        | Operation::Truncate(path, _)
        | Operation::SyncFile(path)
        | Operation::SyncFolder(path)
        | Operation::Rename(_, path)
        | Operation::RemoveFile(path)
        | Operation::RemoveFolder(path) => path,
    }
}

fn is_of(operation: Operation<'_>, files: Files) -> bool {
    let path = path_of(operation);
    let has = |name: &str| path.iter().any(|part| part == name);
    match files {
        Files::All => true,
        Files::Journal => path.ends_with("journal.jsonl"),
        Files::Checkpoints => has("checkpoints"),
        Files::Samples => has("samples"),
    }
}

fn name_of(operation: Operation<'_>) -> String {
    let text = format!("{operation:?}");
    let kind = text.split('(').next().unwrap_or_default().to_owned();
    let path = path_of(operation);
    let names = path.iter().map(|part| part.to_string_lossy()).collect::<Vec<_>>();
    let run = names.iter().rposition(|name| name == "run").unwrap_or(0);
    format!("{kind} {}", names[run..].join("/"))
}
