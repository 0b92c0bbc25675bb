//! Products of which operands or results are in half precision, in tiles: parts of the operands are copied into panels
//! that a kernel reads from end to end, sums stay in single precision until a tile is done, and then are rounded to
//! where they belong. So nothing is widened but a worker's tiles, which lie in planned scratch.
//!
//! ```text
//!   mod.rs     blocks of the result, shared out to workers; steps of the sum
//!   pack.rs    parts of operands ─► panels
//!   kernel.rs  panels ─► a tile of sums in registers, with AMX in amx.rs
//!   store.rs   tiles ─► the result, with bias and rounding
//!   packed.rs  small products of operands that stay packed
//!   path.rs    which instructions there are
//! ```
//!
//! The terms of a sum are added in an order that the shapes and the processor's instructions set, whatever the number of
//! workers.

#[cfg(target_arch = "x86_64")]
mod amx;
mod kernel;
mod pack;
mod packed;
mod path;
mod store;

pub(super) use packed::{Packed, PackedProducts};
pub use path::{HalfProducts, half_products};

use super::matrix::{Matrix, MatrixMut};
use super::parallel;
use super::product::product;
use crate::call::Call;
use ::half::{bf16, f16};
use kernel::{Kernel, MOST_TILE, Panels};
use pack::{MOST_ROWS, pack};
use plimsoll_graph::DType;
use plimsoll_graph::ops::{HALF_BLOCK_WORDS, half_part_words, half_parts};
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
    let ((rows, columns), inner) = (into.extents(), a.extents().1);
    assert_eq!((a.extents().0, b.extents().0, b.extents().1), (rows, inner, columns), "extents of a product");
    let has_f16 = [a, b].iter().any(|factor| matches!(factor, Factor::F16(_)));
    // The shorter operand is shared by all workers, and panels of the other stream past it (`multiply_part`).
    let kernel = Kernel::of(path, !has_f16, rows <= columns);
    let [height, width] = half_parts([rows, inner, columns]);
    for row in (0..rows).step_by(height) {
        let rows = row..rows.min(row + height);
        for column in (0..columns).step_by(width) {
            let columns = column..columns.min(column + width);
            let into = into.part(rows.clone(), columns.clone());
            multiply_part(&kernel, into, scale, a.rows(rows.clone()), b.columns(columns), scratch, workers);
        }
    }
}

/// Panels of a block: as many as there is room for, but such that workers finish together.
fn block(panels: usize, most: usize, workers: usize) -> usize {
    let longest = |block: &usize| panels.div_ceil(*block).div_ceil(workers) * block;
    (most.div_ceil(2)..=most).rev().min_by_key(longest).unwrap_or(1)
}

/// Parts in which an operand is packed, unless they would have fewer rows or columns than this: so wide that what is read
/// of a line of memory is long enough to be fetched ahead.
const PACKED_ITEMS: usize = 8;
const FEWEST_PACKED: usize = 192;

/// Floats of a cache line.
const LINE: usize = 16;

/// An operand of a part: its rows are those of the result, or its columns; its columns are the terms of the sum.
struct Side<'a> {
    factor: Factor<'a>,
    extent: usize,
    panels: Panels,
}

