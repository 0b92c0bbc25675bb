//! Arithmetic that the loops of several kernels share. All of it is branch-free and inlined, so that the loops around
//! it become vector code; see `vectorize.rs`.

use pulp::Simd;

/// Independent partial sums of a reduction, because an addition has a latency of about four cycles.
const SUMS: usize = 4;

/// a·b + c, fused if that is a single instruction, which is the case whenever pulp finds vectors; else with two
/// roundings.
#[inline(always)]
pub(super) fn mul_add<S: Simd>(a: f32, b: f32, c: f32) -> f32 {
    if S::F32_LANES > 1 { a.mul_add(b, c) } else { a * b + c }
}

/// `update!(simd, [y, x, …], value)` sets each element of the slice y to a value, in which the names of the slices
/// stand for vectors of their elements. The rest at the end is a vector padded with zeros. A macro, because closures
/// with vector operations may not be inlined, which would be very slow. Panics if the slices differ in length.
macro_rules! update {
    ($simd:ident, [$y:ident $(, $x:ident)*], $value:expr) => {{
        let (vectors, rest) = crate::cpu::math::split_mut($simd, $y);
        $(let $x = crate::cpu::math::split($simd, $x);)*
        $(assert!($x.0.len() == vectors.len() && $x.1.len() == rest.len(), "operands of a loop");)*
        for index in 0..vectors.len() {
            let $y = vectors[index];
            $(let $x = $x.0[index];)*
            vectors[index] = $value;
            let _ = $y;
        }
        if !rest.is_empty() {
            let $y = $simd.partial_load_f32s(rest);
            $(let $x = $simd.partial_load_f32s($x.1);)*
            let last = $value;
            $simd.partial_store_f32s(rest, last);
            let _ = $y;
        }
    }};
}

pub(super) use update;

/// Whole vectors, and the rest.
#[inline(always)]
pub(super) fn split<S: Simd>(_simd: S, x: &[f32]) -> (&[S::f32s], &[f32]) {
    S::as_simd_f32s(x)
}

/// Whole vectors, and the rest.
#[inline(always)]
pub(super) fn split_mut<S: Simd>(_simd: S, x: &mut [f32]) -> (&mut [S::f32s], &mut [f32]) {
    S::as_mut_simd_f32s(x)
}

/// eˣ to a relative error of 2⁻²³; results below 2⁻¹²⁵ become zero, those above the largest float infinite.
/// x = n·ln 2 + r with |r| ≤ ln 2 / 2; e^r by the polynomial of Cephes' `expf` (Moshier 1992).
#[inline(always)]
pub(super) fn exp<S: Simd>(simd: S, x: S::f32s) -> S::f32s {
    /// Adding and subtracting 3·2²² rounds to an integer, which is in the lowest bits of the sum.
    const ROUND: f32 = 12_582_912.0;
    /// ln 2 in two parts; the product of the first and any n that occurs is exact.
    const LN2: [f32; 2] = [0.693_359_4, -2.121_944_4e-4];
    /// Twice the polynomial, which is multiplied by 2ⁿ⁻¹: so n = 128, just below overflow, needs no special case.
    const TWICE: [f32; 8] = [
        2.0 * 1.987_569_1e-4,
        2.0 * 1.398_2e-3,
        2.0 * 8.333_452e-3,
        2.0 * 4.166_579_6e-2,
        2.0 * 1.666_666_5e-1,
        1.0,
        2.0,
        2.0,
    ];
    let shifted = simd.mul_add_e_f32s(x, simd.splat_f32s(std::f32::consts::LOG2_E), simd.splat_f32s(ROUND));
    let n = simd.sub_f32s(shifted, simd.splat_f32s(ROUND));
    let r = simd.mul_add_e_f32s(n, simd.splat_f32s(-LN2[0]), x);
    let r = simd.mul_add_e_f32s(n, simd.splat_f32s(-LN2[1]), r);
    let mut p = simd.splat_f32s(TWICE[0]);
    for coefficient in &TWICE[1..] {
        p = simd.mul_add_e_f32s(p, r, simd.splat_f32s(*coefficient));
    }
    // 2ⁿ⁻¹ from its bits: the exponent field is n + 126; the shift drops the higher bits.
    let field = simd.add_u32s(simd.transmute_u32s_f32s(shifted), simd.splat_u32s(126));
    let power = simd.transmute_f32s_u32s(simd.wrapping_dyn_shl_u32s(field, simd.splat_u32s(23)));
    let result = simd.mul_f32s(p, power);
    // Outside this range the result is known. NaN compares false with both limits, so it is kept.
    let low = simd.less_than_f32s(x, simd.splat_f32s(-87.0));
    let high = simd.greater_than_f32s(x, simd.splat_f32s(89.0));
    let result = simd.select_f32s(low, simd.splat_f32s(0.0), result);
    simd.select_f32s(high, simd.splat_f32s(f32::INFINITY), result)
}

