//! What the exact search knows while it builds a packing from the bottom up: for each column how high
//! it is filled and what still has to be placed above, for each buffer how low it can still be placed. Everything
//! here can be taken back, in reverse order. Who decides what is placed is `search.rs`.
//!
//! ```text
//!   capacity ------------------------------------------
//!                    . y .                               y waits. It meets x, so its lowest offset is
//!               +----.---.-------+                       the top of x.
//!     floor --> |       x        |......                 No buffer that waits in column 4 can be lower
//!               +----------------+ ^                     than y, so that its floor is there as well:
//!     column      0    1    2    3 | 4                   the bytes under it are lost.
//!                                lost
//! ```

use super::compress::Compressed;
use std::ops::Range;

/// One column of the packing as it stands.
#[derive(Debug, Clone, Copy)]
pub(super) struct Column {
    /// No waiting buffer can be lower than this here.
    pub floor: u64,
    /// Sum of the sizes of the waiting buffers.
    pub load: u64,
    /// The lowest offset of the waiting buffers that cannot be on the floor; `u64::MAX` where all can.
    pub next: u64,
    /// Waiting buffers.
    pub waiting: u32,
    /// Waiting buffers that can be on the floor.
    pub tight: u32,
    /// Waiting buffers that are also live in the column to the left.
    pub crossing: u32,
    /// A fingerprint of the set of waiting buffers that start here.
    pub starting: u64,
}

/// A change, with what undoes it.
#[derive(Debug, Clone, Copy)]
enum Change {
    Column(u32, Column),
    Lowest(u32, u64),
    Placed(u32),
}

/// The capacity is exceeded, however the waiting buffers are placed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Overfull;

/// A packing under construction.
pub(super) struct Columns<'a> {
    pub problem: &'a Compressed,
    pub columns: Vec<Column>,
    /// For each buffer, the lowest offset that it can still take.
    pub lowest: Vec<u64>,
    /// For each buffer that was placed, where.
    pub offsets: Vec<u64>,
    /// For each column, the size of the smallest buffer that is not live in it, but shares a column with
    /// one that is: one of these must be under a buffer that is not on the floor.
    pub smallest_beside: Vec<u64>,
    waits: Vec<bool>,
    /// For each column all its buffers. When it was last looked at, those that wait came first.
    buffers_of: Vec<Vec<u32>>,
    /// Lowest offsets and sizes of those that can't be on the floor of the column that is looked at.
    above: Vec<(u64, u64)>,
    changes: Vec<Change>,
    /// Columns whose buffers changed since they were last looked at.
    dirty: Vec<u32>,
    is_dirty: Vec<bool>,
}

impl<'a> Columns<'a> {
    /// Nothing is placed. Takes memory in proportion to the sum of the buffers' widths.
    pub fn new(problem: &'a Compressed) -> Self {
        let buffers = &problem.buffers;
        let width = problem.loads.len();
        let nothing = Column { floor: 0, load: 0, next: u64::MAX, waiting: 0, tight: 0, crossing: 0, starting: 0 };
        let mut columns = vec![nothing; width];
        let mut buffers_of = vec![Vec::new(); width];
        for (index, buffer) in buffers.iter().enumerate() {
            columns[buffer.lower as usize].starting ^= fingerprint(index as u64);
            for c in buffer.columns() {
                let column = &mut columns[c];
                column.load += buffer.size;
                column.waiting += 1;
                column.tight += 1;
                column.crossing += u32::from(c > buffer.lower as usize);
                buffers_of[c].push(index as u32);
            }
        }
        Self {
            problem,
            columns,
            lowest: vec![0; buffers.len()],
            offsets: vec![0; buffers.len()],
            smallest_beside: smallest_beside(problem, &buffers_of),
            waits: vec![true; buffers.len()],
            buffers_of,
            above: Vec::new(),
            changes: Vec::new(),
            dirty: Vec::new(),
            is_dirty: vec![false; width],
        }
    }

