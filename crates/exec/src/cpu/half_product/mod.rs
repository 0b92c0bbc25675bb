//! Products of which operands or results are in half precision, in tiles: parts of the operands are copied into panels
//! that a kernel reads from end to end, sums stay in single precision until a tile is done, and then are rounded to
//! where they belong. So nothing is widened but a worker's tiles, which lie in planned scratch.
//!
//! ```text
//!   mod.rs     blocks of the result, shared out to workers; steps of the sum
//!   pack.rs    parts of operands ─► panels
//!   kernel.rs  panels ─► a tile of sums in registers
//!   store.rs   tiles ─► the result, with bias and rounding
//!   path.rs    which instructions there are
//! ```
//!
//! The terms of a sum are added in an order that the shapes and the processor's instructions set, whatever the number of
//! workers.

mod kernel;
mod pack;
mod path;
mod store;

pub use path::{HalfProducts, half_products};

use super::matrix::{Matrix, MatrixMut};
use super::parallel;
use super::product::product;
use crate::call::Call;
use ::half::{bf16, f16};
use kernel::{Kernel, MOST_TILE};
use pack::pack;
use plimsoll_graph::DType;
use plimsoll_graph::ops::{HALF_PART_COLUMNS, HALF_PART_ROWS, HALF_PART_WORDS};
use std::ops::Range;

/// A matrix that is multiplied, in the precision that it lies in.
#[derive(Clone, Copy)]
pub(super) enum Factor<'a> {
    F32(Matrix<'a>),
    F16(Matrix<'a, f16>),
    Bf16(Matrix<'a, bf16>),
}

/// Where a product goes.
pub(super) enum Sums<'a> {
    /// Added to what is there if `keep`.
    F32 { into: MatrixMut<'a>, keep: bool },
    /// Rounded, after `bias`, a value a column, was added.
    F16 { into: MatrixMut<'a, f16>, bias: Option<&'a [f16]> },
    /// Rounded, after `bias`, a value a column, was added.
    Bf16 { into: MatrixMut<'a, bf16>, bias: Option<&'a [bf16]> },
}

/// The same for each precision of a factor.
macro_rules! each {
    ($factor:expr, $matrix:ident => $value:expr) => {
        match $factor {
            Factor::F32($matrix) => $value,
            Factor::F16($matrix) => $value,
            Factor::Bf16($matrix) => $value,
        }
    };
}

impl<'a> From<Matrix<'a>> for Factor<'a> {
    fn from(matrix: Matrix<'a>) -> Self {
        Self::F32(matrix)
    }
}

impl<'a> From<Matrix<'a, f16>> for Factor<'a> {
    fn from(matrix: Matrix<'a, f16>) -> Self {
        Self::F16(matrix)
    }
}

impl<'a> From<Matrix<'a, bf16>> for Factor<'a> {
    fn from(matrix: Matrix<'a, bf16>) -> Self {
        Self::Bf16(matrix)
    }
}

impl<'a> Factor<'a> {
    /// An operand of a call, whose rows lie one after the other. Panics if it is not of that size, or lies in an output.
    pub(super) fn of(call: &Call<'a>, index: usize, rows: usize, columns: usize) -> Self {
        let bytes = call.bytes(index);
        match call.io.inputs[index].dtype {
            DType::F32 => Matrix::<f32>::new(bytemuck::cast_slice(bytes), rows, columns).into(),
            DType::F16 => Matrix::<f16>::new(bytemuck::cast_slice(bytes), rows, columns).into(),
            DType::Bf16 => Matrix::<bf16>::new(bytemuck::cast_slice(bytes), rows, columns).into(),
            other => panic!("{other:?} is not multiplied"),
        }
    }

    fn extents(self) -> (usize, usize) {
        each!(self, matrix => matrix.extents())
    }

    pub(super) fn transposed(self) -> Self {
        each!(self, matrix => matrix.transposed().into())
    }

    pub(super) fn rows(self, rows: Range<usize>) -> Self {
        each!(self, matrix => matrix.rows(rows).into())
    }

    fn columns(self, columns: Range<usize>) -> Self {
        each!(self, matrix => matrix.columns(columns).into())
    }
}

