//! Replays a recording: reconstructs the initial state by going backward from the end, then runs the simulated
//! allocator through all events.
//! Not here: other settings (`what_if.rs`), memory by owner (`findings/`).
//!
//! ```text
//!   segments at the end ── backward through the events ──► initial state                  start.rs
//!   initial state       ── forward, simulated ───────────► agreement, memory over time    forward.rs
//! ```
//!
//! The allocator's decisions are simulated and compared with the recording: the block for each request, the calls to
//! the driver and their sizes, and the memory returned. Decisions of others come from the recording: the program's
//! requests and frees, when other streams have finished using a block, the addresses that the driver returns, and its
//! refusals.

mod agreement;
mod driver;
mod forward;
mod start;
#[cfg(test)]
mod tests;

pub use agreement::{Agreement, Count, Difference, SegmentCount};
pub use forward::{Lifetime, Moment, Replay, replay};
pub use start::{PrivateRanges, Start, StartBlock, start};
