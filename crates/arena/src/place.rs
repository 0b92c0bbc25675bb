//! Places buffers one after the other in the gaps between placed ones.
//!
//! ```text
//!   offset         which gap?
//!     ^  +-------------+            Fit::Lowest: the lowest gap that is high enough.
//!     |  |             |            Fit::Best: the tightest gap; the lowest of equal ones.
//!     |  +-------------+
//!     |     gap 2                   Only buffers that share a column with the new one bound gaps.
//!     |      +-----+                They are sorted by offset, so one walk upwards finds
//!     |      |     |                every gap.
//!     |  +---+-----+
//!     |  |   | gap 1
//!     +--+---+---------> column
//! ```

use super::compress::CompressedBuffer;
use std::ops::RangeInclusive;

/// Which of the sufficiently high gaps to use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fit {
    /// The lowest one.
    Lowest,
    /// The tightest one; the lowest of equal ones.
    Best,
}

/// A placed buffer.
#[derive(Clone, Copy)]
struct PlacedBuffer {
    offset: u64,
    top: u64,
    lower: u32,
    upper: u32,
}

impl PlacedBuffer {
    fn new(buffer: &CompressedBuffer, offset: u64) -> Self {
        Self { offset, top: offset + buffer.size, lower: buffer.lower, upper: buffer.upper }
    }
}

/// Number of equal stretches of time, each with a list of its buffers. Most buffers live in one stretch, so the search
/// for a gap skips most others.
const STRETCHES: u32 = 16;

/// Placed buffers sorted by offset, in pieces, so that an insertion moves few of them.
#[derive(Default)]
struct Pile {
    /// No piece is empty, except a single one.
    pieces: Vec<Vec<PlacedBuffer>>,
}

impl Pile {
    /// Length at which a piece is split in two.
    const LONGEST: usize = 128;

    fn clear(&mut self) {
        self.pieces.truncate(1);
        self.pieces.iter_mut().for_each(Vec::clear);
    }

    /// Inserts below buffers at the same offset.
    fn insert(&mut self, new: PlacedBuffer) {
        let is_below = |other: &PlacedBuffer| other.offset < new.offset;
        let at = self.pieces.partition_point(|piece| piece.last().is_some_and(is_below));
        if at == self.pieces.len() {
            match self.pieces.last_mut() {
                Some(last) => last.push(new),
                None => self.pieces.push(vec![new]),
            }
        } else {
            let piece = &mut self.pieces[at];
            piece.insert(piece.partition_point(is_below), new);
        }
        let at = at.min(self.pieces.len() - 1);
        if self.pieces[at].len() == Self::LONGEST {
            let upper = self.pieces[at].split_off(Self::LONGEST / 2);
            self.pieces.insert(at + 1, upper);
        }
    }

    fn iter(&self) -> impl Iterator<Item = &PlacedBuffer> {
        self.pieces.iter().flatten()
    }

    fn len(&self) -> usize {
        self.pieces.iter().map(Vec::len).sum()
    }
}

/// Places buffers in a given order. Reused between orders to avoid allocation.
#[derive(Default)]
pub(super) struct Placer {
    /// All placed buffers.
    all: Pile,
    /// The buffers that are live in each stretch.
    stretches: Vec<Pile>,
    columns_per_stretch: u32,
    /// Number of buffers examined so far.
    pub work: u64,
}

impl Placer {
    /// Places all buffers in the given order. Fills `offsets` (one per buffer) and returns the peak.
    pub fn place(&mut self, buffers: &[CompressedBuffer], order: &[u32], fit: Fit, offsets: &mut [u64]) -> u64 {
        self.start(buffers, std::iter::empty());
        self.add(buffers, order, fit, offsets)
    }

    /// Resets the state to these buffers at these offsets.
    pub fn start(&mut self, buffers: &[CompressedBuffer], placed: impl Iterator<Item = (usize, u64)>) {
        let columns = buffers.iter().map(|buffer| buffer.upper).max().unwrap_or(0);
        self.columns_per_stretch = columns.div_ceil(STRETCHES).max(1);
        self.all.clear();
        self.stretches.resize_with(STRETCHES as usize, Pile::default);
        self.stretches.iter_mut().for_each(Pile::clear);
        for (index, offset) in placed {
            self.put(PlacedBuffer::new(&buffers[index], offset));
        }
    }

    /// Places more buffers, as `place` does.
    pub fn add(&mut self, buffers: &[CompressedBuffer], order: &[u32], fit: Fit, offsets: &mut [u64]) -> u64 {
        let mut peak = 0;
        for &index in order {
            let buffer = buffers[index as usize];
            let offset = match fit {
                Fit::Lowest => self.lowest(&buffer),
                Fit::Best => self.best(&buffer),
            };
            self.put(PlacedBuffer::new(&buffer, offset));
            offsets[index as usize] = offset;
            peak = peak.max(offset + buffer.size);
        }
        peak
    }

    fn put(&mut self, new: PlacedBuffer) {
        let stretches = self.stretches_of(new.lower, new.upper);
        self.stretches[stretches].iter_mut().chain([&mut self.all]).for_each(|pile| pile.insert(new));
    }

    fn stretches_of(&self, lower: u32, upper: u32) -> RangeInclusive<usize> {
        (lower / self.columns_per_stretch) as usize..=((upper - 1) / self.columns_per_stretch) as usize
    }

    /// All buffers that may overlap `buffer` in time, and some others.
    fn near(&self, buffer: &CompressedBuffer) -> &Pile {
        let stretches = self.stretches_of(buffer.lower, buffer.upper);
        if stretches.start() == stretches.end() { &self.stretches[*stretches.start()] } else { &self.all }
    }

    /// The bottom of the lowest gap.
    fn lowest(&mut self, buffer: &CompressedBuffer) -> u64 {
        let mut floor = 0;
        let mut examined = 0;
        for other in self.near(buffer).iter() {
            if other.lower < buffer.upper && buffer.lower < other.upper {
                if other.offset >= floor + buffer.size {
                    break;
                }
                floor = floor.max(other.top);
            }
            examined += 1;
        }
        self.work += examined;
        floor
    }

    /// The bottom of the tightest gap; the top of the pile if there is no gap.
    fn best(&mut self, buffer: &CompressedBuffer) -> u64 {
        let mut floor = 0;
        let mut best = None;
        let mut best_gap = u64::MAX;
        let near = self.near(buffer);
        for other in near.iter() {
            if other.lower < buffer.upper && buffer.lower < other.upper {
                if other.offset > floor {
                    let gap = other.offset - floor;
                    if gap >= buffer.size && gap < best_gap {
                        (best, best_gap) = (Some(floor), gap);
                    }
                }
                floor = floor.max(other.top);
            }
        }
        self.work += near.len() as u64;
        best.unwrap_or(floor)
    }
}
