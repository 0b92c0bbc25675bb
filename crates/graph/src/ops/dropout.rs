//! Dropout with bits from a counter-based generator, so that no mask is stored.

use super::{Example, Io, Operation, expect_rank, operands};
use crate::{Backward, GraphError, TensorType};
use serde::{Deserialize, Serialize};

/// Identifies a dropout. The dropped elements depend only on (seed, step, global sample, site, element), so that
/// recomputation, a new plan with another micro-batch and a resumed run draw the same bits.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct DropoutKey {
    /// Probability that an element is zeroed, in [0, 1).
    pub rate: f32,
    /// Index of this dropout site in its model.
    pub site: u32,
}

/// y = x · keep / (1 - rate). x: (B, T, C) -> y the same; it may overwrite x. Saves nothing. Scratch: none.
/// The first extent counts samples: row b is sample `first_sample + b` of the run.
/// Source: Srivastava et al. 2014; bits by Philox4x32-10, Salmon et al. 2011.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Dropout {
    /// Rate and site.
    pub key: DropoutKey,
}

impl Operation for Dropout {
    fn name(&self) -> &'static str {
        "dropout"
    }

    fn infer(&self, inputs: &[&TensorType]) -> Result<Vec<TensorType>, GraphError> {
        let [x] = operands("dropout", inputs)?;
        expect_rank("dropout", "x", x, 3)?;
        Ok(vec![x.clone()])
    }

    fn reuse(&self) -> &'static [(usize, usize)] {
        &[(0, 0)]
    }

    fn flops(&self, io: &Io) -> u64 {
        io.outputs[0].elements() as u64
    }

    fn is_cheap(&self) -> bool {
        true
    }

    fn backward(&self, cx: &mut Backward) -> Result<(), GraphError> {
        let upstream = cx.upstream(0)?;
        let dx = cx.push(*self, &[upstream])?[0];
        cx.give(0, dx)
    }

    fn examples() -> Vec<Example> {
        let op = |rate| Self { key: DropoutKey { rate, site: 11 } };
        vec![
            Example::uniform(op(0.4), &[&[3, 5, 7]]),
            Example::uniform(op(0.1), &[&[2, 1, 1030]]),
            Example::uniform(op(0.0), &[&[1, 1, 9]]),
        ]
    }
}
