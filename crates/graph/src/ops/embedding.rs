//! Rows of a table by token id.

use super::{Access, Example, Fill, Home, Io, Operation, accumulating, operands};
use crate::{Backward, DType, GraphError, TensorType};
use plimsoll_units::Bytes;
use serde::{Deserialize, Serialize};

/// y[b, t] = table[tokens[b, t]]. tokens: (B, T) integers, table: (V, C) -> y: (B, T, C).
/// The training loop rejects ids outside [0, V) before they reach a device. Saves the tokens. Scratch: none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Embedding;

/// dtable[tokens[b, t]] += dy[b, t], in the order of the tokens. dy: (B, T, C), tokens: (B, T) -> dtable: (V, C).
/// Scratch: none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct EmbeddingGrad {
    /// Number of rows V of the table.
    pub vocab_size: usize,
    /// Whether dtable is added to the existing values.
    pub accumulate: bool,
}

impl Operation for Embedding {
    fn name(&self) -> &'static str {
        "embedding"
    }

    fn infer(&self, inputs: &[&TensorType]) -> Result<Vec<TensorType>, GraphError> {
        let [tokens, table] = operands("embedding", inputs)?;
        if tokens.dtype != DType::I32 || tokens.shape.len() != 2 || table.shape.len() != 2 {
            let problem = format!("takes tokens (B, T) and a table (V, C), found {tokens:?} and {table:?}");
            return Err(GraphError::ShapeMismatch { op: "embedding", problem });
        }
        Ok(vec![table.with_shape(&[tokens.shape[0], tokens.shape[1], table.shape[1]])])
    }

    /// Where the table rests, which is usually much larger than y.
    fn home(&self) -> Home {
        Home::Operand(1)
    }

    fn flops(&self, _io: &Io) -> u64 {
        0
    }

    fn bytes_moved(&self, io: &Io) -> Bytes {
        Bytes(2 * io.outputs[0].bytes().0) + io.inputs[0].bytes()
    }

    fn backward(&self, cx: &mut Backward) -> Result<(), GraphError> {
        let inputs = [cx.upstream(0)?, cx.input(0)];
        let vocab_size = cx.rows_of_input(1);
        let make = |accumulate| EmbeddingGrad { vocab_size, accumulate }.into();
        cx.push_to_parameters(make, &inputs, &[], &[1]).map(drop)
    }

    fn examples() -> Vec<Example> {
        vec![
            Example::uniform(Self, &[&[2, 5], &[4, 3]]).fill(0, Fill::Index(4)),
            Example::uniform(Self, &[&[1, 1], &[9, 65]]).fill(0, Fill::Index(9)),
        ]
    }
}

impl Operation for EmbeddingGrad {
    fn name(&self) -> &'static str {
        "embedding_grad"
    }

    fn infer(&self, inputs: &[&TensorType]) -> Result<Vec<TensorType>, GraphError> {
        let [dy, _tokens] = operands("embedding_grad", inputs)?;
        Ok(vec![TensorType::f32(&[self.vocab_size, dy.columns()])])
    }

    fn access(&self, _index: usize) -> Access {
        accumulating(self.accumulate)
    }

    /// In the memory of the table's gradient, which is usually much larger than dy.
    fn home(&self) -> Home {
        Home::Result
    }

    fn flops(&self, io: &Io) -> u64 {
        io.inputs[0].elements() as u64
    }

    /// Reads and writes rows of dtable (always `F32`) for each token.
    fn bytes_moved(&self, io: &Io) -> Bytes {
        let (dy, tokens, dtable) = (io.inputs[0], io.inputs[1], io.outputs[0]);
        let zeroed = if self.accumulate { Bytes::ZERO } else { dtable.bytes() };
        dy.bytes() + tokens.bytes() + Bytes(2 * dy.with_dtype(dtable.dtype).bytes().0) + zeroed
    }

    fn examples() -> Vec<Example> {
        let case = |vocab_size, accumulate, shapes: &[&[usize]]| {
            Example::uniform(Self { vocab_size, accumulate }, shapes).fill(1, Fill::Index(vocab_size as i32))
        };
        vec![case(4, false, &[&[2, 5, 3], &[2, 5]]), case(9, true, &[&[1, 40, 65], &[1, 40]])]
    }
}
