//! Analyzes the memory of PyTorch runs: reads the output of `torch.cuda.memory._dump_snapshot`, replays it on a
//! simulation of PyTorch's caching allocator, and derives findings.
//! Not here: files, terminals, pages. Read next: `replay/mod.rs`.

pub mod allocator;
pub mod examine;
pub mod findings;
pub mod pickle;
pub mod record;
pub mod replay;
pub mod snapshot;
pub mod what_if;
