//! Streams, events and graphs: which operations are ordered, independent of when they run.
//!
//! `clock` has vector clocks, `hazards` finds unordered operations on the same bytes, `engine` runs operations
//! immediately or as late as allowed, `capture` records them as graphs.

mod capture;
mod clock;
mod engine;
mod failure;
mod hazards;
mod operation;

pub use capture::{CaptureError, Graph, Node};
pub use clock::{Clock, Lane};
pub use engine::{Engine, Execution, LEGACY, Machine};
pub use failure::Failure;
pub use hazards::{Conflict, Hazards};
pub use operation::{Announcement, HostSource, Operation, Work};
