//! Root-mean-square normalization of the channels, or of each group of channels, such as a head's: layer normalization
//! without mean and bias.

use super::working::rows_in_single;
use super::{Access, Example, Fill, Io, Operation, Target, accumulating, expect_type, operands};
use crate::{Backward, DType, GraphError, TensorType};
use plimsoll_units::Bytes;
use serde::{Deserialize, Serialize};

/// y = x · rstd · weight, with rstd = 1/√(mean of x² + eps). Each group of D adjacent channels is normalized by itself;
/// without groups, D is C.
/// x: (B, T, C), weight: (D,) -> y: (B, T, C), rstd: (B, T, C/D) in `F32`.
/// Saves x, rstd. Scratch: none in single precision without `unit_offset`, else rows in single precision.
/// Errors: `ShapeMismatch` if D does not divide C.
/// Source: Zhang & Sennrich 2019, eq. 4.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct RmsNorm {
    /// Added to the mean of the squares.
    pub eps: f32,
    /// Whether y = x · rstd · (1 + weight), as in Gemma.
    pub unit_offset: bool,
}

/// Gradient of [`RmsNorm`].
/// dy, x: (B, T, C), weight: (D,), rstd: (B, T, C/D), and if `residual` a gradient (B, T, C) that reached x on another
/// path -> dx: (B, T, C), which includes that; dweight: (D,) in `F32` if `weight`.
/// dx may overwrite dy or the residual. Scratch: `Target::norm_parts` partial sums of dweight; in half precision also
/// rows widened to single: of the weight, and for each worker of dx and its operands; with `unit_offset` the weight's
/// row in single precision, too.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct RmsNormGrad {
    /// Whether 1 is added to the weight.
    pub unit_offset: bool,
    /// Whether dweight is computed.
    pub weight: bool,
    /// Whether a gradient from another path is added to dx.
    pub residual: bool,
    /// Whether dweight is added to the existing values.
    pub accumulate: bool,
}

/// Checks that the weight has a number for each channel of a group, and returns the type of a value per group of `x`.
fn group_type(op: &'static str, x: &TensorType, weight: &TensorType) -> Result<TensorType, GraphError> {
    let (channels, of_group) = (x.columns(), weight.columns());
    expect_type(op, "weight", weight, &x.with_shape(&[of_group]))?;
    if of_group == 0 || !channels.is_multiple_of(of_group) {
        let problem = format!("{channels} channels cannot be divided into groups of {of_group}, the weight's length");
        return Err(GraphError::ShapeMismatch { op, problem });
    }
    Ok(TensorType::f32(&[&x.shape[..x.shape.len() - 1], &[channels / of_group]].concat()))
}

/// Working memory for rows of a group's channels in single precision: in half precision the weight, and `each` rows per
/// worker; with a unit offset, the factors 1 + weight in any precision.
fn group_rows(unit_offset: bool, weight: &TensorType, each: usize, target: &Target) -> Bytes {
    match target {
        Target::Cpu { .. } if unit_offset && !weight.dtype.is_half() => weight.bytes(),
        Target::Cpu { .. } | Target::Cuda { .. } => rows_in_single(weight, 1, each, target),
    }
}

impl Operation for RmsNorm {
    fn name(&self) -> &'static str {
        "rms_norm"
    }

    fn infer(&self, inputs: &[&TensorType]) -> Result<Vec<TensorType>, GraphError> {
        let [x, weight] = operands("rms_norm", inputs)?;
        Ok(vec![x.clone(), group_type("rms_norm", x, weight)?])
    }

    /// In half precision: the weight in single precision, and for each worker a group of x and of y.
    fn scratch(&self, io: &Io, target: &Target) -> Bytes {
        group_rows(self.unit_offset, io.inputs[1], 2, target)
    }

    fn is_by_rows(&self) -> bool {
        true
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
        let make = |accumulate| RmsNormGrad { unit_offset: self.unit_offset, weight, residual, accumulate }.into();
        let dx = cx.push_to_parameters(make, &inputs, &[None], &trained)?[0];
        cx.give(0, dx)
    }

    fn examples() -> Vec<Example> {
        let case = |eps, unit_offset, x: &[usize], weight| Example::uniform(Self { eps, unit_offset }, &[x, &[weight]]);
        vec![
            case(1e-5, false, &[2, 3, 5], 5),
            case(1e-6, false, &[1, 37, 67], 67),
            case(0.5, true, &[1, 1, 129], 129),
            case(1e-6, true, &[1, 2, 520], 520),
            case(1e-5, false, &[2, 3, 35], 7),
            case(1e-6, true, &[1, 37, 72], 24),
            case(1e-6, false, &[1, 3, 512], 128),
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
        expect_type("rms_norm_grad", "rstd", rstd, &group_type("rms_norm_grad", x, weight)?)?;
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
        let (weight, rstd) = (io.inputs[2], io.inputs[3]);
        let sums = Bytes(4 * (weight.columns() * target.norm_parts(rstd.elements())) as u64);
        sums + group_rows(self.unit_offset, weight, if self.residual { 4 } else { 3 }, target)
    }

    fn examples() -> Vec<Example> {
        let case = |unit_offset, weight, residual, accumulate, shape: [usize; 3], of_group: usize| {
            let (x, statistics): (&[usize], &[usize]) = (&shape, &[shape[0], shape[1], shape[2] / of_group]);
            let operands = [x, x, &[of_group], statistics, x];
            let taken = if residual { &operands[..] } else { &operands[..4] };
            let op = Self { unit_offset, weight, residual, accumulate };
            Example::uniform(op, taken).fill(3, Fill::Positive)
        };
        vec![
            case(false, true, false, false, [2, 3, 5], 5),
            case(false, true, true, true, [1, 37, 67], 67),
            case(true, true, true, false, [1, 1, 129], 129),
            case(false, false, true, false, [1, 37, 67], 67),
            case(false, true, true, false, [1, 5, 264], 264),
            case(true, true, false, true, [1, 5, 520], 520),
            case(false, true, true, false, [2, 3, 35], 7),
            case(true, true, true, true, [1, 37, 72], 24),
            case(true, false, false, false, [1, 3, 512], 128),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_divide_the_channels() {
        let (op, x) = (RmsNorm { eps: 1e-6, unit_offset: false }, TensorType::f32(&[2, 3, 12]));
        let types = op.infer(&[&x, &TensorType::f32(&[4])]).expect("three groups");
        assert_eq!(types, [x.clone(), TensorType::f32(&[2, 3, 3])]);
        for weight in [&[5][..], &[0], &[24], &[3, 4]] {
            assert!(op.infer(&[&x, &TensorType::f32(weight)]).is_err(), "{weight:?}");
        }
    }
}
