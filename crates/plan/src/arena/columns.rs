//! What the exact search knows while it builds a packing from the bottom up: for each column how high
//! it is filled and what still has to go on top, for each block how low it can still lie. Everything
//! here can be taken back, in reverse order. Who decides what is placed is `search.rs`.
//!
//! ```text
//!   capacity ------------------------------------------
//!                    . y .                               y waits. It meets x, so its lowest offset is
//!               +----.---.-------+                       the top of x.
//!     floor --> |       x        |......                 No block that waits in column 4 can lie lower
//!               +----------------+ ^                     than y, so that its floor is there as well:
//!     column      0    1    2    3 | 4                   the bytes under it are lost.
//!                                lost
//! ```

use super::compress::Compressed;
use std::ops::Range;

/// One column of the packing as it stands.
#[derive(Debug, Clone, Copy)]
pub(super) struct Column {
    /// No waiting block can lie lower than this here.
    pub floor: u64,
    /// Sum of the sizes of the waiting blocks.
    pub load: u64,
    /// The lowest offset of the waiting blocks that cannot lie on the floor; `u64::MAX` where all can.
    pub next: u64,
    /// Waiting blocks.
    pub waiting: u32,
    /// Waiting blocks that can lie on the floor.
    pub tight: u32,
    /// Waiting blocks that are also live in the column to the left.
    pub crossing: u32,
    /// A fingerprint of the set of waiting blocks that start here.
    pub starting: u64,
}

/// A change, with what undoes it.
#[derive(Debug, Clone, Copy)]
enum Change {
    Column(u32, Column),
    Lowest(u32, u64),
    Placed(u32),
}

/// The capacity is exceeded, however the waiting blocks are placed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Overfull;

/// A packing under construction.
pub(super) struct Columns<'a> {
    pub problem: &'a Compressed,
    pub columns: Vec<Column>,
    /// For each block, the lowest offset that it can still take.
    pub lowest: Vec<u64>,
    /// For each block that was placed, where.
    pub offsets: Vec<u64>,
    /// For each column, the size of the smallest block that is not live in it, but shares a column with
    /// one that is: one of these must lie under a block that does not lie on the floor.
    pub smallest_beside: Vec<u64>,
    waits: Vec<bool>,
    /// For each column all its blocks. When it was last looked at, those that wait came first, sorted
    /// by their lowest offsets.
    blocks_of: Vec<Vec<u32>>,
    changes: Vec<Change>,
    /// Columns whose blocks changed since they were last looked at.
    dirty: Vec<u32>,
    is_dirty: Vec<bool>,
}

impl<'a> Columns<'a> {
    /// Nothing is placed. Takes memory in proportion to the sum of the blocks' widths.
    pub fn new(problem: &'a Compressed) -> Self {
        let blocks = &problem.blocks;
        let width = problem.loads.len();
        let nothing = Column { floor: 0, load: 0, next: u64::MAX, waiting: 0, tight: 0, crossing: 0, starting: 0 };
        let mut columns = vec![nothing; width];
        let mut blocks_of = vec![Vec::new(); width];
        for (index, block) in blocks.iter().enumerate() {
            columns[block.lower as usize].starting ^= fingerprint(index as u64);
            for c in block.columns() {
                let column = &mut columns[c];
                column.load += block.size;
                column.waiting += 1;
                column.tight += 1;
                column.crossing += u32::from(c > block.lower as usize);
                blocks_of[c].push(index as u32);
            }
        }
        Self {
            problem,
            columns,
            lowest: vec![0; blocks.len()],
            offsets: vec![0; blocks.len()],
            smallest_beside: smallest_beside(problem, &blocks_of),
            waits: vec![true; blocks.len()],
            blocks_of,
            changes: Vec::new(),
            dirty: Vec::new(),
            is_dirty: vec![false; width],
        }
    }

