//! Identifies, finds and signals processes. Not here: starting them (`plimsoll-supervise`).

mod group;
mod identity;
mod table;

pub use group::{Group, MARK, Member, marked};
pub use identity::{Machine, Process};
pub use table::{Row, has_open, ignored_signals, pid, row, rows};
