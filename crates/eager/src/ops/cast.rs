//! Casts that the tape does not record, and autocast's casts.

use crate::runtime::{DType, Tensor};
use crate::usage::Kind;

/// Copies a tensor to another type.
pub(crate) fn cast_values(tensor: &Tensor, dtype: DType) -> Tensor {
    if tensor.dtype() == dtype {
        return tensor.clone();
    }
    let cast = tensor.empty_like(dtype, "_to_copy");
    cast.mark_if_logits(tensor);
    cast
}

/// An operand of a product in autocast's type. Casts of weights are cached until autocast ends.
pub(crate) fn autocast_to(tensor: &Tensor) -> Tensor {
    let rt = tensor.rt().clone();
    let Some(dtype) = rt.autocast().dtype().filter(|dtype| tensor.dtype().is_float() && tensor.dtype() != *dtype)
    else {
        return tensor.clone();
    };
    let Some(leaf) = tensor.leaf().filter(|_| tensor.dtype() == DType::F32) else {
        // A cast of a frozen weight is not cached; each node that needs it has its own.
        let cast = tensor.to(dtype);
        if tensor.kind() == Kind::Weight {
            cast.mark(Kind::Cast);
        }
        return cast;
    };
    if let Some(cast) = rt.autocast().cast_of(leaf) {
        return cast;
    }
    let cast = tensor.to(dtype);
    cast.mark(Kind::Cast);
    rt.autocast().keep_cast(leaf, &cast);
    cast
}