impl<'a> Sums<'a> {
    /// A result of this precision, whose rows lie one after the other, with a bias if there is one: added to what is
    /// there in single precision, if `keep`. Panics if it is not of that size.
    pub(super) fn of(
        bytes: &'a mut [u8],
        dtype: DType,
        [rows, columns]: [usize; 2],
        bias: Option<&'a [u8]>,
        keep: bool,
    ) -> Self {
        match dtype {
            DType::F32 => Self::F32 { into: MatrixMut::new(bytemuck::cast_slice_mut(bytes), rows, columns), keep },
            DType::F16 => Self::F16 {
                into: MatrixMut::new(bytemuck::cast_slice_mut(bytes), rows, columns),
                bias: bias.map(bytemuck::cast_slice),
            },
            DType::Bf16 => Self::Bf16 {
                into: MatrixMut::new(bytemuck::cast_slice_mut(bytes), rows, columns),
                bias: bias.map(bytemuck::cast_slice),
            },
            other => panic!("{other:?} is no result of a product"),
        }
    }

    fn extents(&self) -> (usize, usize) {
        match self {
            Self::F32 { into, .. } => (into.rows, into.columns),
            Self::F16 { into, .. } => (into.rows, into.columns),
            Self::Bf16 { into, .. } => (into.rows, into.columns),
        }
    }

    /// Adds to what is there from now on. Panics if it is not in single precision.
    pub(super) fn keep(&mut self) {
        match self {
            Self::F32 { keep, .. } => *keep = true,
            Self::F16 { .. } | Self::Bf16 { .. } => panic!("only sums in single precision are added to"),
        }
    }

    /// Some of the rows and columns.
    pub(super) fn part(&mut self, rows: Range<usize>, columns: Range<usize>) -> Sums<'_> {
        match self {
            Self::F32 { into, keep } => Sums::F32 { into: into.part(rows, columns), keep: *keep },
            Self::F16 { into, bias } => {
                Sums::F16 { into: into.part(rows, columns.clone()), bias: bias.map(|bias| &bias[columns]) }
            }
            Self::Bf16 { into, bias } => {
                Sums::Bf16 { into: into.part(rows, columns.clone()), bias: bias.map(|bias| &bias[columns]) }
            }
        }
    }

    /// Blocks of `height` rows.
    fn row_blocks(self, height: usize) -> Box<dyn Iterator<Item = Sums<'a>> + Send + 'a> {
        match self {
            Self::F32 { into, keep } => Box::new(into.row_blocks(height).map(move |into| Self::F32 { into, keep })),
            Self::F16 { into, bias } => Box::new(into.row_blocks(height).map(move |into| Self::F16 { into, bias })),
            Self::Bf16 { into, bias } => Box::new(into.row_blocks(height).map(move |into| Self::Bf16 { into, bias })),
        }
    }

    /// Blocks of `width` columns.
    fn column_blocks(self, width: usize) -> Box<dyn Iterator<Item = Sums<'a>> + Send + 'a> {
        match self {
            Self::F32 { into, keep } => Box::new(into.column_blocks(width).map(move |into| Self::F32 { into, keep })),
            Self::F16 { into, bias } => {
                let biases = parts(bias, width);
                Box::new(into.column_blocks(width).zip(biases).map(|(into, bias)| Self::F16 { into, bias }))
            }
            Self::Bf16 { into, bias } => {
                let biases = parts(bias, width);
                Box::new(into.column_blocks(width).zip(biases).map(|(into, bias)| Self::Bf16 { into, bias }))
            }
        }
    }
}

/// Parts of a bias, or as often that there is none.
fn parts<'a, E: Sync>(bias: Option<&'a [E]>, width: usize) -> impl Iterator<Item = Option<&'a [E]>> + Send + 'a {
    let mut parts = bias.map(|bias| bias.chunks(width));
    std::iter::from_fn(move || Some(parts.as_mut().map(|parts| parts.next().unwrap_or_default())))
}

/// into = scale · a b, whatever the precisions: by a library if all are single. As [`half_product`] otherwise.
pub(super) fn any_product(into: Sums, scale: f32, a: Factor, b: Factor, scratch: &mut [f32], workers: usize) {
    match (into, a, b) {
        (Sums::F32 { mut into, keep }, Factor::F32(a), Factor::F32(b)) => {
            product(&mut into, keep, scale, a, b, workers)
        }
        (into, a, b) => half_product(into, scale, a, b, scratch, workers),
    }
}

/// into = scale · a b. Runs on `workers` workers of the current pool, in `scratch` of
/// `half_product_scratch` in `graph`; the result does not depend on their number.
/// Panics if the extents don't match.
pub(super) fn half_product(mut into: Sums, scale: f32, a: Factor, b: Factor, scratch: &mut [f32], workers: usize) {
    product_by(half_products(), &mut into, scale, a, b, scratch, workers);
}

