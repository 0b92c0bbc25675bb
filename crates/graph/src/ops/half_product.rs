//! Working memory of products in half precision on the processor, which multiplies part by part.

use plimsoll_units::Bytes;

/// Rows of the result at most whose operands are packed together.
pub const HALF_PART_ROWS: usize = 1056;

/// Columns of it.
pub const HALF_PART_COLUMNS: usize = 3168;

/// Words of a sum that are multiplied at a time at most. A word is a float, or two neighboring terms in `Bf16`.
pub const HALF_PART_WORDS: usize = 512;

/// Extents are filled up to whole tiles: multiples of this are, for every kernel.
const MULTIPLE: usize = 96;

/// What the processor needs to multiply matrices of (rows, inner) and (inner, columns), whatever the number of workers:
/// parts of both operands, and the sums of a part if they are not done in one go.
pub fn half_product_scratch([rows, inner, columns]: [usize; 3]) -> Bytes {
    let rows = rows.next_multiple_of(MULTIPLE).min(HALF_PART_ROWS);
    let columns = columns.next_multiple_of(MULTIPLE).min(HALF_PART_COLUMNS);
    let words = inner.min(HALF_PART_WORDS);
    let sums = if inner > HALF_PART_WORDS { rows * columns } else { 0 };
    Bytes(4 * (sums + (rows + columns) * words) as u64).align_up(64)
}
