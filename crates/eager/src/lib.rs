//! PyTorch's eager training steps, as allocations and frees: transformers' models written in tensors and aten's ops, run by a
//! small eager autograd whose tensors have sizes and owners but no values, and sent through PyTorch's allocator.
//! Not here: files and flags of trainers (`trainers`), the allocator itself (`torch-memory`). Read next: `estimate.rs`, then
//! `runtime/mod.rs` and one op (`ops/pointwise.rs`).
//!
//! ```text
//!   model config ─┐                                       ┌─► allocator ─► peak, live tensors at it
//!   run ──────────┼─► modules ─► ops ─► storages, tape ───┤
//!   card ─────────┘                                       └─► events
//! ```

mod card;
mod caveats;
#[cfg(test)]
mod compiled;
mod estimate;
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

pub use card::Gpu;
pub use estimate::{Cannot, Estimate, Footprint, Kind, Live, Phase, Share, Shortfall, Verdict, estimate};
pub use nearest::{Suggestion, nearest};
