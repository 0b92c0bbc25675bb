//! Identifies, finds and signals processes. Not here: starting them (`child.rs`).

mod group;
mod identity;
mod table;

pub use group::MARK;
pub use identity::{Machine, Process};

pub(crate) use group::{Group, Member, marked, pid};
pub(crate) use table::{Row, has_open, row, rows};
