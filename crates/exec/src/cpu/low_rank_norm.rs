//! Norms of the rows of a matrix to which a low-rank product is added.

use super::CpuKernel;
use super::half::Float;
use super::parallel;
use super::tiles::operand;
use crate::call::Call;
use ::half::{bf16, f16};
use plimsoll_graph::{DType, ops};
use rayon::iter::IndexedParallelIterator;
use rayon::slice::ParallelSliceMut;

/// Norms computed at a time, and terms of their sums.
const NORMS: usize = 64;
const TERMS: usize = 16;

impl CpuKernel for ops::LowRankNorm {
    fn run(&self, call: Call) {
        match call.io.inputs[2].dtype {
            DType::F16 => run::<f16>(self, call),
            DType::Bf16 => run::<bf16>(self, call),
            _ => run::<f32>(self, call),
        }
    }
}

fn run<E: Float>(op: &ops::LowRankNorm, mut call: Call) {
    let (norms, sums, up) = (call.f32(0), operand::<E>(&call, 1), operand::<E>(&call, 2));
    let [y] = call.take_outputs();
    let rank = up.len() / norms.len();
    parallel::for_each(2 * up.len(), y.par_chunks_mut(NORMS).enumerate(), |(part, y)| {
        let first = part * NORMS;
        let mut products = [0.0_f32; NORMS];
        for start in (0..rank).step_by(TERMS) {
            let count = TERMS.min(rank - start);
            let mut rows = [[0.0_f32; TERMS]; NORMS];
            for (row, o) in rows.iter_mut().zip(first..first + y.len()) {
                E::widen(&up[o * rank + start..][..count], &mut row[..count]);
            }
            for k in 0..count {
                let mut column = [0.0_f32; NORMS];
                E::widen(&sums[(start + k) * norms.len() + first..][..y.len()], &mut column[..y.len()]);
                for ((product, row), column) in products.iter_mut().zip(&rows).zip(&column) {
                    *product += row[k] * column;
                }
            }
        }
        for ((y, norm), product) in y.iter_mut().zip(&norms[first..]).zip(products) {
            *y = (norm * norm + 2.0 * op.scale * product).max(0.0).sqrt();
        }
    });
}
