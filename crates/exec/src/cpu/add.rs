//! The sum of two tensors.

use super::CpuKernel;
use super::half::Float;
use super::sums::accumulate;
use super::tiles::{for_each_chunk, in_precision, operand_unless_in_output, results};
use super::vectorize::vectorized;
use crate::call::Call;
use plimsoll_graph::ops;

impl CpuKernel for ops::Add {
    fn run(&self, call: Call) {
        in_precision!(call, run(call));
    }
}

fn run<E: Float>(mut call: Call) {
    let operands = [0, 1].map(|index| operand_unless_in_output::<E>(&call, index));
    let [y] = results(&mut call);
    for_each_chunk(3 * y.len(), y, operands, sum_of);
}

/// y = a + b; y contains the operand that is `None`.
pub(super) fn sum_of(y: &mut [f32], operands: [Option<&[f32]>; 2]) {
    match operands {
        [Some(a), Some(b)] => sum(y, a, b),
        [Some(other), None] | [None, Some(other)] => accumulate(y, other),
        [None, None] => panic!("only one operand of a sum can share the memory of its output"),
    }
}

vectorized! {
    /// y = a + b.
    fn sum<S: Simd>(simd: S, y: &mut [f32], a: &[f32], b: &[f32]) {
        for ((y, &a), &b) in y.iter_mut().zip(a).zip(b) {
            *y = a + b;
        }
    }
}
