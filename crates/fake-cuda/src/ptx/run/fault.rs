//! Faults of a launch, with their location.

use crate::shadow::{Outside, Problem};
use std::fmt;

/// The kinds of faults.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FaultKind {
    /// The launch is invalid: its shape, shared memory or parameters.
    Launch(String),
    /// A read of an unwritten register.
    Register(String),
    /// A read of unwritten memory, of memory with a pending copy, or a race.
    Memory(Problem),
    /// An invalid address.
    Bounds(Outside),
    /// An offset outside a block's or a thread's memory.
    SpaceBounds {
        /// The space.
        space: &'static str,
        /// The first byte.
        offset: u64,
        /// Size of the space.
        bytes: u64,
    },
    /// The address is not a multiple of the access's size.
    Misaligned {
        /// The address.
        address: u64,
        /// The size.
        bytes: u64,
    },
    /// The lanes here are not those that must take part.
    Divergent {
        /// Lanes that are here.
        here: u32,
        /// Lanes that must be here.
        expected: u32,
    },
    /// A shuffle reads from a lane that is not here.
    AbsentLane(u32),
    /// A thread exits while its copies are pending.
    LeavesCopies,
    /// A warp exited while others wait at a barrier.
    LeavesBarrier,
    /// `trap`.
    Trap,
    /// The limit of instructions was reached: the kernel hangs.
    Steps(u64),
    /// An operand that the hardware does not accept.
    Operand(&'static str),
}

/// A fault with its location.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// The fault.
    pub kind: FaultKind,
    /// The kernel.
    pub kernel: String,
    /// Source file and line, or line of the PTX.
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
            Self::Register(name) => write!(f, "reads unwritten register {name}"),
            Self::Memory(problem) => write!(f, "{problem}"),
            Self::Bounds(outside) => write!(f, "the address {outside}"),
            Self::SpaceBounds { space, offset, bytes } => write!(f, "byte {offset} of {bytes} bytes of {space}"),
            Self::Misaligned { address, bytes } => write!(f, "misaligned: {address:#x} is not a multiple of {bytes}"),
            Self::Divergent { here, expected } => {
                write!(f, "divergent: lanes {here:#010x} are here, expected {expected:#010x}")
            }
            Self::AbsentLane(lane) => write!(f, "shuffles from lane {lane}, which is not here"),
            Self::LeavesCopies => write!(f, "exits while its cp.async copies are pending"),
            Self::LeavesBarrier => write!(f, "exited while other warps wait at a barrier"),
            Self::Trap => write!(f, "trap"),
            Self::Steps(limit) => write!(f, "hangs: more than {limit} instructions"),
            Self::Operand(what) => write!(f, "{what}"),
        }
    }
}

/// A fault of a lane, without its location.
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
