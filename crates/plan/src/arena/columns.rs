//! What the exact search knows while it builds a packing from the bottom up: for each column how high
//! it is filled and what still has to go on top, for each block how low it can still lie. Everything
//! here can be taken back, in reverse order.
//!
//! ```text
//!   capacity ------------------------------------------
//!                    . y .                               y waits. It meets x, so its lowest offset is
//!               +----.---.-------+                       the top of x.
//!     floor --> |       x        |......                 Column 4 has no block that could lie lower
//!               +----------------+ ^                     than y, so its floor is there as well:
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
    /// Waiting blocks.
    pub waiting: u32,
    /// Waiting blocks that can lie on the floor.
    pub tight: u32,
    /// The lowest offset of those that cannot; `u64::MAX` where there are none.
    pub next: u64,
    /// Waiting blocks that are also live in the column to the left.
    pub crossing: u32,
    /// A fingerprint of the set of waiting blocks that start here.
    pub starting: u64,
}

/// A change to be taken back.
#[derive(Debug, Clone, Copy)]
enum Change {
    Column(u32, Column),
    Lowest(u32, u64),
    Placed(u32),
}

/// The capacity is exceeded, whatever the rest will be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Overfull;

/// A packing under construction.
pub(super) struct Columns<'a> {
    pub problem: &'a Compressed,
    pub columns: Vec<Column>,
    /// For each block, the lowest offset that it can still take.
    pub lowest: Vec<u64>,
    /// For each block, whether it waits to be placed.
    pub waits: Vec<bool>,
    /// For each placed block, where it lies.
    pub offsets: Vec<u64>,
    /// For each column, the size of the smallest block that is not live in it, but shares a column with
    /// one that is: nothing but such a block can lie under the lowest block of the column.
    pub smallest_beside: Vec<u64>,
    /// For each column, all its blocks: those that wait come first, by lowest offset, when it was last
    /// looked at.
    blocks_of: Vec<Vec<u32>>,
    /// For each block, those that share a column with it.
    neighbours: Vec<Vec<u32>>,
    changes: Vec<Change>,
    /// Columns whose blocks changed since they were last looked at.
    dirty: Vec<u32>,
    is_dirty: Vec<bool>,
}

impl<'a> Columns<'a> {
    pub fn new(problem: &'a Compressed) -> Self {
        let blocks = &problem.blocks;
        let width = problem.loads.len();
        let empty = Column { floor: 0, load: 0, waiting: 0, tight: 0, next: u64::MAX, crossing: 0, starting: 0 };
        let mut columns = vec![empty; width];
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
            waits: vec![true; blocks.len()],
            offsets: vec![0; blocks.len()],
            smallest_beside: vec![0; width],
            neighbours: neighbours(problem, &blocks_of),
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
        self.neighbours[block as usize].iter().copied().filter(|&other| self.waits[other as usize])
    }

    /// Puts a waiting block onto the floor at its lowest offset.
    pub fn place(&mut self, block: u32, capacity: u64) -> Result<(), Overfull> {
        let offset = self.lowest[block as usize];
        let top = offset + self.problem.blocks[block as usize].size;
        self.take(block, offset);
        for c in self.problem.blocks[block as usize].columns() {
            self.columns[c].floor = top;
        }
        let neighbours = std::mem::take(&mut self.neighbours[block as usize]);
        let result = neighbours.iter().try_for_each(|&other| self.lift(other, top, capacity));
        self.neighbours[block as usize] = neighbours;
        self.settle(result, capacity)
    }

    /// Puts a waiting block that spans all of its component under the component's ceiling.
    pub fn hang(&mut self, block: u32, offset: u64) -> Result<(), Overfull> {
        self.take(block, offset);
        self.settle(Ok(()), offset)
    }

