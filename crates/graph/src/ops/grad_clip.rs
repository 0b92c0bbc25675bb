//! The factor that scales gradients down if their norm is too large.

use super::{Example, Fill, Home, Io, Operation, expect_type, operands};
use crate::{GraphError, TensorType};
use serde::{Deserialize, Serialize};

/// factor = min(1, max_norm / (norm/s + 1e-6)) / s, or 1/s without a limit, where s is `Scalars::gradient_scale`; NaN
/// if the norm is NaN or infinite, which makes [`ParameterUpdate`](super::ParameterUpdate) skip the update.
/// norm: (1,) -> factor: (1,). Scratch: none.
/// Source: Pascanu, Mikolov & Bengio 2013, algorithm 1; the 1e-6 is PyTorch's.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct GradClip {
    /// The largest norm that is not scaled down; `None` for no limit.
    pub max_norm: Option<f32>,
}

impl Operation for GradClip {
    fn name(&self) -> &'static str {
        "grad_clip"
    }

    fn infer(&self, inputs: &[&TensorType]) -> Result<Vec<TensorType>, GraphError> {
        let [norm] = operands("grad_clip", inputs)?;
        expect_type("grad_clip", "norm", norm, &TensorType::f32(&[1]))?;
        Ok(vec![norm.clone()])
    }

    fn home(&self) -> Home {
        Home::Operands
    }

    fn flops(&self, _io: &Io) -> u64 {
        3
    }

    fn examples() -> Vec<Example> {
        [Some(0.1), Some(10.0), None]
            .map(|max_norm| Example::uniform(Self { max_norm }, &[&[1]]).fill(0, Fill::Positive))
            .map(|mut example| {
                example.scalars.gradient_scale = 4.0;
                example
            })
            .to_vec()
    }
}
