//! A module as the interpreter runs it: every operand is a register, every opcode an action.
//!
//! Constants and special registers (`%tid.x`) are registers too, filled before the first instruction. So an
//! instruction never asks what kind of operand it has.

use super::lanes::{Convert, Lane};
use super::types::Type;

/// Index into a kernel's registers.
pub type Reg = u32;

/// A parsed PTX text.
#[derive(Debug)]
pub struct Module {
    /// `.version`, as major · 10 + minor: 63 is PTX 6.3.
    pub version: u32,
    /// `.target`: 80 of `sm_80`.
    pub target: u32,
    /// Source files that line information names, by index.
    pub files: Vec<(u32, String)>,
    /// Memory of the module's constants.
    pub constants: Vec<u8>,
    /// Its entries, in order.
    pub kernels: Vec<Kernel>,
}

impl Module {
    /// The kernel of this name.
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
    /// `.maxntid`: the most threads that a block may have.
    pub max_threads: Option<u32>,
    /// How each register begins.
    pub registers: Vec<Origin>,
    /// What it does.
    pub instructions: Vec<Instruction>,
    /// The module's constants, which a kernel may address.
    pub constants: Vec<u8>,
}

/// A parameter's place in the parameter block.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Parameter {
    /// Its name.
    pub name: String,
    /// Offset in bytes.
    pub offset: u32,
    /// Size in bytes.
    pub bytes: u32,
}

/// How a register begins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// Declared by `.reg` under this name, and unwritten.
    Declared(String),
    /// Holds a value in every lane.
    Constant(u64),
    /// Holds the offset of the shared memory whose size the launch chooses.
    DynamicShared,
    /// Holds what the hardware says.
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

/// An instruction with its place.
#[derive(Debug)]
pub struct Instruction {
    /// Runs only in lanes where the register is not 0, or is 0 if negated.
    pub predicate: Option<(Reg, bool)>,
    /// What it does.
    pub action: Action,
    /// Its PTX.
    pub text: String,
    /// Index of the source file, or 0 for the PTX itself.
    pub file: u32,
    /// Line of that file.
    pub line: u32,
}

/// Where an address points.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Space {
    /// Anywhere: windows of the address space tell.
    Generic,
    /// Device memory.
    Global,
    /// Memory of a block.
    Shared,
    /// Memory of a thread.
    Local,
    /// The kernel's parameters.
    Parameter,
    /// Constants of the module.
    Constant,
}

/// An address in a register plus a displacement.
#[derive(Debug, Clone, Copy)]
pub struct Address {
    /// Where it points.
    pub space: Space,
    /// The register.
    pub base: Reg,
    /// Displacement in bytes.
    pub offset: i64,
}

/// A load or store of one to four elements.
#[derive(Debug)]
pub struct Access {
    /// Where.
    pub address: Address,
    /// The element.
    pub ty: Type,
    /// Registers, one for each element.
    pub elements: Vec<Reg>,
    /// Ordered with other threads' accesses, as atomics are (`.volatile`, `.relaxed`, `.acquire`, `.release`).
    pub strong: bool,
}

/// What an atomic instruction does to memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Update {
    /// Sum.
    Add,
    /// The smaller.
    Min,
    /// The larger.
    Max,
    /// Bits of both.
    And,
    /// Bits of either.
    Or,
    /// Bits of one.
    Xor,
    /// The operand.
    Exchange,
    /// The second operand, if memory equals the first.
    CompareAndSwap,
    /// One more, or 0 past the operand.
    Increment,
    /// One less, or the operand below 0.
    Decrement,
}

/// How `setp` joins its comparison with a predicate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Join {
    /// It does not.
    None,
    /// Both.
    And,
    /// Either.
    Or,
    /// One.
    Xor,
}

/// From which lane `shfl` takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shuffle {
    /// A lower lane.
    Up,
    /// A higher lane.
    Down,
    /// The lane whose index differs in these bits.
    Butterfly,
    /// The lane named.
    Index,
}

/// What a vote gives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Vote {
    /// Whether all lanes say yes.
    All,
    /// Whether any lane says yes.
    Any,
    /// Whether all lanes say the same.
    Uniform,
    /// The lanes that say yes.
    Ballot,
}

/// Operands of a matrix product, by type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MatrixType {
    /// Half precision.
    F16,
    /// bfloat16.
    Bf16,
    /// 19 bits of single precision.
    Tf32,
}

