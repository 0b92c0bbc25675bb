//! Root-mean-square normalization over the last extent: layer normalization without mean and bias.

use super::working::rows_in_single;
use super::{Access, Example, Fill, Io, Operation, Target, accumulating, expect_type, operands};
use crate::{Backward, DType, GraphError, TensorType};
use plimsoll_units::Bytes;
use serde::{Deserialize, Serialize};

/// y = x · rstd · weight, with rstd = 1/√(mean of x² + eps).
/// x: (B, T, C), weight: (C,) -> y: (B, T, C), rstd: (B, T) in `F32`.
/// Saves x, rstd. Scratch: none in single precision, else rows widened to it.
/// Errors: `ShapeMismatch` if the channels differ.
/// Source: Zhang & Sennrich 2019, eq. 4.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct RmsNorm {
    /// Added to the mean of the squares.
    pub eps: f32,
}

/// Gradient of [`RmsNorm`].
/// dy, x: (B, T, C), weight: (C,), rstd: (B, T), and if `residual` a gradient (B, T, C) that reached x on another path
/// -> dx: (B, T, C), which includes that; dweight: (C,) in `F32` if `weight`.
/// dx may overwrite dy or the residual. Scratch: `Target::norm_parts` partial sums of dweight; in half precision also
/// rows widened to single: of the weight, and for each worker of dx and its operands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct RmsNormGrad {
    /// Whether dweight is computed.
    pub weight: bool,
    /// Whether a gradient from another path is added to dx.
    pub residual: bool,
    /// Whether dweight is added to the existing values.
    pub accumulate: bool,
}

/// The type of a value per row of `x`.
fn row_type(x: &TensorType) -> TensorType {
    TensorType::f32(&x.shape[..x.shape.len() - 1])
}

impl Operation for RmsNorm {
    fn name(&self) -> &'static str {
        "rms_norm"
    }

    fn infer(&self, inputs: &[&TensorType]) -> Result<Vec<TensorType>, GraphError> {
        let [x, weight] = operands("rms_norm", inputs)?;
        expect_type("rms_norm", "weight", weight, &x.with_shape(&[x.columns()]))?;
        Ok(vec![x.clone(), row_type(x)])
    }

    /// In half precision: the weight in single precision, and for each worker a row of x and of y.
    fn scratch(&self, io: &Io, target: &Target) -> Bytes {
        rows_in_single(io.inputs[0], 1, 2, target)
    }

    fn flops(&self, io: &Io) -> u64 {
        4 * io.outputs[0].elements() as u64
    }

    fn is_cheap(&self) -> bool {
        true
    }

    fn backward(&self, cx: &mut Backward) -> Result<(), GraphError> {
        let mut inputs = vec![cx.upstream(0)?, cx.input(0), cx.input(1), cx.output(1)];
        let residual = cx.take_pending(0);
        inputs.extend(residual);
        let trained = cx.trained(&[1]);
        let (weight, residual) = (!trained.is_empty(), residual.is_some());
        let make = |accumulate| RmsNormGrad { weight, residual, accumulate }.into();
        let dx = cx.push_to_parameters(make, &inputs, &[None], &trained)?[0];
        cx.give(0, dx)
    }

    fn examples() -> Vec<Example> {
        let op = |eps| Self { eps };
        vec![
            Example::uniform(op(1e-5), &[&[2, 3, 5], &[5]]),
            Example::uniform(op(1e-6), &[&[1, 37, 67], &[67]]),
            Example::uniform(op(0.5), &[&[1, 1, 129], &[129]]),
        ]
    }
}

impl Operation for RmsNormGrad {
    fn name(&self) -> &'static str {
        "rms_norm_grad"
    }

    fn infer(&self, inputs: &[&TensorType]) -> Result<Vec<TensorType>, GraphError> {
        let [dy, x, weight, rstd] = if self.residual {
            let [dy, x, weight, rstd, residual] = operands("rms_norm_grad", inputs)?;
            expect_type("rms_norm_grad", "residual", residual, x)?;
            [dy, x, weight, rstd]
        } else {
            operands("rms_norm_grad", inputs)?
        };
        expect_type("rms_norm_grad", "dy", dy, x)?;
        expect_type("rms_norm_grad", "weight", weight, &x.with_shape(&[x.columns()]))?;
        expect_type("rms_norm_grad", "rstd", rstd, &row_type(x))?;
        let mut outputs = vec![x.clone()];
        outputs.extend(self.weight.then(|| weight.with_dtype(DType::F32)));
        Ok(outputs)
    }

    fn access(&self, index: usize) -> Access {
        if index == 0 { Access::Write } else { accumulating(self.accumulate) }
    }

    fn reuse(&self) -> &'static [(usize, usize)] {
        if self.residual { &[(4, 0), (0, 0)] } else { &[(0, 0)] }
    }

    fn flops(&self, io: &Io) -> u64 {
        10 * io.outputs[0].elements() as u64
    }

    fn scratch(&self, io: &Io, target: &Target) -> Bytes {
        let x = &io.outputs[0];
        let sums = Bytes(4 * (x.columns() * target.norm_parts(x.rows())) as u64);
        sums + rows_in_single(x, 1, if self.residual { 4 } else { 3 }, target)
    }

    fn examples() -> Vec<Example> {
        let case = |weight_is_trained, residual, accumulate, shape: &[usize]| {
            let (x, weight, rows) = (shape, &shape[2..], &shape[..2]);
            let operands = [x, x, weight, rows, x];
            let taken = if residual { &operands[..] } else { &operands[..4] };
            let op = Self { weight: weight_is_trained, residual, accumulate };
            Example::uniform(op, taken).fill(3, Fill::Positive)
        };
        vec![
            case(true, false, false, &[2, 3, 5]),
            case(true, true, true, &[1, 37, 67]),
            case(true, true, false, &[1, 1, 129]),
            case(false, true, false, &[1, 37, 67]),
            case(true, true, false, &[1, 5, 264]),
        ]
    }
}
