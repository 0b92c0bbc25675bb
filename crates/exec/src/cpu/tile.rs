//! Products of matrices that lie in the caches, as attention makes them by the thousand: without the copies that a
//! library makes of its operands, which would take as long as the products.
//!
//! ```text
//!                 b   k ↓  ┌────┬────┬─┐      a tile's sums stay in registers while k runs: each element of `a` is
//!                          │    │    │ │      multiplied by vectors of a row of `b`
//!      a   k →             └────┴────┴─┘
//!     ┌───────────┐        ┌────┬────┬─┐
//!   4 │           │        │tile│    │ │      rows of `b` are taken in parts that the first-level cache holds
//!     ├───────────┤        ├────┼────┼─┤
//!     │           │   into │    │    │ │
//!     └───────────┘        └────┴────┴─┘
//! ```

use super::gemm::{Matrix, MatrixMut};
use super::vectorize::vectorized;
use pulp::Simd;

/// Rows of a tile.
const ROWS: usize = 4;

/// Rows of `b` at a time.
const PART: usize = 128;

/// into = scale · a b, added to what is there if `accumulate`, on the calling thread. Rows of `b` must hold neighbours, and
/// rows or columns of `a`. Panics if they don't, or if the extents don't match.
pub(super) fn small_product(into: &mut MatrixMut, accumulate: bool, scale: f32, a: Matrix, b: Matrix) {
    let ((rows, inner), (b_rows, columns)) = (a.extents(), b.extents());
    assert_eq!((rows, inner, columns), (into.row_count(), b_rows, into.column_count()), "extents of a product");
    if inner == 0 && !accumulate {
        into.fill(0.0);
    }
    for first in (0..inner).step_by(PART) {
        let part = first..inner.min(first + PART);
        let b = b.rows(part.clone()).lines().expect("rows of neighbours");
        let a = a.columns(part.clone());
        let sums = Sums { accumulate: accumulate || first > 0, scale, inner: part.len() };
        match a.lines() {
            Some(a) => product_of_part::<false>(into, sums, a, b),
            None => product_of_part::<true>(into, sums, a.transposed().lines().expect("columns of neighbours"), b),
        }
    }
}

/// What is added up, and what becomes of it.
#[derive(Clone, Copy)]
struct Sums {
    accumulate: bool,
    scale: f32,
    /// Terms of each sum.
    inner: usize,
}

/// Elements, and how far apart two lines of them begin.
type Lines<'a> = (&'a [f32], usize);

/// With the rows of `a` as lines, or its columns if `BY_COLUMNS`.
fn product_of_part<const BY_COLUMNS: bool>(into: &mut MatrixMut, sums: Sums, a: Lines, b: Lines) {
    if BY_COLUMNS { by_columns(into, sums, a, b) } else { by_rows(into, sums, a, b) }
}

vectorized! {
    fn by_rows<S: Simd>(simd: S, into: &mut MatrixMut, sums: Sums, a: Lines, b: Lines) {
        strips::<S, false>(simd, into, sums, a, b);
    }

    fn by_columns<S: Simd>(simd: S, into: &mut MatrixMut, sums: Sums, a: Lines, b: Lines) {
        strips::<S, true>(simd, into, sums, a, b);
    }
}

#[inline(always)]
fn strips<S: Simd, const BY_COLUMNS: bool>(simd: S, into: &mut MatrixMut, sums: Sums, a: Lines, b: Lines) {
    let whole = into.row_count() / ROWS * ROWS;
    for first in (0..whole).step_by(ROWS) {
        strip::<S, ROWS, BY_COLUMNS>(simd, into, sums, a, b, first);
    }
    for first in whole..into.row_count() {
        strip::<S, 1, BY_COLUMNS>(simd, into, sums, a, b, first);
    }
}

/// `M` rows of a product from `first` on.
#[inline(always)]
fn strip<S: Simd, const M: usize, const BY_COLUMNS: bool>(
    simd: S,
    into: &mut MatrixMut,
    sums: Sums,
    a: Lines,
    b: Lines,
    first: usize,
) {
    let columns = into.column_count();
    let mut column = 0;
    // So many vectors that all sums, a row of `b` and an element of `a` fit in the registers.
    if S::REGISTER_COUNT >= 32 {
        while columns - column >= 4 * S::F32_LANES {
            tile::<S, M, 4, BY_COLUMNS>(simd, into, sums, a, b, [first, column]);
            column += 4 * S::F32_LANES;
        }
    }
    while columns - column >= 2 * S::F32_LANES {
        tile::<S, M, 2, BY_COLUMNS>(simd, into, sums, a, b, [first, column]);
        column += 2 * S::F32_LANES;
    }
    while column < columns {
        tile::<S, M, 1, BY_COLUMNS>(simd, into, sums, a, b, [first, column]);
        column += S::F32_LANES;
    }
}

