//! Streams, events and graphs: what is ordered with what, whenever it happens to run.
//!
//! `clock` says what is known to have happened, `hazards` finds operations that touch the same bytes without being
//! ordered, `engine` runs operations at once or as late as allowed, `capture` records them as graphs.

mod capture;
mod clock;
mod engine;
mod hazards;

pub use capture::{CaptureError, Graph, Node};
pub use clock::{Clock, Lane};
pub use engine::{Announcement, Engine, Execution, Failure, HostSource, LEGACY, Machine, Operation, Work};
pub use hazards::{Conflict, Hazards};