/// A part of a product whose shorter operand fits the scratch: it is packed once, and all workers read it. Of the other
/// each worker packs a block at a time, which stays in its caches until it is multiplied.
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
    let a = Side { factor: a, extent: rows, panels: kernel.left() };
    let b = Side { factor: b.transposed(), extent: columns, panels: kernel.right() };
    // Parts are cut so that what is shorter of the whole product is so of each (`half_parts`).
    let by_columns = rows <= columns;
    let (shared, cut) = if by_columns { (a, b) } else { (b, a) };
    let groups = inner.div_ceil(kernel.terms());
    let steps = groups.div_ceil(half_part_words(groups)).max(1);
    let words = shared.panels.groups(groups.div_ceil(steps) * kernel.terms());
    let tiles = shared.extent.div_ceil(shared.panels.width);
    let panels = cut.extent.div_ceil(cut.panels.width);
    let most = (HALF_BLOCK_WORDS / (cut.panels.width * words).max(1)).clamp(1, MOST_ROWS / cut.panels.width);
    let together = block(panels, most, workers);
    // Panels begin at cache lines, if the scratch does.
    let (shared_room, scratch) = scratch.split_at_mut((tiles * shared.panels.width * words).next_multiple_of(LINE));
    let waiting = if steps == 1 { 0 } else { kernel.rows * kernel.columns };
    let (sums, rooms) = scratch.split_at_mut((tiles * panels * waiting).next_multiple_of(LINE));
    let each = rooms.len() / workers / LINE * LINE;
    let rooms = &mut rooms[..each * workers];
    for index in 0..steps {
        let step = words * kernel.terms();
        let terms = index * step..inner.min((index + 1) * step);
        let words = shared.panels.groups(terms.len());
        let shared_panels = &mut shared_room[..tiles * shared.panels.width * words];
        let chunk = shared.extent.div_ceil(PACKED_ITEMS).max(FEWEST_PACKED).next_multiple_of(shared.panels.width);
        let items = shared_panels.chunks_mut((chunk * words).max(1)).zip((0..shared.extent).step_by(chunk));
        parallel::for_each_of(items, workers, |(into, first)| {
            let rows = first..shared.extent.min(first + chunk);
            pack(shared.panels, shared.factor, rows, terms.clone(), into);
        });
        let is_last = index + 1 == steps;
        let whole = into.part(0..rows, 0..columns);
        let blocks = match by_columns {
            true => whole.column_blocks(together * cut.panels.width),
            false => whole.row_blocks(together * cut.panels.width),
        };
        let mut sums = &mut *sums;
        let blocks = blocks.zip((0..panels).step_by(together)).map(|(into, first)| {
            let count = together.min(panels - first);
            let (of_block, rest) = std::mem::take(&mut sums).split_at_mut(tiles * count * waiting);
            sums = rest;
            (into, first, of_block)
        });
        parallel::for_each_with_scratch(blocks, rooms, workers, |(into, first, sums), room| {
            let rows = first * cut.panels.width..cut.extent.min((first + together) * cut.panels.width);
            let room = &mut room[..rows.len().next_multiple_of(cut.panels.width) * words];
            pack(cut.panels, cut.factor, rows, terms.clone(), room);
            let step = Step { kernel, by_columns, shared: shared_panels, cut: room, words, add: index > 0 };
            multiply_block(&step, into, is_last.then_some(scale), sums);
        });
    }
}

/// A step of the sums of a block.
struct Step<'a> {
    kernel: &'a Kernel,
    /// Whether the result's columns are cut in blocks, not its rows.
    by_columns: bool,
    /// All panels of the operand that is not cut.
    shared: &'a [f32],
    /// The block's panels of the one that is.
    cut: &'a [f32],
    /// Words of the sum.
    words: usize,
    /// Whether there were steps before.
    add: bool,
}

/// Panels of a block whose tiles wait for the next slice of their sums at the most: slices have so many words.
const MOST_WAITING: usize = 12;

/// Tiles of a row of panels, which begin at a cache line.
#[repr(align(64))]
struct Tiles([f32; MOST_WAITING * MOST_TILE]);

