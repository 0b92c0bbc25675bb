//! Operations of streams, with their access rights. Not here: when they run (`engine.rs`).

use crate::lt::Product;
use crate::shadow::Rights;
use std::sync::Arc;

/// Access rights of later operations, as announced through the hook.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Announcement {
    /// Unique id.
    pub number: u64,
    /// Allowed regions.
    pub rights: Rights,
}

/// Source of a copy to the device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HostSource {
    /// Pageable memory: the bytes, taken when the copy was enqueued.
    Staged(Vec<u8>),
    /// Pinned memory at this address: the bytes are taken when the copy runs.
    Pinned(usize),
}

/// An operation of a stream. Host addresses are stored as numbers; the caller that enqueues promises that they stay
/// valid.
#[derive(Debug, Clone)]
pub enum Operation {
    /// A kernel launch.
    Launch {
        /// Handle of the function.
        function: u64,
        /// Blocks along each axis.
        grid: [u32; 3],
        /// Threads of a block along each axis.
        block: [u32; 3],
        /// Dynamic shared memory in bytes.
        dynamic_shared: u32,
        /// The parameter block.
        parameters: Vec<u8>,
    },
    /// A product of matrices by cuBLASLt.
    Product(Box<Product>),
    /// A copy to the device.
    ToDevice {
        /// Destination on the device.
        to: u64,
        /// Source.
        from: HostSource,
        /// Number of bytes.
        bytes: usize,
    },
    /// A copy to the host.
    ToHost {
        /// Destination on the host.
        to: usize,
        /// Source on the device.
        from: u64,
        /// Number of bytes.
        bytes: usize,
    },
    /// A copy within the device.
    Within {
        /// Destination.
        to: u64,
        /// Source.
        from: u64,
        /// Number of bytes.
        bytes: usize,
    },
    /// Bytes set to a repeated pattern.
    Fill {
        /// Device address.
        to: u64,
        /// 1, 2 or 4 bytes.
        pattern: Vec<u8>,
        /// Number of patterns.
        count: usize,
    },
    /// A host function.
    Callback {
        /// Address of the function.
        function: usize,
        /// Its argument.
        argument: usize,
    },
    /// An event record, or with handle 0 the end of a graph.
    Marker(u64),
}

impl Operation {
    /// Simulated duration.
    pub(super) fn time(&self) -> u64 {
        if let Self::Product(product) = self { product.time() } else { 1 }
    }

    /// Name in messages.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Launch { .. } => "a kernel",
            Self::Product(_) => "a product",
            Self::ToDevice { .. } => "a copy to the device",
            Self::ToHost { .. } => "a copy to the host",
            Self::Within { .. } => "a copy within the device",
            Self::Fill { .. } => "a fill",
            Self::Callback { .. } => "a host function",
            Self::Marker(_) => "a marker",
        }
    }
}

/// An operation with its access rights.
#[derive(Debug, Clone)]
pub struct Work {
    /// The operation.
    pub operation: Operation,
    /// Its access rights.
    pub announcement: Arc<Announcement>,
}
