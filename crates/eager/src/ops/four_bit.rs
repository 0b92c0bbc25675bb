//! Products with 4-bit weights.
//! Source: bitsandbytes' `autograd/_functions.py` (`MatMul4Bit`), `backends/cuda/ops.py` (`_dequant_linear_fallback`),
//! `functional.py` (`dequantize_4bit`).

use super::cast_values;
use crate::runtime::{DType, Op, Rt, Tensor};
use std::rc::Rc;

/// A 4-bit weight and the tensors to dequantize it.
pub(crate) struct Packed {
    /// Shape of the weight: (outputs, inputs).
    pub shape: [u64; 2],
    /// Type before quantization.
    pub dtype: DType,
    /// One scale per block.
    pub scales: Tensor,
    /// Whether the scales themselves are in 8 bits.
    pub is_nested: bool,
    /// The packed elements and tables.
    #[expect(dead_code, reason = "they are stored only to hold their memory")]
    pub held: Vec<Tensor>,
}

impl Packed {
    /// The scales in single precision, if they are stored in 8 bits.
    fn scales(&self, rt: &Rt, op: &'static str) -> Option<Tensor> {
        self.is_nested.then(|| Tensor::new(rt, self.scales.shape(), DType::F32, op))
    }
}

/// A linear layer: (…, K) with a weight (M, K) and a bias (M,) -> (…, M), in the type of x. Saves only the weight, and
/// dequantizes it whole in each pass. Version 0.50.2 has a kernel that avoids this in the forward pass on some cards,
/// for some shapes and few rows; the backward pass always dequantizes.
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
        // `matmul` either folds a gradient whose rows have a view as a matrix or multiplies its batches; neither copies
        // (`should_fold` of `native/LinearAlgebra.cpp`).
        vec![Some(Tensor::new(rt, &shape, gradient.dtype(), "mm"))]
    })
}
