//! Layer normalization over the last extent.

use super::working::rows_in_single;
use super::{Access, Example, Fill, Io, Operation, Target, accumulating, expect_type, operands};
use crate::{Backward, DType, GraphError, TensorType};
use plimsoll_units::Bytes;
use serde::{Deserialize, Serialize};

/// y = (x - mean) · rstd · weight + bias, with rstd = 1/√(variance + eps).
/// x: (B, T, C), weight: (C,), bias: (C,) if `bias` -> y: (B, T, C), mean: (B, T), rstd: (B, T), both `F32`.
/// Saves x, mean, rstd. Scratch: none in single precision, else rows widened to it.
/// Errors: `ShapeMismatch` if the channels differ.
/// Source: Ba, Kiros & Hinton 2016, eq. 4.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct LayerNorm {
    /// Added to the variance.
    pub eps: f32,
    /// Whether there is a bias.
    pub bias: bool,
}

/// Gradient of [`LayerNorm`].
/// dy, x: (B, T, C), weight: (C,), mean, rstd: (B, T), and if `residual` a gradient (B, T, C) that reached x on another
/// path -> dx: (B, T, C), which includes that; dweight: (C,) if `weight`, dbias: (C,) if `bias`, both `F32`.
/// dx may overwrite dy or the residual. Scratch: `Target::norm_parts` partial sums of dweight and dbias; in half
/// precision also rows widened to single: of the weight, and for each worker of dx and its operands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct LayerNormGrad {
    /// Whether dweight is computed.
    pub weight: bool,
    /// Whether dbias is computed.
    pub bias: bool,
    /// Whether a gradient from another path is added to dx.
    pub residual: bool,
    /// Whether dweight and dbias are added to the existing values.
    pub accumulate: bool,
}

impl Operation for LayerNorm {
    fn name(&self) -> &'static str {
        "layer_norm"
    }

    fn infer(&self, inputs: &[&TensorType]) -> Result<Vec<TensorType>, GraphError> {
        let x = if self.bias {
            let [x, weight, bias] = operands("layer_norm", inputs)?;
            expect_type("layer_norm", "bias", bias, weight)?;
            x
        } else {
            operands::<2>("layer_norm", inputs)?[0]
        };
        expect_type("layer_norm", "weight", inputs[1], &x.with_shape(&[x.columns()]))?;
        let rows = TensorType::f32(&x.shape[..x.shape.len() - 1]);
        Ok(vec![x.clone(), rows.clone(), rows])
    }

    /// In half precision: the weight and the bias in single precision, and for each worker a row of x and of y.
    fn scratch(&self, io: &Io, target: &Target) -> Bytes {
        rows_in_single(io.inputs[0], if self.bias { 2 } else { 1 }, 2, target)
    }

    fn is_by_rows(&self) -> bool {
        true
    }

    fn flops(&self, io: &Io) -> u64 {
        8 * io.outputs[0].elements() as u64
    }

    fn is_cheap(&self) -> bool {
        true
    }

    fn backward(&self, cx: &mut Backward) -> Result<(), GraphError> {
        let mut inputs = vec![cx.upstream(0)?, cx.input(0), cx.input(1), cx.output(1), cx.output(2)];
        let residual = cx.take_pending(0);
        inputs.extend(residual);
        let trained = cx.trained(if self.bias { &[1, 2] } else { &[1] });
        let [weight, bias] = [1, 2].map(|index| trained.contains(&index));
        let make = |accumulate| LayerNormGrad { weight, bias, residual: residual.is_some(), accumulate }.into();
        let dx = cx.push_to_parameters(make, &inputs, &[None], &trained)?[0];
        cx.give(0, dx)
    }

    fn examples() -> Vec<Example> {
        let op = |bias| Self { eps: 1e-5, bias };
        vec![
            Example::uniform(op(true), &[&[2, 3, 5], &[5], &[5]]),
            Example::uniform(op(false), &[&[1, 37, 67], &[67]]),
            Example::uniform(op(true), &[&[1, 1, 129], &[129], &[129]]),
        ]
    }
}

impl Operation for LayerNormGrad {
    fn name(&self) -> &'static str {
        "layer_norm_grad"
    }

    fn infer(&self, inputs: &[&TensorType]) -> Result<Vec<TensorType>, GraphError> {
        let (dy, x, weight) = if self.residual {
            let [dy, x, weight, _, _, residual] = operands("layer_norm_grad", inputs)?;
            expect_type("layer_norm_grad", "residual", residual, x)?;
            (dy, x, weight)
        } else {
            let [dy, x, weight, _, _] = operands("layer_norm_grad", inputs)?;
            (dy, x, weight)
        };
        expect_type("layer_norm_grad", "dy", dy, x)?;
        expect_type("layer_norm_grad", "weight", weight, &x.with_shape(&[x.columns()]))?;
        let rows = TensorType::f32(&x.shape[..x.shape.len() - 1]);
        expect_type("layer_norm_grad", "mean", inputs[3], &rows)?;
        expect_type("layer_norm_grad", "rstd", inputs[4], &rows)?;
        let dweight = weight.with_dtype(DType::F32);
        let mut outputs = vec![x.clone()];
        outputs.extend([self.weight, self.bias].into_iter().filter(|made| *made).map(|_| dweight.clone()));
        Ok(outputs)
    }

    fn access(&self, index: usize) -> Access {
        if index == 0 { Access::Write } else { accumulating(self.accumulate) }
    }

    fn reuse(&self) -> &'static [(usize, usize)] {
        if self.residual { &[(5, 0), (0, 0)] } else { &[(0, 0)] }
    }

    fn flops(&self, io: &Io) -> u64 {
        14 * io.outputs[0].elements() as u64
    }

    fn scratch(&self, io: &Io, target: &Target) -> Bytes {
        let x = &io.outputs[0];
        let sets = if self.bias { 2 } else { 1 };
        let sums = Bytes(4 * (sets * x.columns() * target.norm_parts(x.rows())) as u64);
        sums + rows_in_single(x, 1, if self.residual { 4 } else { 3 }, target)
    }

    fn examples() -> Vec<Example> {
        let op = |bias, residual, accumulate| Self { weight: true, bias, residual, accumulate };
        let without_weight = |bias, accumulate| Self { weight: false, ..op(bias, false, accumulate) };
        let operands: [&[usize]; 5] = [&[1, 37, 67], &[1, 37, 67], &[67], &[1, 37], &[1, 37]];
        vec![
            Example::uniform(op(true, false, false), &[&[2, 3, 5], &[2, 3, 5], &[5], &[2, 3], &[2, 3]]),
            Example::uniform(
                op(false, true, true),
                &[&[1, 37, 67], &[1, 37, 67], &[67], &[1, 37], &[1, 37], &[1, 37, 67]],
            ),
            Example::uniform(
                op(true, true, true),
                &[&[1, 1, 129], &[1, 1, 129], &[129], &[1, 1], &[1, 1], &[1, 1, 129]],
            ),
            Example::uniform(
                op(true, true, false),
                &[&[1, 5, 264], &[1, 5, 264], &[264], &[1, 5], &[1, 5], &[1, 5, 264]],
            ),
            Example::uniform(without_weight(true, true), &operands),
            Example::uniform(without_weight(false, false), &operands),
        ]
        .into_iter()
        .map(|e| e.fill(4, Fill::Positive))
        .collect()
    }
}
