//! A snapshot of PyTorch's memory, typed: the segments and blocks at the end, and the events before it, per card.
//! Not here: how bytes become values (`pickle/`), what a recording means (`replay/`).
//! Source: `torch/cuda/memory.py` and `torch/csrc/cuda/memory_snapshot.cpp`, PyTorch 2.0 to 2.9. Fields come and go with
//! versions: what is missing has the value that PyTorch had before it wrote it; what is not known is listed.

mod read;
mod settings;
mod stacks;
#[cfg(test)]
mod tests;

pub use settings::{Settings, UnknownSetting, refused_settings, setting_names};
pub use stacks::{Frame, StackId, Stacks};

use crate::pickle::PickleError;

/// What `torch.cuda.memory._dump_snapshot` wrote.
#[derive(Debug, Clone)]
pub struct Snapshot {
    /// What each card has, or had. Cards without any are left out.
    pub cards: Vec<CardRecord>,
    /// How the allocator was set.
    pub settings: Settings,
    /// Whether the file says so; versions before 2.2 do not, and then the settings are the defaults.
    pub settings_recorded: bool,
    /// The text of `PYTORCH_CUDA_ALLOC_CONF`.
    pub conf: String,
    /// Call stacks that events and blocks name.
    pub stacks: Stacks,
    /// What the program annotated, such as steps of the optimizer, in the order of the file.
    pub annotations: Vec<Annotation>,
    /// Fields, actions and settings that are not known, each once, and so are not taken into account.
    pub unknown: Vec<String>,
}

/// One card's memory at the end, and the events that were kept of how it came to that.
#[derive(Debug, Default, Clone)]
pub struct CardRecord {
    /// The card's index.
    pub card: u32,
    /// Segments at the end, by address.
    pub segments: Vec<Segment>,
    /// Events, the oldest first. The recording is a ring, so that older ones may be gone.
    pub events: Vec<Event>,
}

/// Memory that the allocator has from the driver.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Segment {
    /// Where it begins.
    pub address: u64,
    /// Its size. Sums are held to it: its blocks fill it.
    pub bytes: u64,
    /// The stream whose allocations lie in it.
    pub stream: u64,
    /// Whether it holds the allocations of at most 1 MiB.
    pub small: bool,
    /// Whether it is a part of an expandable segment: one for each range that is backed by memory.
    pub expandable: bool,
    /// The pool that it belongs to; `(0, 0)` is the default, others belong to CUDA graphs and to `MemPool`s.
    pub pool: PoolId,
    /// What fills it, by address.
    pub blocks: Vec<Block>,
    /// Where it was asked for.
    pub stack: StackId,
}

/// A pool's two numbers.
pub type PoolId = (u64, u64);

/// A part of a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Block {
    /// Where it begins.
    pub address: u64,
    /// Its size.
    pub bytes: u64,
    /// Bytes that the program asked for.
    pub requested: u64,
    /// Whether it is in use.
    pub state: BlockState,
    /// Where it was asked for.
    pub stack: StackId,
}

/// Whether a block is in use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BlockState {
    /// The program has it.
    Allocated,
    /// The program gave it back, but another stream may not be done with it.
    PendingFree,
    /// Free.
    Inactive,
}

/// Something that the allocator did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Event {
    /// What.
    pub action: Action,
    /// Where: a block's, or a segment's. Of `OutOfMemory`, the bytes that the card had free.
    pub address: u64,
    /// Bytes that were asked for (in versions before 2.1 rounded), or those of the segment.
    pub bytes: u64,
    /// On which stream.
    pub stream: u64,
    /// When, in microseconds; 0 where it was not recorded.
    pub time_us: u64,
    /// By whom.
    pub stack: StackId,
}

/// What an allocator does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Action {
    /// The program got a block.
    Alloc,
    /// The program gave a block back.
    FreeRequested,
    /// The block is free.
    FreeCompleted,
    /// The driver gave a segment.
    SegmentAlloc,
    /// The driver got a segment back.
    SegmentFree,
    /// The driver backed a range of an expandable segment with memory.
    SegmentMap,
    /// The driver took the memory of a range of an expandable segment back.
    SegmentUnmap,
    /// A snapshot was made.
    Snapshot,
    /// The program asked for memory that there was not.
    OutOfMemory,
    /// Something that concerns no memory, or is not known.
    Other,
}

/// A range of time that the program named, such as `Optimizer.step#AdamW.step`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Annotation {
    /// Its name.
    pub name: String,
    /// Whether it begins; else it ends.
    pub starts: bool,
    /// On which card.
    pub card: u32,
    /// When, in microseconds.
    pub time_us: u64,
}

/// Why a file is no snapshot.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SnapshotError {
    /// It is no pickle of plain data.
    #[error(transparent)]
    Pickle(#[from] PickleError),
    /// It is one of something else.
    #[error("it is a pickle, but no snapshot of PyTorch's memory: {what}")]
    Foreign {
        /// What is missing.
        what: String,
    },
    /// A part of it is not as PyTorch writes it.
    #[error("its {place} {what}")]
    Damaged {
        /// Which: `segment 3`.
        place: String,
        /// What is wrong.
        what: &'static str,
    },
    /// It was made with `backend:cudaMallocAsync`, whose memory the driver manages.
    #[error("it was made with PyTorch's backend cudaMallocAsync, where the driver manages the memory")]
    OtherBackend,
}

impl Snapshot {
    /// Reads a snapshot.
    /// Errors: whatever is not a pickle of one, see [`SnapshotError`]. Never panics.
    pub fn read(bytes: &[u8]) -> Result<Self, SnapshotError> {
        read::snapshot(bytes)
    }
}