/// `M` rows and `N` vectors of a product from a row and a column on. A single vector may be cut short by the last column.
#[inline(always)]
fn tile<S: Simd, const M: usize, const N: usize, const BY_COLUMNS: bool>(
    simd: S,
    into: &mut MatrixMut,
    sums: Sums,
    (a, a_stride): Lines,
    (b, b_stride): Lines,
    [first, column]: [usize; 2],
) {
    let width = (N * S::F32_LANES).min(into.column_count() - column);
    let mut totals = [[simd.splat_f32s(0.0); N]; M];
    let b = b[column..].chunks(b_stride).take(sums.inner);
    if BY_COLUMNS {
        for (a, b) in a[first..].chunks(a_stride).zip(b) {
            let a: &[f32; M] = a.first_chunk().expect("so many rows");
            add_products(simd, &mut totals, *a, &b[..width]);
        }
    } else {
        let rows: [&[f32]; M] = std::array::from_fn(|row| &a[(first + row) * a_stride..][..sums.inner]);
        for (k, b) in b.enumerate() {
            add_products(simd, &mut totals, rows.map(|row| row[k]), &b[..width]);
        }
    }
    let scale = simd.splat_f32s(sums.scale);
    for (row, totals) in totals.into_iter().enumerate() {
        let into = &mut into.row(first + row)[column..][..width];
        let (vectors, rest) = S::as_mut_simd_f32s(into);
        for (into, &total) in vectors.iter_mut().zip(&totals) {
            let scaled = simd.mul_f32s(scale, total);
            *into = if sums.accumulate { simd.add_f32s(*into, scaled) } else { scaled };
        }
        if !rest.is_empty() {
            let scaled = simd.mul_f32s(scale, totals[0]);
            let before = simd.partial_load_f32s(rest);
            simd.partial_store_f32s(rest, if sums.accumulate { simd.add_f32s(before, scaled) } else { scaled });
        }
    }
}

/// Adds a column of `a` times a row of `b`.
#[inline(always)]
fn add_products<S: Simd, const M: usize, const N: usize>(
    simd: S,
    totals: &mut [[S::f32s; N]; M],
    a: [f32; M],
    b: &[f32],
) {
    let (vectors, rest) = S::as_simd_f32s(b);
    let b: [S::f32s; N] = match vectors.first_chunk() {
        Some(vectors) => *vectors,
        None => [simd.partial_load_f32s(rest); N],
    };
    for (totals, a) in totals.iter_mut().zip(a) {
        let a = simd.splat_f32s(a);
        for (total, b) in totals.iter_mut().zip(b) {
            *total = simd.mul_add_e_f32s(a, b, *total);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::gemm::tests::check;
    use super::*;

    #[test]
    fn small_products_are_right_for_any_shape_and_stride() {
        check(|b_transposed| !b_transposed, small_product);
    }
}
#[cfg(test)]
mod speed {
    use super::*;
    #[test]
    fn speed() {
        for (name, m, k, n, bycol) in [("scores", 256, 64, 64, false), ("pv", 64, 256, 64, true), ("dv", 256, 64, 64, false), ("scores48", 16, 64, 48, false), ("scores16", 16,64,16,false)] {
            let a = vec![0.5f32; m * k * 4]; let b = vec![0.25f32; k * 2304]; let mut c = vec![0f32; m * 2304];
            for bs in [n, 2304] { let mut best = f64::MAX; let mut bestg = f64::MAX;
            for _ in 0..2000 {
                let am = if bycol { Matrix::new(&a[..m*k], k, m).transposed() } else { Matrix::strided(&a, m, k, k) };
                let bm = Matrix::strided(&b, k, n, bs);
                let t = std::time::Instant::now();
                small_product(&mut MatrixMut::strided(&mut c, m, n, n), false, 1.0, am, bm);
                best = best.min(t.elapsed().as_secs_f64());
                let t = std::time::Instant::now();
                super::super::gemm::product(&mut MatrixMut::strided(&mut c, m, n, n), false, 1.0, am, bm, 1);
                bestg = bestg.min(t.elapsed().as_secs_f64());
            }
            println!("{name} {m}x{k}x{n} b stride {bs}: {:.0} GFLOP/s, gemm {:.0}", 2.0*(m*k*n) as f64/best/1e9, 2.0*(m*k*n) as f64/bestg/1e9);
            }
        }
    }
}
