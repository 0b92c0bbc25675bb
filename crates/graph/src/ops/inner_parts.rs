//! How a card divides products with few results and many terms.
//!
//! The sums are divided into parts, which are stored in scratch and added in order, so that every multiprocessor has a
//! block. The number of parts depends only on shapes, so all cards compute the same bits. The choice follows a profile
//! of an H100 (`bench/results/2026-11-22-h100.md`).

use plimsoll_units::Bytes;

/// How a card divides the inner extent of a product. A block computes a tile of the result; if there are fewer tiles
/// than multiprocessors need, several blocks compute a tile, each from a part of its terms, and the parts are added in
/// order. The division depends only on extents, so that all cards compute the same bits.
/// Source: Osama et al. 2023, "Stream-K", section 3, on splitting work along the inner extent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InnerParts {
    /// Number of parts.
    pub count: usize,
    /// Terms of each part; the last may have fewer.
    pub each: usize,
}

impl InnerParts {
    /// Extents of a tile.
    const TILE: usize = 128;
    /// Blocks that occupy the largest cards: two for each of 132 multiprocessors. Dividing a product never makes more,
    /// so that its parts need at most 17 MB.
    const BLOCKS: usize = 264;
    /// Fewest terms of a part: with fewer, the additions would cost more than the division saves.
    const FEWEST: usize = 2048;
    /// Largest number of parts.
    const MOST: usize = 8;
    /// Parts start at multiples of this many terms, the alignment of vectors.
    const MULTIPLE: usize = 64;

    /// The division of a product with these numbers of rows, columns and terms.
    pub fn of([rows, columns, inner]: [usize; 3]) -> Self {
        let tiles = rows.div_ceil(Self::TILE) * columns.div_ceil(Self::TILE);
        let wanted = (Self::BLOCKS / tiles.max(1)).min(inner / Self::FEWEST).min(Self::MOST);
        let each = inner.div_ceil(wanted.max(1)).next_multiple_of(Self::MULTIPLE).max(Self::MULTIPLE);
        Self { count: inner.div_ceil(each).max(1), each }
    }

    /// A single part.
    pub fn whole(inner: usize) -> Self {
        Self { count: 1, each: inner }
    }

    /// Scratch for the parts of this many rows and columns, in single precision; zero for a single part.
    pub fn scratch(self, rows: usize, columns: usize) -> Bytes {
        if self.count > 1 { Bytes(4 * (self.count * rows * columns) as u64) } else { Bytes::ZERO }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_tiles_of_many_terms_are_divided_among_more_blocks() {
        let parts = |rows, columns, inner| {
            let parts = InnerParts::of([rows, columns, inner]);
            (parts.count, parts.each)
        };
        // Weights of GPT-2 with 32 samples of 1,024 tokens, and with one.
        assert_eq!(parts(768, 768, 32768), (7, 4736));
        assert_eq!(parts(768, 2304, 32768), (2, 16384));
        assert_eq!(parts(768, 3072, 32768), (1, 32768));
        assert_eq!(parts(768, 768, 1024), (1, 1024));
        // Its output head, 2,048 rows at a time.
        assert_eq!(parts(2048, 768, 50257), (2, 25152));
        assert_eq!(parts(50257, 768, 2048), (1, 2048));
        // Numbers of terms that are not multiples, and zero.
        assert_eq!(parts(8, 9, 4100), (2, 2112));
        assert_eq!(parts(8, 9, 0).0, 1);
    }

    #[test]
    fn every_term_is_in_one_part_and_no_part_is_empty() {
        for inner in (1..60_000).step_by(97) {
            let InnerParts { count, each } = InnerParts::of([64, 64, inner]);
            assert!(count * each >= inner && (count - 1) * each < inner, "{inner}: {count} of {each}");
            assert!(InnerParts::of([1024, 1024, inner]).scratch(1024, 1024) <= Bytes::mib(17), "{inner}");
        }
    }
}
