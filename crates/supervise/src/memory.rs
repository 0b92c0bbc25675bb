//! The memory that other processes leave free on a worker's GPU or on the machine. Not here: when a worker waits for it
//! (`supervisor/memory.rs`).

use crate::shares::Share;
use plimsoll_telemetry::{Bound, available_memory, gpus, total_memory};
use plimsoll_units::Bytes;

/// A memory that a program ran out of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MemoryKind {
    /// The GPU's.
    Card,
    /// The machine's.
    Host,
}

/// Free memory at some time, while the worker's program did not run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FreeMemory {
    memory: MemoryKind,
    free: Bytes,
    /// All memory that programs can use.
    total: Bytes,
}

impl FreeMemory {
    /// Reads the free memory: on the fullest GPU of a worker, or of the machine. `None` if the system reports none.
    pub(crate) fn read(memory: MemoryKind, share: &Share) -> Option<Self> {
        match memory {
            MemoryKind::Card => {
                let cards = gpus().ok()?.cards.into_iter().filter(|card| share.usable.contains(&card.uuid));
                let fullest = cards.min_by_key(|card| card.free)?;
                Some(Self { memory, free: fullest.free, total: Bytes(fullest.free.0 + fullest.used.0) })
            }
            MemoryKind::Host => {
                // Other processes seldom share a control group's limit, such as a container's.
                let available = available_memory().filter(|available| available.bound == Bound::Machine)?;
                Some(Self { memory, free: available.bytes, total: total_memory()? })
            }
        }
    }

    /// Whether hardly any other process uses this memory, so that waiting for them is useless.
    pub(crate) fn is_unshared(&self) -> bool {
        // The system itself uses part of the machine's memory.
        let others = match self.memory {
            MemoryKind::Card => self.total.0 / 32,
            MemoryKind::Host => self.total.0 / 8,
        };
        self.free.0 + others >= self.total.0
    }

    /// Whether other processes have released memory since then. While the worker's program runs, this is certain only
    /// once they have released more than it uses.
    pub(crate) fn has_grown(&self, share: &Share) -> bool {
        Self::read(self.memory, share).is_some_and(|now| now.free.0 >= self.free.0 + self.total.0 / 64)
    }

    /// The free bytes.
    pub(crate) fn free(&self) -> Bytes {
        self.free
    }
}