    /// The waiting buffers of a column, in no useful order.
    pub fn waiting_in(&self, column: usize) -> impl Iterator<Item = u32> + '_ {
        self.buffers_of[column].iter().copied().filter(|&buffer| self.waits[buffer as usize])
    }

    /// The waiting buffers that share a column with a buffer.
    pub fn waiting_beside(&self, buffer: u32) -> impl Iterator<Item = u32> + '_ {
        let b = self.problem.buffers[buffer as usize];
        let neighbors = self.problem.buffers.iter().zip(0u32..).zip(&self.waits);
        neighbors.filter_map(move |((other, i), &waits)| {
            (waits && i != buffer && other.lower < b.upper && b.lower < other.upper).then_some(i)
        })
    }

    /// Puts a waiting buffer onto the floor at its lowest offset.
    pub fn place(&mut self, buffer: u32, capacity: u64) -> Result<(), Overfull> {
        let b = self.problem.buffers[buffer as usize];
        let offset = self.lowest[buffer as usize];
        let top = offset + b.size;
        self.take(buffer, offset);
        for c in b.columns() {
            self.columns[c].floor = top;
        }
        for (other, i) in self.problem.buffers.iter().zip(0u32..) {
            if self.waits[i as usize] && other.lower < b.upper && b.lower < other.upper {
                self.lift(i, top);
            }
        }
        self.settle(capacity)
    }

    /// Puts waiting buffers one under the other, the first right under the ceiling at `capacity`. They must be live in
    /// all columns that hold together with their own, so that the ceiling over those sinks; to where, is returned.
    pub fn hang(&mut self, buffers: &[u32], capacity: u64) -> Result<u64, Overfull> {
        let mut ceiling = capacity;
        for &buffer in buffers {
            ceiling -= self.problem.buffers[buffer as usize].size;
            self.take(buffer, ceiling);
        }
        // Columns are looked at once for all of them: a step of a transformer hangs hundreds.
        self.settle(ceiling).map(|()| ceiling)
    }

    /// Gives up the space below `height` in one column.
    pub fn waste(&mut self, column: usize, height: u64, capacity: u64) -> Result<(), Overfull> {
        for index in 0..self.buffers_of[column].len() {
            let buffer = self.buffers_of[column][index];
            if self.waits[buffer as usize] {
                self.lift(buffer, height);
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
                Change::Lowest(buffer, offset) => self.lowest[buffer as usize] = offset,
                Change::Placed(buffer) => self.waits[buffer as usize] = true,
            }
        }
    }

    /// A buffer waits no longer.
    fn take(&mut self, buffer: u32, offset: u64) {
        let b = self.problem.buffers[buffer as usize];
        self.offsets[buffer as usize] = offset;
        self.waits[buffer as usize] = false;
        self.changes.push(Change::Placed(buffer));
        for c in b.columns() {
            self.changes.push(Change::Column(c as u32, self.columns[c]));
            let column = &mut self.columns[c];
            column.load -= b.size;
            column.waiting -= 1;
            column.crossing -= u32::from(c > b.lower as usize);
            self.touch(c);
        }
        self.columns[b.lower as usize].starting ^= fingerprint(u64::from(buffer));
    }

    /// A waiting buffer can no longer be below `height`.
    fn lift(&mut self, buffer: u32, height: u64) {
        let lowest = self.lowest[buffer as usize];
        if lowest < height {
            self.changes.push(Change::Lowest(buffer, lowest));
            self.lowest[buffer as usize] = height;
            for c in self.problem.buffers[buffer as usize].columns() {
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

    /// Works out a column's floor and what can be on it, and whether its buffers still fit: laid one
    /// on the other in the order of their lowest offsets, they must end below the capacity. (In job
    /// shop scheduling this is the bound of one machine whose jobs have release dates.)
    fn look_at(&mut self, c: usize, capacity: u64) -> Result<(), Overfull> {
        let mut column = self.columns[c];
        self.changes.push(Change::Column(c as u32, column));
        // Those that wait first, so that the others are not looked at.
        let (waits, buffers) = (&self.waits, &mut self.buffers_of[c]);
        let mut waiting = 0;
        for index in 0..buffers.len() {
            if waits[buffers[index] as usize] {
                buffers.swap(waiting, index);
                waiting += 1;
                if waiting == column.waiting as usize {
                    break;
                }
            }
        }
        let buffers = &buffers[..waiting];
        (column.tight, column.next) = (0, u64::MAX);
        let Some(floor) = buffers.iter().map(|&buffer| self.lowest[buffer as usize]).min() else {
            self.columns[c] = column;
            return Ok(());
        };
        column.floor = floor;
        self.above.clear();
        let mut top = floor;
        for &buffer in buffers {
            let (lowest, size) = (self.lowest[buffer as usize], self.problem.buffers[buffer as usize].size);
            if lowest == floor {
                column.tight += 1;
                top += size;
            } else {
                self.above.push((lowest, size));
            }
        }
        column.next = self.above.iter().map(|&(lowest, _)| lowest).min().unwrap_or(u64::MAX);
        self.columns[c] = column;
        if top_of(top, &mut self.above, capacity) > capacity { Err(Overfull) } else { Ok(()) }
    }
}

/// Where buffers end, of lowest offsets and sizes, that are laid one on the other above `floor` in the order of their
/// lowest offsets; or anything up to the capacity, if that is certain to be as low.
fn top_of(floor: u64, buffers: &mut [(u64, u64)], capacity: u64) -> u64 {
    let highest = buffers.iter().fold(floor, |highest, &(lowest, _)| lowest.max(highest));
    let most = highest + buffers.iter().map(|(_, size)| size).sum::<u64>();
    if most <= capacity {
        return most;
    }
    buffers.sort_unstable();
    buffers.iter().fold(floor, |top, &(lowest, size)| lowest.max(top) + size)
}

/// The independent parts of `range`: runs of columns that waiting buffers hold together.
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
fn smallest_beside(problem: &Compressed, buffers_of: &[Vec<u32>]) -> Vec<u64> {
    let reach = |buffers: &Vec<u32>| {
        let lower = buffers.iter().map(|&i| problem.buffers[i as usize].lower).min().unwrap_or(0);
        let upper = buffers.iter().map(|&i| problem.buffers[i as usize].upper).max().unwrap_or(0);
        (lower, upper)
    };
    let smallest = |(c, buffers): (usize, &Vec<u32>)| {
        let (lower, upper) = reach(buffers);
        let neighbors =
            problem.buffers.iter().filter(|b| b.lower < upper && lower < b.upper && !b.columns().contains(&c));
        neighbors.map(|b| b.size).min().unwrap_or(u64::MAX)
    };
    buffers_of.iter().enumerate().map(smallest).collect()
}
