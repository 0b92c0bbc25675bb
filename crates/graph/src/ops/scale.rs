//! A tensor times a constant, for families that scale embeddings, residuals or logits.

use super::{Example, Io, Operation, operands};
use crate::{Backward, GraphError, TensorType};
use serde::{Deserialize, Serialize};

/// y = factor · x. x: any shape -> y the same; it may overwrite x. Saves nothing. Scratch: none.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Scale {
    /// The constant.
    pub factor: f32,
}

impl Operation for Scale {
    fn name(&self) -> &'static str {
        "scale"
    }

    fn infer(&self, inputs: &[&TensorType]) -> Result<Vec<TensorType>, GraphError> {
        let [x] = operands("scale", inputs)?;
        Ok(vec![x.clone()])
    }

    fn reuse(&self) -> &'static [(usize, usize)] {
        &[(0, 0)]
    }

    fn is_by_rows(&self) -> bool {
        true
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
        vec![
            Example::uniform(Self { factor: 27.712_812 }, &[&[2, 3, 5]]),
            Example::uniform(Self { factor: -0.22 }, &[&[1031]]),
        ]
    }
}
