//! Processes of others: how they are recognized, found and signaled. Not here: how they are started (`child.rs`).

mod group;
mod identity;
mod table;

pub use group::MARK;
pub use identity::{Machine, Process};

pub(crate) use group::{Group, Member, marked, pid};
pub(crate) use table::{Row, has_open, row, rows};
