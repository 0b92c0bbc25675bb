//! Sums in single precision that several kernels share.

use super::vectorize::vectorized;

vectorized! {
    /// y += x, for kernels that add up gradients or rows.
    pub(super) fn accumulate<S: Simd>(simd: S, y: &mut [f32], x: &[f32]) {
        for (y, &x) in y.iter_mut().zip(x) {
            *y += x;
        }
    }
}
