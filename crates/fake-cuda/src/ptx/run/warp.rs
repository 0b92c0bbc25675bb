//! A warp: 32 lanes with their registers, grouped by their next instruction.

use super::super::program::{Kernel, Origin, Reg, Special};
use super::copies::Copies;
use super::fault::{FaultKind, Stop};
use super::mask::each;

pub(super) use super::super::lanes::Row;

/// Position of a warp in its block and launch.
#[derive(Debug, Clone, Copy)]
pub(super) struct Position {
    /// Extents of the grid, in blocks.
    pub grid: [u32; 3],
    /// Extents of the block, in threads.
    pub block: [u32; 3],
    /// Index of the block in the grid.
    pub at: [u32; 3],
    /// Dynamic shared memory, in bytes.
    pub dynamic_shared: u32,
    /// Offset of the dynamic shared memory.
    pub dynamic_start: u32,
}

/// State of a warp.
#[derive(Debug)]
pub(super) struct Warp<'k> {
    kernel: &'k Kernel,
    /// Index of the warp in its block.
    pub index: u32,
    values: Vec<Row>,
    written: Vec<u32>,
    /// Groups of lanes by next instruction. The lowest runs first, so that lanes reconverge after a branch.
    groups: Vec<(usize, u32)>,
    /// Whether it waits at a block barrier.
    pub waiting: bool,
    /// Number of barriers passed, of the block and of the warp.
    pub clock: u32,
    /// Pending copies.
    pub copies: Copies,
    /// Local memory of each lane, and which bytes were written.
    pub local: Vec<(Vec<u8>, Vec<bool>)>,
}

impl<'k> Warp<'k> {
    /// A warp before its first block.
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

    /// Starts a block: initial registers, all lanes at the first instruction.
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

    /// The next lanes to run, and their instruction.
    pub fn current(&self) -> Option<(usize, u32)> {
        self.groups.first().copied()
    }

    /// Lanes that have not exited.
    pub fn live(&self) -> u32 {
        self.groups.iter().fold(0, |live, group| live | group.1)
    }

    /// Advances the current group: lanes of `leave` exit, lanes of `jump` go to `target`, the rest to the next
    /// instruction.
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

    /// Reads a register, which these lanes must have written.
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

    /// Reads a value that must be equal in all these lanes.
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

    /// Checks that exactly the lanes of a mask are here, except those that exited.
    pub fn converged(&self, here: u32, mask: u32) -> Result<(), Stop> {
        let expected = mask & self.live();
        if here == expected {
            return Ok(());
        }
        Err(Stop::first(here, FaultKind::Divergent { here, expected }))
    }
}

/// Value of a special register.
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
