//! Products of matrices in any precision, in tiles: parts of the operands are copied into panels that a kernel reads
//! from end to end, sums stay in single precision until a tile is complete, and are then rounded into the result. So
//! only a worker's tiles are widened, in planned scratch. A library computes small products in single precision
//! (`product.rs`).
//!
//! ```text
//!   mod.rs     blocks of the result, divided among workers; steps of the sum
//!   pack.rs    parts of operands ─► panels, through decoded tiles if they are in codes (coded.rs)
//!   kernel.rs  panels ─► a tile of sums in registers, with AMX in amx.rs
//!   store.rs   tiles ─► the result, with bias and rounding
//!   packed.rs  small products of operands that stay packed
//!   path.rs    the available instructions
//! ```
//!
//! The order in which the terms of a sum are added depends on the shapes and the processor's instructions, not on the
//! number of workers.

#[cfg(target_arch = "x86_64")]
mod amx;
mod coded;
mod kernel;
mod pack;
mod packed;
mod path;
mod store;

pub(super) use coded::Coded;
pub(super) use packed::{Packed, PackedProducts};
pub use path::{Instructions, instructions};

use super::blas::blas_in_use;
use super::matrix::{Matrix, MatrixMut};
use super::parallel;
use super::product::product;
use crate::call::Call;
use ::half::{bf16, f16};
use kernel::{Kernel, MOST_TILE, Panels};
use pack::{MOST_ROWS, pack};
use plimsoll_graph::DType;
use plimsoll_graph::ops::{BLOCK_WORDS, in_tiles, part_words, tiled_parts};
use std::ops::Range;

