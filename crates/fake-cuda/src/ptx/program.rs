//! A module for the interpreter: every operand is a register, every opcode an action.
//!
//! Constants and special registers (`%tid.x`) are also registers, filled before the first instruction, so that
//! instructions need not distinguish kinds of operands.

use super::lanes::{Convert, Lanes};
use super::types::Type;

/// Index into a kernel's registers.
pub type Reg = u32;

/// A parsed PTX text.
#[derive(Debug)]
pub struct Module {
    /// `.version`, as major · 10 + minor: 63 is PTX 6.3.
    pub version: u32,
    /// `.target`: 80 for `sm_80`.
    pub target: u32,
    /// Source files that line information refers to, by index.
    pub files: Vec<(u32, String)>,
    /// Contents of the module's constants.
    pub constants: Vec<u8>,
    /// Its entries, in order.
    pub kernels: Vec<Kernel>,
}

impl Module {
    /// The kernel with this name.
    pub fn kernel(&self, name: &str) -> Option<&Kernel> {
        self.kernels.iter().find(|kernel| kernel.name == name)
    }
}

/// An entry of a module.
#[derive(Debug, Default)]
pub struct Kernel {
    /// Its name.
    pub name: String,
    /// Parameters, in order.
    pub parameters: Vec<Parameter>,
    /// Bytes of the parameter block.
    pub parameter_bytes: u32,
    /// Statically declared shared memory, in bytes.
    pub shared_bytes: u32,
    /// Local memory of a thread, in bytes.
    pub local_bytes: u32,
    /// `.maxntid`: maximum number of threads per block.
    pub max_threads: Option<u32>,
    /// Initial state of each register.
    pub registers: Vec<Origin>,
    /// Its instructions.
    pub instructions: Vec<Instruction>,
    /// The module's constants.
    pub constants: Vec<u8>,
}

/// A parameter in the parameter block.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Parameter {
    /// Its name.
    pub name: String,
    /// Offset in bytes.
    pub offset: u32,
    /// Size in bytes.
    pub bytes: u32,
}

/// Initial state of a register.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// Declared by `.reg` with this name; unwritten.
    Declared(String),
    /// Holds a value in every lane.
    Constant(u64),
    /// Holds the offset of the dynamic shared memory.
    DynamicShared,
    /// Holds a special register.
    Special(Special),
}

/// The special registers. Coordinates are 0 for x, 1 for y, 2 for z.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Special {
    /// `%tid`
    Thread(usize),
    /// `%ntid`
    Threads(usize),
    /// `%ctaid`
    Block(usize),
    /// `%nctaid`
    Blocks(usize),
    /// `%laneid`
    Lane,
    /// `%warpid`
    Warp,
    /// `%lanemask_eq`
    MaskEqual,
    /// `%lanemask_lt`
    MaskLess,
    /// `%lanemask_le`
    MaskLessEqual,
    /// `%lanemask_gt`
    MaskGreater,
    /// `%lanemask_ge`
    MaskGreaterEqual,
    /// `%dynamic_smem_size`
    DynamicSharedBytes,
}

/// An instruction with its location.
#[derive(Debug)]
pub struct Instruction {
    /// Runs only in lanes whose register is not 0, or is 0 if negated.
    pub predicate: Option<(Reg, bool)>,
    /// Its action.
    pub action: Action,
    /// Its PTX text.
    pub text: String,
    /// Index of the source file, or 0 for the PTX.
    pub file: u32,
    /// Line of that file.
    pub line: u32,
}

/// A state space.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Space {
    /// Generic: the address's window determines the space.
    Generic,
    /// Device memory.
    Global,
    /// Shared memory of a block.
    Shared,
    /// Local memory of a thread.
    Local,
    /// The kernel's parameters.
    Parameter,
    /// Constants of the module.
    Constant,
}

/// An address in a register plus a displacement.
#[derive(Debug, Clone, Copy)]
pub struct Address {
    /// Its space.
    pub space: Space,
    /// The register.
    pub base: Reg,
    /// Displacement in bytes.
    pub offset: i64,
}

/// A load or store of one to four elements.
#[derive(Debug)]
pub struct Access {
    /// Address.
    pub address: Address,
    /// Type of an element.
    pub ty: Type,
    /// Registers, one for each element.
    pub elements: Vec<Reg>,
    /// Whether it is ordered with other threads' accesses, as atomics are (`.volatile`, `.relaxed`, `.acquire`,
    /// `.release`).
    pub strong: bool,
}

/// Operation of an atomic instruction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Update {
    /// Sum.
    Add,
    /// Minimum.
    Min,
    /// Maximum.
    Max,
    /// Bitwise and.
    And,
    /// Bitwise or.
    Or,
    /// Bitwise exclusive or.
    Xor,
    /// Exchange.
    Exchange,
    /// Compare and swap.
    CompareAndSwap,
    /// Increment, or 0 above the operand.
    Increment,
    /// Decrement, or the operand below 0.
    Decrement,
}

/// How `setp` combines its comparison with a predicate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Join {
    /// Not at all.
    None,
    /// And.
    And,
    /// Or.
    Or,
    /// Exclusive or.
    Xor,
}

/// Source lane of `shfl`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shuffle {
    /// A lower lane.
    Up,
    /// A higher lane.
    Down,
    /// The lane whose index differs in the given bits.
    Butterfly,
    /// The lane with the given index.
    Index,
}

/// Result of a vote.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Vote {
    /// Whether all lanes are true.
    All,
    /// Whether any lane is true.
    Any,
    /// Whether all lanes are equal.
    Uniform,
    /// The lanes that are true.
    Ballot,
}

