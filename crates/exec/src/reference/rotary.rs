//! Reference of `ops/rotary.rs`.

use super::{Real, RefCall, Reference};
use plimsoll_graph::ops::{Rotary, inverse_frequencies};

impl Reference for Rotary {
    fn compute<F: Real>(&self, call: &RefCall<F>, outputs: &mut [Vec<F>]) {
        let (x, shape, half) = (call.f(0), &call.io.inputs[0].shape, self.rotated / 2);
        let first = if self.offset { call.scalars.position as usize } else { 0 };
        let (frequencies, factor) = inverse_frequencies(self.rotated, self.base, &self.scaling);
        for (i, y) in outputs[0].iter_mut().enumerate() {
            let (t, k) = (i / shape[2] % shape[1], i % self.head_size);
            if k >= self.rotated {
                *y = x[i];
                continue;
            }
            let angle = (first + t) as f64 * frequencies[k % half] * if self.inverse { -1.0 } else { 1.0 };
            let (other, sign) = if k < half { (x[i + half], -1.0) } else { (x[i - half], 1.0) };
            *y = F::from_f64(factor * (x[i].to_f64() * angle.cos() + sign * other.to_f64() * angle.sin()));
        }
    }
}