/// Σ x.
#[inline(always)]
pub(super) fn sum<S: Simd>(simd: S, x: &[f32]) -> f32 {
    let (vectors, rest) = S::as_simd_f32s(x);
    let (groups, vectors) = vectors.as_chunks::<SUMS>();
    let mut sums = [simd.splat_f32s(0.0); SUMS];
    for group in groups {
        for (sum, &x) in sums.iter_mut().zip(group) {
            *sum = simd.add_f32s(*sum, x);
        }
    }
    for (sum, &x) in sums.iter_mut().zip(vectors) {
        *sum = simd.add_f32s(*sum, x);
    }
    if !rest.is_empty() {
        sums[0] = simd.add_f32s(sums[0], simd.partial_load_f32s(rest));
    }
    total(simd, sums)
}

/// Σ a·b. Panics if the slices differ in length.
#[inline(always)]
pub(super) fn dot<S: Simd>(simd: S, a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len(), "operands of a dot product");
    let ((a, a_rest), (b, b_rest)) = (S::as_simd_f32s(a), S::as_simd_f32s(b));
    let ((a_groups, a), (b_groups, b)) = (a.as_chunks::<SUMS>(), b.as_chunks::<SUMS>());
    let mut sums = [simd.splat_f32s(0.0); SUMS];
    for (a, b) in a_groups.iter().zip(b_groups) {
        for (sum, (&a, &b)) in sums.iter_mut().zip(a.iter().zip(b)) {
            *sum = simd.mul_add_e_f32s(a, b, *sum);
        }
    }
    for (sum, (&a, &b)) in sums.iter_mut().zip(a.iter().zip(b)) {
        *sum = simd.mul_add_e_f32s(a, b, *sum);
    }
    if !a_rest.is_empty() {
        sums[0] = simd.mul_add_e_f32s(simd.partial_load_f32s(a_rest), simd.partial_load_f32s(b_rest), sums[0]);
    }
    total(simd, sums)
}

#[inline(always)]
fn total<S: Simd>(simd: S, sums: [S::f32s; SUMS]) -> f32 {
    simd.reduce_sum_f32s(simd.add_f32s(simd.add_f32s(sums[0], sums[1]), simd.add_f32s(sums[2], sums[3])))
}

/// The largest element, or negative infinity if there is none. May ignore NaN.
#[inline(always)]
pub(super) fn maximum<S: Simd>(simd: S, x: &[f32]) -> f32 {
    let (vectors, rest) = S::as_simd_f32s(x);
    let (groups, vectors) = vectors.as_chunks::<SUMS>();
    let mut largest = [simd.splat_f32s(f32::NEG_INFINITY); SUMS];
    for group in groups {
        for (largest, &x) in largest.iter_mut().zip(group) {
            *largest = simd.max_f32s(*largest, x);
        }
    }
    for (largest, &x) in largest.iter_mut().zip(vectors) {
        *largest = simd.max_f32s(*largest, x);
    }
    let [a, b, c, d] = largest;
    let largest = simd.reduce_max_f32s(simd.max_f32s(simd.max_f32s(a, b), simd.max_f32s(c, d)));
    rest.iter().fold(largest, |a, &b| if b > a { b } else { a })
}

