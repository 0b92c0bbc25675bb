//! The only call of the `gemm` crates: products by the built-in library.

use super::matrix::{Matrix, MatrixMut};
use gemm_common::Parallelism;
use gemm_f32::gemm::f32::get_gemm_fn;

/// Rows per call of the library. It copies these rows of `a`, about 500 columns at a time, to the heap, which is in no
/// plan: two megabytes instead of the thirty for a whole head's weight gradient.
const ROWS: usize = 1024;

/// into = scale · a b, added to the previous values if `accumulate`. Runs on `workers` workers of the current pool; the
/// result does not depend on their number. Panics if the extents don't match.
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

fn product_of_strip(into: MatrixMut, accumulate: bool, scale: f32, a: Matrix, b: Matrix, workers: usize) {
    let (rows, columns, inner) = (into.rows, into.columns, a.columns);
    assert_eq!((a.rows, b.rows, b.columns), (rows, inner, columns), "extents of a product");
    let parallelism = if workers > 1 { Parallelism::Rayon(workers) } else { Parallelism::None };
    let kept = if accumulate { 1.0 } else { 0.0 };
    let signed = |stride: usize| isize::try_from(stride).expect("strides are within a slice");
    // SAFETY: the views' constructors checked that every element which these extents and strides reach is in its slice,
    // the assertion that the extents agree; `into` has exclusive access to its elements.
    unsafe {
        // The library's columns are contiguous, so it computes the transposed product.
        get_gemm_fn()(
            columns,
            rows,
            inner,
            into.start,
            signed(into.stride),
            1,
            accumulate,
            b.data.as_ptr(),
            signed(b.row_stride),
            signed(b.column_stride),
            a.data.as_ptr(),
            signed(a.row_stride),
            signed(a.column_stride),
            kept,
            scale,
            false,
            false,
            false,
            parallelism,
        );
    }
}
