//! The clamped SwiGLU and its gradient. Gates and the channels that they multiply alternate in memory: a tile of them is
//! separated on the stack, where the loops over vectors run.

use super::CpuKernel;
use super::half::Float;
use super::math::{exp, split, split_mut, update};
use super::parallel::{self, CHUNK};
use super::tiles::{in_precision, operand, operand_unless_in_output, results, widened};
use super::vectorize::vectorized;
use crate::call::Call;
use plimsoll_graph::ops::{self, ClampedSwiglu};
use pulp::Simd;
use rayon::iter::IndexedParallelIterator;
use rayon::slice::{ParallelSlice, ParallelSliceMut};

/// Pairs of a tile: all its buffers together stay in the first-level cache.
const TILE: usize = 512;

impl CpuKernel for ops::ClampedSwiglu {
    fn run(&self, call: Call) {
        in_precision!(call, run(*self, call));
    }
}

impl CpuKernel for ops::ClampedSwigluGrad {
    fn run(&self, call: Call) {
        in_precision!(call, run_grad(self.forward, call));
    }
}

fn run<E: Float>(op: ClampedSwiglu, mut call: Call) {
    let x = operand::<E>(&call, 0);
    let [y] = results(&mut call);
    parallel::for_each(6 * y.len(), y.par_chunks_mut(CHUNK).zip(x.par_chunks(2 * CHUNK)), |(y, x)| {
        let mut tile = Tile::new();
        for (y, x) in y.chunks_mut(TILE).zip(x.chunks(2 * TILE)) {
            let [gate, up] = tile.separate(x);
            forward(gate, up, op);
            E::round(gate, y);
        }
    });
}

fn run_grad<E: Float>(op: ClampedSwiglu, mut call: Call) {
    let (dy, x) = (operand::<E>(&call, 0), operand_unless_in_output::<E>(&call, 1));
    let [dx] = results(&mut call);
    let parts = dx.par_chunks_mut(2 * CHUNK).zip(dy.par_chunks(CHUNK)).enumerate();
    parallel::for_each(8 * dy.len(), parts, |(part, (dx, dy))| {
        let x = x.map(|x| &x[2 * part * CHUNK..][..dx.len()]);
        let (mut tile, mut widened_dy) = (Tile::new(), [0.0; TILE]);
        for (number, (dx, dy)) in dx.chunks_mut(2 * TILE).zip(dy.chunks(TILE)).enumerate() {
            let x = x.map(|x| &x[2 * number * TILE..][..dx.len()]);
            let [gate, up] = tile.separate(x.unwrap_or(dx));
            backward(gate, up, widened(dy, &mut widened_dy), op);
            tile.join(dx);
        }
    });
}

/// Pairs in single precision, and their first and their second elements.
struct Tile {
    pairs: [f32; 2 * TILE],
    separate: [[f32; TILE]; 2],
}

impl Tile {
    fn new() -> Self {
        Self { pairs: [0.0; 2 * TILE], separate: [[0.0; TILE]; 2] }
    }

    /// The gates of the pairs, and the other elements.
    fn separate<E: Float>(&mut self, x: &[E]) -> [&mut [f32]; 2] {
        let [gate, up] = self.separate.each_mut().map(|all| &mut all[..x.len() / 2]);
        let pairs = widened(x, &mut self.pairs).as_chunks::<2>().0;
        for ((gate, up), pair) in gate.iter_mut().zip(&mut *up).zip(pairs) {
            [*gate, *up] = *pair;
        }
        [gate, up]
    }

    /// Writes the separated elements as pairs.
    fn join<E: Float>(&mut self, x: &mut [E]) {
        let [gate, up] = &self.separate;
        for (pair, (gate, up)) in self.pairs.as_chunks_mut::<2>().0.iter_mut().zip(gate.iter().zip(up)) {
            *pair = [*gate, *up];
        }
        E::round(&self.pairs[..x.len()], x);
    }
}

