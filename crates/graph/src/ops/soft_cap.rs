//! A soft limit on logits, as in Gemma 2.

use super::{Example, Io, Operation, expect_type, operands};
use crate::{Backward, GraphError, TensorType};
use serde::{Deserialize, Serialize};

/// Operations of the cap of a number, and of its slope.
pub(super) const CAP_FLOPS: u64 = 10;
pub(super) const CAP_SLOPE_FLOPS: u64 = 4;

/// Whether a number is the limit of a soft cap.
pub(super) fn is_cap(cap: f32) -> bool {
    cap > 0.0 && cap.is_finite()
}

/// y = cap · tanh(x / cap), which is between -cap and cap. x: any shape -> y the same; it may overwrite x.
/// Saves y, not x. Scratch: none. Source: Gemma Team 2024, "Gemma 2", section 2.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct SoftCap {
    /// The limit, above zero.
    pub cap: f32,
}

/// dx = dy · (1 - (y / cap)²). dy, y: any equal shape -> dx the same; it may overwrite either. Scratch: none.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct SoftCapGrad {
    /// The limit, above zero.
    pub cap: f32,
}

impl Operation for SoftCap {
    fn name(&self) -> &'static str {
        "soft_cap"
    }

    fn infer(&self, inputs: &[&TensorType]) -> Result<Vec<TensorType>, GraphError> {
        let [x] = operands("soft_cap", inputs)?;
        Ok(vec![x.clone()])
    }

    fn reuse(&self) -> &'static [(usize, usize)] {
        &[(0, 0)]
    }

    fn flops(&self, io: &Io) -> u64 {
        CAP_FLOPS * io.outputs[0].elements() as u64
    }

    fn is_cheap(&self) -> bool {
        true
    }

    fn backward(&self, cx: &mut Backward) -> Result<(), GraphError> {
        let inputs = [cx.upstream(0)?, cx.output(0)];
        let dx = cx.push(SoftCapGrad { cap: self.cap }, &inputs)?[0];
        cx.give(0, dx)
    }

    fn examples() -> Vec<Example> {
        vec![Example::uniform(Self { cap: 0.25 }, &[&[2, 3, 5]]), Example::uniform(Self { cap: 30.0 }, &[&[1031]])]
    }
}

impl Operation for SoftCapGrad {
    fn name(&self) -> &'static str {
        "soft_cap_grad"
    }

    fn infer(&self, inputs: &[&TensorType]) -> Result<Vec<TensorType>, GraphError> {
        let [dy, y] = operands("soft_cap_grad", inputs)?;
        expect_type("soft_cap_grad", "y", y, dy)?;
        Ok(vec![dy.clone()])
    }

    fn reuse(&self) -> &'static [(usize, usize)] {
        &[(0, 0), (1, 0)]
    }

    fn flops(&self, io: &Io) -> u64 {
        CAP_SLOPE_FLOPS * io.outputs[0].elements() as u64
    }

    fn examples() -> Vec<Example> {
        vec![
            Example::uniform(Self { cap: 1.0 }, &[&[2, 3, 5], &[2, 3, 5]]),
            Example::uniform(Self { cap: 30.0 }, &[&[1031], &[1031]]),
        ]
    }
}
