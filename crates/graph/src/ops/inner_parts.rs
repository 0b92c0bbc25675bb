//! How a card divides products: their results into tiles, and products with few results and many terms into parts.
//!
//! The sums are divided into parts, which are stored in scratch and added in order, so that every multiprocessor has a
//! block. The number of parts depends only on shapes, so all cards compute the same bits. The choice follows a profile
//! of an H100 (`bench/results/2026-11-22-h100.md`).

use plimsoll_units::Bytes;

/// Extents of the smaller tile of a card's kernels, for few results and matrices of any alignment.
pub const TILE: usize = 64;
/// Extents of the larger tile, which reads half as much for each product.
pub const LARGE_TILE: usize = 128;
/// Fewest larger tiles for which the kernels on tensor cores use them: enough to keep typical cards busy (an RTX 3060 has
/// 28 multiprocessors, an RTX 4090 has 128, with two tiles each). On an H100 with 132, 144 larger tiles are 25 % faster
/// than smaller ones (`bench/results/2026-11-22-h100-products.md`).
pub const ENOUGH_TENSOR_TILES: usize = 96;

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
        let tiles = tiles([rows, columns], LARGE_TILE);
        let wanted = (Self::BLOCKS / tiles.max(1)).min(inner / Self::FEWEST).min(Self::MOST);
        let each = inner.div_ceil(wanted.max(1)).next_multiple_of(Self::MULTIPLE).max(Self::MULTIPLE);
        Self { count: inner.div_ceil(each).max(1), each }
    }

    /// A single part.
    pub fn whole(inner: usize) -> Self {
        Self { count: 1, each: inner }
    }

    /// Blocks that compute a product of this many rows and columns on tensor cores: one for each tile and part. Rows of the
    /// factors are taken to be aligned.
    pub fn blocks(self, rows: usize, columns: usize) -> usize {
        let of = |tile| tiles([rows, columns], tile) * self.count;
        if of(LARGE_TILE) >= ENOUGH_TENSOR_TILES { of(LARGE_TILE) } else { of(TILE) }
    }

    /// Scratch for the parts of this many rows and columns, in single precision; zero for a single part.
    pub fn scratch(self, rows: usize, columns: usize) -> Bytes {
        if self.count > 1 { Bytes(4 * (self.count * rows * columns) as u64) } else { Bytes::ZERO }
    }
}

/// Tiles of a result with these numbers of rows and columns.
pub fn tiles([rows, columns]: [usize; 2], tile: usize) -> usize {
    rows.div_ceil(tile) * columns.div_ceil(tile)
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
    fn a_block_computes_a_tile_of_a_part() {
        let blocks = |extents: [usize; 3]| InnerParts::of(extents).blocks(extents[0], extents[1]);
        assert_eq!(InnerParts::whole(768).blocks(4096, 768), 32 * 6);
        assert_eq!(InnerParts::whole(768).blocks(1000, 768), 16 * 12, "48 larger tiles aren't enough");
        assert_eq!(blocks([768, 768, 32768]), 7 * 36);
        assert_eq!(InnerParts::whole(8).blocks(0, 8), 0);
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
