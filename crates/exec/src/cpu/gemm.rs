//! Matrix products: views of matrices in slices, and behind them the one call of the `gemm` crate and the one of a
//! BLAS, if one was chosen (`blas.rs`).

use super::blas::{self, Blas, Operand};
use gemm::Parallelism;
use rayon::iter::{ParallelBridge, ParallelIterator};
use std::ffi::c_int;
use std::marker::PhantomData;
use std::ops::Range;

/// A matrix that is read. Element (i, j) lies at `i * row_stride + j * column_stride`.
#[derive(Clone, Copy)]
pub(super) struct Matrix<'a> {
    data: &'a [f32],
    rows: usize,
    columns: usize,
    row_stride: usize,
    column_stride: usize,
}

impl<'a> Matrix<'a> {
    /// The first `columns` of each of `rows` rows that begin `stride` elements apart.
    /// Panics if they don't lie in the slice.
    pub(super) fn strided(data: &'a [f32], rows: usize, columns: usize, stride: usize) -> Self {
        assert_inside(data.len(), rows, columns, stride);
        Self { data, rows, columns, row_stride: stride, column_stride: 1 }
    }

    /// Rows that lie one after the other. Panics if they don't fill the slice.
    pub(super) fn new(data: &'a [f32], rows: usize, columns: usize) -> Self {
        assert_eq!(data.len(), rows * columns, "elements of a {rows} by {columns} matrix");
        Self::strided(data, rows, columns, columns)
    }

    /// Rows and columns.
    pub(super) fn extents(self) -> (usize, usize) {
        (self.rows, self.columns)
    }

    /// Some of the rows. Panics if there are not so many.
    pub(super) fn rows(self, range: Range<usize>) -> Self {
        assert!(range.start <= range.end && range.end <= self.rows, "rows {range:?} of {}", self.rows);
        // No rows may leave nothing of the slice to begin at.
        let start = (range.start * self.row_stride).min(self.data.len());
        Self { data: &self.data[start..], rows: range.len(), ..self }
    }

    /// Row `row`, whose elements are neighbours. Panics if there are not so many, or if the matrix is transposed.
    pub(super) fn row(self, row: usize) -> &'a [f32] {
        assert!(row < self.rows && self.column_stride == 1, "row {row} of {}", self.rows);
        &self.data[row * self.row_stride..][..self.columns]
    }

    /// The same elements with rows and columns exchanged.
    pub(super) fn transposed(self) -> Self {
        let Self { data, rows, columns, row_stride, column_stride } = self;
        Self { data, rows: columns, columns: rows, row_stride: column_stride, column_stride: row_stride }
    }

    /// Some of the columns. Panics if there are not so many.
    pub(super) fn columns(self, range: Range<usize>) -> Self {
        self.transposed().rows(range).transposed()
    }

    /// The matrix as BLAS takes it; none if it has too many elements for it, or rows that overlap.
    fn operand(self) -> Option<Operand> {
        // A single row or column has both strides 1, and is long in one direction only.
        let is_transposed = self.column_stride != 1 || self.row_stride < self.columns;
        let (near, far, length) = if is_transposed {
            (self.row_stride, self.column_stride, self.rows)
        } else {
            (self.column_stride, self.row_stride, self.columns)
        };
        let stride = c_int::try_from(far).ok().filter(|_| near == 1 && far >= length)?;
        Some(Operand { start: self.data.as_ptr(), is_transposed, stride })
    }
}

/// A matrix that is written: rows of neighbouring elements, `stride` apart, and whatever lies between them is not its.
pub(super) struct MatrixMut<'a> {
    start: *mut f32,
    rows: usize,
    columns: usize,
    stride: usize,
    owner: PhantomData<&'a mut [f32]>,
}

// SAFETY: a view has its elements to itself, as `&mut [f32]` would, which may be sent too.
unsafe impl Send for MatrixMut<'_> {}

impl<'a> MatrixMut<'a> {
    /// Rows that lie one after the other. Panics if they don't fill the slice.
    pub(super) fn new(data: &'a mut [f32], rows: usize, columns: usize) -> Self {
        assert_eq!(data.len(), rows * columns, "elements of a {rows} by {columns} matrix");
        Self::strided(data, rows, columns, columns)
    }

    /// The first `columns` of each of `rows` rows that begin `stride` elements apart.
    /// Panics if they don't lie in the slice, or overlap.
    pub(super) fn strided(data: &'a mut [f32], rows: usize, columns: usize, stride: usize) -> Self {
        assert!(columns <= stride, "rows of {columns} elements overlap at a stride of {stride}");
        assert_inside(data.len(), rows, columns, stride);
        Self { start: data.as_mut_ptr(), rows, columns, stride, owner: PhantomData }
    }

