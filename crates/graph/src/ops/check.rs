//! Checks of ops' operands.

use super::Access;
use crate::{DType, GraphError, TensorType};

/// The operands as an array, or `ShapeMismatch` if their number is wrong.
pub(super) fn operands<'a, const N: usize>(
    op: &'static str,
    inputs: &[&'a TensorType],
) -> Result<[&'a TensorType; N], GraphError> {
    <[&TensorType; N]>::try_from(inputs)
        .map_err(|_| GraphError::ShapeMismatch { op, problem: format!("takes {N} operands, found {}", inputs.len()) })
}

/// `ShapeMismatch` unless `found` is exactly `expected`.
pub(super) fn expect_type(
    op: &'static str,
    what: &str,
    found: &TensorType,
    expected: &TensorType,
) -> Result<(), GraphError> {
    if found == expected {
        return Ok(());
    }
    let problem =
        format!("{what} must be {:?} {:?}, found {:?} {:?}", expected.dtype, expected.shape, found.dtype, found.shape);
    Err(GraphError::ShapeMismatch { op, problem })
}

/// `ShapeMismatch` unless `found` is the type of a gradient that is kept until the update.
pub(super) fn expect_gradient(op: &'static str, found: &TensorType) -> Result<(), GraphError> {
    match found.dtype {
        DType::Bf16 => Ok(()),
        _ => expect_type(op, "gradient", found, &found.with_dtype(DType::F32)),
    }
}

/// `ShapeMismatch` unless `found` has `rank` extents, none of them zero.
pub(super) fn expect_rank(op: &'static str, what: &str, found: &TensorType, rank: usize) -> Result<(), GraphError> {
    if found.shape.len() == rank && !found.shape.contains(&0) {
        return Ok(());
    }
    let problem = format!("{what} must have {rank} extents above zero, found {:?}", found.shape);
    Err(GraphError::ShapeMismatch { op, problem })
}

/// The access of an output that is added to or overwritten.
pub(super) const fn accumulating(accumulate: bool) -> Access {
    if accumulate { Access::ReadWrite } else { Access::Write }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_ranks_and_empty_extents_are_rejected() {
        let checked = |shape: &[usize]| expect_rank("op", "x", &TensorType::f32(shape), 2).is_ok();
        assert!(checked(&[3, 4]));
        assert!([&[3, 4, 5][..], &[3], &[3, 0], &[0, 0, 0], &[]].iter().all(|shape| !checked(shape)));
    }
}