/// Multiplies the panels of a block; after the last step its sums go where they belong, times `last`.
/// `sums` has no room if there is only one.
fn multiply_block(step: &Step, mut into: Sums, last: Option<f32>, sums: &mut [f32]) {
    let Step { kernel, by_columns, shared, cut, words, add } = *step;
    let ((rows, columns), (height, width)) = (into.extents(), (kernel.rows, kernel.columns));
    let [shared_tile, cut_tile] = if by_columns { [height, width] } else { [width, height] };
    let (tile, count) = (height * width, cut.len() / (cut_tile * words).max(1));
    // Of each panel of the shared operand a slice stays in the first-level cache while all others stream past.
    let keeps_sums = !sums.is_empty();
    let slice = if keeps_sums || count <= MOST_WAITING { kernel.slice(words) } else { words };
    // A tile that is done at once is stored before the next takes its place.
    let stride = if keeps_sums || slice < words { tile } else { 0 };
    let mut alone = Tiles([0.0; _]);
    let mut kept = sums.chunks_exact_mut((count * tile).max(1));
    for (outer, shared) in shared.chunks_exact((shared_tile * words).max(1)).enumerate() {
        let tiles = kept.next().unwrap_or(&mut alone.0);
        for first in (0..words).step_by(slice) {
            let of_step = first..words.min(first + slice);
            let last = last.filter(|_| of_step.end == words);
            for (inner, cut) in cut.chunks_exact(cut_tile * words).enumerate() {
                let shared = &shared[of_step.start * shared_tile..of_step.end * shared_tile];
                let cut = &cut[of_step.start * cut_tile..of_step.end * cut_tile];
                let (a, b, row, column) = match by_columns {
                    true => (shared, cut, outer * height, inner * width),
                    false => (cut, shared, inner * height, outer * width),
                };
                let (rows, columns) = (row..rows.min(row + height), column..columns.min(column + width));
                let tile = &mut tiles[inner * stride..][..tile];
                if last.is_some() {
                    store::fetch(&mut into, rows.clone(), columns.clone());
                }
                kernel.multiply(a, b, tile, add || first > 0);
                if let Some(scale) = last {
                    store::store(&mut into, rows, columns, scale, tile, width);
                }
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
    pub(super) fn numbers<E: Float>(count: usize, seed: u32) -> Vec<E> {
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
    pub(super) fn matrix<E: Float>(
        data: &[E],
        rows: usize,
        columns: usize,
        gap: usize,
        transposed: bool,
    ) -> Matrix<'_, E> {
        if transposed {
            Matrix::strided(data, columns, rows, rows + gap).transposed()
        } else {
            Matrix::strided(data, rows, columns, columns + gap)
        }
    }

    pub(super) fn element<E: Float>(matrix: Matrix<E>, row: usize, column: usize) -> f32 {
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

    /// Panics unless every so many elements of all products of such operands are exact by all instructions that are here, and
    /// nothing else is written.
    fn check<A: Float, B: Float>(shapes: &[[usize; 3]], cases: Range<usize>, every: usize)
    where
        for<'a> Factor<'a>: From<Matrix<'a, A>> + From<Matrix<'a, B>>,
    {
        for path in HalfProducts::ALL.into_iter().filter(|path| path.is_here()) {
            for (seed, &[rows, columns, inner]) in (1..).zip(shapes) {
                for case in cases.clone() {
                    let [a_transposed, b_transposed, keep, gap] = [0, 1, 2, 3].map(|bit| case >> bit & 1 == 1);
                    let gap = if gap { 3 } else { 0 };
                    let a = numbers::<A>((rows + gap) * (inner + gap), seed);
                    let b = numbers::<B>((inner + gap) * (columns + gap), seed + 100);
                    let a = matrix(&a, rows, inner, gap, a_transposed);
                    let b = matrix(&b, inner, columns, gap, b_transposed);
                    let exact = |row: usize, column: usize| {
                        0.5 * (0..inner).map(|k| element(a, row, k) * element(b, k, column)).sum::<f32>()
                    };
                    let mut scratch = vec![f32::NAN; half_product_scratch([rows, inner, columns], 1).0 as usize / 4];
                    let before = numbers::<f32>(rows * (columns + gap), seed + 1);
                    let mut after = before.clone();
                    let into = MatrixMut::strided(&mut after, rows, columns, columns + gap);
                    product_by(path, &mut Sums::F32 { into, keep }, 0.5, a.into(), b.into(), &mut scratch, 1);
                    for (index, (before, after)) in before.into_iter().zip(after).enumerate().step_by(every) {
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
                    for (index, (before, after)) in before.into_iter().zip(after).enumerate().step_by(every) {
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
    fn products_are_exact_for_any_shape_stride_and_instructions() {
        check::<bf16, bf16>(&SHAPES, 0..16, 1);
    }

    /// Operands of other types differ in how they are packed, which every third element shows as well.
    #[test]
    fn products_are_exact_in_any_precision() {
        check::<f32, bf16>(&SHAPES, 0..16, 3);
        check::<bf16, f32>(&SHAPES, 0..16, 3);
        check::<f16, f16>(&SHAPES, 0..16, 3);
        check::<f32, f16>(&SHAPES, 0..16, 3);
    }

    /// More than are packed together, as they are and transposed. A tile has elements that are looked at, and many.
    #[test]
    fn products_of_many_rows_columns_or_terms_are_exact() {
        const MANY: [[usize; 3]; 6] =
            [[1060, 1070, 5], [2100, 3, 2], [3, 5000, 4], [1060, 4, 1540], [2, 3300, 3080], [40, 70, 12_400]];
        check::<bf16, bf16>(&MANY, 4..6, 97);
        check::<bf16, bf16>(&MANY, 9..11, 97);
        check::<f32, f16>(&MANY, 4..6, 97);
        check::<f32, f16>(&MANY, 9..11, 97);
    }

    #[test]
    fn products_do_not_depend_on_the_number_of_workers() {
        for [rows, columns, inner] in [[300, 200, 100], [1500, 130, 700], [90, 1000, 1100], [65, 2000, 3200]] {
            let random = |count, seed| numbers::<f32>(count, seed).into_iter().map(|x| bf16::from_f32(x * 0.37));
            let (a, b) = (random(rows * inner, 1).collect::<Vec<_>>(), random(inner * columns, 2).collect::<Vec<_>>());
            let results = [1, 2, 3, 7].map(|workers| {
                let pool =
                    rayon::ThreadPoolBuilder::new().num_threads(workers).build().expect("threads can be started");
                let mut into = vec![0.0; rows * columns];
                let words = half_product_scratch([rows, inner, columns], workers).0 as usize / 4;
                let mut scratch = vec![f32::NAN; words];
                let sums = Sums::F32 { into: MatrixMut::new(&mut into, rows, columns), keep: false };
                let (a, b) = (Matrix::new(&a, rows, inner), Matrix::new(&b, columns, inner).transposed());
                pool.install(|| half_product(sums, 1.0, a.into(), b.into(), &mut scratch, workers));
                into.into_iter().map(f32::to_bits).collect::<Vec<_>>()
            });
            assert!(results.iter().all(|result| *result == results[0]), "{rows} {columns} {inner}");
        }
    }
}
