//! The exponential moving average of the weights.

use super::{Access, Example, Fill, Home, Io, Operation, expect_type, operands};
use crate::{DType, GraphError, TensorType};
use serde::{Deserialize, Serialize};

/// average = decay · average + (1 - decay) · weight.
/// weight: floats of any shape, factor: (1,), that of the update; remainder: the same shape, `I16`, if the weight is
/// `Bf16` and has one -> average: the same shape, `F32`, updated in place. If the factor is NaN, nothing is written,
/// because the update was skipped. Scratch: none.
/// Source: Polyak & Juditsky 1992; with a decay, Tarvainen & Valpola 2017, eq. 1.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct MovingAverage {
    /// Factor of the old average, in (0, 1).
    pub decay: f32,
}

impl Operation for MovingAverage {
    fn name(&self) -> &'static str {
        "moving_average"
    }

    fn infer(&self, inputs: &[&TensorType]) -> Result<Vec<TensorType>, GraphError> {
        let [weight, factor] = match inputs {
            [weight, factor, remainder] => {
                expect_type("moving_average", "weight", weight, &weight.with_dtype(DType::Bf16))?;
                expect_type("moving_average", "remainder", remainder, &weight.with_dtype(DType::I16))?;
                [*weight, *factor]
            }
            _ => operands("moving_average", inputs)?,
        };
        expect_type("moving_average", "factor", factor, &TensorType::f32(&[1]))?;
        Ok(vec![weight.with_dtype(DType::F32)])
    }

    fn access(&self, _index: usize) -> Access {
        Access::ReadWrite
    }

    fn flops(&self, io: &Io) -> u64 {
        3 * io.outputs[0].elements() as u64
    }

    fn home(&self) -> Home {
        Home::Result
    }

    fn examples() -> Vec<Example> {
        let case = |dtype, shape: &[usize]| {
            Example::uniform(Self { decay: 0.9 }, &[shape, &[1]]).fill(1, Fill::Positive).of_type(0, dtype)
        };
        let with_remainder = |shape: &[usize]| {
            let mut example = case(DType::Bf16, shape);
            example.inputs.push((TensorType::f32(shape).with_dtype(DType::I16), Fill::Uniform));
            example
        };
        let plain = [case(DType::F32, &[3, 5]), case(DType::Bf16, &[5000])];
        plain.into_iter().chain([&[3, 5][..], &[4099]].map(with_remainder)).collect()
    }
}
