//! Reference of `ops/dropout.rs`.

use super::{Real, RefCall, Reference};
use crate::philox::{dropout_bits, dropout_threshold};
use plimsoll_graph::ops::Dropout;

impl Reference for Dropout {
    fn compute<F: Real>(&self, call: &RefCall<F>, outputs: &mut [Vec<F>]) {
        let x = call.f(0);
        let per_sample = x.len() / call.io.inputs[0].shape[0];
        let scale = F::from_f64(1.0 / (1.0 - f64::from(self.key.rate)));
        for (i, y) in outputs[0].iter_mut().enumerate() {
            let (sample, element) = (call.scalars.first_sample + (i / per_sample) as u64, i % per_sample);
            let bits = dropout_bits(call.scalars.seed, call.scalars.step, sample, self.key.site, (element / 4) as u32);
            *y = if bits[element % 4] >= dropout_threshold(self.key.rate) { x[i] * scale } else { F::ZERO };
        }
    }
}
