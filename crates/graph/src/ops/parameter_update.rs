//! A parameter's update by an elementwise optimizer.

use super::{Access, Example, Fill, Home, Io, Op, Operation, UpdateOperands, expect_gradient, expect_type, operands};
use crate::optimizers::{Rule, StateFormat};
use crate::{DType, GraphError, TensorType};
use serde::{Deserialize, Serialize};

/// Number of elements that share a scale in quantized moments.
pub const STATE_BLOCK: usize = 256;

/// How a weight is stored between updates. Arithmetic is always in single precision.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WeightFormat {
    /// In single precision.
    F32,
    /// Rounded to `Bf16` stochastically, without bias.
    Bf16,
    /// Rounded to `Bf16` as by [`Cast`](super::Cast), with the difference to single precision in 16 bits:
    ///
    /// ```text
    ///   bits of the weight in F32 = bits of the weight in Bf16 · 2^16 + remainder, from -2^15 to 2^15 - 1
    /// ```
    /// Products use the rounded weight; the next update starts from the exact weight. Only a NaN loses its lower bits.
    Bf16AndRemainder,
}

impl WeightFormat {
    /// Types of a weight's tensors.
    fn types(self, weight: &TensorType) -> Vec<TensorType> {
        match self {
            Self::F32 => vec![weight.with_dtype(DType::F32)],
            Self::Bf16 => vec![weight.with_dtype(DType::Bf16)],
            Self::Bf16AndRemainder => [DType::Bf16, DType::I16].map(|dtype| weight.with_dtype(dtype)).to_vec(),
        }
    }
}

/// Applies the rule to a weight and its moments, with g = factor · gradient, r = `rate` · `Scalars::learning_rate` and
/// λ = `weight_decay`.
/// gradient: any shape, `F32` or `Bf16`, factor: (1,) -> weight, its remainder if there is one, moments: the same shape, updated
/// in place; if moments are quantized also their scales, one for each `STATE_BLOCK` elements. If the factor is NaN,
/// nothing is written. Scratch: none.
/// Sources: the rule's; Dettmers et al. 2021 (arXiv:2110.02861), sections 2 and 3; stochastic rounding: Zamirai et al.
/// 2020 (arXiv:2010.06192); remainders: `store_param_remainders` of NVIDIA Apex's distributed Adam.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct ParameterUpdate {
    /// The optimizer.
    pub rule: Rule,
    /// λ; zero for norms and biases.
    pub weight_decay: f32,
    /// Factor of the learning rate for this parameter: one, unless rates differ by layer.
    pub rate: f32,
    /// How the weight is stored.
    pub weight: WeightFormat,
    /// How moments are stored.
    pub state: StateFormat,
    /// Index of the parameter, which is part of the key of stochastic rounding.
    pub site: u32,
}

impl ParameterUpdate {
    /// Types of the moments and, if they are quantized, of their scales.
    fn state_types(&self, weight: &TensorType) -> Vec<TensorType> {
        let moments = self.rule.moments().len();
        match self.state {
            StateFormat::F32 => vec![weight.with_dtype(DType::F32); moments],
            StateFormat::Bf16 => vec![weight.with_dtype(DType::Bf16); moments],
            StateFormat::Blockwise8 => {
                let scales = TensorType::f32(&[weight.elements().div_ceil(STATE_BLOCK)]);
                [vec![weight.with_dtype(DType::U8); moments], vec![scales; moments]].concat()
            }
        }
    }
}

impl Operation for ParameterUpdate {
    fn name(&self) -> &'static str {
        self.rule.name()
    }

    fn infer(&self, inputs: &[&TensorType]) -> Result<Vec<TensorType>, GraphError> {
        let [gradient, factor] = operands(self.name(), inputs)?;
        expect_gradient(self.name(), gradient)?;
        expect_type(self.name(), "factor", factor, &TensorType::f32(&[1]))?;
        let mut outputs = self.weight.types(gradient);
        outputs.extend(self.state_types(gradient));
        Ok(outputs)
    }

    fn access(&self, _index: usize) -> Access {
        Access::ReadWrite
    }

    fn flops(&self, io: &Io) -> u64 {
        self.rule.flops() * io.inputs[0].elements() as u64
    }

    fn home(&self) -> Home {
        Home::Result
    }

    fn update(&self) -> Option<UpdateOperands> {
        let remainder = (self.weight == WeightFormat::Bf16AndRemainder).then_some(1);
        Some(UpdateOperands { gradient: 0, factor: 1, weight: 0, remainder, state: remainder.map_or(1, |at| at + 1) })
    }

    fn keeping_weight(&self, weight: WeightFormat) -> Option<Op> {
        Some(Self { weight, ..*self }.into())
    }

    fn keeping_state(&self, state: StateFormat) -> Option<Op> {
        Some(Self { state, ..*self }.into())
    }

    fn examples() -> Vec<Example> {
        Rule::all().into_iter().flat_map(examples_of).collect()
    }
}

/// Every format of weight and moments, with and without decay, at different rates.
fn examples_of(rule: Rule) -> Vec<Example> {
    let case = |rate, weight_decay, weight, state, shape: &[usize]| {
        let op = ParameterUpdate { rule, weight_decay, rate, weight, state, site: 3 };
        Example { state: Fill::Positive, ..Example::uniform(op, &[shape, &[1]]).fill(1, Fill::Positive) }
    };
    let rounded = |example: Example| example.of_type(0, DType::Bf16);
    vec![
        rounded(case(1.0, 0.1, WeightFormat::F32, StateFormat::F32, &[3, 5])),
        rounded(case(1.0, 0.1, WeightFormat::F32, StateFormat::F32, &[5001])),
        rounded(case(1.0, 0.1, WeightFormat::Bf16AndRemainder, StateFormat::F32, &[4099])),
        rounded(case(1.0, 0.1, WeightFormat::Bf16AndRemainder, StateFormat::Bf16, &[9, 33])),
        rounded(case(1.0, 0.1, WeightFormat::F32, StateFormat::Blockwise8, &[70, 101])),
        case(1.0, 0.1, WeightFormat::F32, StateFormat::F32, &[3, 5]),
        case(1.0, 0.0, WeightFormat::F32, StateFormat::F32, &[5000]),
        case(1.0, 0.1, WeightFormat::Bf16, StateFormat::F32, &[3, 5]),
        case(1.0, 0.0, WeightFormat::Bf16, StateFormat::Bf16, &[5000]),
        case(1.0, 0.1, WeightFormat::F32, StateFormat::Bf16, &[9, 33]),
        case(0.3, 0.1, WeightFormat::F32, StateFormat::F32, &[65]),
        case(0.0, 0.1, WeightFormat::F32, StateFormat::F32, &[7]),
        case(1.0, 0.1, WeightFormat::F32, StateFormat::Blockwise8, &[70, 100]),
        case(1.0, 0.0, WeightFormat::Bf16, StateFormat::Blockwise8, &[257]),
        case(1.0, 0.1, WeightFormat::Bf16AndRemainder, StateFormat::F32, &[3, 5]),
        case(1.0, 0.1, WeightFormat::Bf16AndRemainder, StateFormat::F32, &[4099]),
        case(0.3, 0.0, WeightFormat::Bf16AndRemainder, StateFormat::Bf16, &[9, 33]),
        case(1.0, 0.1, WeightFormat::Bf16AndRemainder, StateFormat::Blockwise8, &[70, 101]),
    ]
}
