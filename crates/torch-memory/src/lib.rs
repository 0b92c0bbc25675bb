//! The memory of PyTorch's runs: what `torch.cuda.memory._dump_snapshot` wrote is read, replayed with a simulation of
//! PyTorch's caching allocator, and judged.
//! Not here: files, terminals, pages. Read next: `replay/mod.rs`.

pub mod allocator;
pub mod examine;
pub mod findings;
pub mod pickle;
pub mod record;
pub mod replay;
pub mod snapshot;
pub mod what_if;
