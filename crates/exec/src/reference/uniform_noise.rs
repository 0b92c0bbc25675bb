//! Reference of `ops/uniform_noise.rs`.

use super::{Real, RefCall, Reference};
use crate::philox::dropout_bits;
use plimsoll_graph::ops::UniformNoise;

impl Reference for UniformNoise {
    fn compute<F: Real>(&self, call: &RefCall<F>, outputs: &mut [Vec<F>]) {
        let x = call.f(0);
        let per_sample = x.len() / call.io.inputs[0].shape[0];
        for (i, y) in outputs[0].iter_mut().enumerate() {
            let (sample, element) = (call.scalars.first_sample + (i / per_sample) as u64, i % per_sample);
            let bits = dropout_bits(call.scalars.seed, call.scalars.step, sample, self.site, (element / 4) as u32);
            let uniform = f64::from(bits[element % 4].cast_signed()) / 2f64.powi(31);
            *y = x[i] + F::from_f64(f64::from(self.amplitude) * uniform);
        }
    }
}
