//! Reference of `ops/fp8_linear.rs`.

use super::{Real, RefCall, Reference, Value};
use plimsoll_graph::ops::{Fp8, Fp8Linear, LinearWeightGrad};

impl Reference for Fp8Linear {
    fn compute<F: Real>(&self, call: &RefCall<F>, outputs: &mut [Vec<F>]) {
        let formats = self.formats();
        let factors = [0, 1].map(|index| Value::Float(rounded(formats[index], call.f(index))));
        let mut of_factors = RefCall { inputs: call.inputs.clone(), io: call.io.clone(), scalars: call.scalars };
        of_factors.inputs[0] = &factors[0];
        of_factors.inputs[1] = &factors[1];
        match self {
            Self::Forward(op) => op.compute(&of_factors, outputs),
            Self::InputGrad(op) => op.compute(&of_factors, outputs),
            Self::WeightGrad(op) => {
                LinearWeightGrad { bias: false, ..*op }.compute(&of_factors, &mut outputs[..1]);
                if op.bias {
                    LinearWeightGrad { weight: false, ..*op }.compute(call, &mut outputs[1..]);
                }
            }
        }
    }
}

/// The numbers of a tensor, each rounded to the nearest number of the format times the tensor's power of two.
fn rounded<F: Real>(format: Fp8, values: &[F]) -> Vec<F> {
    let largest = values.iter().map(|value| value.to_f64().abs()).fold(0.0, f64::max);
    if values.iter().any(|value| !value.to_f64().is_finite()) {
        return vec![F::from_f64(f64::NAN); values.len()];
    }
    let most = 1.75 * 2f64.powi(format.largest_exponent());
    let mut scale = 2f64.powi(-126);
    while scale < 2f64.powi(126) && largest * scale * 2.0 <= most {
        scale *= 2.0;
    }
    let round = |value: f64| {
        let scaled = value * scale;
        let exponent = if scaled == 0.0 { 0 } else { scaled.abs().log2().floor() as i32 };
        let step = 2f64.powi(exponent.max(format.smallest_exponent()) - format.fraction_bits());
        (scaled / step).round_ties_even() * step / scale
    };
    values.iter().map(|value| F::from_f64(round(value.to_f64()))).collect()
}
