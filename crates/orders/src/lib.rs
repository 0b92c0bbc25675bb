//! What a run that trains is asked to do while it trains: pause, resume, stop, another budget. Whoever may write in its folder
//! as its user may ask; a run doesn't depend on who does.
//! Not here: what a run does then (`plimsoll-session`), and processes of other trainers (`plimsoll-supervise`).
//!
//! Orders are lines at the end of a file in the run's folder, which a run makes when it begins. A line is written at once, so
//! that two who ask at the same time need no lock; what a run has read it does not read again, and what was there before the
//! run began is not for it. Where a line begins in the file is its number: no two orders have the same. A socket would need
//! somebody to listen, its path is limited to a hundred bytes, and it does not cross the machines that share a disk.

mod give;
mod inbox;

pub use give::{GiveError, give};
pub use inbox::{Inbox, Looked};

use plimsoll_units::Bytes;
use serde::{Deserialize, Serialize};

/// The file in a run's folder.
pub const FILE: &str = "orders.jsonl";

/// Far longer than any order.
const LONGEST_LINE: usize = 512;

/// More orders than anybody gives a run.
const FULL: Bytes = Bytes::mib(1);

/// What a run is asked to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "order", rename_all = "snake_case")]
pub enum Order {
    /// To wait before its next micro-batch, with its memory held.
    Pause,
    /// To go on after a pause.
    Resume,
    /// To finish its step, save and end, as after an interrupt.
    Stop,
    /// To save, plan again for another budget, and go on.
    Budget {
        /// The budget, as it would be given at the start.
        bytes: u64,
    },
}