/// A factor in its own precision.
#[derive(Clone, Copy)]
pub(super) enum Factor<'a> {
    F32(Matrix<'a>),
    F16(Matrix<'a, f16>),
    Bf16(Matrix<'a, bf16>),
    Coded(Coded<'a>),
}

/// The destination of a product.
pub(super) enum Sums<'a> {
    /// Added to the previous values if `keep`, and to `bias`, which has a value per column.
    F32 { into: MatrixMut<'a>, keep: bool, bias: Option<&'a [f32]> },
    /// Rounded after `bias`, which has a value per column, and the previous values if `keep`, were added.
    F16 { into: MatrixMut<'a, f16>, keep: bool, bias: Option<&'a [f16]> },
    /// Rounded after `bias`, which has a value per column, and the previous values if `keep`, were added.
    Bf16 { into: MatrixMut<'a, bf16>, keep: bool, bias: Option<&'a [bf16]> },
}

/// The same for each precision of a factor.
macro_rules! each {
    ($factor:expr, $matrix:ident => $value:expr) => {
        match $factor {
            Factor::F32($matrix) => $value,
            Factor::F16($matrix) => $value,
            Factor::Bf16($matrix) => $value,
            Factor::Coded($matrix) => $value,
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

impl<'a> From<Coded<'a>> for Factor<'a> {
    fn from(coded: Coded<'a>) -> Self {
        Self::Coded(coded)
    }
}

impl<'a> Factor<'a> {
    /// An operand of a call, with contiguous rows. Panics if it does not have this size, or shares the memory of an
    /// output.
    pub(super) fn of(call: &Call<'a>, index: usize, rows: usize, columns: usize) -> Self {
        let bytes = call.bytes(index);
        match call.io.inputs[index].dtype {
            DType::F32 => Matrix::<f32>::new(bytemuck::cast_slice(bytes), rows, columns).into(),
            DType::F16 => Matrix::<f16>::new(bytemuck::cast_slice(bytes), rows, columns).into(),
            DType::Bf16 => Matrix::<bf16>::new(bytemuck::cast_slice(bytes), rows, columns).into(),
            other => panic!("{other:?} cannot be multiplied"),
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
    /// A result in this precision with contiguous rows, and its bias if there is one. It is added to the previous values
    /// if `keep`. Panics if it does not have this size.
    pub(super) fn of(
        bytes: &'a mut [u8],
        dtype: DType,
        [rows, columns]: [usize; 2],
        bias: Option<&'a [u8]>,
        keep: bool,
    ) -> Self {
        match dtype {
            DType::F32 => Self::F32 {
                into: MatrixMut::new(bytemuck::cast_slice_mut(bytes), rows, columns),
                keep,
                bias: bias.map(bytemuck::cast_slice),
            },
            DType::F16 => Self::F16 {
                into: MatrixMut::new(bytemuck::cast_slice_mut(bytes), rows, columns),
                keep,
                bias: bias.map(bytemuck::cast_slice),
            },
            DType::Bf16 => Self::Bf16 {
                into: MatrixMut::new(bytemuck::cast_slice_mut(bytes), rows, columns),
                keep,
                bias: bias.map(bytemuck::cast_slice),
            },
            other => panic!("{other:?} cannot be the result of a product"),
        }
    }

    fn extents(&self) -> (usize, usize) {
        match self {
            Self::F32 { into, .. } => (into.rows, into.columns),
            Self::F16 { into, .. } => (into.rows, into.columns),
            Self::Bf16 { into, .. } => (into.rows, into.columns),
        }
    }

    /// Adds to the previous values from now on. Panics if it is not in single precision.
    pub(super) fn keep(&mut self) {
        assert!(matches!(self, Self::F32 { .. }), "only results in single precision are added to");
        self.keep_sums();
    }

    /// The same for a result in single precision, else `None`: sums that are rounded are accumulated elsewhere.
    fn keep_sums(&mut self) {
        if let Self::F32 { keep, bias, .. } = self {
            (*keep, *bias) = (true, None);
        }
    }

    /// Some of the rows and columns.
    pub(super) fn part(&mut self, rows: Range<usize>, columns: Range<usize>) -> Sums<'_> {
        match self {
            Self::F32 { into, keep, bias } => {
                Sums::F32 { into: into.part(rows, columns.clone()), keep: *keep, bias: bias.map(|bias| &bias[columns]) }
            }
            Self::F16 { into, keep, bias } => {
                Sums::F16 { into: into.part(rows, columns.clone()), keep: *keep, bias: bias.map(|bias| &bias[columns]) }
            }
            Self::Bf16 { into, keep, bias } => Sums::Bf16 {
                into: into.part(rows, columns.clone()),
                keep: *keep,
                bias: bias.map(|bias| &bias[columns]),
            },
        }
    }

    /// Splits the result into these rows, which must ascend.
    fn row_parts(
        self,
        parts: impl Iterator<Item = Range<usize>> + Send + 'a,
    ) -> Box<dyn Iterator<Item = Self> + Send + 'a> {
        match self {
            Self::F32 { into, keep, bias } => {
                Box::new(into.row_parts(parts).map(move |into| Self::F32 { into, keep, bias }))
            }
            Self::F16 { into, keep, bias } => {
                Box::new(into.row_parts(parts).map(move |into| Self::F16 { into, keep, bias }))
            }
            Self::Bf16 { into, keep, bias } => {
                Box::new(into.row_parts(parts).map(move |into| Self::Bf16 { into, keep, bias }))
            }
        }
    }

    /// Splits the result into these columns, which must ascend.
    fn column_parts(
        self,
        parts: impl Iterator<Item = Range<usize>> + Clone + Send + 'a,
    ) -> Box<dyn Iterator<Item = Self> + Send + 'a> {
        let columns = parts.clone();
        match self {
            Self::F32 { into, keep, bias } => {
                Box::new(into.column_parts(parts).zip(columns).map(move |(into, columns)| Self::F32 {
                    into,
                    keep,
                    bias: bias.map(|bias| &bias[columns]),
                }))
            }
            Self::F16 { into, keep, bias } => {
                Box::new(into.column_parts(parts).zip(columns).map(move |(into, columns)| Self::F16 {
                    into,
                    keep,
                    bias: bias.map(|bias| &bias[columns]),
                }))
            }
            Self::Bf16 { into, keep, bias } => {
                Box::new(into.column_parts(parts).zip(columns).map(move |(into, columns)| Self::Bf16 {
                    into,
                    keep,
                    bias: bias.map(|bias| &bias[columns]),
                }))
            }
        }
    }
}

/// into = scale · a b in any precisions: by a library if all are single and it is faster or was chosen. Runs on
/// `workers` workers of the current pool, in `scratch` of `product_scratch` in `graph`; without a BLAS, the result does
/// not depend on their number. Panics if the extents don't match.
pub(super) fn any_product(into: Sums, scale: f32, a: Factor, b: Factor, scratch: &mut [f32], workers: usize) {
    let path = instructions();
    match (into, a, b) {
        (Sums::F32 { mut into, keep, bias }, Factor::F32(a), Factor::F32(b))
            if !in_tiles([into.rows, a.columns, into.columns])
                || blas_in_use().is_some()
                || !path.multiplies_single() =>
        {
            if let Some(bias) = bias {
                let height = into.rows.div_ceil(workers).max(1);
                let blocks = into.rows(0..into.rows).row_blocks(height);
                parallel::for_each_of(blocks, workers, |mut block| {
                    (0..block.rows).for_each(|row| block.row(row).copy_from_slice(bias));
                });
            }
            product(&mut into, keep || bias.is_some(), scale, a, b, workers)
        }
        (mut into, a, b) => product_by(path, &mut into, scale, a, b, scratch, workers),
    }
}

/// The same with the given instructions.
fn product_by(
    path: Instructions,
    into: &mut Sums,
    scale: f32,
    a: Factor,
    b: Factor,
    scratch: &mut [f32],
    workers: usize,
) {
    let ((rows, columns), inner) = (into.extents(), a.extents().1);
    assert_eq!((a.extents().0, b.extents().0, b.extents().1), (rows, inner, columns), "extents of a product");
    let has = |is: fn(&Factor) -> bool| is(&a) || is(&b);
    let in_bf16 = has(|factor| matches!(factor, Factor::Bf16(_))) && !has(|factor| matches!(factor, Factor::F16(_)));
    // All workers share the shorter operand, and panels of the other stream past it (`multiply_part`).
    let kernel = Kernel::of(path, in_bf16, rows <= columns);
    let [height, width] = tiled_parts([rows, inner, columns]);
    for row in (0..rows).step_by(height) {
        let rows = row..rows.min(row + height);
        for column in (0..columns).step_by(width) {
            let columns = column..columns.min(column + width);
            let into = into.part(rows.clone(), columns.clone());
            multiply_part(&kernel, into, scale, a.rows(rows.clone()), b.columns(columns), scratch, workers);
        }
    }
}

/// Blocks of at most `most` panels each, sized so that all workers get the same number and finish together.
fn blocks(panels: usize, most: usize, workers: usize) -> impl Iterator<Item = Range<usize>> + Clone + Send {
    let count = panels.div_ceil(most).next_multiple_of(workers).min(panels);
    (0..count).map(move |block| block * panels / count..(block + 1) * panels / count)
}

/// Least rows or columns of a part in which an operand is packed: enough for the hardware to prefetch the lines that
/// are read.
const PACKED_ITEMS: usize = 8;
const FEWEST_PACKED: usize = 192;

/// Floats of a cache line.
const LINE: usize = 16;

/// An operand of a part: its rows correspond to rows or columns of the result, its columns to terms of the sum.
struct Side<'a> {
    factor: Factor<'a>,
    extent: usize,
    panels: Panels,
}

/// A part of a product whose shorter operand fits the scratch: it is packed once, and all workers read it. Each worker
/// packs blocks of the other operand, which stay in its caches until they are multiplied.
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
    // Parts are cut so that the operand that is shorter in the whole product is the shorter one in each part
    // (`tiled_parts`).
    let by_columns = rows <= columns;
    let (shared, cut) = if by_columns { (a, b) } else { (b, a) };
    let groups = inner.div_ceil(kernel.terms());
    let steps = groups.div_ceil(part_words(groups)).max(1);
    let words = shared.panels.groups(groups.div_ceil(steps) * kernel.terms());
    let tiles = shared.extent.div_ceil(shared.panels.width);
    let panels = cut.extent.div_ceil(cut.panels.width);
    let most = (BLOCK_WORDS / (cut.panels.width * words).max(1)).clamp(1, MOST_ROWS / cut.panels.width);
    let blocks = blocks(panels, most, workers);
    let lines =
        move |panels: Range<usize>| panels.start * cut.panels.width..cut.extent.min(panels.end * cut.panels.width);
    // Panels are aligned to cache lines if the scratch is.
    let (shared_room, scratch) = scratch.split_at_mut((tiles * shared.panels.width * words).next_multiple_of(LINE));
    let in_result = matches!(into, Sums::F32 { .. });
    let waiting = if steps == 1 || in_result { 0 } else { kernel.rows * kernel.columns };
    let (sums, rooms) = scratch.split_at_mut((tiles * panels * waiting).next_multiple_of(LINE));
    let each = rooms.len() / workers / LINE * LINE;
    let rooms = &mut rooms[..each * workers];
    for index in 0..steps {
        let step = words * kernel.terms();
        let terms = index * step..inner.min((index + 1) * step);
        let words = shared.panels.groups(terms.len());
        let shared_panels = &mut shared_room[..tiles * shared.panels.width * words];
        // No worker waits for another that packs everything.
        let fewest = FEWEST_PACKED.min(shared.extent.div_ceil(workers)).max(1);
        let chunk = shared.extent.div_ceil(PACKED_ITEMS).max(fewest).next_multiple_of(shared.panels.width);
        let items = shared_panels.chunks_mut((chunk * words).max(1)).zip((0..shared.extent).step_by(chunk));
        parallel::for_each_of(items, workers, |(into, first)| {
            let rows = first..shared.extent.min(first + chunk);
            pack(shared.panels, shared.factor, rows, terms.clone(), into);
        });
        let is_stored = in_result || index + 1 == steps;
        let whole = into.part(0..rows, 0..columns);
        let results = match by_columns {
            true => whole.column_parts(blocks.clone().map(lines)),
            false => whole.row_parts(blocks.clone().map(lines)),
        };
        let mut sums = &mut *sums;
        let blocks = results.zip(blocks.clone()).map(|(into, panels)| {
            let (of_block, rest) = std::mem::take(&mut sums).split_at_mut(tiles * panels.len() * waiting);
            sums = rest;
            (into, panels, of_block)
        });
        parallel::for_each_with_scratch(blocks, rooms, workers, |(into, panels, sums), room| {
            let rows = lines(panels);
            let room = &mut room[..rows.len().next_multiple_of(cut.panels.width) * words];
            pack(cut.panels, cut.factor, rows, terms.clone(), room);
            let step =
                Step { kernel, by_columns, shared: shared_panels, cut: room, words, add: index > 0 && !in_result };
            multiply_block(&step, into, is_stored.then_some(scale), sums);
        });
        into.keep_sums();
    }
}

/// A step of the sums of a block.
struct Step<'a> {
    kernel: &'a Kernel,
    /// Whether blocks are ranges of the result's columns instead of its rows.
    by_columns: bool,
    /// All panels of the shared operand.
    shared: &'a [f32],
    /// The block's panels of the other operand.
    cut: &'a [f32],
    /// Words of the sum.
    words: usize,
    /// Whether there were steps before.
    add: bool,
}

