//! State of the exact search while it builds a packing from the bottom up: for each column its floor and the size of
//! its unplaced (waiting) buffers, for each buffer its lowest possible offset. Every change can be undone, in reverse
//! order. `search.rs` decides what to place.
//!
//! ```text
//!   capacity ------------------------------------------
//!                    . y .                               y waits. It overlaps x in time, so its lowest
//!               +----.---.-------+                       offset is the top of x.
//!     floor --> |       x        |......                 No buffer that waits in column 4 can be lower
//!               +----------------+ ^                     than y, so the floor there rises to y too:
//!     column      0    1    2    3 | 4                   the bytes under it are lost.
//!                                lost
//! ```

use super::compress::Compressed;
use std::ops::Range;

/// One column of the packing.
#[derive(Debug, Clone, Copy)]
pub(super) struct Column {
    /// No waiting buffer can be below this offset in this column.
    pub floor: u64,
    /// Sum of the sizes of the waiting buffers.
    pub load: u64,
    /// The lowest offset of the waiting buffers that cannot be on the floor; `u64::MAX` if all can.
    pub next: u64,
    /// Number of waiting buffers.
    pub waiting: u32,
    /// Number of waiting buffers that can be on the floor.
    pub tight: u32,
    /// Number of waiting buffers that are also live in the column to the left.
    pub crossing: u32,
    /// A fingerprint of the set of waiting buffers that start here.
    pub starting: u64,
}

/// A change with the values that undo it.
#[derive(Debug, Clone, Copy)]
enum Change {
    Column(u32, Column),
    Lowest(u32, u64),
    Placed(u32),
}

/// The packing exceeds the capacity wherever the waiting buffers go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Overfull;

/// A packing under construction.
pub(super) struct Columns<'a> {
    pub problem: &'a Compressed,
    pub columns: Vec<Column>,
    /// For each buffer, its lowest possible offset.
    pub lowest: Vec<u64>,
    /// For each placed buffer, its offset.
    pub offsets: Vec<u64>,
    /// For each column, the size of the smallest buffer that is not live in it but shares a column with one that is.
    /// One of those is under each buffer above the floor, so the gap has at least this height.
    pub smallest_neighbor: Vec<u64>,
    waits: Vec<bool>,
    /// For each column, all of its buffers. The waiting ones come first as of the column's last examination.
    buffers_of: Vec<Vec<u32>>,
    /// Lowest offsets and sizes of the buffers that cannot be on the floor of the examined column.
    above: Vec<(u64, u64)>,
    changes: Vec<Change>,
    /// Columns whose buffers changed since their last examination.
    dirty: Vec<u32>,
    is_dirty: Vec<bool>,
}

impl<'a> Columns<'a> {
    /// A packing without placed buffers. Memory is proportional to the sum of the buffers' widths.
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
            smallest_neighbor: smallest_neighbor(problem, &buffers_of),
            waits: vec![true; buffers.len()],
            buffers_of,
            above: Vec::new(),
            changes: Vec::new(),
            dirty: Vec::new(),
            is_dirty: vec![false; width],
        }
    }

    /// The waiting buffers of a column, in no particular order.
    pub fn waiting_in(&self, column: usize) -> impl Iterator<Item = u32> + '_ {
        self.buffers_of[column].iter().copied().filter(|&buffer| self.waits[buffer as usize])
    }

    /// The waiting buffers that share a column with `buffer`.
    pub fn waiting_neighbors(&self, buffer: u32) -> impl Iterator<Item = u32> + '_ {
        let b = self.problem.buffers[buffer as usize];
        let neighbors = self.problem.buffers.iter().zip(0u32..).zip(&self.waits);
        neighbors.filter_map(move |((other, i), &waits)| {
            (waits && i != buffer && other.lower < b.upper && b.lower < other.upper).then_some(i)
        })
    }

    /// Places a waiting buffer on the floor, at its lowest offset.
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

    /// Places waiting buffers one under the other, the first directly under the ceiling at `capacity`. They must be
    /// live in all columns that their own columns connect to, because the ceiling sinks over all of those. Returns the
    /// new ceiling.
    pub fn hang(&mut self, buffers: &[u32], capacity: u64) -> Result<u64, Overfull> {
        let mut ceiling = capacity;
        for &buffer in buffers {
            ceiling -= self.problem.buffers[buffer as usize].size;
            self.take(buffer, ceiling);
        }
        // Examine the columns once for all of the buffers: a step of a transformer hangs hundreds.
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

    /// A position in the list of changes, for `undo`.
    pub fn mark(&self) -> usize {
        self.changes.len()
    }

    /// Undoes all changes since `mark`.
    pub fn undo(&mut self, mark: usize) {
        for change in self.changes.drain(mark..).rev() {
            match change {
                Change::Column(c, column) => self.columns[c as usize] = column,
                Change::Lowest(buffer, offset) => self.lowest[buffer as usize] = offset,
                Change::Placed(buffer) => self.waits[buffer as usize] = true,
            }
        }
    }

    /// Removes a buffer from the waiting ones.
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

    /// Raises a waiting buffer's lowest offset to `height`.
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

    /// Examines the changed columns, up to the first one that is overfull.
    fn settle(&mut self, capacity: u64) -> Result<(), Overfull> {
        let mut result = Ok(());
        while let Some(column) = self.dirty.pop() {
            self.is_dirty[column as usize] = false;
            if result.is_ok() {
                result = self.examine(column as usize, capacity);
            }
        }
        result
    }

    /// Computes a column's floor and the buffers that can be on it, and checks whether its buffers still fit: stacked
    /// in the order of their lowest offsets, they must end below the capacity. (In job shop scheduling this is the
    /// bound of one machine whose jobs have release dates.)
    fn examine(&mut self, c: usize, capacity: u64) -> Result<(), Overfull> {
        let mut column = self.columns[c];
        self.changes.push(Change::Column(c as u32, column));
        // Move the waiting buffers to the front, so that the loop skips the others.
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

/// The top of a stack of buffers (lowest offset, size), placed above `floor` in the order of their lowest offsets.
/// Returns any value up to the capacity if the top is certain not to exceed it.
fn top_of(floor: u64, buffers: &mut [(u64, u64)], capacity: u64) -> u64 {
    let highest = buffers.iter().fold(floor, |highest, &(lowest, _)| lowest.max(highest));
    let most = highest + buffers.iter().map(|(_, size)| size).sum::<u64>();
    if most <= capacity {
        return most;
    }
    buffers.sort_unstable();
    buffers.iter().fold(floor, |top, &(lowest, size)| lowest.max(top) + size)
}

/// The independent parts of `range`: runs of columns that waiting buffers connect.
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

/// Hashes a number to 64 bits (the finalizer of SplitMix64).
pub(super) fn fingerprint(number: u64) -> u64 {
    let mut z = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// See `Columns::smallest_neighbor`.
fn smallest_neighbor(problem: &Compressed, buffers_of: &[Vec<u32>]) -> Vec<u64> {
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
