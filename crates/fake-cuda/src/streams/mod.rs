//! Streams, events and graphs: which operations are ordered, independent of when they run.
//!
//! `clock` has vector clocks, `hazards` finds unordered operations on the same bytes, `engine` runs operations
//! immediately or as late as allowed, `capture` records them as graphs.

mod capture;
mod clock;
mod engine;
mod hazards;

pub use capture::{CaptureError, Graph, Node};
pub use clock::{Clock, Lane};
pub use engine::{Announcement, Engine, Execution, Failure, HostSource, LEGACY, Machine, Operation, Work};
pub use hazards::{Conflict, Hazards};
