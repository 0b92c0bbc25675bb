//! Arithmetic that the loops of several kernels share. All of it is branch-free and inlined, so that the loops around
//! it become vector code; see `vectorize.rs`.

/// Partial sums that a reduction keeps side by side: two of the widest vectors, so that additions overlap.
const LANES: usize = 32;

/// a·b + c, fused where that is a single instruction and in two roundings elsewhere.
#[inline(always)]
pub(super) fn mul_add<const FMA: bool>(a: f32, b: f32, c: f32) -> f32 {
    if FMA { a.mul_add(b, c) } else { a * b + c }
}

/// eˣ to a relative error of 2⁻²³; results below 2⁻¹²⁵ become zero, those above the largest float infinite.
/// x = n·ln 2 + r with |r| ≤ ln 2 / 2; e^r by the polynomial of Cephes' `expf` (Moshier 1992).
#[inline(always)]
pub(super) fn exp<const FMA: bool>(x: f32) -> f32 {
    /// Adding and taking away 3·2²² rounds to a whole number, which then stands in the lowest bits of the sum.
    const ROUND: f32 = 12_582_912.0;
    /// ln 2 in two parts, of which the first times any n that occurs is exact.
    const LN2: [f32; 2] = [0.693_359_4, -2.121_944_4e-4];
    // Comparisons that let NaN through, unlike `f32::clamp` after `max`.
    let x = if x > 89.0 { 89.0 } else { x };
    let x = if x < -88.0 { -88.0 } else { x };
    let shifted = mul_add::<FMA>(x, std::f32::consts::LOG2_E, ROUND);
    let n = shifted - ROUND;
    let r = mul_add::<FMA>(n, -LN2[0], x);
    let r = mul_add::<FMA>(n, -LN2[1], r);
    // Twice the polynomial, times 2ⁿ⁻¹: so n = 128, just below the overflow, needs no case of its own.
    let p = mul_add::<FMA>(2.0 * 1.987_569_1e-4, r, 2.0 * 1.398_2e-3);
    let p = mul_add::<FMA>(p, r, 2.0 * 8.333_452e-3);
    let p = mul_add::<FMA>(p, r, 2.0 * 4.166_579_6e-2);
    let p = mul_add::<FMA>(p, r, 2.0 * 1.666_666_5e-1);
    let p = mul_add::<FMA>(p, r, 2.0 * 0.5);
    let p = mul_add::<FMA>(p * r, r, mul_add::<FMA>(2.0, r, 2.0));
    // The exponent's field is zero for n = -126 and below, which makes the factor zero.
    let exponent = (shifted.to_bits() as i32).wrapping_sub(ROUND.to_bits() as i32).wrapping_add(126);
    let exponent = if exponent < 0 { 0 } else { exponent };
    p * f32::from_bits((exponent as u32) << 23)
}

/// Σᵢ term(i-th element of each slice), in an order that depends on the length alone.
/// Panics if the slices differ in length.
#[inline(always)]
pub(super) fn sum<const N: usize>(slices: [&[f32]; N], term: impl Fn([f32; N]) -> f32) -> f32 {
    let length = slices[0].len();
    let slices = slices.map(|slice| {
        assert_eq!(slice.len(), length, "operands of a sum");
        slice.as_chunks::<LANES>()
    });
    let mut sums = [0.0; LANES];
    for chunk in 0..length / LANES {
        let operands = slices.map(|(chunks, _)| &chunks[chunk]);
        for lane in 0..LANES {
            sums[lane] += term(operands.map(|operand| operand[lane]));
        }
    }
    for lane in 0..length % LANES {
        sums[lane] += term(slices.map(|(_, rest)| rest[lane]));
    }
    fold(sums, |a, b| a + b)
}

/// The largest element, or negative infinity of none. NaN may be lost.
#[inline(always)]
pub(super) fn maximum(slice: &[f32]) -> f32 {
    let larger = |a: f32, b: f32| if a > b { a } else { b };
    let (chunks, rest) = slice.as_chunks::<LANES>();
    let mut largest = [f32::NEG_INFINITY; LANES];
    for chunk in chunks {
        for lane in 0..LANES {
            largest[lane] = larger(chunk[lane], largest[lane]);
        }
    }
    for (lane, &x) in rest.iter().enumerate() {
        largest[lane] = larger(x, largest[lane]);
    }
    fold(largest, larger)
}

/// Σ a·b.
#[inline(always)]
pub(super) fn dot<const FMA: bool>(a: &[f32], b: &[f32]) -> f32 {
    let ((a, a_rest), (b, b_rest)) = (a.as_chunks::<LANES>(), b.as_chunks::<LANES>());
    assert!(a.len() == b.len() && a_rest.len() == b_rest.len(), "operands of a dot product");
    let mut sums = [0.0; LANES];
    for (a, b) in a.iter().zip(b) {
        for lane in 0..LANES {
            sums[lane] = mul_add::<FMA>(a[lane], b[lane], sums[lane]);
        }
    }
    for (lane, (&a, &b)) in a_rest.iter().zip(b_rest).enumerate() {
        sums[lane] = mul_add::<FMA>(a, b, sums[lane]);
    }
    fold(sums, |a, b| a + b)
}

/// Replaces each element by its exponential over that of the largest. Returns the largest and the sum.
#[inline(always)]
pub(super) fn exponentials<const FMA: bool>(slice: &mut [f32]) -> [f32; 2] {
    let largest = maximum(slice);
    for x in &mut *slice {
        *x = exp::<FMA>(*x - largest);
    }
    [largest, sum([slice], |[x]| x)]
}

/// Joins the lanes in pairs: the upper half onto the lower, until one is left.
#[inline(always)]
fn fold(mut lanes: [f32; LANES], join: impl Fn(f32, f32) -> f32) -> f32 {
    let mut half = LANES / 2;
    while half > 0 {
        for lane in 0..half {
            lanes[lane] = join(lanes[lane], lanes[lane + half]);
        }
        half /= 2;
    }
    lanes[0]
}
