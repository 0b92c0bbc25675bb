//! The Euclidean norm of all gradients together.
//!
//! The norm of norms equals the norm to the bit: each operand's norm is rounded to single precision before its square
//! is added. So the norm of each gradient can be computed in any memory, as soon as the gradient is complete.

use super::{Example, Home, Io, Operation, Target, expect_gradient};
use crate::{DType, DeviceKind, GraphError, TensorType};
use plimsoll_units::Bytes;
use serde::{Deserialize, Serialize};

/// Elements per partial sum of squares. The partial sums are added in a fixed order.
pub const NORM_BLOCK: usize = 1 << 14;

/// norm = √(Σ g²) over every element of every operand. Any number of operands of any shape, `F32` or `Bf16` -> norm: (1,).
/// Squares are summed in blocks of `NORM_BLOCK`, the blocks' sums in double precision; the norm of each operand is
/// rounded to single precision before its square is added to the others'.
/// Scratch: a double for each block of the largest operand, and on a card one for the total.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct GradNorm;

impl Operation for GradNorm {
    fn name(&self) -> &'static str {
        "grad_norm"
    }

    fn infer(&self, inputs: &[&TensorType]) -> Result<Vec<TensorType>, GraphError> {
        if inputs.is_empty() {
            return Err(GraphError::ShapeMismatch { op: "grad_norm", problem: "takes at least one operand".into() });
        }
        for gradient in inputs {
            expect_gradient("grad_norm", gradient)?;
        }
        Ok(vec![TensorType::f32(&[1])])
    }

    fn flops(&self, io: &Io) -> u64 {
        io.inputs.iter().map(|t| 2 * t.elements() as u64).sum()
    }

    fn scratch(&self, io: &Io, target: &Target) -> Bytes {
        let blocks = io.inputs.iter().map(|t| t.elements().div_ceil(NORM_BLOCK)).max().unwrap_or(0);
        let total = match target.kind() {
            DeviceKind::Cpu => 0,
            DeviceKind::Cuda => 1,
        };
        Bytes(8 * (blocks + total) as u64)
    }

    fn home(&self) -> Home {
        Home::EachOperand
    }

    fn examples() -> Vec<Example> {
        vec![
            Example::uniform(Self, &[&[3, 5], &[7], &[2, 2, 2]]),
            Example::uniform(Self, &[&[2 * NORM_BLOCK + 3], &[1]]),
            Example::uniform(Self, &[&[NORM_BLOCK + 1], &[7]]).of_type(0, DType::Bf16),
        ]
    }
}
