//! Simulates PyTorch's eager training steps as allocations and frees: the models of transformers in terms of aten's
//! ops, run by a small eager autograd whose tensors have sizes and owners but no values, and passed to PyTorch's
//! allocator.
//! Not here: files and flags of trainers (`trainers`), the allocator (`torch-memory`). Read next: `estimate.rs`, then
//! `runtime/mod.rs` and one op (`ops/pointwise.rs`).
//!
//! ```text
//!   model config ─┐                                       ┌─► allocator ─► peak, tensors live at the peak
//!   run ──────────┼─► modules ─► ops ─► storages, tape ───┤
//!   card ─────────┘                                       └─► events
//! ```

mod card;
mod caveats;
#[cfg(test)]
mod compiled;
mod estimate;
mod estimator;
mod frozen;
#[cfg(test)]
mod golden;
mod modules;
mod nearest;
mod ops;
mod optimizers;
mod range;
mod runtime;
mod sharding;
mod simulate;
mod step;
mod usage;
mod versions;

pub use card::Gpu;
pub use estimate::{Cannot, Estimate, Footprint, Live, Share, Shortfall, Verdict};
pub use estimator::estimate;
pub use nearest::{Suggestion, nearest};
pub use usage::{Kind, Phase};