/// The clamped gate and the other clamped element plus one, the sigmoid, and where each element is beyond the limit. NaN
/// is not clamped.
#[inline(always)]
fn clamped<S: Simd>(simd: S, gate: S::f32s, up: S::f32s, op: ClampedSwiglu) -> ([S::f32s; 3], [S::m32s; 2]) {
    let (one, limit) = (simd.splat_f32s(1.0), simd.splat_f32s(op.limit));
    let (high, low) = (simd.greater_than_f32s(up, limit), simd.less_than_f32s(up, simd.neg_f32s(limit)));
    let is_over = simd.greater_than_f32s(gate, limit);
    let gate = simd.select_f32s(is_over, limit, gate);
    let up = simd.select_f32s(high, limit, simd.select_f32s(low, simd.neg_f32s(limit), up));
    let decay = exp(simd, simd.mul_f32s(gate, simd.splat_f32s(-op.alpha)));
    let sigmoid = simd.div_f32s(one, simd.add_f32s(one, decay));
    ([gate, simd.add_f32s(up, one), sigmoid], [is_over, simd.or_m32s(high, low)])
}

#[inline(always)]
fn value<S: Simd>(simd: S, gate: S::f32s, up: S::f32s, op: ClampedSwiglu) -> S::f32s {
    let ([gate, up, sigmoid], _) = clamped(simd, gate, up, op);
    simd.mul_f32s(up, simd.mul_f32s(gate, sigmoid))
}

/// The gradients of both elements.
#[inline(always)]
fn gradients<S: Simd>(simd: S, [gate, up, dy]: [S::f32s; 3], op: ClampedSwiglu) -> [S::f32s; 2] {
    let ([gate, up, sigmoid], [gate_is_over, up_is_over]) = clamped(simd, gate, up, op);
    let (zero, one) = (simd.splat_f32s(0.0), simd.splat_f32s(1.0));
    let rest = simd.mul_f32s(simd.mul_f32s(gate, simd.splat_f32s(op.alpha)), simd.sub_f32s(one, sigmoid));
    let slope = simd.mul_add_e_f32s(sigmoid, rest, sigmoid);
    let of_gate = simd.mul_f32s(simd.mul_f32s(dy, up), slope);
    let of_up = simd.mul_f32s(dy, simd.mul_f32s(gate, sigmoid));
    [simd.select_f32s(gate_is_over, zero, of_gate), simd.select_f32s(up_is_over, zero, of_up)]
}

vectorized! {
    /// Replaces the gates by y.
    fn forward<S: Simd>(simd: S, gate: &mut [f32], up: &[f32], op: ClampedSwiglu) {
        update!(simd, [gate, up], value(simd, gate, up, op));
    }

    /// Replaces both elements by their gradients.
    fn backward<S: Simd>(simd: S, gate: &mut [f32], up: &mut [f32], dy: &[f32], op: ClampedSwiglu) {
        let ((gate, gate_rest), (up, up_rest)) = (split_mut(simd, gate), split_mut(simd, up));
        let (dy, dy_rest) = split(simd, dy);
        for ((gate, up), &dy) in gate.iter_mut().zip(up).zip(dy) {
            [*gate, *up] = gradients(simd, [*gate, *up, dy], op);
        }
        if !dy_rest.is_empty() {
            let last = [&*gate_rest, &*up_rest, dy_rest].map(|rest| simd.partial_load_f32s(rest));
            let [of_gate, of_up] = gradients(simd, last, op);
            simd.partial_store_f32s(gate_rest, of_gate);
            simd.partial_store_f32s(up_rest, of_up);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The slopes at the limit are those within it, as in PyTorch's `clamp`.
    #[test]
    fn limits_are_kept_and_nan_propagates() {
        let op = ClampedSwiglu { alpha: 1.702, limit: 7.0 };
        let mut gate = [-200.0, 0.0, 7.0, 7.5, 1e30, f32::NAN, 1.0, 1.0];
        let mut up = [1.0, 1.0, 7.0, 7.5, -1e30, 0.0, f32::NAN, -7.0];
        let mut y = gate;
        forward(&mut y, &up, op);
        assert_eq!(y[..2], [0.0, 0.0]);
        assert!((y[2] / 55.999_6 - 1.0).abs() < 1e-6 && y[3] == y[2], "{y:?}");
        assert!((y[4] / -41.999_7 - 1.0).abs() < 1e-6 && y[5].is_nan() && y[6].is_nan(), "{y:?}");
        backward(&mut gate, &mut up, &[1.0; 8], op);
        assert_eq!([gate[0], gate[3], gate[4], up[0], up[1], up[3], up[4]], [0.0; 7]);
        assert!(gate[2] > 7.9 && up[2] > 6.9 && up[7] > 0.8, "{gate:?} {up:?}");
        assert!(gate[5].is_nan() && gate[6].is_nan(), "{gate:?}");
    }
}
