//! The norm of all gradients: sums of squares by block, then added in order, operand by operand.

use super::CpuKernel;
use super::parallel;
use super::vectorize::vectorized;
use crate::call::Call;
use plimsoll_graph::ops::{self, NORM_BLOCK};
use rayon::iter::IndexedParallelIterator;
use rayon::slice::{ParallelSlice, ParallelSliceMut};

impl CpuKernel for ops::GradNorm {
    fn run(&self, mut call: Call) {
        let [norm] = call.take_outputs();
        let sums = bytemuck::cast_slice_mut::<f32, f64>(call.take_scratch());
        let mut total = 0.0;
        for index in 0..call.inputs.len() {
            let gradient = call.f32(index);
            let blocks = gradient.len().div_ceil(NORM_BLOCK);
            let sums = &mut sums[..blocks];
            let parts = sums.par_chunks_mut(1).zip(gradient.par_chunks(NORM_BLOCK));
            parallel::for_each(gradient.len(), parts, |(sum, block)| sum[0] = sum_of_squares(block));
            // Rounded, so that a norm computed elsewhere gives the same result.
            let norm = sums.iter().sum::<f64>().sqrt() as f32;
            total += f64::from(norm) * f64::from(norm);
        }
        norm[0] = total.sqrt() as f32;
    }
}

vectorized! {
    /// In double precision, which costs nothing here: the loop waits for memory.
    fn sum_of_squares<S: Simd>(simd: S, block: &[f32]) -> f64 {
        const LANES: usize = 32;
        let (chunks, rest) = block.as_chunks::<LANES>();
        let mut sums = [0.0; LANES];
        for chunk in chunks {
            for lane in 0..LANES {
                let x = f64::from(chunk[lane]);
                // The square of a float is exact in double precision, so a fused operation would give the same result.
                sums[lane] += x * x;
            }
        }
        sums.iter().sum::<f64>() + rest.iter().map(|&x| f64::from(x) * f64::from(x)).sum::<f64>()
    }
}