    /// Cuts the matrix into blocks of `width` columns; the last may be narrower. Panics if `width` is zero.
    pub(super) fn column_blocks(self, width: usize) -> impl Iterator<Item = MatrixMut<'a>> + Send {
        (0..self.columns.div_ceil(width)).map(move |block| self.column_block(block * width, width))
    }

    /// At most `width` columns from `first` on. Whoever calls this must not ask for the same column twice.
    fn column_block(&self, first: usize, width: usize) -> MatrixMut<'a> {
        MatrixMut { start: self.start.wrapping_add(first), columns: width.min(self.columns - first), ..*self }
    }

    /// Cuts the matrix into blocks of `height` rows; the last may be lower. Panics if `height` is zero.
    fn row_blocks(self, height: usize) -> impl Iterator<Item = MatrixMut<'a>> + Send {
        (0..self.rows.div_ceil(height)).map(move |block| self.row_block(block * height, height))
    }

    /// At most `height` rows from `first` on. Whoever calls this must not ask for the same row twice.
    fn row_block(&self, first: usize, height: usize) -> MatrixMut<'a> {
        MatrixMut { start: self.start.wrapping_add(first * self.stride), rows: height.min(self.rows - first), ..*self }
    }

    /// Some of the rows. Panics if there are not so many.
    pub(super) fn rows(&mut self, range: Range<usize>) -> MatrixMut<'_> {
        assert!(range.start <= range.end && range.end <= self.rows, "rows {range:?} of {}", self.rows);
        MatrixMut { start: self.start.wrapping_add(range.start * self.stride), rows: range.len(), ..*self }
    }

    /// Some of the columns. Panics if there are not so many.
    pub(super) fn columns(&mut self, range: Range<usize>) -> MatrixMut<'_> {
        assert!(range.start <= range.end && range.end <= self.columns, "columns {range:?} of {}", self.columns);
        MatrixMut { start: self.start.wrapping_add(range.start), columns: range.len(), ..*self }
    }

    /// Number of rows.
    pub(super) fn row_count(&self) -> usize {
        self.rows
    }

    /// Sets all elements.
    pub(super) fn fill(&mut self, value: f32) {
        (0..self.rows).for_each(|row| self.row(row).fill(value));
    }

    /// Row `row`. Panics if there are not so many.
    pub(super) fn row(&mut self, row: usize) -> &mut [f32] {
        assert!(row < self.rows, "row {row} of {}", self.rows);
        // SAFETY: the constructor checked that all rows lie in the slice, the assertion that this is one of them, and
        // the view has its elements to itself for as long as it is borrowed.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(row * self.stride), self.columns) }
    }
}

/// Panics unless `rows` rows of `columns` elements, `stride` apart, end within `length` elements.
fn assert_inside(length: usize, rows: usize, columns: usize, stride: usize) {
    let end = rows.saturating_sub(1).saturating_mul(stride).saturating_add(columns);
    assert!(rows == 0 || end <= length, "{rows} rows of {columns} elements, {stride} apart, in {length} elements");
}

/// Rows that the library is asked for at a time. It copies so many rows of `a`, some 500 columns at a time, to the
/// heap, where no plan sees them: two megabytes, and not the thirty that a head's weight gradient would take at once.
const ROWS: usize = 1024;

/// Multiplications from which on a BLAS is asked, if one was chosen. Attention's many small products, each on a worker
/// of its own, stay below.
const LARGE: usize = 1 << 22;

/// Rows and columns that a product is cut at for a BLAS are multiples of this, so that its innermost loops stay whole.
const GRAIN: usize = 64;

/// into = scale · a b, added to what is there if `accumulate`. Runs on `workers` workers of the current pool. The
/// built-in result does not depend on their number; a BLAS only promises the same for the same number.
/// Panics if the extents don't match.
pub(super) fn product(into: &mut MatrixMut, accumulate: bool, scale: f32, a: Matrix, b: Matrix, workers: usize) {
    match blas::chosen() {
        Some(blas) if is_for_library(into, a, b) => {
            product_in_parts(blas, into, accumulate, scale, a, b, workers);
        }
        _ => product_built_in(into, accumulate, scale, a, b, workers),
    }
}

