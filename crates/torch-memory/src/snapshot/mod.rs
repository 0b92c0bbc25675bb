//! A typed snapshot of PyTorch's memory: per card, the segments and blocks at the end, and the events before it.
//! Not here: parsing bytes (`pickle/`), interpreting a recording (`replay/`).
//! Source: `torch/cuda/memory.py` and `torch/csrc/cuda/memory_snapshot.cpp`, PyTorch 2.0 to 2.9. Fields vary by
//! version: a missing field has the value that PyTorch used before it recorded the field; unknown fields are listed.

mod read;
mod settings;
mod stacks;
#[cfg(test)]
mod tests;

pub use settings::{AllocatorSettings, UnknownSetting, refused_settings, setting_names};
pub use stacks::{Frame, StackId, Stacks};

use crate::pickle::PickleError;

/// The output of `torch.cuda.memory._dump_snapshot`.
#[derive(Debug, Clone)]
pub struct Snapshot {
    /// The records of all cards with segments or events.
    pub cards: Vec<CardRecord>,
    /// The allocator's settings.
    pub settings: AllocatorSettings,
    /// Whether the file contains the settings; versions before 2.2 do not record them, and the defaults are assumed.
    pub settings_recorded: bool,
    /// The value of `PYTORCH_CUDA_ALLOC_CONF`.
    pub conf: String,
    /// Call stacks referenced by events and blocks.
    pub stacks: Stacks,
    /// The program's annotations, such as optimizer steps, in file order.
    pub annotations: Vec<Annotation>,
    /// Unknown fields, actions and settings, each once; they are ignored.
    pub unknown: Vec<String>,
}

/// One card's memory at the end, and the stored events that led to it.
#[derive(Debug, Default, Clone)]
pub struct CardRecord {
    /// The card's index.
    pub card: u32,
    /// Segments at the end, by address.
    pub segments: Vec<Segment>,
    /// Events, oldest first. The recording is a ring buffer, so older events may be missing.
    pub events: Vec<TraceEvent>,
}

/// Memory that the allocator has from the driver.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Segment {
    /// Its address.
    pub address: u64,
    /// Its size. Its blocks fill it exactly.
    pub bytes: u64,
    /// The stream of its allocations.
    pub stream: u64,
    /// Whether it is for allocations of at most 1 MiB.
    pub small: bool,
    /// Whether it is part of an expandable segment: one entry per mapped range.
    pub expandable: bool,
    /// Its pool; `(0, 0)` is the default, others belong to CUDA graphs and to `MemPool`s.
    pub pool: PoolId,
    /// Its blocks, by address.
    pub blocks: Vec<Block>,
    /// The stack of its allocation.
    pub stack: StackId,
}

/// A pool's two numbers.
pub type PoolId = (u64, u64);

/// A part of a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Block {
    /// Its address.
    pub address: u64,
    /// Its size.
    pub bytes: u64,
    /// Size requested by the program.
    pub requested: u64,
    /// Whether it is in use.
    pub state: BlockState,
    /// The stack of its allocation.
    pub stack: StackId,
}

/// Whether a block is in use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BlockState {
    /// In use by the program.
    Allocated,
    /// Freed by the program, but another stream may still use it.
    PendingFree,
    /// Free.
    Inactive,
}

/// An event of the allocator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TraceEvent {
    /// The action.
    pub action: Action,
    /// Address of the block or segment. For `OutOfMemory`, the card's free bytes.
    pub address: u64,
    /// Requested size (rounded in versions before 2.1), or size of the segment.
    pub bytes: u64,
    /// The stream.
    pub stream: u64,
    /// Time in microseconds; 0 if it was not recorded.
    pub time_us: u64,
    /// The stack of the caller.
    pub stack: StackId,
}

/// Actions of an allocator.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Action {
    /// The program allocated a block.
    Alloc,
    /// The program freed a block.
    FreeRequested,
    /// The block became free.
    FreeCompleted,
    /// The driver allocated a segment.
    SegmentAlloc,
    /// The driver freed a segment.
    SegmentFree,
    /// The driver mapped a range of an expandable segment.
    SegmentMap,
    /// The driver unmapped a range of an expandable segment.
    SegmentUnmap,
    /// A snapshot was taken.
    Snapshot,
    /// A request failed for lack of memory.
    OutOfMemory,
    /// An action that does not concern memory, or an unknown one.
    Other,
}

/// The start or end of a time span named by the program, such as `Optimizer.step#AdamW.step`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Annotation {
    /// Its name.
    pub name: String,
    /// Whether this is the start rather than the end.
    pub starts: bool,
    /// The card.
    pub card: u32,
    /// The time in microseconds.
    pub time_us: u64,
}

/// Why a file is not a snapshot.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SnapshotError {
    /// The file is not a pickle of plain data.
    #[error(transparent)]
    Pickle(#[from] PickleError),
    /// The pickle contains something else.
    #[error("it is a pickle, but not a PyTorch memory snapshot: {what}")]
    Foreign {
        /// The missing part.
        what: String,
    },
    /// A part of it differs from PyTorch's format.
    #[error("its {place} {what}")]
    Damaged {
        /// The part: `segment 3`.
        place: String,
        /// The problem.
        what: &'static str,
    },
    /// The snapshot was made with `backend:cudaMallocAsync`, whose memory the driver manages.
    #[error("it was recorded with PyTorch's backend cudaMallocAsync, where the driver manages the memory")]
    OtherBackend,
}

impl Snapshot {
    /// Reads a snapshot.
    /// Errors: the bytes are not a valid snapshot, see [`SnapshotError`]. Never panics.
    pub fn read(bytes: &[u8]) -> Result<Self, SnapshotError> {
        read::snapshot(bytes)
    }
}
