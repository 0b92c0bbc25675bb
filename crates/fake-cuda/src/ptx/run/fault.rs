//! What went wrong in a launch, and where.

use crate::shadow::{Outside, Problem};
use std::fmt;

/// The kinds of faults.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FaultKind {
    /// The launch itself is impossible: its shape, its memory, its parameters.
    Launch(String),
    /// A register is read that nothing wrote.
    Register(String),
    /// Memory is read that nothing wrote, or is in flight, or is raced for.
    Memory(Problem),
    /// An address outside of what may be accessed.
    Bounds(Outside),
    /// An offset outside of a block's or a thread's memory of this many bytes.
    SpaceBounds {
        /// The space.
        space: &'static str,
        /// The first byte.
        offset: u64,
        /// Size of the space.
        bytes: u64,
    },
    /// An address is no multiple of the access's size.
    Misaligned {
        /// The address.
        address: u64,
        /// The size.
        bytes: u64,
    },
    /// Lanes are missing where all must come, or come where the mask has none.
    Divergent {
        /// Lanes that are here.
        here: u32,
        /// Lanes that should be.
        expected: u32,
    },
    /// A shuffle takes from a lane that is not here.
    AbsentLane(u32),
    /// A thread leaves while copies of its own are under way.
    LeavesCopies,
    /// A warp left, and others wait for it at a barrier.
    LeavesBarrier,
    /// `trap`.
    Trap,
    /// More instructions than allowed: it hangs.
    Steps(u64),
    /// An operand that the hardware would not take.
    Operand(&'static str),
}

/// A fault and its place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// What went wrong.
    pub kind: FaultKind,
    /// The kernel.
    pub kernel: String,
    /// File and line of the source, or of the PTX.
    pub source: String,
    /// The instruction.
    pub text: String,
    /// The block.
    pub block: [u32; 3],
    /// The thread within its block.
    pub thread: u32,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kind, kernel, source, text, block, thread } = self;
        if let FaultKind::Launch(what) = kind {
            return write!(f, "{kernel}: {what}");
        }
        write!(f, "{kernel} at {source}, `{text}`, block {block:?}, thread {thread}: {kind}")
    }
}

impl std::error::Error for Fault {}

impl fmt::Display for FaultKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Launch(what) => write!(f, "{what}"),
            Self::Register(name) => write!(f, "reads register {name}, which nothing wrote"),
            Self::Memory(problem) => write!(f, "{problem}"),
            Self::Bounds(outside) => write!(f, "the address {outside}"),
            Self::SpaceBounds { space, offset, bytes } => write!(f, "byte {offset} of {bytes} bytes of {space}"),
            Self::Misaligned { address, bytes } => write!(f, "misaligned: {address:#x} is no multiple of {bytes}"),
            Self::Divergent { here, expected } => {
                write!(f, "divergent: lanes {here:#010x} are here, {expected:#010x} should be")
            }
            Self::AbsentLane(lane) => write!(f, "shuffles from lane {lane}, which is not here"),
            Self::LeavesCopies => write!(f, "leaves the kernel while its cp.async copies are under way"),
            Self::LeavesBarrier => write!(f, "left the kernel while other warps wait at a barrier"),
            Self::Trap => write!(f, "trap"),
            Self::Steps(limit) => write!(f, "more than {limit} instructions: it hangs"),
            Self::Operand(what) => write!(f, "{what}"),
        }
    }
}

/// A fault of a lane, not yet placed.
#[derive(Debug)]
pub(super) struct Stop {
    /// The lane.
    pub lane: u32,
    /// What went wrong.
    pub kind: FaultKind,
}

impl Stop {
    /// A fault of the first of these lanes.
    pub fn first(lanes: u32, kind: FaultKind) -> Self {
        Self { lane: lanes.trailing_zeros() & 31, kind }
    }
}
