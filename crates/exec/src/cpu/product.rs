//! Matrix products: by a BLAS if one was chosen (`blas.rs`) and the product is large enough, else by the built-in
//! library (`gemm.rs`).
//!
//! The built-in library computes small products: few rows, as in generation, and attention in single precision. Kernels
//! for small products without the library's copies were slower, since loading cold rows dominates. Tiles (`tiled/`)
//! compute all other products, as fast as the library, in planned scratch. A processor with neither AVX-512 nor AVX2
//! uses the library for all of single precision.

use super::blas::{self, Blas, Operand, product_by_library};
use super::gemm::product_built_in;
use super::matrix::{Matrix, MatrixMut};
use rayon::iter::{ParallelBridge, ParallelIterator};
use std::ffi::c_int;

/// Least number of multiplications of a product for a BLAS. Attention's many small products, each on one worker, are
/// below it.
const LARGE: usize = 1 << 22;

/// Products are split for a BLAS at multiples of this many rows or columns, so that its innermost loops are whole.
const GRAIN: usize = 64;

/// into = scale · a b, added to the previous values if `accumulate`. Runs on `workers` workers of the current pool. The
/// built-in library's result does not depend on their number; a BLAS's is reproducible only for the same number. Panics
/// if the extents don't match.
pub(super) fn product(into: &mut MatrixMut, accumulate: bool, scale: f32, a: Matrix, b: Matrix, workers: usize) {
    match blas::chosen() {
        Some(blas) if is_for_library(into, a, b) => {
            product_in_parts(blas, into, accumulate, scale, a, b, workers);
        }
        _ => product_built_in(into, accumulate, scale, a, b, workers),
    }
}

/// Whether a product is large enough, and BLAS supports its strides.
fn is_for_library(into: &MatrixMut, a: Matrix, b: Matrix) -> bool {
    let extents = [into.rows, into.columns, a.columns];
    let fits = |&extent: &usize| c_int::try_from(extent).is_ok();
    extents.into_iter().fold(1, usize::saturating_mul) >= LARGE
        && extents.iter().chain([&into.stride]).all(fits)
        && Operand::of(a).is_some()
        && Operand::of(b).is_some()
}

/// As [`product`], by a library: each worker calls it for a block of rows, or of columns if there are more columns.
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

#[cfg(test)]
mod tests {
    use super::super::blas::view;
    use super::*;

    /// Reproducible pseudorandom numbers.
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
        let blas = Blas::open(plimsoll_fake_blas::right()).expect("a library that works");
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
}
