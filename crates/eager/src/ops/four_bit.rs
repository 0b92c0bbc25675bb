//! Products with weights in 4 bits.
//! Source: bitsandbytes' `autograd/_functions.py` (`MatMul4Bit`), `backends/cuda/ops.py` (`_dequant_linear_fallback`),
//! `functional.py` (`dequantize_4bit`).

use super::cast_values;
use crate::runtime::{DType, Op, Rt, Tensor};
use std::rc::Rc;

/// A weight in 4 bits with what it is dequantized by.
pub(crate) struct Packed {
    /// Of the weight: (outputs, inputs).
    pub shape: [u64; 2],
    /// What it was before it was quantized.
    pub dtype: DType,
    /// One of each block.
    pub scales: Tensor,
    /// Whether scales are in 8 bits.
    pub is_nested: bool,
    /// The packed elements and tables.
    #[expect(dead_code, reason = "they are kept for the memory that they hold")]
    pub held: Vec<Tensor>,
}

impl Packed {
    /// Scales in single precision, if they are not.
    fn scales(&self, rt: &Rt, op: &'static str) -> Option<Tensor> {
        self.is_nested.then(|| Tensor::new(rt, self.scales.shape(), DType::F32, op))
    }
}

/// A linear layer: (…, K) with a weight (M, K) and a bias (M,) -> (…, M), in the type of x. Saves nothing but the weight, which
/// is dequantized whole in each pass. Newer versions (0.50.2) have a kernel that does without in the forward pass for some
/// cards, shapes and few rows; the backward pass always needs it.
pub(crate) fn matmul_4bit(x: &Tensor, weight: &Rc<Packed>, bias: Option<&Tensor>) -> Tensor {
    let rt = x.rt().clone();
    let op = Op::new("MatMul4Bit", &[x]);
    let out = {
        let nested = weight.scales(&rt, "dequantize_blockwise");
        let _scales = nested.as_ref().map(|nested| nested.empty_like(DType::F32, "add"));
        let dequantized = Tensor::new(&rt, &weight.shape, x.dtype(), "dequantize_4bit");
        rt.with_grad(false, || x.linear(&dequantized, bias)).detach()
    };
    let (weight, shape) = (weight.clone(), x.shape().to_vec());
    op.finish_one(out, move |rt, gradient, _| {
        let scales = weight.scales(rt, "dequantize_blockwise");
        let whole = Tensor::new(rt, &weight.shape, weight.dtype, "dequantize_4bit");
        drop(scales);
        let _whole = cast_values(&whole, gradient.dtype());
        drop(whole);
        // `matmul` folds a gradient whose rows have a view as a matrix, and else multiplies its batches: no copy either way
        // (`should_fold` of `native/LinearAlgebra.cpp`).
        vec![Some(Tensor::new(rt, &shape, gradient.dtype(), "mm"))]
    })
}
