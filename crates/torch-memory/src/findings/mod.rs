//! Findings of a replayed recording: memory by owner at the peak, growth from step to step, and duplicate models.
//! Not here: texts and charts (the binary).

mod copies;
mod growth;
mod over_time;
mod owners;
#[cfg(test)]
mod tests;

pub use copies::{Copies, Copy, copies};
pub use growth::{Growth, Steps, growth};
pub use over_time::{Mapped, Stretch, mapped_at, over_time};
pub use owners::{OwnedAtPeak, Owner, Owners, at_event, peak_event};
