//! What a replayed recording tells: who has the memory at the peak, what grows from step to step, and what is there twice.
//! Not here: words and pictures (the binary).

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
