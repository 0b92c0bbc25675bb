//! Keeps a training program alive: starts it in a process group of its own, keeps what it prints, sees how it ends, and
//! starts it again where that may help.
//!
//! Not here: terminals and words for people (`plimsoll`). Read next: `repair.rs`, the seam between processes and what
//! follows from their ends.

mod progress;
mod repair;
mod unchanged;

pub use progress::Progress;
pub use repair::{Attempt, Decision, Ending, Repair, Verdict};
pub use unchanged::Unchanged;