    /// Gives up the space below `height` in one column.
    pub fn waste(&mut self, column: usize, height: u64, capacity: u64) -> Result<(), Overfull> {
        let blocks = std::mem::take(&mut self.blocks_of[column]);
        let result = blocks.iter().try_for_each(|&block| self.lift(block, height, capacity));
        self.blocks_of[column] = blocks;
        self.settle(result, capacity)
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
    fn lift(&mut self, block: u32, height: u64, capacity: u64) -> Result<(), Overfull> {
        let i = block as usize;
        if !self.waits[i] || self.lowest[i] >= height {
            return Ok(());
        }
        let b = self.problem.blocks[i];
        if height + b.size > capacity {
            return Err(Overfull);
        }
        self.changes.push(Change::Lowest(block, self.lowest[i]));
        self.lowest[i] = height;
        for c in b.columns() {
            self.touch(c);
        }
        Ok(())
    }

    fn touch(&mut self, column: usize) {
        if !self.is_dirty[column] {
            self.is_dirty[column] = true;
            self.dirty.push(column as u32);
        }
    }

    /// Looks at all columns that changed, unless the capacity is exceeded already.
    fn settle(&mut self, mut result: Result<(), Overfull>, capacity: u64) -> Result<(), Overfull> {
        while let Some(column) = self.dirty.pop() {
            self.is_dirty[column as usize] = false;
            if result.is_ok() {
                result = self.look_at(column as usize, capacity);
            }
        }
        result
    }

    /// Works out a column's floor and what can lie on it, and whether its blocks still fit: laid one
    /// on the other by their lowest offsets, they must end below the capacity. (The bound of a single
    /// machine whose jobs have release dates, as in job shop scheduling.)
    fn look_at(&mut self, c: usize, capacity: u64) -> Result<(), Overfull> {
        let mut column = self.columns[c];
        let blocks = &mut self.blocks_of[c];
        let key = |block: u32| if self.waits[block as usize] { self.lowest[block as usize] } else { u64::MAX };
        sort_almost_sorted(blocks, key);

        let mut top = 0;
        column.tight = 0;
        column.next = u64::MAX;
        for (i, &block) in blocks[..column.waiting as usize].iter().enumerate() {
            let lowest = self.lowest[block as usize];
            if i == 0 && lowest > column.floor {
                column.floor = lowest;
            }
            if lowest == column.floor {
                column.tight += 1;
            } else if column.next == u64::MAX {
                column.next = lowest;
            }
            top = lowest.max(top) + self.problem.blocks[block as usize].size;
        }
        self.changes.push(Change::Column(c as u32, self.columns[c]));
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
        if at < range.end {
            at += 1;
        }
        while at < range.end && columns[at as usize].crossing > 0 {
            at += 1;
        }
        (lower < at).then_some(lower..at)
    })
}

/// 64 bits that stand for a number.
pub(super) fn fingerprint(number: u64) -> u64 {
    let mut z = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

fn neighbours(problem: &Compressed, blocks_of: &[Vec<u32>]) -> Vec<Vec<u32>> {
    let mut neighbours = vec![Vec::new(); problem.blocks.len()];
    for (c, blocks) in blocks_of.iter().enumerate() {
        for &a in blocks.iter().filter(|&&a| problem.blocks[a as usize].lower as usize == c) {
            // Every pair is met once: in the first column of the later one, or of the higher index.
            for &b in blocks {
                let b_starts_here = problem.blocks[b as usize].lower as usize == c;
                if !b_starts_here || b < a {
                    neighbours[a as usize].push(b);
                    neighbours[b as usize].push(a);
                }
            }
        }
    }
    neighbours
}

/// Insertion sort: linear where little has changed since the last time.
fn sort_almost_sorted(blocks: &mut [u32], key: impl Fn(u32) -> u64) {
    for i in 1..blocks.len() {
        let block = blocks[i];
        let k = key(block);
        let mut j = i;
        while j > 0 && key(blocks[j - 1]) > k {
            blocks[j] = blocks[j - 1];
            j -= 1;
        }
        blocks[j] = block;
    }
}