    /// The waiting blocks of a column, in no useful order.
    pub fn waiting_in(&self, column: usize) -> impl Iterator<Item = u32> + '_ {
        self.blocks_of[column].iter().copied().filter(|&block| self.waits[block as usize])
    }

    /// The waiting blocks that share a column with a block.
    pub fn waiting_beside(&self, block: u32) -> impl Iterator<Item = u32> + '_ {
        let b = self.problem.blocks[block as usize];
        let beside = self.problem.blocks.iter().zip(0u32..).zip(&self.waits);
        beside.filter_map(move |((other, i), &waits)| {
            (waits && i != block && other.lower < b.upper && b.lower < other.upper).then_some(i)
        })
    }

    /// Puts a waiting block onto the floor at its lowest offset.
    pub fn place(&mut self, block: u32, capacity: u64) -> Result<(), Overfull> {
        let b = self.problem.blocks[block as usize];
        let offset = self.lowest[block as usize];
        let top = offset + b.size;
        self.take(block, offset);
        for c in b.columns() {
            self.columns[c].floor = top;
        }
        for (other, i) in self.problem.blocks.iter().zip(0u32..) {
            if self.waits[i as usize] && other.lower < b.upper && b.lower < other.upper {
                self.lift(i, top);
            }
        }
        self.settle(capacity)
    }

    /// Puts waiting blocks one under the other, the first right under the ceiling at `capacity`. They must be live in
    /// all columns that hold together with their own, so that the ceiling over those sinks; to where, is returned.
    pub fn hang(&mut self, blocks: &[u32], capacity: u64) -> Result<u64, Overfull> {
        let mut ceiling = capacity;
        for &block in blocks {
            ceiling -= self.problem.blocks[block as usize].size;
            self.take(block, ceiling);
        }
        // Columns are looked at once for all of them: a step of a transformer hangs hundreds.
        self.settle(ceiling).map(|()| ceiling)
    }

    /// Gives up the space below `height` in one column.
    pub fn waste(&mut self, column: usize, height: u64, capacity: u64) -> Result<(), Overfull> {
        for index in 0..self.blocks_of[column].len() {
            let block = self.blocks_of[column][index];
            if self.waits[block as usize] {
                self.lift(block, height);
            }
        }
        self.settle(capacity)
    }

    /// How many changes there are to take back.
    pub fn mark(&self) -> usize {
        self.changes.len()
    }

    /// Takes back all changes since `mark`.
    pub fn undo(&mut self, mark: usize) {
        for change in self.changes.drain(mark..).rev() {
            match change {
                Change::Column(c, column) => self.columns[c as usize] = column,
                Change::Lowest(block, offset) => self.lowest[block as usize] = offset,
                Change::Placed(block) => self.waits[block as usize] = true,
            }
        }
    }

    /// A block waits no longer.
    fn take(&mut self, block: u32, offset: u64) {
        let b = self.problem.blocks[block as usize];
        self.offsets[block as usize] = offset;
        self.waits[block as usize] = false;
        self.changes.push(Change::Placed(block));
        for c in b.columns() {
            self.changes.push(Change::Column(c as u32, self.columns[c]));
            let column = &mut self.columns[c];
            column.load -= b.size;
            column.waiting -= 1;
            column.crossing -= u32::from(c > b.lower as usize);
            self.touch(c);
        }
        self.columns[b.lower as usize].starting ^= fingerprint(u64::from(block));
    }

    /// A waiting block can no longer lie below `height`.
    fn lift(&mut self, block: u32, height: u64) {
        let lowest = self.lowest[block as usize];
        if lowest < height {
            self.changes.push(Change::Lowest(block, lowest));
            self.lowest[block as usize] = height;
            for c in self.problem.blocks[block as usize].columns() {
                self.touch(c);
            }
        }
    }

    fn touch(&mut self, column: usize) {
        if !self.is_dirty[column] {
            self.is_dirty[column] = true;
            self.dirty.push(column as u32);
        }
    }

    /// Looks at the columns that changed, up to the first one that is overfull.
    fn settle(&mut self, capacity: u64) -> Result<(), Overfull> {
        let mut result = Ok(());
        while let Some(column) = self.dirty.pop() {
            self.is_dirty[column as usize] = false;
            if result.is_ok() {
                result = self.look_at(column as usize, capacity);
            }
        }
        result
    }

    /// Works out a column's floor and what can lie on it, and whether its blocks still fit: laid one
    /// on the other in the order of their lowest offsets, they must end below the capacity. (In job
    /// shop scheduling this is the bound of one machine whose jobs have release dates.)
    fn look_at(&mut self, c: usize, capacity: u64) -> Result<(), Overfull> {
        let mut column = self.columns[c];
        self.changes.push(Change::Column(c as u32, column));
        let blocks = &mut self.blocks_of[c];
        let key = |block: u32| if self.waits[block as usize] { self.lowest[block as usize] } else { u64::MAX };
        sort_almost_sorted(blocks, key);

        let blocks = &blocks[..column.waiting as usize];
        if let Some(&first) = blocks.first() {
            column.floor = self.lowest[first as usize];
        }
        column.tight = 0;
        column.next = u64::MAX;
        let mut top = 0;
        for &block in blocks {
            let lowest = self.lowest[block as usize];
            if lowest == column.floor {
                column.tight += 1;
            } else if column.next == u64::MAX {
                column.next = lowest;
            }
            top = lowest.max(top) + self.problem.blocks[block as usize].size;
        }
        self.columns[c] = column;
        if top > capacity { Err(Overfull) } else { Ok(()) }
    }
}

/// The independent parts of `range`: runs of columns that waiting blocks hold together.
pub(super) fn components(columns: &[Column], range: Range<u32>) -> impl Iterator<Item = Range<u32>> + '_ {
    let mut at = range.start;
    std::iter::from_fn(move || {
        while at < range.end && columns[at as usize].waiting == 0 {
            at += 1;
        }
        let lower = at;
        at = range.end.min(at + 1);
        while at < range.end && columns[at as usize].crossing > 0 {
            at += 1;
        }
        (lower < at).then_some(lower..at)
    })
}

/// 64 bits that stand for a number (the finalizer of SplitMix64).
pub(super) fn fingerprint(number: u64) -> u64 {
    let mut z = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// See `Columns::smallest_beside`.
fn smallest_beside(problem: &Compressed, blocks_of: &[Vec<u32>]) -> Vec<u64> {
    let reach = |blocks: &Vec<u32>| {
        let lower = blocks.iter().map(|&i| problem.blocks[i as usize].lower).min().unwrap_or(0);
        let upper = blocks.iter().map(|&i| problem.blocks[i as usize].upper).max().unwrap_or(0);
        (lower, upper)
    };
    let smallest = |(c, blocks): (usize, &Vec<u32>)| {
        let (lower, upper) = reach(blocks);
        let beside = problem.blocks.iter().filter(|b| b.lower < upper && lower < b.upper && !b.columns().contains(&c));
        beside.map(|b| b.size).min().unwrap_or(u64::MAX)
    };
    blocks_of.iter().enumerate().map(smallest).collect()
}

/// Insertion sort: linear where little has changed since the last time.
fn sort_almost_sorted(blocks: &mut [u32], key: impl Fn(u32) -> u64) {
    if blocks.len() > 40 {
        blocks.sort_by_key(|&block| key(block));
        return;
    }
    for i in 1..blocks.len() {
        let block = blocks[i];
        let wanted = key(block);
        let mut j = i;
        while j > 0 && key(blocks[j - 1]) > wanted {
            blocks[j] = blocks[j - 1];
            j -= 1;
        }
        blocks[j] = block;
    }
}
