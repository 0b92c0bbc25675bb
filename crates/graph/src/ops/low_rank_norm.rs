//! Norms of the rows of a matrix to which a low-rank product is added, without the sum: for adapters that learn magnitude
//! and direction of a weight separately (DoRA).
//!
//! The square of the norm of row o of W + s·B·A is ‖W‖² + 2s·⟨W Aᵀ, B⟩ + s²·⟨B A Aᵀ, B⟩, where ⟨ , ⟩ is the product of rows o. The
//! op takes the matrix S = A Wᵀ + (s/2)·(A Aᵀ) Bᵀ, which other ops compute.

use super::{Example, Fill, Io, Operation, expect_rank, expect_type, operands};
use crate::{GraphError, TensorType};
use serde::{Deserialize, Serialize};

/// y = √(norms² + 2·scale·Σₖ S[k]·B[.., k]), and zero if rounding makes the square negative.
/// norms: (O,) in `F32`, S: (r, O), B: (O, r) -> y: (O,) in `F32`. No gradient: DoRA takes the norm as a constant.
/// Scratch: none.
/// Source: Liu et al. 2024, "DoRA", section 4.3.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct LowRankNorm {
    /// The factor s of the product that is added.
    pub scale: f32,
}

impl Operation for LowRankNorm {
    fn name(&self) -> &'static str {
        "low_rank_norm"
    }

    fn infer(&self, inputs: &[&TensorType]) -> Result<Vec<TensorType>, GraphError> {
        let [norms, sums, up] = operands("low_rank_norm", inputs)?;
        expect_rank("low_rank_norm", "B", up, 2)?;
        let (outputs, rank) = (up.shape[0], up.shape[1]);
        expect_type("low_rank_norm", "S", sums, &up.with_shape(&[rank, outputs]))?;
        expect_type("low_rank_norm", "norms", norms, &TensorType::f32(&[outputs]))?;
        Ok(vec![norms.clone()])
    }

    fn flops(&self, io: &Io) -> u64 {
        2 * io.inputs[2].elements() as u64
    }

    fn examples() -> Vec<Example> {
        let case = |scale, outputs: usize, rank: usize| {
            let example = Example::uniform(Self { scale }, &[&[outputs], &[rank, outputs], &[outputs, rank]]);
            example.fill(0, Fill::Positive)
        };
        vec![case(0.1, 5, 1), case(-0.02, 33, 3), case(0.01, 129, 40), case(0.5, 1, 70)]
    }
}
