//! Launches of `kernels/embedding.cu`.

use super::CudaKernel;
use super::shape::{launch, line, named, row_bytes};
use crate::cuda::launch::{Arguments, Operands, Part};
use plimsoll_graph::ops::{Embedding, EmbeddingGrad};

/// Rows of the table that a block owns: `ROWS` of `embedding.cu`.
const ROWS: usize = 8;

impl CudaKernel for Embedding {
    fn parts(&self, operands: &Operands) -> Vec<Part> {
        let y = operands.io.outputs[0];
        let arguments =
            Arguments::default().addresses(&operands.inputs).addresses(&operands.outputs).long(row_bytes(y));
        vec![launch("embedding", "embedding", line(y.rows()), arguments).into()]
    }
}

impl CudaKernel for EmbeddingGrad {
    fn parts(&self, operands: &Operands) -> Vec<Part> {
        let dy = operands.io.inputs[0];
        let arguments = Arguments::default()
            .addresses(&operands.inputs)
            .addresses(&operands.outputs)
            .int(dy.rows())
            .int(self.vocab_size)
            .int(dy.columns())
            .flag(self.accumulate);
        vec![launch("embedding", named("embedding_grad", dy), line(self.vocab_size.div_ceil(ROWS)), arguments).into()]
    }
}