/// Type of a factor of a matrix product.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MatrixType {
    /// Half precision.
    F16,
    /// bfloat16.
    Bf16,
    /// TF32: 19 bits of single precision.
    Tf32,
    /// 8 bits, 4 of them for the exponent.
    E4m3,
    /// 8 bits, 5 of them for the exponent.
    E5m2,
}

impl MatrixType {
    /// Numbers in a register.
    pub fn packed(self) -> usize {
        match self {
            Self::Tf32 => 1,
            Self::F16 | Self::Bf16 => 2,
            Self::E4m3 | Self::E5m2 => 4,
        }
    }
}

/// Action of an instruction.
#[derive(Debug)]
pub enum Action {
    /// A function of up to four registers, lane by lane.
    Compute {
        /// The function.
        lanes: Lanes,
        /// Its result.
        result: Reg,
        /// Its operands; unused ones repeat the first.
        operands: [Reg; 4],
        /// Number of used operands.
        used: usize,
        /// Whether cards differ in the last places.
        approximate: bool,
        /// Flushes subnormal single-precision operands and results to 0.
        flush: bool,
        /// Clamps the result to 0 to 1.
        saturate: bool,
        /// Number of floating-point operations.
        flops: u64,
    },
    /// `cvt`.
    Convert {
        /// Types and rounding.
        convert: Convert,
        /// The result.
        result: Reg,
        /// One operand, or two for a packed result.
        operands: [Reg; 2],
    },
    /// `setp`.
    Compare {
        /// Compares the first two operands.
        lanes: Lanes,
        /// The result.
        result: Reg,
        /// Register for the negated result, if present.
        opposite: Option<Reg>,
        /// The operands.
        operands: [Reg; 2],
        /// How the result is combined with `with`.
        join: Join,
        /// A predicate, and whether it is negated.
        with: (Reg, bool),
    },
    /// Packs several registers into one.
    Pack {
        /// The packed register.
        result: Reg,
        /// The parts, lowest first.
        parts: Vec<Reg>,
        /// Bits per part.
        bits: u32,
    },
    /// Unpacks one register into several.
    Unpack {
        /// The parts, lowest first.
        parts: Vec<Reg>,
        /// The packed register.
        operand: Reg,
        /// Bits per part.
        bits: u32,
    },
    /// `ld`.
    Load(Access),
    /// `st`.
    Store(Access),
    /// `atom` and `red`.
    Atomic {
        /// Address.
        address: Address,
        /// Type of the element.
        ty: Type,
        /// The operation.
        update: Update,
        /// Register for the old value, if present.
        result: Option<Reg>,
        /// One operand, or two for compare-and-swap.
        operands: [Reg; 2],
    },
    /// `cp.async`.
    CopyAsync {
        /// Destination in shared memory.
        to: Address,
        /// Source in device memory.
        from: Address,
        /// `.cg`, which bypasses the first cache and allows only 16 bytes.
        whole_lines: bool,
        /// Bytes written: 4, 8 or 16.
        bytes: Reg,
        /// Register with the number of bytes read; the rest are zeros.
        source_bytes: Option<Reg>,
    },
    /// `cp.async.commit_group`.
    CopyCommit,
    /// `cp.async.wait_group`: waits until all but this many groups have arrived. `None`: all copies, committed or not.
    CopyWait(Option<Reg>),
    /// `ldmatrix`.
    LoadMatrix {
        /// One register per matrix of 8 by 8.
        results: Vec<Reg>,
        /// Address of a row in shared memory.
        address: Address,
        /// Whether to transpose.
        transposed: bool,
    },
    /// `mma.sync.m16n8kK.row.col`, accumulating in single precision.
    Multiply {
        /// Types of both factors, which differ only if they are 8-bit floats.
        types: [MatrixType; 2],
        /// The inner extent: 8 or 16, 4 or 8 with TF32, 32 with 8-bit floats.
        inner: usize,
        /// The result, four registers.
        d: Vec<Reg>,
        /// The left factor.
        a: Vec<Reg>,
        /// The right factor.
        b: Vec<Reg>,
        /// The addend, four registers.
        c: Vec<Reg>,
    },
    /// `shfl.sync`.
    Shuffle {
        /// Source lane.
        from: Shuffle,
        /// Register for the value.
        result: Reg,
        /// Predicate for whether the source was in range, if present.
        in_range: Option<Reg>,
        /// Value, lane or distance, clamp and segment, mask.
        operands: [Reg; 4],
    },
    /// `vote.sync`.
    Vote {
        /// Result of the vote.
        vote: Vote,
        /// Register for the result.
        result: Reg,
        /// A predicate, and whether it is negated.
        predicate: (Reg, bool),
        /// Participating lanes.
        mask: Reg,
    },
    /// `match.sync`.
    Match {
        /// Whether all lanes must be equal.
        all: bool,
        /// Number of bits compared.
        bits: u32,
        /// Register for the lanes with the same value.
        result: Reg,
        /// Predicate for whether all are equal, if present.
        agreed: Option<Reg>,
        /// The value.
        value: Reg,
        /// Participating lanes.
        mask: Reg,
    },
    /// `redux.sync`.
    Reduce {
        /// The reduction.
        update: Update,
        /// Whether the values are signed.
        signed: bool,
        /// Register for the result.
        result: Reg,
        /// The value.
        value: Reg,
        /// Participating lanes.
        mask: Reg,
    },
    /// `activemask`.
    ActiveMask(Reg),
    /// `bra`.
    Branch(usize),
    /// `bar.sync 0`.
    Barrier,
    /// `bar.warp.sync`.
    WarpBarrier(Reg),
    /// `membar`, `fence`, `prefetch`: no effect in the interpreter.
    Nothing,
    /// `ret` and `exit`.
    Return,
    /// `trap`.
    Trap,
}
