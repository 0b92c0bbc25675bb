//! A warp: 32 lanes with their registers, in groups that stand at the same instruction.

use super::super::program::{Kernel, Origin, Reg, Special};
use super::asynchronous::Copies;
use super::fault::{FaultKind, Stop};

/// A register of all lanes.
pub(super) type Row = [u64; 32];

/// Where a block and its launch put a warp.
#[derive(Debug, Clone, Copy)]
pub(super) struct Position {
    /// Extents of the grid, in blocks.
    pub grid: [u32; 3],
    /// Extents of the block, in threads.
    pub block: [u32; 3],
    /// The block's place in the grid.
    pub at: [u32; 3],
    /// Shared memory whose size the launch chose, in bytes.
    pub dynamic_shared: u32,
    /// Where it begins.
    pub dynamic_start: u32,
}

/// State of a warp.
#[derive(Debug)]
pub(super) struct Warp<'k> {
    kernel: &'k Kernel,
    /// Which warp of its block it is.
    pub index: u32,
    values: Vec<Row>,
    written: Vec<u32>,
    /// Lanes by instruction, the lowest first. That one runs: so lanes meet again behind what they did apart.
    groups: Vec<(usize, u32)>,
    /// Whether it waits at a barrier of the block.
    pub waiting: bool,
    /// Barriers passed, of the block and of the warp.
    pub clock: u32,
    /// Copies under way.
    pub copies: Copies,
    /// Local memory by lane, and which of its bytes were written.
    pub local: Vec<(Vec<u8>, Vec<bool>)>,
}

impl<'k> Warp<'k> {
    /// A warp to be begun.
    pub fn new(kernel: &'k Kernel, index: u32) -> Self {
        let registers = kernel.registers.len();
        Self {
            kernel,
            index,
            values: vec![[0xDEAD_BEEF_DEAD_BEEF; 32]; registers],
            written: vec![0; registers],
            groups: Vec::new(),
            waiting: false,
            clock: 0,
            copies: Copies::default(),
            local: Vec::new(),
        }
    }

    /// Begins a block: registers as they begin, all lanes at the first instruction.
    pub fn begin(&mut self, position: &Position) {
        let threads = position.block.iter().product::<u32>() - self.index * 32;
        let live = if threads >= 32 { !0 } else { (1 << threads) - 1 };
        for (reg, origin) in self.kernel.registers.iter().enumerate() {
            self.written[reg] = !0;
            match origin {
                Origin::Declared(_) => self.written[reg] = 0,
                Origin::Constant(value) => self.values[reg] = [*value; 32],
                Origin::DynamicShared => self.values[reg] = [position.dynamic_start.into(); 32],
                Origin::Special(special) => {
                    let index = self.index;
                    self.values[reg] = std::array::from_fn(|lane| hold(*special, position, index, lane as u32).into());
                }
            }
        }
        self.groups.clear();
        self.groups.push((0, live));
        self.waiting = false;
        self.clock = 0;
        self.copies = Copies::default();
        let local = self.kernel.local_bytes as usize;
        self.local.clear();
        if local > 0 {
            self.local.resize(32, (vec![0xA5; local], vec![false; local]));
        }
    }

    /// The lanes to run next, and their instruction.
    pub fn current(&self) -> Option<(usize, u32)> {
        self.groups.first().copied()
    }

    /// Lanes that have not left.
    pub fn live(&self) -> u32 {
        self.groups.iter().fold(0, |live, group| live | group.1)
    }

    /// Moves on: lanes of the current group that `leave` are gone, those that `jump` are at `target`, the rest at the
    /// next instruction.
    pub fn advance(&mut self, leave: u32, jump: u32, target: usize) {
        let (at, lanes) = self.groups[0];
        let stay = lanes & !leave & !jump;
        if self.groups.len() == 1 && jump == 0 && leave == 0 {
            self.groups[0].0 = at + 1;
            return;
        }
        self.groups.remove(0);
        self.arrive(at + 1, stay);
        self.arrive(target, jump);
    }

    fn arrive(&mut self, at: usize, lanes: u32) {
        if lanes == 0 {
            return;
        }
        match self.groups.binary_search_by_key(&at, |group| group.0) {
            Ok(place) => self.groups[place].1 |= lanes,
            Err(place) => self.groups.insert(place, (at, lanes)),
        }
    }

    /// A register, which these lanes must have written.
    pub fn read(&self, reg: Reg, lanes: u32) -> Result<&Row, Stop> {
        let missing = lanes & !self.written[reg as usize];
        if missing == 0 {
            return Ok(&self.values[reg as usize]);
        }
        let name = match &self.kernel.registers[reg as usize] {
            Origin::Declared(name) => name.clone(),
            other => format!("{other:?}"),
        };
        Err(Stop::first(missing, FaultKind::Register(name)))
    }

    /// A value that is the same in all these lanes.
    pub fn uniform(&self, reg: Reg, lanes: u32, what: &'static str) -> Result<u64, Stop> {
        let row = self.read(reg, lanes)?;
        let first = row[lanes.trailing_zeros() as usize & 31];
        match each(lanes).find(|lane| row[*lane] != first) {
            None => Ok(first),
            Some(lane) => Err(Stop { lane: lane as u32, kind: FaultKind::Operand(what) }),
        }
    }

    /// Writes a register in these lanes.
    pub fn write(&mut self, reg: Reg, lanes: u32, row: &Row) {
        self.written[reg as usize] |= lanes;
        let target = &mut self.values[reg as usize];
        if lanes == !0 {
            *target = *row;
        } else {
            each(lanes).for_each(|lane| target[lane] = row[lane]);
        }
    }

    /// Checks that exactly the lanes of a mask are here, but for those that left.
    pub fn converged(&self, here: u32, mask: u32) -> Result<(), Stop> {
        let expected = mask & self.live();
        if here == expected {
            return Ok(());
        }
        Err(Stop::first(here, FaultKind::Divergent { here, expected }))
    }
}

/// The lanes of a mask.
pub(super) fn each(lanes: u32) -> impl Iterator<Item = usize> {
    let mut left = lanes;
    std::iter::from_fn(move || {
        let lane = left.trailing_zeros() as usize;
        left &= left.wrapping_sub(1);
        (lane < 32).then_some(lane)
    })
}

/// What a special register holds.
fn hold(special: Special, position: &Position, warp: u32, lane: u32) -> u32 {
    let thread = warp * 32 + lane;
    let [x, y, z] = position.block;
    match special {
        Special::Thread(axis) => [thread % x, thread / x % y, thread / x / y % z][axis],
        Special::Threads(axis) => position.block[axis],
        Special::Block(axis) => position.at[axis],
        Special::Blocks(axis) => position.grid[axis],
        Special::Lane => lane,
        Special::Warp => warp,
        Special::MaskEqual => 1 << lane,
        Special::MaskLess => (1 << lane) - 1,
        Special::MaskLessEqual => !0 >> (31 - lane),
        Special::MaskGreater => !(!0 >> (31 - lane)),
        Special::MaskGreaterEqual => !((1 << lane) - 1),
        Special::DynamicSharedBytes => position.dynamic_shared,
    }
}