/// As [`product`], by the `gemm` crate.
pub(super) fn product_built_in(
    into: &mut MatrixMut,
    accumulate: bool,
    scale: f32,
    a: Matrix,
    b: Matrix,
    workers: usize,
) {
    assert_eq!((a.rows, b.rows, b.columns), (into.rows, a.columns, into.columns), "extents of a product");
    for first in (0..into.rows).step_by(ROWS) {
        let rows = first..into.rows.min(first + ROWS);
        product_of_strip(into.rows(rows.clone()), accumulate, scale, a.rows(rows), b, workers);
    }
}

/// Whether a product is worth the call, and lies as BLAS wants it.
fn is_for_library(into: &MatrixMut, a: Matrix, b: Matrix) -> bool {
    let extents = [into.rows, into.columns, a.columns];
    let fits = |&extent: &usize| c_int::try_from(extent).is_ok();
    extents.into_iter().fold(1, usize::saturating_mul) >= LARGE
        && extents.iter().chain([&into.stride]).all(fits)
        && a.operand().is_some()
        && b.operand().is_some()
}

/// As [`product`], by a library: each worker has it compute a block of rows, or of columns if they are more.
fn product_in_parts(
    blas: &Blas,
    into: &mut MatrixMut,
    accumulate: bool,
    scale: f32,
    a: Matrix,
    b: Matrix,
    workers: usize,
) {
    let size = |extent: usize| extent.div_ceil(workers).next_multiple_of(GRAIN);
    let (height, width) = (size(into.rows), size(into.columns));
    let whole = into.rows(0..into.rows);
    if whole.columns > whole.rows {
        whole.column_blocks(width).enumerate().par_bridge().for_each(|(block, mut into)| {
            let columns = block * width..block * width + into.columns;
            product_by_library(blas, &mut into, accumulate, scale, a, b.columns(columns));
        });
    } else {
        whole.row_blocks(height).enumerate().par_bridge().for_each(|(block, mut into)| {
            let rows = block * height..block * height + into.rows;
            product_by_library(blas, &mut into, accumulate, scale, a.rows(rows), b);
        });
    }
}

/// As [`product`], by one call of a library on the caller's thread.
/// Panics if an extent is zero, or if the operands don't lie as BLAS wants them.
pub(super) fn product_by_library(
    blas: &Blas,
    into: &mut MatrixMut,
    accumulate: bool,
    scale: f32,
    a: Matrix,
    b: Matrix,
) {
    let extents = [into.rows, into.columns, a.columns];
    assert_eq!((a.rows, b.rows, b.columns), (into.rows, a.columns, into.columns), "extents of a product");
    assert!(extents.iter().all(|&extent| extent > 0), "an empty product of {extents:?}");
    let narrow = |count: usize| c_int::try_from(count).expect("extents and strides of 32 bits");
    let [a, b] = [a, b].map(|operand| operand.operand().expect("an operand that lies as BLAS wants it"));
    let (kept, result) = (if accumulate { 1.0 } else { 0.0 }, (into.start, narrow(into.stride)));
    // SAFETY: the views' constructors checked that every element which these extents and strides reach lies in its
    // slice, `MatrixMut`'s and `operand` that rows don't overlap, and the assertions that the extents agree and that
    // none is zero; `into` has its elements to itself.
    unsafe { blas.product(extents.map(narrow), scale, &a, &b, kept, result) };
}

fn product_of_strip(into: MatrixMut, accumulate: bool, scale: f32, a: Matrix, b: Matrix, workers: usize) {
    let (rows, columns, inner) = (into.rows, into.columns, a.columns);
    assert_eq!((a.rows, b.rows, b.columns), (rows, inner, columns), "extents of a product");
    let parallelism = if workers > 1 { Parallelism::Rayon(workers) } else { Parallelism::None };
    let kept = if accumulate { 1.0 } else { 0.0 };
    let signed = |stride: usize| isize::try_from(stride).expect("strides lie within a slice");
    // SAFETY: the views' constructors checked that every element which these extents and strides reach lies in its
    // slice, the assertion that the extents agree; `into` has its elements to itself.
    unsafe {
        gemm::gemm(
            rows,
            columns,
            inner,
            into.start,
            1,
            signed(into.stride),
            accumulate,
            a.data.as_ptr(),
            signed(a.column_stride),
            signed(a.row_stride),
            b.data.as_ptr(),
            signed(b.column_stride),
            signed(b.row_stride),
            kept,
            scale,
            false,
            false,
            false,
            parallelism,
        );
    }
}

#[cfg(test)]
mod tests {
    use super::super::blas::view;
    use super::*;

    /// Numbers that look random and are the same every time.
    fn numbers(count: usize, seed: u32) -> Vec<f32> {
        let mut state = seed.wrapping_mul(0x9E37_79B9) | 1;
        let mut next = move || {
            state ^= state << 13;
            state ^= state >> 17;
            state ^= state << 5;
            state as f32 / u32::MAX as f32 - 0.5
        };
        (0..count).map(|_| next()).collect()
    }

