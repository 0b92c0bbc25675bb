//! The mask of attention in both directions: which keys are no padding and, with a window, near enough.
//! Source: `create_bidirectional_mask` and `create_bidirectional_sliding_window_mask` of transformers' `masking_utils.py`.

use crate::runtime::{DType, Tensor};
use crate::usage::Kind;
use plimsoll_trainers::Attention;

/// x: (B, T, C), tokens: (B, T) -> booleans (B, 1, T, T), or numbers in the type of x for eager attention.
pub(super) fn of(x: &Tensor, tokens: &Tensor, windowed: bool, attention: Attention) -> Tensor {
    let (rt, batch, length) = (x.rt(), x.size(0), x.size(1));
    let counted = |count| Tensor::new(rt, &[count], DType::I64, "arange");
    let present = tokens.empty_like(DType::Bool, "_to_copy");
    let batches = counted(batch);
    let places = [(); 2].map(|()| counted(length).shift());
    let compared = |shape: [u64; 2], op| Tensor::new(rt, &[1, 1, shape[0], shape[1]], DType::Bool, op);
    let near = windowed.then(|| {
        let mut distances = Tensor::new(rt, &[1, 1, length, length], DType::I64, "sub");
        distances = distances.empty_like(DType::I64, "abs");
        let near = compared([length; 2], "le");
        drop(distances);
        near.empty_like(DType::Bool, "bitwise_and")
    });
    let mut any = compared([length, 1], "ge");
    any = match near {
        None => any.empty_like(DType::Bool, "bitwise_and"),
        Some(near) => {
            let inner = near.empty_like(DType::Bool, "bitwise_and");
            drop((near, any));
            inner.empty_like(DType::Bool, "bitwise_and")
        }
    };
    let of_tokens = present.empty_like(DType::Bool, "index");
    let seen = Tensor::new(rt, &[batch, 1, length, length], DType::Bool, "bitwise_and");
    drop((any, of_tokens));
    let mask = match attention {
        Attention::Eager => {
            drop((batches, places));
            Tensor::new(rt, &[batch, 1, length, length], x.dtype(), "where")
        }
        Attention::Sdpa | Attention::Efficient | Attention::Flash2 => seen,
    };
    mask.mark(Kind::Input);
    mask
}
