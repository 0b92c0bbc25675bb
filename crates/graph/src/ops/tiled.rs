//! Working memory of matrix products on the processor, which computes them in parts.

use crate::DType;
use plimsoll_units::Bytes;

/// Largest number of the result's rows (or columns, if they are fewer) whose operands are packed together.
const SHARED: usize = 1056;

/// Largest extent of the other operand's part, if a sum is divided.
const CUT: usize = 3168;

/// Largest number of words of a sum that are multiplied at a time. A word is a float, or two adjacent terms in `Bf16`.
const PART_WORDS: usize = 1536;

/// The same for sums that are several times longer. The shorter operand's part should stay in the second-level cache,
/// because it is read once for every block of the other operand. With four times this number, GPT-2's gradient of the
/// hidden states at the head took a third longer.
const LONG_PART_WORDS: usize = 384;

/// Words that are multiplied at a time, of a sum of `words` words.
pub fn part_words(words: usize) -> usize {
    if words > 4 * PART_WORDS { LONG_PART_WORDS } else { PART_WORDS }
}

/// Words of a block that a worker packs for itself: the block fits in a second-level cache.
pub const BLOCK_WORDS: usize = 96 << 10;

/// Words that some kernels read at a time.
const FEWEST_WORDS: usize = 16;

/// Extents are padded to whole tiles. This is a multiple of every kernel's tile.
pub const TILE_MULTIPLE: usize = 96;

/// Extents (rows, columns) of the parts of a product of (rows, inner) and (inner, columns).
pub fn tiled_parts([rows, inner, columns]: [usize; 3]) -> [usize; 2] {
    let most = if inner > PART_WORDS { CUT } else { usize::MAX };
    let of = |extent: usize, most: usize| {
        let parts = extent.div_ceil(most).max(1);
        extent.div_ceil(parts).div_ceil(TILE_MULTIPLE).max(1) * TILE_MULTIPLE
    };
    if rows <= columns { [of(rows, SHARED), of(columns, most)] } else { [of(rows, most), of(columns, SHARED)] }
}

/// Panels are padded to a multiple of one of these numbers of rows or columns, or of a divisor of it.
const PANEL_LINES: [usize; 2] = [12, 32];

/// Largest number of words of an operand in panels, over all kernels, for these numbers of lines (rows or columns) and
/// terms.
pub fn panel_words(lines: usize, terms: usize) -> usize {
    let most = PANEL_LINES.into_iter().map(|width| lines.next_multiple_of(width)).max().unwrap_or(lines);
    // Rounded up to cache lines.
    most * terms.next_multiple_of(FEWEST_WORDS)
}

/// Scratch of the processor to multiply matrices of (rows, inner) and (inner, columns) on `workers` workers: the
/// shorter operand, a block of the other for each worker, and the sums of a part if it needs several passes. A result
/// in single precision stores its own sums.
pub fn tiled_scratch(result: DType, [rows, inner, columns]: [usize; 3], workers: usize) -> Bytes {
    let [height, width] = tiled_parts([rows, inner, columns]);
    let words = inner.clamp(FEWEST_WORDS, PART_WORDS);
    let [shared, cut] = if rows <= columns { [height, width] } else { [width, height] };
    let sums = if inner > PART_WORDS && result != DType::F32 { height * width } else { 0 };
    let block = (cut * words).min(BLOCK_WORDS);
    Bytes(4 * (sums + shared * words + workers * block) as u64).align_up(64)
}

/// Fewest rows, columns and terms of a product in single precision that uses tiles. With few rows, as in generation,
/// packing the other operand would take longer than the product.
const FEWEST_IN_TILES: usize = 32;

/// Whether a product in single precision of (rows, inner) and (inner, columns) uses tiles.
pub fn in_tiles(extents: [usize; 3]) -> bool {
    extents.into_iter().all(|extent| extent >= FEWEST_IN_TILES)
}

/// Scratch of the processor to multiply operands of one precision to a result of another: [`tiled_scratch`], or zero
/// for few rows, columns or terms in single precision.
pub fn product_scratch([operands, result]: [DType; 2], extents: [usize; 3], workers: usize) -> Bytes {
    if operands.is_half() || in_tiles(extents) { tiled_scratch(result, extents, workers) } else { Bytes::ZERO }
}
