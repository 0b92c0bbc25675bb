//! Lays buffers one after the other into the gaps between placed ones.
//!
//! ```text
//!   offset         which gap?
//!     ^  +-------------+            Fit::Lowest: the lowest gap that is high enough.
//!     |  |             |            Fit::Best: the gap that is filled best, the lowest of those.
//!     |  +-------------+
//!     |     gap 2                   Only buffers that share a column with the new one make gaps.
//!     |      +-----+                They are kept in the order of their offsets, so that one walk
//!     |      |     |                upwards meets every gap.
//!     |  +---+-----+
//!     |  |   | gap 1
//!     +--+---+---------> column
//! ```

use super::compress::CompressedBuffer;
use std::ops::RangeInclusive;

/// Which of the gaps that are high enough takes a buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fit {
    /// The lowest one.
    Lowest,
    /// The one that is filled best; the lowest of those.
    Best,
}

/// A placed buffer.
#[derive(Clone, Copy)]
struct Laid {
    offset: u64,
    top: u64,
    lower: u32,
    upper: u32,
}

impl Laid {
    fn new(buffer: &CompressedBuffer, offset: u64) -> Self {
        Self { offset, top: offset + buffer.size, lower: buffer.lower, upper: buffer.upper }
    }
}

/// Time is cut into so many stretches, each of which lists its buffers: most buffers live in a single one, and then
/// need not walk past all others.
const STRETCHES: u32 = 16;

/// Placed buffers, sorted by offset: in pieces, so that little has to move for one more.
#[derive(Default)]
struct Pile {
    /// None is empty, but for a single one.
    pieces: Vec<Vec<Laid>>,
}

impl Pile {
    /// A piece that grew to so many is halved.
    const LONGEST: usize = 128;

    fn clear(&mut self) {
        self.pieces.truncate(1);
        self.pieces.iter_mut().for_each(Vec::clear);
    }

    /// Below buffers at the same offset.
    fn insert(&mut self, new: Laid) {
        let is_below = |laid: &Laid| laid.offset < new.offset;
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

    fn iter(&self) -> impl Iterator<Item = &Laid> {
        self.pieces.iter().flatten()
    }

    fn len(&self) -> usize {
        self.pieces.iter().map(Vec::len).sum()
    }
}

/// Lays all buffers in an order. Kept between orders to spare the allocation.
#[derive(Default)]
pub(super) struct Placer {
    /// Everything.
    laid: Pile,
    /// What is live in each stretch.
    stretches: Vec<Pile>,
    columns_per_stretch: u32,
    /// Buffers that were looked at so far.
    pub work: u64,
}

impl Placer {
    /// Fills `offsets` (one for each buffer) in the given order; returns the peak.
    pub fn place(&mut self, buffers: &[CompressedBuffer], order: &[u32], fit: Fit, offsets: &mut [u64]) -> u64 {
        self.start(buffers, std::iter::empty());
        self.add(buffers, order, fit, offsets)
    }

    /// Takes buffers as lying already, at these offsets, and nothing else.
    pub fn start(&mut self, buffers: &[CompressedBuffer], lying: impl Iterator<Item = (usize, u64)>) {
        let columns = buffers.iter().map(|buffer| buffer.upper).max().unwrap_or(0);
        self.columns_per_stretch = columns.div_ceil(STRETCHES).max(1);
        self.laid.clear();
        self.stretches.resize_with(STRETCHES as usize, Pile::default);
        self.stretches.iter_mut().for_each(Pile::clear);
        for (index, offset) in lying {
            self.lay(Laid::new(&buffers[index], offset));
        }
    }

    /// Lays more buffers, as `place` does.
    pub fn add(&mut self, buffers: &[CompressedBuffer], order: &[u32], fit: Fit, offsets: &mut [u64]) -> u64 {
        let mut peak = 0;
        for &index in order {
            let buffer = buffers[index as usize];
            let offset = match fit {
                Fit::Lowest => self.lowest(&buffer),
                Fit::Best => self.best(&buffer),
            };
            self.lay(Laid::new(&buffer, offset));
            offsets[index as usize] = offset;
            peak = peak.max(offset + buffer.size);
        }
        peak
    }

    fn lay(&mut self, new: Laid) {
        let stretches = self.stretches_of(new.lower, new.upper);
        self.stretches[stretches].iter_mut().chain([&mut self.laid]).for_each(|pile| pile.insert(new));
    }

    fn stretches_of(&self, lower: u32, upper: u32) -> RangeInclusive<usize> {
        (lower / self.columns_per_stretch) as usize..=((upper - 1) / self.columns_per_stretch) as usize
    }

    /// Everything that a buffer may meet, and more.
    fn near(&self, buffer: &CompressedBuffer) -> &Pile {
        let stretches = self.stretches_of(buffer.lower, buffer.upper);
        if stretches.start() == stretches.end() { &self.stretches[*stretches.start()] } else { &self.laid }
    }

    /// The bottom of the lowest gap.
    fn lowest(&mut self, buffer: &CompressedBuffer) -> u64 {
        let mut floor = 0;
        let mut seen = 0;
        for laid in self.near(buffer).iter() {
            if laid.lower < buffer.upper && buffer.lower < laid.upper {
                if laid.offset >= floor + buffer.size {
                    break;
                }
                floor = floor.max(laid.top);
            }
            seen += 1;
        }
        self.work += seen;
        floor
    }

    /// The bottom of the gap that is filled best; on top of everything where there is none.
    fn best(&mut self, buffer: &CompressedBuffer) -> u64 {
        let mut floor = 0;
        let mut best = None;
        let mut best_gap = u64::MAX;
        let near = self.near(buffer);
        for laid in near.iter() {
            if laid.lower < buffer.upper && buffer.lower < laid.upper {
                if laid.offset > floor {
                    let gap = laid.offset - floor;
                    if gap >= buffer.size && gap < best_gap {
                        (best, best_gap) = (Some(floor), gap);
                    }
                }
                floor = floor.max(laid.top);
            }
        }
        self.work += near.len() as u64;
        best.unwrap_or(floor)
    }
}
