//! Uniform noise that is added to the embeddings of tokens in training (NEFTune), with bits from a counter-based generator, so
//! that no noise is stored.

use super::{Example, Io, Operation, expect_rank, operands};
use crate::{Backward, GraphError, TensorType};
use serde::{Deserialize, Serialize};

/// y = x + amplitude · u, where each u is uniform in [-1, 1]. x: (B, T, C) -> y the same; it may overwrite x. Its gradient is
/// that of x. Saves nothing. Scratch: none.
/// Bits are those of [`Dropout`](super::Dropout): the first extent counts samples, and row b is sample `first_sample + b` of
/// the run. Source: Jain et al. 2023, "NEFTune", algorithm 1.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct UniformNoise {
    /// The largest size of an element's noise.
    pub amplitude: f32,
    /// Index of this site among those of the model's random bits.
    pub site: u32,
}

impl Operation for UniformNoise {
    fn name(&self) -> &'static str {
        "uniform_noise"
    }

    fn infer(&self, inputs: &[&TensorType]) -> Result<Vec<TensorType>, GraphError> {
        let [x] = operands("uniform_noise", inputs)?;
        expect_rank("uniform_noise", "x", x, 3)?;
        Ok(vec![x.clone()])
    }

    fn reuse(&self) -> &'static [(usize, usize)] {
        &[(0, 0)]
    }

    fn flops(&self, io: &Io) -> u64 {
        2 * io.outputs[0].elements() as u64
    }

    fn is_cheap(&self) -> bool {
        true
    }

    fn backward(&self, cx: &mut Backward) -> Result<(), GraphError> {
        let upstream = cx.upstream(0)?;
        cx.give(0, upstream)
    }

    fn examples() -> Vec<Example> {
        let op = |amplitude| Self { amplitude, site: 11 };
        vec![
            Example::uniform(op(0.7), &[&[3, 5, 7]]),
            Example::uniform(op(0.05), &[&[2, 1, 1030]]),
            Example::uniform(op(0.5), &[&[1, 4, 12]]),
        ]
    }
}
