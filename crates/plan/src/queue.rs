//! Queues: what runs the steps of a program. Not here: which steps wait for which (`waits.rs`).

use plimsoll_graph::{MemoryKind, Op};
use serde::{Deserialize, Serialize};

/// What runs a step. All steps of a queue run in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Queue {
    /// The device's kernels.
    Device,
    /// Nodes of the host.
    Host,
    /// Copies from the host to the device.
    ToDevice,
    /// Copies from the device to the host.
    ToHost,
}

impl Queue {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Device, Self::Host, Self::ToDevice, Self::ToHost];

    /// The queue of a node that works in a memory of this kind, and whose first operand and first result rest in memories
    /// of these kinds. Waiting for a transfer is work of the memory that the operand rests in.
    pub fn of(op: &Op, works_in: MemoryKind, input: Option<MemoryKind>, output: Option<MemoryKind>) -> Self {
        let of_kind = |kind| match kind {
            MemoryKind::Device => Self::Device,
            MemoryKind::Host => Self::Host,
        };
        match (op, input, output) {
            // The processor copies between memories that it addresses.
            (Op::Transfer(_), Some(MemoryKind::Host), Some(MemoryKind::Host)) => Self::Host,
            (Op::Transfer(_), _, Some(MemoryKind::Host)) => Self::ToHost,
            (Op::Transfer(_), ..) => Self::ToDevice,
            (Op::AwaitTransfer(_), Some(kind), _) => of_kind(kind),
            _ => of_kind(works_in),
        }
    }
}
