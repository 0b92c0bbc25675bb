//! Orders to a running training: pause, resume, stop, another budget. Any process that may write in the run's folder as
//! its user may give one.
//! Not here: how a run obeys (`plimsoll-session`), and other trainers (`plimsoll-supervise`).
//! Orders are lines appended to a file in the run's folder, which the run creates when it starts. Each line is one
//! write, so concurrent writers need no lock. A run reads each line once, and ignores lines from before its start. The
//! byte offset of a line is the order's number, which is unique. A socket would need a listener, limits its path to a
//! hundred bytes, and does not work across machines that share a disk.

mod give;
mod inbox;

pub use give::{GiveError, give};
pub use inbox::{Inbox, NewOrders};

use plimsoll_units::Bytes;
use serde::{Deserialize, Serialize};

/// The file in a run's folder.
pub const FILE: &str = "orders.jsonl";

/// Length limit of a line; real orders are far shorter.
const LONGEST_LINE: usize = 512;

/// Size limit of the file.
const FULL: Bytes = Bytes::mib(1);

/// An order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "order", rename_all = "snake_case")]
pub enum Order {
    /// Wait before the next micro-batch and keep the memory.
    Pause,
    /// Continue after a pause.
    Resume,
    /// Finish the step, save and end, as after an interrupt.
    Stop,
    /// Save, plan for another budget, and continue.
    Budget {
        /// The budget, as at the start of a run.
        bytes: u64,
    },
}