/// Most panels of a block whose tiles wait for the next slice of their sums.
const MOST_WAITING: usize = 12;

/// Tiles of a row of panels, which begin at a cache line.
#[repr(align(64))]
struct Tiles([f32; MOST_WAITING * MOST_TILE]);

/// Multiplies the panels of a block; after the last step its sums are stored, times `last`. `sums` is empty if there is
/// only one step, or if the result itself accumulates the sums.
fn multiply_block(step: &Step, mut into: Sums, last: Option<f32>, sums: &mut [f32]) {
    let Step { kernel, by_columns, shared, cut, words, add } = *step;
    let ((rows, columns), (height, width)) = (into.extents(), (kernel.rows, kernel.columns));
    let [shared_tile, cut_tile] = if by_columns { [height, width] } else { [width, height] };
    let (tile, count) = (height * width, cut.len() / (cut_tile * words).max(1));
    // A slice of each panel of the shared operand stays in the first-level cache while all others stream past.
    let keeps_sums = !sums.is_empty();
    let slice = if keeps_sums || count <= MOST_WAITING { kernel.slice(words) } else { words };
    // A tile that is complete after one step is stored before the next one replaces it.
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
    use plimsoll_graph::ops::tiled_scratch;

    /// Reproducible pseudorandom integers, small enough that every sum is exact: a single wrong element of an operand
    /// changes a result, and products of `Bf16` are the same with all instructions.
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

    /// A matrix with gaps between its rows, or columns if it is transposed, and its elements in single precision.
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

    /// Panics unless a sample of the elements of all products of such operands is exact with all available
    /// instructions, and nothing else is written.
    fn check<A: Float, B: Float>(shapes: &[[usize; 3]], cases: Range<usize>, every: usize)
    where
        for<'a> Factor<'a>: From<Matrix<'a, A>> + From<Matrix<'a, B>>,
    {
        for path in Instructions::ALL.into_iter().filter(|path| path.is_available()) {
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
                    let mut scratch =
                        vec![f32::NAN; tiled_scratch(DType::Bf16, [rows, inner, columns], 1).0 as usize / 4];
                    let before = numbers::<f32>(rows * (columns + gap), seed + 1);
                    let mut after = before.clone();
                    let into = MatrixMut::strided(&mut after, rows, columns, columns + gap);
                    let bias = numbers::<f32>(columns, seed + 2);
                    let added = |column: usize| if b_transposed { bias[column] } else { 0.0 };
                    let mut sums = Sums::F32 { into, keep, bias: b_transposed.then_some(&bias) };
                    product_by(path, &mut sums, 0.5, a.into(), b.into(), &mut scratch, 1);
                    for (index, (before, after)) in before.into_iter().zip(after).enumerate().step_by(every) {
                        let (row, column) = (index / (columns + gap), index % (columns + gap));
                        let expected = match column < columns {
                            true => exact(row, column) + added(column) + if keep { before } else { 0.0 },
                            false => before,
                        };
                        assert_eq!(after, expected, "{path:?} {rows} {columns} {inner} {case}: {row}, {column}");
                    }
                    let bias = numbers::<bf16>(columns, seed + 2);
                    let added = |column: usize| if b_transposed { bias[column].to_f32() } else { 0.0 };
                    let before = numbers::<bf16>(rows * (columns + gap), seed + 1);
                    let mut after = before.clone();
                    let into = MatrixMut::strided(&mut after, rows, columns, columns + gap);
                    let mut sums = Sums::Bf16 { into, keep, bias: b_transposed.then_some(&bias) };
                    product_by(path, &mut sums, 0.5, a.into(), b.into(), &mut scratch, 1);
                    for (index, (before, after)) in before.into_iter().zip(after).enumerate().step_by(every) {
                        let (row, column) = (index / (columns + gap), index % (columns + gap));
                        let expected = match column < columns {
                            true => exact(row, column) + added(column) + if keep { before.to_f32() } else { 0.0 },
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

    /// Operands of other types differ in packing, for which every third element is enough.
    #[test]
    fn products_are_exact_in_any_precision() {
        check::<f32, bf16>(&SHAPES, 0..16, 3);
        check::<bf16, f32>(&SHAPES, 0..16, 3);
        check::<f16, f16>(&SHAPES, 0..16, 3);
        check::<f32, f16>(&SHAPES, 0..16, 3);
        check::<f32, f32>(&SHAPES, 0..16, 1);
    }

    /// More than are packed together, plain and transposed. The test checks several elements of every tile.
    #[test]
    fn products_of_many_rows_columns_or_terms_are_exact() {
        const MANY: [[usize; 3]; 6] =
            [[1060, 1070, 5], [2100, 3, 2], [3, 5000, 4], [1060, 4, 1540], [2, 3300, 3080], [40, 70, 12_400]];
        check::<bf16, bf16>(&MANY, 4..6, 97);
        check::<bf16, bf16>(&MANY, 9..11, 97);
        check::<f32, f16>(&MANY, 4..6, 97);
        check::<f32, f16>(&MANY, 9..11, 97);
        check::<f32, f32>(&MANY, 5..7, 97);
        check::<f32, f32>(&MANY, 8..10, 97);
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
                let words = tiled_scratch(DType::F32, [rows, inner, columns], workers).0 as usize / 4;
                let mut scratch = vec![f32::NAN; words];
                let sums = Sums::F32 { into: MatrixMut::new(&mut into, rows, columns), keep: false, bias: None };
                let (a, b) = (Matrix::new(&a, rows, inner), Matrix::new(&b, columns, inner).transposed());
                pool.install(|| any_product(sums, 1.0, a.into(), b.into(), &mut scratch, workers));
                into.into_iter().map(f32::to_bits).collect::<Vec<_>>()
            });
            assert!(results.iter().all(|result| *result == results[0]), "{rows} {columns} {inner}");
        }
    }
}
