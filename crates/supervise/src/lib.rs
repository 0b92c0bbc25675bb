//! Keeps a training program alive: starts it in a process group of its own, keeps what it prints, sees how it ends, and
//! starts it again where that may help.
//!
//! Not here: terminals and words for people (`plimsoll`). Read next: `repair.rs`, the seam between processes and what
//! follows from their ends, then `supervisor.rs`.

// Process groups, and signals to them, are Unix's: elsewhere the crate is empty, and `plimsoll` has no such commands.
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
pub use event::{Event, Record, SCHEMA_VERSION};
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
pub use registry::{Ended, Entry, Kind, Registry, State, Surroundings, WorkerEntry};
pub use repair::{Attempt, Decision, Ending, Past, Repair, Verdict};
pub use report::{AttemptReport, Report, Status};
pub use restarts::Limits;
pub use shares::{MEMORY_FRACTION, Share, WORKER, WORKERS, shares, usable_cpus};
pub use stop::{Stopped, stop};
pub use supervisor::{Job, Refusal, Settings, SuperviseError, Supervised, adopt, supervise};
pub use unchanged::Unchanged;

/// The kind of an end that is a success.
pub const SUCCESS: &str = "success";

/// The kind of an end that somebody asked for.
pub const STOPPED: &str = "stopped";

/// The kind of an end that was asked for because a card was too hot.
pub const TOO_HOT: &str = "too_hot";

/// The kind of an end of which nothing is known.
pub const UNKNOWN: &str = "unknown";

/// Why nothing follows from such an end.
pub(crate) const UNKNOWN_END: &str = "its exit code is unknown, and it may have come to its end";
