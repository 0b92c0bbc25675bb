//! The rectifier.

use super::{Example, Io, Operation, expect_type, operands};
use crate::{Backward, GraphError, TensorType};
use serde::{Deserialize, Serialize};

/// y = max(x, 0); NaN stays NaN. x: any shape -> y the same; it may overwrite x.
/// Saves y instead of x, because the next layer saves y anyway. Scratch: none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Relu;

/// dx = dy where y is above zero, else zero. dy, y: any equal shape -> dx the same; it may overwrite either.
/// Scratch: none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReluGrad;

impl Operation for Relu {
    fn name(&self) -> &'static str {
        "relu"
    }

    fn infer(&self, inputs: &[&TensorType]) -> Result<Vec<TensorType>, GraphError> {
        let [x] = operands("relu", inputs)?;
        Ok(vec![x.clone()])
    }

    fn reuse(&self) -> &'static [(usize, usize)] {
        &[(0, 0)]
    }

    fn is_by_rows(&self) -> bool {
        true
    }

    fn flops(&self, io: &Io) -> u64 {
        io.outputs[0].elements() as u64
    }

    fn is_cheap(&self) -> bool {
        true
    }

    fn backward(&self, cx: &mut Backward) -> Result<(), GraphError> {
        let inputs = [cx.upstream(0)?, cx.output(0)];
        let dx = cx.push(ReluGrad, &inputs)?[0];
        cx.give(0, dx)
    }

    fn examples() -> Vec<Example> {
        vec![Example::uniform(Self, &[&[2, 3, 5]]), Example::uniform(Self, &[&[1031]])]
    }
}

impl Operation for ReluGrad {
    fn name(&self) -> &'static str {
        "relu_grad"
    }

    fn infer(&self, inputs: &[&TensorType]) -> Result<Vec<TensorType>, GraphError> {
        let [dy, y] = operands("relu_grad", inputs)?;
        expect_type("relu_grad", "y", y, dy)?;
        Ok(vec![dy.clone()])
    }

    fn reuse(&self) -> &'static [(usize, usize)] {
        &[(0, 0), (1, 0)]
    }

    fn flops(&self, io: &Io) -> u64 {
        io.outputs[0].elements() as u64
    }

    fn examples() -> Vec<Example> {
        vec![Example::uniform(Self, &[&[2, 3, 5], &[2, 3, 5]]), Example::uniform(Self, &[&[1031], &[1031]])]
    }
}
