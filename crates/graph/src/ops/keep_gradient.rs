//! Rounding of a gradient to the format in which it is kept until the update.

use super::{Access, Example, Io, Operation, accumulating, expect_type, operands};
use crate::{DType, GraphError, TensorType};
use serde::{Deserialize, Serialize};

/// How gradients of parameters are kept from one micro-batch to the next, and until the update. Each micro-batch computes
/// them in single precision.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GradientFormat {
    /// In single precision.
    #[default]
    F32,
    /// Rounded to `Bf16` stochastically, without bias, once for each micro-batch.
    Bf16,
}

impl GradientFormat {
    /// The element type of a gradient that is kept.
    pub fn dtype(self) -> DType {
        match self {
            Self::F32 => DType::F32,
            Self::Bf16 => DType::Bf16,
        }
    }
}

/// kept = gradient, or kept + gradient if `accumulate`. The sum is computed in single precision and rounded to `Bf16`
/// stochastically: without bias, so that contributions below half a unit in the last place still add up.
/// gradient: any shape, `F32` -> kept: the same shape, `Bf16`. Scratch: none.
/// The random bits depend on the seed, the step, the first sample of the micro-batch, `site` and the element's index.
/// Source: Zamirai et al. 2020 (arXiv:2010.06192), section 4.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeepGradient {
    /// Whether the gradient is added to what an earlier micro-batch left.
    pub accumulate: bool,
    /// Index of the parameter, which is part of the key of stochastic rounding.
    pub site: u32,
}

impl Operation for KeepGradient {
    fn name(&self) -> &'static str {
        "keep_gradient"
    }

    fn infer(&self, inputs: &[&TensorType]) -> Result<Vec<TensorType>, GraphError> {
        let [gradient] = operands("keep_gradient", inputs)?;
        expect_type("keep_gradient", "gradient", gradient, &gradient.with_dtype(DType::F32))?;
        Ok(vec![gradient.with_dtype(DType::Bf16)])
    }

    fn access(&self, _index: usize) -> Access {
        accumulating(self.accumulate)
    }

    fn flops(&self, io: &Io) -> u64 {
        2 * io.inputs[0].elements() as u64
    }

    fn examples() -> Vec<Example> {
        let case = |accumulate, shape: &[usize]| Example::uniform(Self { accumulate, site: 3 }, &[shape]);
        vec![
            case(false, &[3, 5]),
            case(true, &[3, 5]),
            case(false, &[70_001]),
            case(true, &[70_001]),
            case(true, &[64]),
        ]
    }
}