/// Replaces each element by its exponential over that of the largest. Returns the largest and the sum.
#[inline(always)]
pub(super) fn exponentials<S: Simd>(simd: S, x: &mut [f32]) -> [f32; 2] {
    /// Elements that are still in the first-level cache when they are summed after the loop that computes them.
    const PART: usize = 1 << 10;
    let largest = maximum(simd, x);
    let mut total = 0.0;
    for part in x.chunks_mut(PART) {
        let x = &mut *part;
        update!(simd, [x], exp(simd, simd.sub_f32s(x, simd.splat_f32s(largest))));
        total += sum(simd, part);
    }
    [largest, total]
}

#[cfg(test)]
mod tests {
    use super::super::vectorize::vectorized;
    use super::*;

    vectorized! {
        fn exp_of<S: Simd>(simd: S, x: &mut [f32]) {
            update!(simd, [x], exp(simd, x));
        }

        fn reductions_of<S: Simd>(simd: S, x: &[f32], y: &[f32]) -> [f32; 3] {
            [sum(simd, x), dot(simd, x, y), maximum(simd, x)]
        }

        fn exponentials_of<S: Simd>(simd: S, x: &mut [f32]) -> [f32; 2] {
            exponentials(simd, x)
        }
    }

    #[test]
    fn exp_is_right_to_one_bit_over_its_whole_range() {
        let x = (0..2_000_000).map(|i| -86.5 + i as f32 * (86.5 + 88.7) / 2e6).collect::<Vec<_>>();
        let mut y = x.clone();
        exp_of(&mut y);
        for (x, y) in x.into_iter().zip(y) {
            let exact = f64::from(x).exp();
            let error = (f64::from(y) / exact - 1.0).abs();
            assert!(error <= 2f64.powi(-23), "e^{x} = {exact}, not {y}: off by {error:e}");
        }
    }

    #[test]
    fn exp_has_its_limits() {
        let mut x = [0.0, -0.0, -88.0, -1e30, f32::NEG_INFINITY, 88.8, 1e30, f32::INFINITY, f32::NAN];
        exp_of(&mut x);
        assert_eq!(x[..8], [1.0, 1.0, 0.0, 0.0, 0.0, f32::INFINITY, f32::INFINITY, f32::INFINITY]);
        assert!(x[8].is_nan());
    }

    #[test]
    fn reductions_include_every_element_of_any_length() {
        for length in 0..200 {
            let x = (0..length).map(|i| ((i * 37) % 101) as f32 - 50.0).collect::<Vec<_>>();
            let y = (0..length).map(|i| ((i * 53) % 17) as f32 - 8.0).collect::<Vec<_>>();
            // Sums of such small integers are exact in any order.
            let product = x.iter().zip(&y).map(|(x, y)| x * y).sum();
            let largest = x.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            assert_eq!(reductions_of(&x, &y), [x.iter().sum(), product, largest], "{length} elements");
        }
    }

    #[test]
    fn exponentials_sum_to_the_softmax_normalizer() {
        for length in [1, 15, 16, 17, 1023, 1025, 5000] {
            let x = (0..length).map(|i| 90.0 + (i as f32).sin()).collect::<Vec<_>>();
            let mut y = x.clone();
            let [largest, total] = exponentials_of(&mut y);
            let exact = x.iter().map(|&x| f64::from(x - largest).exp()).sum::<f64>();
            assert!((f64::from(total) / exact - 1.0).abs() < 1e-6, "{length} elements: {total}, not {exact}");
            assert!(y.iter().all(|&y| y > 0.0 && y <= 1.0));
        }
    }
}
