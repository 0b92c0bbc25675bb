//! A recording, replayed: the state at its start is rebuilt by going backwards from its end, and the simulated allocator
//! continues from there through all events.
//! Not here: other settings (`what_if.rs`), who has the memory (`findings/`).
//!
//! ```text
//!   segments at the end ── backwards through the events ──► state at the start       start.rs
//!   state at the start  ── forwards, simulated ───────────► agreement, memory over time     forward.rs
//! ```
//!
//! What the allocator decides is simulated, and held to the recording: which block a request gets, when the driver is
//! asked for memory and for how much, what goes back to it. What others decide is taken from the recording: what the
//! program asks for and gives back, when other streams are done with a block, at which address the driver gives memory,
//! and that it refused some.

mod agreement;
mod driver;
mod forward;
mod start;
#[cfg(test)]
mod tests;

pub use agreement::{Agreement, Count, Difference, SegmentCount};
pub use forward::{Life, Moment, Replay, replay};
pub use start::{PrivateRanges, Start, StartBlock, start};