    fn element(matrix: Matrix, row: usize, column: usize) -> f32 {
        matrix.data[row * matrix.row_stride + column * matrix.column_stride]
    }

    #[test]
    fn products_are_right_for_any_shape_and_stride() {
        check(|into, accumulate, scale, a, b| product(into, accumulate, scale, a, b, 1));
    }

    #[test]
    fn products_by_a_library_in_parts_are_right_for_any_shape_and_stride() {
        let blas = Blas::open(fake_blas::right()).expect("a library that works");
        for workers in [1, 2, 3] {
            check(|into, accumulate, scale, a, b| product_in_parts(&blas, into, accumulate, scale, a, b, workers));
        }
    }

    /// Panics unless `product` is right for shapes of all kinds, and writes nothing else.
    fn check(product: impl Fn(&mut MatrixMut, bool, f32, Matrix, Matrix)) {
        let shapes =
            [[1, 1, 1], [5, 3, 7], [1, 40, 33], [40, 1, 9], [17, 65, 1], [64, 64, 64], [70, 30, 600], [1030, 20, 5]];
        for (seed, [rows, columns, inner]) in (1..).zip(shapes) {
            for case in 0..16 {
                let [a_transposed, b_transposed, accumulate, gap] = [0, 1, 2, 3].map(|bit| case >> bit & 1 == 1);
                let gap = if gap { 3 } else { 0 };
                let (a, b) =
                    (numbers((rows + gap) * (inner + gap), seed), numbers((inner + gap) * (columns + gap), seed + 2));
                let (a, b) = (view(&a, rows, inner, gap, a_transposed), view(&b, inner, columns, gap, b_transposed));
                let before = numbers(rows * (columns + gap), seed + 1);
                let mut after = before.clone();
                let mut into = MatrixMut::strided(&mut after, rows, columns, columns + gap);
                product(&mut into, accumulate, 0.5, a, b);
                for (index, (before, after)) in before.into_iter().zip(after).enumerate() {
                    let (row, column) = (index / (columns + gap), index % (columns + gap));
                    if column >= columns {
                        assert_eq!(before, after, "the gap after row {row} was written");
                        continue;
                    }
                    let terms = (0..inner).map(|k| f64::from(element(a, row, k)) * f64::from(element(b, k, column)));
                    let exact = 0.5 * terms.sum::<f64>() + if accumulate { f64::from(before) } else { 0.0 };
                    let error = (f64::from(after) - exact).abs();
                    assert!(
                        error < 1e-5 * exact.abs().max(1.0),
                        "{rows} {columns} {inner} {case}: {after}, not {exact}"
                    );
                }
            }
        }
    }

    #[test]
    fn products_do_not_depend_on_the_number_of_workers() {
        for [rows, columns, inner] in [[300, 200, 100], [1500, 130, 700], [90, 1000, 1100], [65, 2000, 64]] {
            let (a, b) = (numbers(rows * inner, 1), numbers(inner * columns, 2));
            let results = [1, 2, 3, 7].map(|workers| {
                let pool =
                    rayon::ThreadPoolBuilder::new().num_threads(workers).build().expect("threads can be started");
                let mut into = vec![0.0; rows * columns];
                let mut view = MatrixMut::new(&mut into, rows, columns);
                let (a, b) = (Matrix::new(&a, rows, inner), Matrix::new(&b, columns, inner).transposed());
                pool.install(|| product(&mut view, false, 1.0, a, b, workers));
                into.into_iter().map(f32::to_bits).collect::<Vec<_>>()
            });
            assert!(results.iter().all(|result| *result == results[0]), "{rows} {columns} {inner}");
        }
    }

    #[test]
    fn column_blocks_cover_a_matrix_once() {
        let mut data = vec![0.0; 3 * 10];
        for (number, mut block) in MatrixMut::strided(&mut data, 3, 8, 10).column_blocks(3).enumerate() {
            for row in 0..block.row_count() {
                for x in block.row(row) {
                    *x += (number + 1) as f32;
                }
            }
        }
        assert_eq!(data, [1.0, 1.0, 1.0, 2.0, 2.0, 2.0, 3.0, 3.0, 0.0, 0.0].repeat(3));
    }

    #[test]
    #[should_panic(expected = "4 rows of 3 elements, 5 apart, in 17 elements")]
    fn a_matrix_that_ends_beyond_its_slice_is_refused() {
        MatrixMut::strided(&mut [0.0; 17], 4, 3, 5);
    }
}
