//! The strides of new tensors.

/// The strides of a contiguous tensor.
pub(super) fn contiguous(shape: &[u64]) -> Vec<u64> {
    let mut strides = vec![1; shape.len()];
    for i in (0..shape.len().saturating_sub(1)).rev() {
        strides[i] = strides[i + 1] * shape[i + 1].max(1);
    }
    strides
}

/// The strides of a dense tensor whose dimensions have the order of these strides in memory. Repeated dimensions keep
/// their place. Source: `infer_dense_strides` of PyTorch's `ExpandUtils.cpp`.
pub(super) fn dense(shape: &[u64], strides: &[u64]) -> Vec<u64> {
    let mut inner_first = (0..shape.len()).rev().collect::<Vec<_>>();
    for start in 1..inner_first.len() {
        let mut place = start;
        for other in (0..start).rev() {
            let [inner, outer] = [inner_first[other], inner_first[place]].map(|dim| (strides[dim], shape[dim]));
            if inner.0 == 0 || outer.0 == 0 {
                continue;
            }
            if inner > outer {
                inner_first.swap(other, place);
                place = other;
            } else if inner.0 < outer.0 {
                break;
            }
        }
    }
    let mut result = vec![1; shape.len()];
    let mut next = 1;
    for dim in inner_first {
        result[dim] = next;
        next *= shape[dim].max(1);
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dense_strides_keep_the_order_of_a_slice() {
        // (B, T, 3·H·D) viewed as (B, T, H, D) and transposed: heads are inside of tokens.
        assert_eq!(dense(&[2, 4, 5, 6], &[5 * 72, 6, 72, 1]), [120, 6, 24, 1]);
        assert_eq!(dense(&[2, 5, 6], &[5 * 72, 72, 1]), contiguous(&[2, 5, 6]));
        // A repeated dimension keeps its place.
        assert_eq!(dense(&[2, 4, 5], &[20, 0, 1]), contiguous(&[2, 4, 5]));
    }
}
