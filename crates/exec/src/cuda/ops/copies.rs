//! Launches of kernels that move bytes: `embedding.cu`, `take_row.cu`, `transfer.cu`.

use super::shape::{launch, many, named};
use crate::cuda::launch::{Arguments, Launch, Operands};
use plimsoll_graph::ops::EmbeddingGrad;

/// Bytes of a row of this tensor.
fn row_bytes(ty: &plimsoll_graph::TensorType) -> u64 {
    ty.columns() as u64 * ty.dtype.size_bytes()
}

pub(super) fn embedding(operands: &Operands) -> Vec<Launch> {
    let y = operands.io.outputs[0];
    let arguments = Arguments::default().addresses(&operands.inputs).addresses(&operands.outputs).long(row_bytes(y));
    vec![launch("embedding", "embedding", many(y.rows()), arguments)]
}

/// Rows of the table that a block owns: `ROWS` of `embedding.cu`.
const ROWS: usize = 8;

pub(super) fn embedding_grad(op: &EmbeddingGrad, operands: &Operands) -> Vec<Launch> {
    let dy = operands.io.inputs[0];
    let arguments = Arguments::default()
        .addresses(&operands.inputs)
        .addresses(&operands.outputs)
        .int(dy.rows())
        .int(op.vocab_size)
        .int(dy.columns())
        .flag(op.accumulate);
    vec![launch("embedding", named("embedding_grad", dy), many(op.vocab_size.div_ceil(ROWS)), arguments)]
}

pub(super) fn take_row(operands: &Operands) -> Vec<Launch> {
    let x = operands.io.inputs[0];
    let arguments = Arguments::default()
        .addresses(&[operands.inputs[0], operands.outputs[0], operands.scalars])
        .long(x.shape[1] as u64)
        .long(row_bytes(x));
    vec![launch("take_row", "take_row", many(x.shape[0]), arguments)]
}

/// Bytes of a block: `BLOCK_BYTES` of `transfer.cu`.
const BLOCK_BYTES: usize = 1 << 16;

pub(super) fn transfer(operands: &Operands) -> Vec<Launch> {
    let bytes = operands.io.outputs[0].bytes().0;
    let arguments = Arguments::default().addresses(&[operands.inputs[0], operands.outputs[0]]).long(bytes);
    vec![launch("transfer", "transfer", many((bytes as usize).div_ceil(BLOCK_BYTES)), arguments)]
}
