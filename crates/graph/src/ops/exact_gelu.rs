//! GELU with the normal distribution itself, as in BERT.

use super::{Example, Io, Operation, expect_type, operands};
use crate::{Backward, GraphError, TensorType};
use serde::{Deserialize, Serialize};

/// y = x/2 · (1 + erf(x/√2)). x: any shape -> y the same; it may overwrite x. Saves x. Scratch: none.
/// Source: Hendrycks & Gimpel 2016, section 2.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExactGelu;

/// dx = dy · gelu'(x). dy, x: any equal shape -> dx the same; it may overwrite either. Scratch: none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExactGeluGrad;

impl Operation for ExactGelu {
    fn name(&self) -> &'static str {
        "exact_gelu"
    }

    fn infer(&self, inputs: &[&TensorType]) -> Result<Vec<TensorType>, GraphError> {
        let [x] = operands("exact_gelu", inputs)?;
        Ok(vec![x.clone()])
    }

    fn reuse(&self) -> &'static [(usize, usize)] {
        &[(0, 0)]
    }

    fn is_by_rows(&self) -> bool {
        true
    }

    fn flops(&self, io: &Io) -> u64 {
        20 * io.outputs[0].elements() as u64
    }

    fn is_cheap(&self) -> bool {
        true
    }

    fn backward(&self, cx: &mut Backward) -> Result<(), GraphError> {
        let inputs = [cx.upstream(0)?, cx.input(0)];
        let dx = cx.push(ExactGeluGrad, &inputs)?[0];
        cx.give(0, dx)
    }

    fn examples() -> Vec<Example> {
        vec![Example::uniform(Self, &[&[2, 3, 5]]), Example::uniform(Self, &[&[1031]])]
    }
}

impl Operation for ExactGeluGrad {
    fn name(&self) -> &'static str {
        "exact_gelu_grad"
    }

    fn infer(&self, inputs: &[&TensorType]) -> Result<Vec<TensorType>, GraphError> {
        let [dy, x] = operands("exact_gelu_grad", inputs)?;
        expect_type("exact_gelu_grad", "x", x, dy)?;
        Ok(vec![dy.clone()])
    }

    fn reuse(&self) -> &'static [(usize, usize)] {
        &[(0, 0), (1, 0)]
    }

    fn flops(&self, io: &Io) -> u64 {
        24 * io.outputs[0].elements() as u64
    }

    fn examples() -> Vec<Example> {
        vec![Example::uniform(Self, &[&[2, 3, 5], &[2, 3, 5]]), Example::uniform(Self, &[&[1031], &[1031]])]
    }
}
