//! Learned embeddings that are added to token embeddings: of positions, or of the one type that all tokens have.

use super::{Access, Example, Io, Operation, Target, accumulating, expect_rank, operands};
use crate::{Backward, DeviceKind, GraphError, TensorType};
use plimsoll_units::Bytes;
use serde::{Deserialize, Serialize};

/// y[b, t] = x[b, t] + table[start + t]; start is 0, or `Scalars::position` if `offset`. If `same`, + table[0].
/// x: (B, T, C), table: (P, C) -> y: (B, T, C); it may overwrite x. Saves nothing. Scratch: none.
/// Errors: `ShapeMismatch` if T exceeds P.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Positions {
    /// Whether the first row is at `Scalars::position`.
    pub offset: bool,
    /// Whether all tokens have the first row: it is for types of tokens, which all have type 0.
    #[serde(default)]
    pub same: bool,
}

/// dtable[t] = Σ_b dy[b, t]; rows from T on are zero. If `same`, dtable[0] = Σ dy, and other rows are zero.
/// dy: (B, T, C) -> dtable: (P, C). Scratch: none, but on a card `Target::row_parts` partial sums if `same`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct PositionsGrad {
    /// Number of rows P of the table.
    pub positions: usize,
    /// Whether all tokens have the first row.
    #[serde(default)]
    pub same: bool,
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
        let rows = if self.same { 1 } else { x.shape[1] };
        if rows > table.shape[0] || x.columns() != table.columns() || x.dtype != table.dtype {
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
        let same = self.same;
        let make = |accumulate| PositionsGrad { positions, same, accumulate }.into();
        if !cx.trained(&[1]).is_empty() {
            cx.push_to_parameters(make, &[upstream], &[], &[1])?;
        }
        if cx.wants(0) {
            cx.give(0, upstream)?;
        }
        Ok(())
    }

    fn examples() -> Vec<Example> {
        let op = |offset, same| Self { offset, same };
        let mut shifted = Example::uniform(op(true, false), &[&[1, 2, 5], &[7, 5]]);
        shifted.scalars.position = 4;
        let same = Example::uniform(op(false, true), &[&[2, 9, 8], &[2, 8]]);
        vec![Example::uniform(op(false, false), &[&[2, 3, 5], &[7, 5]]), shifted, same]
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

    fn scratch(&self, io: &Io, target: &Target) -> Bytes {
        let dy = &io.inputs[0];
        match (self.same, target.kind()) {
            (true, DeviceKind::Cuda) => Bytes(4 * (target.row_parts(dy.rows()) * dy.columns()) as u64),
            _ => Bytes::ZERO,
        }
    }

    fn examples() -> Vec<Example> {
        let op = |positions, same, accumulate| Self { positions, same, accumulate };
        vec![
            Example::uniform(op(7, false, false), &[&[2, 3, 5]]),
            Example::uniform(op(3, false, true), &[&[4, 3, 65]]),
            Example::uniform(op(2, true, false), &[&[2, 9, 8]]),
            Example::uniform(op(3, true, true), &[&[3, 50, 65]]),
        ]
    }
}
