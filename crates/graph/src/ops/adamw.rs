//! AdamW: Adam with decoupled weight decay.

use super::{Access, Example, Fill, Home, Io, Op, Operand, Operation, UpdateOperands, expect_type, operands};
use crate::{DType, GraphError, TensorType};
use serde::{Deserialize, Serialize};

/// Elements that share a scale where moments are quantised.
pub const STATE_BLOCK: usize = 256;

/// How moments are kept between updates. Arithmetic is in single precision always.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StateFormat {
    /// As they are.
    F32,
    /// Rounded to `Bf16`, up or down at random so that nothing is lost on average.
    Bf16,
    /// A byte each, and a scale for each `STATE_BLOCK` elements: the nearest of 256 levels between minus and plus (the
    /// second moment: between zero and plus) the block's largest. A second moment above zero stays above zero.
    Blockwise8,
}

/// With g = factor · gradient, t = `Scalars::update`, r = `rate` · `Scalars::learning_rate`:
/// m = β₁m + (1-β₁)g; v = β₂v + (1-β₂)g²; w = w - r·λ·w - r · m/(1-β₁ᵗ) / (√(v/(1-β₂ᵗ)) + ε).
/// gradient: any shape, `F32`, factor: (1,) -> weight, m, v: the same shape, updated in place; where moments are
/// quantised also the scales of m and of v: one for each `STATE_BLOCK` elements. If the factor is not a number
/// nothing is written. Scratch: none.
/// Sources: Loshchilov & Hutter 2019, algorithm 2; Dettmers et al. 2021 (arXiv:2110.02861), sections 2 and 3;
/// stochastic rounding: Zamirai et al. 2020 (arXiv:2010.06192).
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
    /// This parameter's part of the learning rate: one, unless layers learn at rates of their own.
    pub rate: f32,
    /// Precision of the weight: `F32`, or `Bf16`, to which it is rounded at random.
    pub weight: DType,
    /// How moments are kept.
    pub state: StateFormat,
    /// Number of the parameter: what is rounded at random is keyed by it.
    pub site: u32,
}

impl AdamW {
    /// Types of the moments of a parameter and, where they are quantised, of their scales.
    pub fn state_types(format: StateFormat, weight: &TensorType) -> Vec<TensorType> {
        match format {
            StateFormat::F32 => vec![weight.with_dtype(DType::F32); 2],
            StateFormat::Bf16 => vec![weight.with_dtype(DType::Bf16); 2],
            StateFormat::Blockwise8 => {
                let (codes, scales) = (weight.with_dtype(DType::U8), weight.elements().div_ceil(STATE_BLOCK));
                vec![codes.clone(), codes, TensorType::f32(&[scales]), TensorType::f32(&[scales])]
            }
        }
    }
}

impl Operation for AdamW {
    fn name(&self) -> &'static str {
        "adamw"
    }

    fn infer(&self, inputs: &[&TensorType]) -> Result<Vec<TensorType>, GraphError> {
        let [gradient, factor] = operands("adamw", inputs)?;
        expect_type("adamw", "gradient", gradient, &gradient.with_dtype(DType::F32))?;
        expect_type("adamw", "factor", factor, &TensorType::f32(&[1]))?;
        let mut outputs = vec![gradient.with_dtype(self.weight)];
        outputs.extend(Self::state_types(self.state, gradient));
        Ok(outputs)
    }

    fn access(&self, _index: usize) -> Access {
        Access::ReadWrite
    }

    fn flops(&self, io: &Io) -> u64 {
        14 * io.inputs[0].elements() as u64
    }

    /// A block at a time is decoded and encoded on the way.
    fn takes_half(&self, _operand: Operand) -> bool {
        true
    }

    fn home(&self) -> Home {
        Home::Result
    }

    fn update(&self) -> Option<UpdateOperands> {
        Some(UpdateOperands { gradient: 0, factor: 1, weight: 0 })
    }

    fn keeping(&self, weight: DType, state: StateFormat) -> Option<Op> {
        Some(Self { weight, state, ..*self }.into())
    }

    fn examples() -> Vec<Example> {
        let op_at = |rate, weight_decay, weight, state| {
            let (beta1, beta2, eps) = (0.9, 0.95, 1e-8);
            Self { beta1, beta2, eps, weight_decay, rate, weight, state, site: 3 }
        };
        let op = |weight_decay, weight, state| op_at(1.0, weight_decay, weight, state);
        let case = |op: Self, shape: &[usize]| Example {
            state: Fill::Positive,
            ..Example::uniform(op, &[shape, &[1]]).fill(1, Fill::Positive)
        };
        vec![
            case(op(0.1, DType::F32, StateFormat::F32), &[3, 5]),
            case(op(0.0, DType::F32, StateFormat::F32), &[5000]),
            case(op(0.1, DType::Bf16, StateFormat::F32), &[3, 5]),
            case(op(0.0, DType::Bf16, StateFormat::Bf16), &[5000]),
            case(op(0.1, DType::F32, StateFormat::Bf16), &[9, 33]),
            case(op_at(0.3, 0.1, DType::F32, StateFormat::F32), &[65]),
            case(op_at(0.0, 0.1, DType::F32, StateFormat::F32), &[7]),
            case(op(0.1, DType::F32, StateFormat::Blockwise8), &[70, 100]),
            case(op(0.0, DType::Bf16, StateFormat::Blockwise8), &[257]),
        ]
    }
}
