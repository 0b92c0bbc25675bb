//! Rows of a table.

use crate::runtime::{DType, Op, Saved, Tensor};

/// Largest number of indices for which CUDA's gradient does not sort. Source: `native/cuda/Embedding.cu`.
const UNSORTED: u64 = 3072;
/// Rows that a thread sums in the first stage. Source: `native/cuda/EmbeddingBackwardKernel.cu`.
const ROWS_PER_THREAD: u64 = 10;

/// Rows of a table. weight: (V, C), indices: (…) in 64 bits -> (…, C). Saves the indices; the gradient is dense.
pub(crate) fn embedding(weight: &Tensor, indices: &Tensor) -> Tensor {
    let op = Op::new("embedding", &[weight]);
    let saved = op.save(indices);
    let mut shape = indices.shape().to_vec();
    shape.push(weight.shape()[1]);
    let out = Tensor::new(weight.rt(), &shape, weight.dtype(), "embedding");
    let table = weight.shape().to_vec();
    op.finish_one(out, move |rt, gradient, _| {
        let indices = saved.map(Saved::unpack).expect("embedding saves its indices");
        let _read = gradient.materialized();
        let flat = gradient.reshape_values(&[indices.elements(), table[1]]);
        let sorted = (indices.elements() > UNSORTED).then(|| {
            let copy = || rt.scratch("embedding_dense_backward", indices.elements() * DType::I64.bytes());
            [copy(), copy()]
        });
        let out = Tensor::new(rt, &table, flat.dtype(), "embedding_dense_backward");
        if sorted.is_some() {
            // Partial sums in single precision, one for several rows each; at most one more per distinct row of the
            // table.
            let parts =
                (indices.elements() / ROWS_PER_THREAD + indices.elements().min(table[0])).min(indices.elements());
            drop(rt.scratch("embedding_dense_backward", parts * table[1] * DType::F32.bytes()));
        }
        vec![Some(out)]
    })
}