/// What an instruction does.
#[derive(Debug)]
pub enum Action {
    /// A function of up to four registers, lane by lane.
    Compute {
        /// The function.
        lane: Lane,
        /// Its result.
        result: Reg,
        /// Its operands; unused ones repeat the first.
        operands: [Reg; 4],
        /// How many of them are used.
        used: usize,
        /// Differs by units in the last place from card to card.
        approximate: bool,
        /// Single precision with subnormal numbers taken and given as 0.
        flush: bool,
        /// Clamped to 0 to 1.
        saturate: bool,
        /// Floating-point operations that it counts as.
        flops: u64,
    },
    /// `cvt`.
    Convert {
        /// From what to what, and how it rounds.
        convert: Convert,
        /// The result.
        result: Reg,
        /// One operand, or two where the result is packed.
        operands: [Reg; 2],
    },
    /// `setp`.
    Compare {
        /// Compares the first two operands.
        lane: Lane,
        /// The outcome.
        result: Reg,
        /// Its opposite, if asked for.
        opposite: Option<Reg>,
        /// What is compared.
        operands: [Reg; 2],
        /// How the outcome is joined with `with`.
        join: Join,
        /// A predicate, and whether it is negated.
        with: (Reg, bool),
    },
    /// Several registers into one.
    Pack {
        /// The whole.
        result: Reg,
        /// Its parts, the lowest first.
        parts: Vec<Reg>,
        /// Bits of a part.
        bits: u32,
    },
    /// One register into several.
    Unpack {
        /// The parts, the lowest first.
        parts: Vec<Reg>,
        /// The whole.
        operand: Reg,
        /// Bits of a part.
        bits: u32,
    },
    /// `ld`.
    Load(Access),
    /// `st`.
    Store(Access),
    /// `atom` and `red`.
    Atomic {
        /// Where.
        address: Address,
        /// The element.
        ty: Type,
        /// What is done.
        update: Update,
        /// What was there, unless nobody asks.
        result: Option<Reg>,
        /// One operand, or two for compare-and-swap.
        operands: [Reg; 2],
    },
    /// `cp.async`.
    CopyAsync {
        /// Shared memory.
        to: Address,
        /// Device memory.
        from: Address,
        /// Only ever 16 bytes, past the first cache (`.cg`).
        whole_lines: bool,
        /// Bytes written: 4, 8 or 16.
        bytes: Reg,
        /// Bytes read, in a register; the rest are zeros.
        source_bytes: Option<Reg>,
    },
    /// `cp.async.commit_group`.
    CopyCommit,
    /// `cp.async.wait_group`: all but so many groups have arrived. `None`: all copies, committed or not.
    CopyWait(Option<Reg>),
    /// `ldmatrix`.
    LoadMatrix {
        /// One register for each matrix of 8 by 8.
        results: Vec<Reg>,
        /// Address of a row, in shared memory.
        address: Address,
        /// Whether columns are handed out instead of rows.
        transposed: bool,
    },
    /// `mma.sync.m16n8kK.row.col`, accumulating in single precision.
    Multiply {
        /// Type of both factors.
        ty: MatrixType,
        /// The inner extent: 8 or 16, or 4 with TF32.
        inner: usize,
        /// The result, four registers.
        d: Vec<Reg>,
        /// The left factor.
        a: Vec<Reg>,
        /// The right factor.
        b: Vec<Reg>,
        /// What is added, four registers.
        c: Vec<Reg>,
    },
    /// `shfl.sync`.
    Shuffle {
        /// Whence.
        from: Shuffle,
        /// The value taken.
        result: Reg,
        /// Whether the lane was in range.
        in_range: Option<Reg>,
        /// Value, lane or distance, clamp and segment, mask.
        operands: [Reg; 4],
    },
    /// `vote.sync`.
    Vote {
        /// What it gives.
        vote: Vote,
        /// The outcome.
        result: Reg,
        /// A predicate, and whether it is negated.
        predicate: (Reg, bool),
        /// Lanes that take part.
        mask: Reg,
    },
    /// `match.sync`.
    Match {
        /// Whether all lanes must agree.
        all: bool,
        /// Bits compared.
        bits: u32,
        /// Lanes of the same value.
        result: Reg,
        /// Whether all agree.
        agreed: Option<Reg>,
        /// The value.
        value: Reg,
        /// Lanes that take part.
        mask: Reg,
    },
    /// `redux.sync`.
    Reduce {
        /// How values are joined.
        update: Update,
        /// Whether they have a sign.
        signed: bool,
        /// The outcome.
        result: Reg,
        /// The value.
        value: Reg,
        /// Lanes that take part.
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
    /// `membar`, `fence`, `prefetch`: nothing to do here.
    Nothing,
    /// `ret` and `exit`.
    Return,
    /// `trap`.
    Trap,
}
