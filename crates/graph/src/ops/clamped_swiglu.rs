//! The clamped SwiGLU of gpt-oss's experts. One operand has gates and the channels that they multiply in turn.

use super::{Example, Io, Operation, expect_type, operands};
use crate::{Backward, GraphError, TensorType};
use serde::{Deserialize, Serialize};

/// y[j] = (u + 1) · g / (1 + e^(-alpha·g)), with g = min(x[2j], limit), and u = x[2j + 1] clamped to [-limit, limit].
/// x: (.., 2F) -> y: (.., F). Saves x. Scratch: none. Errors: `ShapeMismatch` if the number of channels is odd, or unless
/// alpha and the limit are finite and the limit is above zero.
/// Source: OpenAI 2025, "gpt-oss-120b & gpt-oss-20b Model Card" (arXiv:2508.10925), section 2.2; `GptOssExperts` of
/// transformers.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct ClampedSwiglu {
    /// Factor of the gate in the sigmoid.
    pub alpha: f32,
    /// The largest gate, and the largest size of the channels that gates multiply.
    pub limit: f32,
}

/// Gradient of [`ClampedSwiglu`]: zero where an operand is beyond the limit.
/// dy: (.., F), x: (.., 2F) -> dx: (.., 2F); it may overwrite x. Scratch: none.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct ClampedSwigluGrad {
    /// The forward op's attributes.
    pub forward: ClampedSwiglu,
}

/// Shapes of the examples' results. The limit of the examples is below the largest operands.
const SHAPES: [&[usize]; 4] = [&[2, 3, 5], &[1, 1, 1], &[3, 7, 16], &[2, 4099]];

const EXAMPLE: ClampedSwiglu = ClampedSwiglu { alpha: 1.702, limit: 0.7 };

/// The shape with twice the channels.
fn doubled(shape: &[usize]) -> Vec<usize> {
    let mut shape = shape.to_vec();
    *shape.last_mut().expect("a shape with channels") *= 2;
    shape
}

impl ClampedSwiglu {
    /// The type of y. Errors: `ShapeMismatch`.
    fn result(&self, op: &'static str, x: &TensorType) -> Result<TensorType, GraphError> {
        let bad = |problem: String| GraphError::ShapeMismatch { op, problem };
        if !(self.alpha.is_finite() && self.limit.is_finite() && self.limit > 0.0) {
            return Err(bad(format!("has alpha {} and limit {}", self.alpha, self.limit)));
        }
        let mut y = x.clone();
        let channels = y.shape.last_mut().filter(|channels| channels.is_multiple_of(2));
        *channels.ok_or_else(|| bad(format!("takes x (.., 2F), found {x:?}")))? /= 2;
        Ok(y)
    }
}

impl Operation for ClampedSwiglu {
    fn name(&self) -> &'static str {
        "clamped_swiglu"
    }

    fn infer(&self, inputs: &[&TensorType]) -> Result<Vec<TensorType>, GraphError> {
        let [x] = operands("clamped_swiglu", inputs)?;
        Ok(vec![self.result("clamped_swiglu", x)?])
    }

    fn is_by_rows(&self) -> bool {
        true
    }

    fn flops(&self, io: &Io) -> u64 {
        15 * io.outputs[0].elements() as u64
    }

    fn is_cheap(&self) -> bool {
        true
    }

    fn backward(&self, cx: &mut Backward) -> Result<(), GraphError> {
        let inputs = [cx.upstream(0)?, cx.input(0)];
        let dx = cx.push(ClampedSwigluGrad { forward: *self }, &inputs)?[0];
        cx.give(0, dx)
    }

    fn examples() -> Vec<Example> {
        SHAPES.map(|shape| Example::uniform(EXAMPLE, &[&doubled(shape)])).to_vec()
    }
}

impl Operation for ClampedSwigluGrad {
    fn name(&self) -> &'static str {
        "clamped_swiglu_grad"
    }

    fn infer(&self, inputs: &[&TensorType]) -> Result<Vec<TensorType>, GraphError> {
        let [dy, x] = operands("clamped_swiglu_grad", inputs)?;
        expect_type("clamped_swiglu_grad", "dy", dy, &self.forward.result("clamped_swiglu_grad", x)?)?;
        Ok(vec![x.clone()])
    }

    fn reuse(&self) -> &'static [(usize, usize)] {
        &[(1, 0)]
    }

    fn flops(&self, io: &Io) -> u64 {
        24 * io.inputs[0].elements() as u64
    }

    fn examples() -> Vec<Example> {
        SHAPES.map(|shape| Example::uniform(Self { forward: EXAMPLE }, &[shape, &doubled(shape)])).to_vec()
    }
}
