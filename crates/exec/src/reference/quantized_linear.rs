//! Reference of `ops/quantized_linear.rs`.

use super::{Real, RefCall, Reference};
use crate::weight_codes::{LEVELS, scale_levels};
use half::{bf16, f16};
use plimsoll_graph::ops::{QuantizedLinear, QuantizedLinearInputGrad};
use plimsoll_graph::{DType, NESTED_BLOCK, NF4_BLOCK, WeightCodes};

/// The weights, of each expert one after another, in the precision of the first operand.
pub(super) fn weights<F: Real>(codes: WeightCodes, call: &RefCall<F>) -> Vec<f64> {
    let single = |operand: usize, index: usize| call.f(operand)[index].to_f64() as f32;
    let shape = codes.shape(call.io.inputs[1]);
    let (elements, columns) = (shape.iter().product::<usize>(), shape[shape.len() - 1]);
    let of_matrix = columns * shape[shape.len() - 2];
    let weight = |index: usize| match codes {
        WeightCodes::Nf4 => {
            let byte = single(1, index / 2) as u8;
            let code = if index.is_multiple_of(2) { byte >> 4 } else { byte & 15 };
            let (matrix, block) = (index / of_matrix, index % of_matrix / NF4_BLOCK);
            let blocks = of_matrix.div_ceil(NF4_BLOCK);
            let nested = single(3, matrix * blocks.div_ceil(NESTED_BLOCK) + block / NESTED_BLOCK);
            let scale = scale_levels()[single(2, matrix * blocks + block) as usize] * nested;
            LEVELS[usize::from(code)] * (scale + single(4, matrix))
        }
        WeightCodes::Int8 => f32::from(single(1, index) as u8 as i8) * single(2, index / columns) * (1.0 / 127.0),
    };
    let rounded = |weight: f32| match call.io.inputs[0].dtype {
        DType::F16 => f16::from_f32(weight).to_f64(),
        DType::Bf16 => bf16::from_f32(weight).to_f64(),
        _ => f64::from(weight),
    };
    (0..elements).map(|index| rounded(weight(index))).collect()
}

impl Reference for QuantizedLinear {
    fn compute<F: Real>(&self, call: &RefCall<F>, outputs: &mut [Vec<F>]) {
        let weights = weights(self.codes, call);
        let (from, to) = (call.io.inputs[0].columns(), call.io.outputs[0].columns());
        let bias = self.bias.then(|| call.f(call.inputs.len() - 1));
        for (x, y) in call.f(0).chunks_exact(from).zip(outputs[0].chunks_exact_mut(to)) {
            for (o, y) in y.iter_mut().enumerate() {
                let dot = x.iter().zip(&weights[o * from..]).map(|(x, weight)| x.to_f64() * weight).sum::<f64>();
                *y = F::from_f64(dot + bias.map_or(0.0, |bias| bias[o].to_f64()));
            }
        }
    }
}

impl Reference for QuantizedLinearInputGrad {
    fn compute<F: Real>(&self, call: &RefCall<F>, outputs: &mut [Vec<F>]) {
        let weights = weights(self.codes, call);
        let (from, to) = (call.io.outputs[0].columns(), call.io.inputs[0].columns());
        for (dy, dx) in call.f(0).chunks_exact(to).zip(outputs[0].chunks_exact_mut(from)) {
            for (i, dx) in dx.iter_mut().enumerate() {
                let column = weights.iter().skip(i).step_by(from);
                *dx = F::from_f64(dy.iter().zip(column).map(|(dy, weight)| dy.to_f64() * weight).sum());
            }
        }
    }
}
