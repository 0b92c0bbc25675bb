//! The registry of runs: lists the runs, identifies the processes of each, and reads and writes the files in a run's
//! folder that describe it to other programs. Also pauses and stops runs of other processes.
//! Not here: starting programs and deciding about restarts (`plimsoll-supervise`), views of runs (`plimsoll-watch`).
//! Read next: `entry.rs`, then `registry.rs`.

// Process groups and their signals exist on Unix only. On other systems the crate is empty.
#![cfg(unix)]

mod end;
mod entry;
mod event;
mod follow;
mod outputs;
mod pause;
mod processes;
mod program;
mod progress;
mod registry;
mod report;
mod stop;
mod worker;

pub use end::{ExitStatus, ProgramEnd};
pub use entry::{Ended, Entry, FILE, RunKind, RunState, Surroundings};
pub use event::{JOURNAL, Record, SCHEMA_VERSION, SupervisorEvent};
pub use follow::Follower;
pub use outputs::{output_of, progress_of};
pub use pause::{PauseError, is_paused, pause, resume};
pub use processes::{Group, MARK, Machine, Member, Process, Row, has_open, ignored_signals, marked, pid, row, rows};
pub use program::program_name;
pub use progress::{Meter, Progress, last_progress};
pub use registry::Registry;
pub use report::{AttemptReport, CardPeak, Report, STOPPED, SUCCESS, Status, TOO_HOT, UNKNOWN};
pub use stop::{Stopped, stop};
pub use worker::{Attempt, GpuShare, RepairState, RestartHistory, WorkerEntry, WorkerOutcome};
