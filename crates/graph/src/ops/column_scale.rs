//! Columns times trained magnitudes over given norms: the last part of a linear layer that learns magnitude and direction of
//! its weight separately (DoRA).

use super::{
    Access, Example, Fill, Io, LinearWeightGrad, Operation, Target, WeightLayout, accumulating, expect_type, operands,
};
use crate::{Backward, DeviceKind, GraphError, TensorType};
use plimsoll_units::Bytes;
use serde::{Deserialize, Serialize};

/// y = x · magnitude / norm + bias; where the norm is zero, y = bias.
/// x: (.., C), magnitude and norm: (C,) in `F32`, bias: (C,) if `bias` -> y: (.., C), which may overwrite x.
/// Saves x. The norm has no gradient. Scratch: on the processor the C factors, and in half precision rows in single.
/// Errors: `ShapeMismatch` if the channels differ.
/// Source: Liu et al. 2024, "DoRA", eq. 5.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ColumnScale {
    /// Whether there is a bias.
    pub bias: bool,
}

/// dx = dy · magnitude / norm, and dmagnitude = Σ dy · x / norm over all rows.
/// dy, x: (.., C), magnitude and norm: (C,) in `F32` -> dx: (.., C), which may overwrite dy; dmagnitude: (C,) in `F32` if
/// `magnitude`. Scratch: `Target::row_parts` partial sums of dmagnitude; on the processor as [`ColumnScale`], too.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ColumnScaleGrad {
    /// Whether dmagnitude is computed.
    pub magnitude: bool,
    /// Whether dmagnitude is added to the existing values.
    pub accumulate: bool,
}

/// Factors for all workers, and in half precision `shared` further rows and `each` rows of each worker.
fn rows(x: &TensorType, shared: usize, each: usize, target: &Target) -> Bytes {
    let tiles = if x.dtype.is_half() { shared + target.threads() * each } else { 0 };
    match target.kind() {
        DeviceKind::Cpu => Bytes(4 * ((1 + tiles) * x.columns()) as u64),
        DeviceKind::Cuda => Bytes::ZERO,
    }
}

/// `ShapeMismatch` unless both hold a number for each column of x.
fn expect_columns(
    op: &'static str,
    x: &TensorType,
    magnitude: &TensorType,
    norm: &TensorType,
) -> Result<(), GraphError> {
    let expected = TensorType::f32(&[x.columns()]);
    expect_type(op, "magnitude", magnitude, &expected)?;
    expect_type(op, "norm", norm, &expected)
}

impl Operation for ColumnScale {
    fn name(&self) -> &'static str {
        "column_scale"
    }

    fn infer(&self, inputs: &[&TensorType]) -> Result<Vec<TensorType>, GraphError> {
        let [x, magnitude, norm] = if self.bias {
            let [x, magnitude, norm, bias] = operands("column_scale", inputs)?;
            expect_type("column_scale", "bias", bias, &x.with_shape(&[x.columns()]))?;
            [x, magnitude, norm]
        } else {
            operands("column_scale", inputs)?
        };
        expect_columns("column_scale", x, magnitude, norm)?;
        Ok(vec![x.clone()])
    }

    fn reuse(&self) -> &'static [(usize, usize)] {
        &[(0, 0)]
    }

    fn is_by_rows(&self) -> bool {
        true
    }

    fn flops(&self, io: &Io) -> u64 {
        2 * io.outputs[0].elements() as u64
    }

    /// The bias is a shared row.
    fn scratch(&self, io: &Io, target: &Target) -> Bytes {
        rows(io.inputs[0], usize::from(self.bias), 2, target)
    }

    fn is_cheap(&self) -> bool {
        true
    }

    fn backward(&self, cx: &mut Backward) -> Result<(), GraphError> {
        let inputs = [cx.upstream(0)?, cx.input(0), cx.input(1), cx.input(2)];
        if self.bias && !cx.trained(&[3]).is_empty() {
            let make = |accumulate| {
                LinearWeightGrad { layout: WeightLayout::OutIn, weight: false, bias: true, accumulate }.into()
            };
            cx.push_to_parameters(make, &[inputs[1], inputs[0]], &[], &[3])?;
        }
        let trained = cx.trained(&[1]);
        let make = |accumulate| ColumnScaleGrad { magnitude: !trained.is_empty(), accumulate }.into();
        let dx = cx.push_to_parameters(make, &inputs, &[None], &trained)?[0];
        cx.give(0, dx)
    }

    fn examples() -> Vec<Example> {
        let case = |bias, x: &[usize]| {
            let columns = &x[x.len() - 1..];
            let operands = [x, columns, columns, columns];
            Example::uniform(Self { bias }, &operands[..if bias { 4 } else { 3 }]).fill(2, Fill::Positive)
        };
        vec![case(false, &[2, 3, 5]), case(true, &[1, 37, 67]), case(true, &[1, 2, 520]), case(false, &[1, 70, 264])]
    }
}

impl Operation for ColumnScaleGrad {
    fn name(&self) -> &'static str {
        "column_scale_grad"
    }

    fn infer(&self, inputs: &[&TensorType]) -> Result<Vec<TensorType>, GraphError> {
        let [dy, x, magnitude, norm] = operands("column_scale_grad", inputs)?;
        expect_type("column_scale_grad", "x", x, dy)?;
        expect_columns("column_scale_grad", x, magnitude, norm)?;
        let mut outputs = vec![dy.clone()];
        outputs.extend(self.magnitude.then(|| magnitude.clone()));
        Ok(outputs)
    }

    fn access(&self, index: usize) -> Access {
        if index == 0 { Access::Write } else { accumulating(self.accumulate) }
    }

    fn reuse(&self) -> &'static [(usize, usize)] {
        &[(0, 0)]
    }

    fn flops(&self, io: &Io) -> u64 {
        3 * io.outputs[0].elements() as u64
    }

    /// x is read only for dmagnitude.
    fn bytes_moved(&self, io: &Io) -> Bytes {
        let (x, columns) = (io.inputs[0], io.inputs[2]);
        let passes = if self.magnitude { 3 } else { 2 };
        let of_columns = if !self.magnitude {
            2
        } else if self.accumulate {
            4
        } else {
            3
        };
        Bytes(passes * x.bytes().0 + of_columns * columns.bytes().0)
    }

    fn scratch(&self, io: &Io, target: &Target) -> Bytes {
        let x = io.inputs[0];
        let sums = if self.magnitude { target.row_parts(x.rows()) * x.columns() } else { 0 };
        Bytes(4 * sums as u64) + rows(x, 0, 3, target)
    }

    fn examples() -> Vec<Example> {
        let case = |magnitude, accumulate, x: &[usize]| {
            let columns = &x[x.len() - 1..];
            Example::uniform(Self { magnitude, accumulate }, &[x, x, columns, columns]).fill(3, Fill::Positive)
        };
        vec![
            case(true, false, &[2, 3, 5]),
            case(true, true, &[1, 37, 67]),
            case(false, false, &[1, 2, 520]),
            case(true, true, &[1, 300, 264]),
        ]
    }
}