/// The same by certain instructions.
fn product_by(
    path: HalfProducts,
    into: &mut Sums,
    scale: f32,
    a: Factor,
    b: Factor,
    scratch: &mut [f32],
    workers: usize,
) {
    let (rows, columns) = into.extents();
    assert_eq!((a.extents().0, b.extents().0, b.extents().1), (rows, a.extents().1, columns), "extents of a product");
    let has_f16 = [a, b].iter().any(|factor| matches!(factor, Factor::F16(_)));
    let kernel = Kernel::of(path, !has_f16);
    let height = part(rows, HALF_PART_ROWS, kernel.rows);
    let width = part(columns, HALF_PART_COLUMNS, kernel.columns);
    for row in (0..rows).step_by(height) {
        let rows = row..rows.min(row + height);
        for column in (0..columns).step_by(width) {
            let columns = column..columns.min(column + width);
            let into = into.part(rows.clone(), columns.clone());
            multiply_part(&kernel, into, scale, a.rows(rows.clone()), b.columns(columns), scratch, workers);
        }
    }
}

/// The size of the parts that an extent is cut into evenly: whole tiles, and no more than `most`.
fn part(extent: usize, most: usize, tile: usize) -> usize {
    let parts = extent.div_ceil(most / tile * tile).max(1);
    extent.div_ceil(parts).next_multiple_of(tile).max(tile)
}

/// The size of the blocks that tiles are shared out in: an even number of them, so that two workers finish together.
fn block(extent: usize, most: usize, tile: usize) -> usize {
    let most = most / tile * tile;
    let blocks = if extent <= most / 2 { 1 } else { extent.div_ceil(most).next_multiple_of(2) };
    extent.div_ceil(blocks).next_multiple_of(tile).max(tile)
}

/// Parts in which an operand is packed, unless they would have fewer rows or columns than this: so wide that what is read
/// of a line of memory is long enough to be fetched ahead.
const PACKED_ITEMS: usize = 8;
const FEWEST_PACKED: usize = 192;

/// A part of a product whose operands fit the scratch.
fn multiply_part(
    kernel: &Kernel,
    mut into: Sums,
    scale: f32,
    a: Factor,
    b: Factor,
    scratch: &mut [f32],
    workers: usize,
) {
    let ((rows, columns), inner) = (into.extents(), a.extents().1);
    let b = b.transposed();
    let groups = inner.div_ceil(kernel.terms());
    // There are twice as many floats as pairs: where a sum takes several steps anyway, their panels stay as short as pairs'.
    let most = if kernel.pairs || groups <= HALF_PART_WORDS { HALF_PART_WORDS } else { HALF_PART_WORDS / 2 };
    let steps = groups.div_ceil(most).max(1);
    let step = groups.div_ceil(steps) * kernel.terms();
    let words = step / kernel.terms();
    let [a_room, b_room] =
        [(rows, kernel.rows), (columns, kernel.columns)].map(|(extent, tile)| extent.next_multiple_of(tile) * words);
    let (a_room, scratch) = scratch.split_at_mut(a_room);
    let (b_room, sums) = scratch.split_at_mut(b_room);
    let height = block(rows, BLOCK_ROWS, kernel.rows);
    let width = block(columns, BLOCK_COLUMNS, kernel.columns);
    for index in 0..steps {
        let terms = index * step..inner.min((index + 1) * step);
        let words = terms.len().div_ceil(kernel.terms());
        let a_panels = &mut a_room[..rows.next_multiple_of(kernel.rows) * words];
        let b_panels = &mut b_room[..columns.next_multiple_of(kernel.columns) * words];
        let chunks = [(a, &mut *a_panels, rows, kernel.rows), (b, &mut *b_panels, columns, kernel.columns)].into_iter();
        let items = chunks.flat_map(|(factor, panels, extent, tile)| {
            let together = extent.div_ceil(PACKED_ITEMS).max(FEWEST_PACKED).next_multiple_of(tile);
            let panels = panels.chunks_mut((together * words).max(1)).zip((0..extent).step_by(together));
            panels.map(move |(into, first)| (factor, tile, first..extent.min(first + together), into))
        });
        parallel::for_each_of(items, workers, |(factor, tile, rows, into)| {
            pack(kernel, tile, factor, rows, terms.clone(), into);
        });
        let is_last = index + 1 == steps;
        let mut sums = &mut *sums;
        let whole = into.part(0..rows, 0..columns);
        let blocks = whole.row_blocks(height).zip((0..rows).step_by(height)).flat_map(|(into, row)| {
            into.column_blocks(width).zip((0..columns).step_by(width)).map(move |(into, column)| (into, row, column))
        });
        let blocks = blocks.map(|(into, row, column)| {
            let (rows, columns) = into.extents();
            let waiting = if steps == 1 {
                0
            } else {
                rows.next_multiple_of(kernel.rows) * columns.next_multiple_of(kernel.columns)
            };
            let (of_block, rest) = std::mem::take(&mut sums).split_at_mut(waiting);
            sums = rest;
            (into, row, column, of_block)
        });
        parallel::for_each_of(blocks, workers, |(into, row, column, sums)| {
            let step =
                Step { kernel, a: &a_panels[row * words..], b: &b_panels[column * words..], words, add: index > 0 };
            multiply_block(&step, into, is_last.then_some(scale), sums);
        });
    }
}

