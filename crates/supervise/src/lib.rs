//! Supervises a training program: starts it in its own process group, logs its output, classifies how it ends, and
//! restarts it if a restart may help.
//! Not here: terminals and messages for users (`plimsoll`), and what others may know of a run, pausing and stopping it
//! (`plimsoll-registry`). Read next: `repair.rs`, the interface between running
//! processes and deciding what to do when one ends, then `supervisor/mod.rs`.

// Process groups and their signals exist on Unix only. On other systems the crate is empty and `plimsoll` lacks these
// commands.
#![cfg(unix)]

mod card_peaks;
mod child;
pub mod ends;
pub mod failures;
mod folder;
mod hang;
pub mod hook;
mod hopeless;
mod input;
mod keeper;
pub mod ladder;
mod memory;
mod mender;
mod output;
mod pace;
mod repair;
mod restarts;
mod shares;
mod signals;
mod stacks;
mod supervisor;
mod unchanged;
mod worker;

pub use card_peaks::CardPeaks;
pub use folder::{Folder, FolderError};
pub use input::Input;
pub use keeper::keep;
pub use memory::MemoryKind;
pub use mender::{Mender, OnNoMemory};
pub use output::Stream;
pub use pace::{Pacer, run_slice};
pub use repair::{Decision, Ending, Repair, Verdict};
pub use restarts::Limits;
pub use shares::{MEMORY_FRACTION, Share, WORKER, WORKERS, shares, usable_cpus};
pub use supervisor::{Job, Refusal, SuperviseError, SuperviseSettings, Supervised, adopt, supervise};
pub use unchanged::Unchanged;

/// Why the supervisor does not restart after an unknown end.
pub(crate) const UNKNOWN_END: &str = "its exit code is unknown, so it may have finished";
