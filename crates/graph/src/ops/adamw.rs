//! AdamW: Adam with decoupled weight decay.

use super::{Access, Example, Fill, Io, Operation, expect_type, operands};
use crate::{GraphError, TensorType};
use serde::{Deserialize, Serialize};

/// With g = factor · gradient, t = `Scalars::step`, r = `Scalars::learning_rate`:
/// m = β₁m + (1-β₁)g; v = β₂v + (1-β₂)g²; w = w - r·λ·w - r · m/(1-β₁ᵗ) / (√(v/(1-β₂ᵗ)) + ε).
/// gradient: any shape, factor: (1,) -> weight, m, v: the same shape, updated in place. If the factor is not a number
/// nothing is written. Scratch: none. Source: Loshchilov & Hutter 2019, algorithm 2.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct AdamW {
    /// β₁.
    pub beta1: f32,
    /// β₂.
    pub beta2: f32,
    /// ε, outside the root.
    pub eps: f32,
    /// λ; zero for norms and biases.
    pub weight_decay: f32,
}

impl Operation for AdamW {
    fn name(&self) -> &'static str {
        "adamw"
    }

    fn infer(&self, inputs: &[&TensorType]) -> Result<Vec<TensorType>, GraphError> {
        let [gradient, factor] = operands("adamw", inputs)?;
        expect_type("adamw", "factor", factor, &TensorType::f32(&[1]))?;
        Ok(vec![gradient.clone(); 3])
    }

    fn access(&self, _index: usize) -> Access {
        Access::ReadWrite
    }

    fn flops(&self, io: &Io) -> u64 {
        14 * io.inputs[0].elements() as u64
    }

    fn examples() -> Vec<Example> {
        let op = |weight_decay| Self { beta1: 0.9, beta2: 0.95, eps: 1e-8, weight_decay };
        [Example::uniform(op(0.1), &[&[3, 5], &[1]]), Example::uniform(op(0.0), &[&[5000], &[1]])]
            .map(|e| Example { state: Fill::Positive, ..e.fill(1, Fill::Positive) })
            .to_vec()
    }
}
