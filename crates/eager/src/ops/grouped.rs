//! Products of groups of rows with a matrix each: the experts' layers.
//! Source: `native/cuda/GroupedBlas.cpp`, `_grouped_mm_mat1_backward` of `FunctionsManual.cpp`; `integrations/moe.py` of
//! transformers.

use crate::runtime::{Op, Saved, Tensor};

/// The function that computes the products.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum GroupedProduct {
    /// PyTorch's `grouped_mm`. Its kernel for bf16 has a workspace of a few KiB, which is not modeled.
    Torch,
    /// The loop of transformers for cards without it, which saves both operands and computes both gradients.
    Loop,
}

/// Rows sorted by group times the group's matrix. x: (S, K), weight: (E, K, M), ends: (E,), where each group's rows end
/// -> (S, M). Not an op of autocast: x is cast to the weight's type.
pub(crate) fn grouped_mm(x: &Tensor, weight: &Tensor, ends: &Tensor, how: GroupedProduct) -> Tensor {
    let x = x.to(weight.dtype());
    let op = Op::new("_grouped_mm", &[&x, weight]);
    let is_loop = how == GroupedProduct::Loop;
    let saved = [op.save_if(&x, op.needs(1) || is_loop), op.save_if(weight, op.needs(0) || is_loop), op.save(ends)];
    let (rt, shape, strides) = (x.rt().clone(), weight.shape().to_vec(), weight.strides().to_vec());
    let read = [x.materialized(), weight.materialized()];
    let out = Tensor::new(&rt, &[x.size(0), shape[2]], x.dtype(), "_grouped_mm");
    drop(read);
    rt.multiply();
    let rows = x.shape().to_vec();
    drop(x);
    op.finish_one(out, move |rt, gradient, needs| {
        let operands = saved.map(|saved| saved.map(Saved::unpack));
        let _read = operands.iter().flatten().chain([gradient]).map(Tensor::materialized).collect::<Vec<_>>();
        rt.multiply();
        let of_x = || Tensor::new(rt, &rows, gradient.dtype(), "_grouped_mm");
        let of_weight = || {
            // Laid out in memory as the weight is.
            let turned = strides[1] == 1 && shape[1] != 1;
            let stored = if turned { [shape[0], shape[2], shape[1]] } else { [shape[0], shape[1], shape[2]] };
            let gradient = Tensor::new(rt, &stored, gradient.dtype(), "_grouped_mm");
            if turned { gradient.transpose(1, 2) } else { gradient }
        };
        match is_loop {
            true => {
                let (of_x, of_weight) = (of_x(), of_weight());
                vec![needs[0].then_some(of_x), needs[1].then_some(of_weight)]
            }
            false => {
                let of_weight = needs[1].then(of_weight);
                vec![needs[0].then(of_x), of_weight]
            }
        }
    })
}
