//! Supervises a training program: starts it in its own process group, logs its output, classifies how it ends, and
//! restarts it if a restart may help.
//! Not here: terminals and messages for users (`plimsoll`). Read next: `repair.rs`, the interface between running
//! processes and deciding what to do when one ends, then `supervisor/mod.rs`.

// Process groups and their signals exist on Unix only. On other systems the crate is empty and `plimsoll` lacks these
// commands.
#![cfg(unix)]

mod card_peaks;
mod child;
pub mod ends;
mod event;
pub mod failures;
mod folder;
mod follow;
mod hang;
pub mod hook;
mod hopeless;
mod input;
mod keeper;
pub mod ladder;
mod mender;
mod output;
mod pace;
mod pause;
mod processes;
mod program;
mod registry;
mod repair;
mod report;
mod restarts;
mod shares;
mod signals;
mod stacks;
mod stop;
mod supervisor;
mod unchanged;
mod worker;

pub use card_peaks::{CardPeak, CardPeaks};
pub use event::{Record, SCHEMA_VERSION, SupervisorEvent};
pub use folder::{Folder, FolderError, output_of, progress_of};
pub use follow::Follower;
pub use input::Input;
pub use keeper::keep;
pub use mender::Mender;
pub use output::{Progress, Stream, last_progress};
pub use pace::{Pacer, run_slice};
pub use pause::{PauseError, is_paused, pause, resume};
pub use processes::{MARK, Machine, Process};
pub use program::program_name;
pub use registry::{Ended, Entry, Registry, RunKind, RunState, Surroundings, WorkerEntry};
pub use repair::{Attempt, Decision, Ending, Repair, RepairState, Verdict};
pub use report::{AttemptReport, Report, Status};
pub use restarts::Limits;
pub use shares::{MEMORY_FRACTION, Share, WORKER, WORKERS, shares, usable_cpus};
pub use stop::{Stopped, stop};
pub use supervisor::{Job, Refusal, SuperviseError, SuperviseSettings, Supervised, adopt, supervise};
pub use unchanged::Unchanged;

/// Kind of end: success.
pub const SUCCESS: &str = "success";

/// Kind of end: a user or a signal stopped the run.
pub const STOPPED: &str = "stopped";

/// Kind of end: the supervisor stopped the run because a card was too hot.
pub const TOO_HOT: &str = "too_hot";

/// Kind of end: the exit code was lost.
pub const UNKNOWN: &str = "unknown";

/// Why the supervisor does not restart after an unknown end.
pub(crate) const UNKNOWN_END: &str = "its exit code is unknown, so it may have finished";
