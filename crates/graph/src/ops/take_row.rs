//! Selects one token's row of each sample when the program runs, because only the last token needs logits.

use super::{Example, Io, Operation, expect_rank, operands};
use crate::{GraphError, TensorType};
use plimsoll_units::Bytes;
use serde::{Deserialize, Serialize};

/// y = x[.., `Scalars::row`]. x: (B, T, C) -> y: (B, 1, C). Scratch: none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct TakeRow;

impl Operation for TakeRow {
    fn name(&self) -> &'static str {
        "take_row"
    }

    fn infer(&self, inputs: &[&TensorType]) -> Result<Vec<TensorType>, GraphError> {
        let [x] = operands("take_row", inputs)?;
        expect_rank("take_row", "x", x, 3)?;
        Ok(vec![x.with_shape(&[x.shape[0], 1, x.columns()])])
    }

    fn flops(&self, _io: &Io) -> u64 {
        0
    }

    fn bytes_moved(&self, io: &Io) -> Bytes {
        Bytes(2 * io.outputs[0].bytes().0)
    }

    fn examples() -> Vec<Example> {
        let second = |shape: &[usize]| {
            let mut example = Example::uniform(Self, &[shape]);
            example.scalars.row = 1;
            example
        };
        vec![second(&[1, 3, 5]), second(&[4, 2, 3])]
    }
}
