//! The sum of two tensors: residual connections, and gradients with two contributions.

use super::{Example, Io, Operation, expect_type, operands};
use crate::{Backward, GraphError, TensorType};
use serde::{Deserialize, Serialize};

/// y = a + b. a, b: any equal shape -> y the same; it may overwrite either operand. Scratch: none.
/// Errors: `ShapeMismatch` if the types differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Add;

impl Operation for Add {
    fn name(&self) -> &'static str {
        "add"
    }

    fn infer(&self, inputs: &[&TensorType]) -> Result<Vec<TensorType>, GraphError> {
        let [a, b] = operands("add", inputs)?;
        expect_type("add", "the second operand", b, a)?;
        Ok(vec![a.clone()])
    }

    fn reuse(&self) -> &'static [(usize, usize)] {
        &[(1, 0), (0, 0)]
    }

    fn is_by_rows(&self) -> bool {
        true
    }

    fn flops(&self, io: &Io) -> u64 {
        io.outputs[0].elements() as u64
    }

    fn backward(&self, cx: &mut Backward) -> Result<(), GraphError> {
        let upstream = cx.upstream(0)?;
        for index in [0, 1] {
            if cx.wants(index) {
                cx.give(index, upstream)?;
            }
        }
        Ok(())
    }

    fn examples() -> Vec<Example> {
        vec![Example::uniform(Self, &[&[2, 3, 5], &[2, 3, 5]]), Example::uniform(Self, &[&[1031], &[1031]])]
    }
}
