//! Learned position embeddings that are added to token embeddings.

use super::{Access, Example, Io, Operation, accumulating, expect_rank, operands};
use crate::{Backward, GraphError, TensorType};
use plimsoll_units::Bytes;
use serde::{Deserialize, Serialize};

/// y[b, t] = x[b, t] + table[start + t]; start is 0, or `Scalars::position` if `offset`.
/// x: (B, T, C), table: (P, C) -> y: (B, T, C); it may overwrite x. Saves nothing. Scratch: none.
/// Errors: `ShapeMismatch` if T exceeds P.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Positions {
    /// Whether the first row is at `Scalars::position`.
    pub offset: bool,
}

/// dtable[t] = Σ_b dy[b, t]; rows from T on are zero. dy: (B, T, C) -> dtable: (P, C). Scratch: none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct PositionsGrad {
    /// Number of rows P of the table.
    pub positions: usize,
    /// Whether dtable is added to the existing values.
    pub accumulate: bool,
}

impl Operation for Positions {
    fn name(&self) -> &'static str {
        "positions"
    }

    fn infer(&self, inputs: &[&TensorType]) -> Result<Vec<TensorType>, GraphError> {
        let [x, table] = operands("positions", inputs)?;
        expect_rank("positions", "x", x, 3)?;
        expect_rank("positions", "table", table, 2)?;
        if x.shape[1] > table.shape[0] || x.columns() != table.columns() || x.dtype != table.dtype {
            let problem = format!("{x:?} does not fit a table of {table:?}");
            return Err(GraphError::ShapeMismatch { op: "positions", problem });
        }
        Ok(vec![x.clone()])
    }

    fn reuse(&self) -> &'static [(usize, usize)] {
        &[(0, 0)]
    }

    fn flops(&self, io: &Io) -> u64 {
        io.outputs[0].elements() as u64
    }

    fn bytes_moved(&self, io: &Io) -> Bytes {
        Bytes(3 * io.outputs[0].bytes().0)
    }

    fn backward(&self, cx: &mut Backward) -> Result<(), GraphError> {
        let upstream = cx.upstream(0)?;
        let positions = cx.rows_of_input(1);
        let make = |accumulate| PositionsGrad { positions, accumulate }.into();
        if !cx.trained(&[1]).is_empty() {
            cx.push_to_parameters(make, &[upstream], &[], &[1])?;
        }
        if cx.wants(0) {
            cx.give(0, upstream)?;
        }
        Ok(())
    }

    fn examples() -> Vec<Example> {
        let mut shifted = Example::uniform(Self { offset: true }, &[&[1, 2, 5], &[7, 5]]);
        shifted.scalars.position = 4;
        vec![Example::uniform(Self { offset: false }, &[&[2, 3, 5], &[7, 5]]), shifted]
    }
}

impl Operation for PositionsGrad {
    fn name(&self) -> &'static str {
        "positions_grad"
    }

    fn infer(&self, inputs: &[&TensorType]) -> Result<Vec<TensorType>, GraphError> {
        let [dy] = operands("positions_grad", inputs)?;
        Ok(vec![TensorType::f32(&[self.positions, dy.columns()])])
    }

    fn access(&self, _index: usize) -> Access {
        accumulating(self.accumulate)
    }

    fn flops(&self, io: &Io) -> u64 {
        io.inputs[0].elements() as u64
    }

    fn examples() -> Vec<Example> {
        let op = |positions, accumulate| Self { positions, accumulate };
        vec![Example::uniform(op(7, false), &[&[2, 3, 5]]), Example::uniform(op(3, true), &[&[4, 3, 65]])]
    }
}