/// Rows and columns of a block: its panels fit a second-level cache.
const BLOCK_ROWS: usize = 264;
const BLOCK_COLUMNS: usize = 256;

/// A step of the sums of a block.
struct Step<'a> {
    kernel: &'a Kernel,
    /// Panels from the block's first on.
    a: &'a [f32],
    b: &'a [f32],
    /// Words of the sum.
    words: usize,
    /// Whether there were steps before.
    add: bool,
}

/// Multiplies the panels of a block; after the last step its sums go where they belong, times `last`.
/// `sums` has no room if there is only one.
fn multiply_block(step: &Step, mut into: Sums, last: Option<f32>, sums: &mut [f32]) {
    let Step { kernel, a, b, words, add } = *step;
    let ((rows, columns), (height, width)) = (into.extents(), (kernel.rows, kernel.columns));
    let mut waiting = sums.chunks_exact_mut(height * width);
    for column in (0..columns).step_by(width) {
        for row in (0..rows).step_by(height) {
            let mut alone = [0.0; MOST_TILE];
            let tile = waiting.next().unwrap_or(&mut alone[..height * width]);
            kernel.multiply(&a[row * words..][..height * words], &b[column * words..][..width * words], tile, add);
            if let Some(scale) = last {
                let (rows, columns) = (row..rows.min(row + height), column..columns.min(column + width));
                store::store(&mut into, rows, columns, scale, tile, width);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::half::Float;
    use super::*;
    use plimsoll_graph::ops::half_product_scratch;

    /// Whole numbers that look random and are the same every time: small enough that every sum is exact, so that a single
    /// wrong element of an operand shows, and products of `Bf16` by any instructions are the same.
    fn numbers<E: Float>(count: usize, seed: u32) -> Vec<E> {
        let mut state = seed.wrapping_mul(0x9E37_79B9) | 1;
        let mut next = || {
            state ^= state << 13;
            state ^= state >> 17;
            state ^= state << 5;
            (state % 17) as f32 - 8.0
        };
        let values = (0..count).map(|_| next()).collect::<Vec<_>>();
        let mut numbers = vec![E::zeroed(); count];
        E::round(&values, &mut numbers);
        numbers
    }

    /// A matrix with gaps between its rows, or columns if it is transposed; its elements in single precision too.
    fn matrix<E: Float>(data: &[E], rows: usize, columns: usize, gap: usize, transposed: bool) -> Matrix<'_, E> {
        if transposed {
            Matrix::strided(data, columns, rows, rows + gap).transposed()
        } else {
            Matrix::strided(data, rows, columns, columns + gap)
        }
    }

    fn element<E: Float>(matrix: Matrix<E>, row: usize, column: usize) -> f32 {
        let mut value = [0.0];
        E::widen(&[matrix.data[row * matrix.row_stride + column * matrix.column_stride]], &mut value);
        value[0]
    }

    const SHAPES: [[usize; 3]; 17] = [
        [1, 1, 1],
        [5, 3, 7],
        [1, 40, 33],
        [40, 1, 9],
        [17, 65, 1],
        [12, 32, 64],
        [13, 33, 65],
        [64, 64, 64],
        [26, 30, 1100],
        [400, 20, 5],
        [25, 530, 31],
        [0, 4, 4],
        [3, 5, 300],
        [4, 5, 512],
        [3, 6, 513],
        [2, 7, 1024],
        [5, 3, 1026],
    ];

    /// Panics unless all products of such operands are exact by all instructions that are here, and write nothing else.
    fn check<A: Float, B: Float>()
    where
        for<'a> Factor<'a>: From<Matrix<'a, A>> + From<Matrix<'a, B>>,
    {
        for path in HalfProducts::ALL.into_iter().filter(|path| path.is_here()) {
            for (seed, [rows, columns, inner]) in (1..).zip(SHAPES) {
                for case in 0..16 {
                    let [a_transposed, b_transposed, keep, gap] = [0, 1, 2, 3].map(|bit| case >> bit & 1 == 1);
                    let gap = if gap { 3 } else { 0 };
                    let a = numbers::<A>((rows + gap) * (inner + gap), seed);
                    let b = numbers::<B>((inner + gap) * (columns + gap), seed + 100);
                    let a = matrix(&a, rows, inner, gap, a_transposed);
                    let b = matrix(&b, inner, columns, gap, b_transposed);
                    let exact = |row: usize, column: usize| {
                        0.5 * (0..inner).map(|k| element(a, row, k) * element(b, k, column)).sum::<f32>()
                    };
                    let mut scratch = vec![f32::NAN; half_product_scratch([rows, inner, columns]).0 as usize / 4];
                    let before = numbers::<f32>(rows * (columns + gap), seed + 1);
                    let mut after = before.clone();
                    let into = MatrixMut::strided(&mut after, rows, columns, columns + gap);
                    product_by(path, &mut Sums::F32 { into, keep }, 0.5, a.into(), b.into(), &mut scratch, 1);
                    for (index, (before, after)) in before.into_iter().zip(after).enumerate() {
                        let (row, column) = (index / (columns + gap), index % (columns + gap));
                        let expected = match column < columns {
                            true => exact(row, column) + if keep { before } else { 0.0 },
                            false => before,
                        };
                        assert_eq!(after, expected, "{path:?} {rows} {columns} {inner} {case}: {row}, {column}");
                    }
                    let bias = numbers::<bf16>(columns, seed + 2);
                    let before = numbers::<bf16>(rows * (columns + gap), seed + 1);
                    let mut after = before.clone();
                    let into = MatrixMut::strided(&mut after, rows, columns, columns + gap);
                    let mut sums = Sums::Bf16 { into, bias: keep.then_some(&bias) };
                    product_by(path, &mut sums, 0.5, a.into(), b.into(), &mut scratch, 1);
                    for (index, (before, after)) in before.into_iter().zip(after).enumerate() {
                        let (row, column) = (index / (columns + gap), index % (columns + gap));
                        let expected = match column < columns {
                            true => exact(row, column) + if keep { bias[column].to_f32() } else { 0.0 },
                            false => before.to_f32(),
                        };
                        assert_eq!(after, bf16::from_f32(expected), "{path:?} {rows} {columns} {inner} {case}");
                    }
                }
            }
        }
    }

    #[test]
    fn products_are_exact_for_any_shape_stride_precision_and_instructions() {
        check::<bf16, bf16>();
        check::<f32, bf16>();
        check::<bf16, f32>();
        check::<f16, f16>();
        check::<f32, f16>();
    }

    #[test]
    fn products_do_not_depend_on_the_number_of_workers() {
        for [rows, columns, inner] in [[300, 200, 100], [1500, 130, 700], [90, 1000, 1100], [65, 2000, 64]] {
            let random = |count, seed| numbers::<f32>(count, seed).into_iter().map(|x| bf16::from_f32(x * 0.37));
            let (a, b) = (random(rows * inner, 1).collect::<Vec<_>>(), random(inner * columns, 2).collect::<Vec<_>>());
            let results = [1, 2, 3, 7].map(|workers| {
                let pool =
                    rayon::ThreadPoolBuilder::new().num_threads(workers).build().expect("threads can be started");
                let mut into = vec![0.0; rows * columns];
                let slot = half_product_scratch([rows, inner, columns]).0 as usize / 4;
                let mut scratch = vec![f32::NAN; workers * slot];
                let sums = Sums::F32 { into: MatrixMut::new(&mut into, rows, columns), keep: false };
                let (a, b) = (Matrix::new(&a, rows, inner), Matrix::new(&b, columns, inner).transposed());
                pool.install(|| half_product(sums, 1.0, a.into(), b.into(), &mut scratch, workers));
                into.into_iter().map(f32::to_bits).collect::<Vec<_>>()
            });
            assert!(results.iter().all(|result| *result == results[0]), "{rows} {columns} {inner}");
        }
    }
}
