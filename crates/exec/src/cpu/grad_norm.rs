//! The norm of all gradients: sums of squares by block, then added in order, operand by operand.

use super::CpuKernel;
use super::half::widen;
use super::parallel;
use super::vectorize::vectorized;
use crate::call::{Call, Input};
use plimsoll_graph::DType;
use plimsoll_graph::ops::{self, NORM_BLOCK};
use rayon::iter::IndexedParallelIterator;
use rayon::slice::{ParallelSlice, ParallelSliceMut};

impl CpuKernel for ops::GradNorm {
    fn run(&self, mut call: Call) {
        let [norm] = call.take_outputs();
        let sums = bytemuck::cast_slice_mut::<f32, f64>(call.take_scratch());
        let mut total = 0.0;
        for index in 0..call.inputs.len() {
            let elements = call.io.inputs[index].elements();
            let sums = &mut sums[..elements.div_ceil(NORM_BLOCK)];
            let each = sums.par_chunks_mut(1);
            match call.inputs[index] {
                Input::Raw(bytes) => {
                    let parts = each.zip(bytes.par_chunks(2 * NORM_BLOCK));
                    parallel::for_each(elements, parts, |(sum, block)| sum[0] = squares_of_rounded(block));
                }
                _ => {
                    let parts = each.zip(call.f32(index).par_chunks(NORM_BLOCK));
                    parallel::for_each(elements, parts, |(sum, block)| sum[0] = Squares::default().with(block).sum());
                }
            }
            // Rounded, so that a norm computed elsewhere gives the same result.
            let norm = sums.iter().sum::<f64>().sqrt() as f32;
            total += f64::from(norm) * f64::from(norm);
        }
        norm[0] = total.sqrt() as f32;
    }
}

/// Elements that are added at a time, each to a sum of its own.
const LANES: usize = 32;

/// Squares in double precision, which costs nothing here: the loop waits for memory.
#[derive(Default)]
struct Squares {
    lanes: [f64; LANES],
    /// Of the last elements, fewer than there are lanes.
    rest: f64,
}

impl Squares {
    fn with(mut self, values: &[f32]) -> Self {
        self.rest += add_squares(values, &mut self.lanes);
        self
    }

    fn sum(&self) -> f64 {
        self.lanes.iter().sum::<f64>() + self.rest
    }
}

/// The sum over a block in `Bf16`, in the same order.
fn squares_of_rounded(block: &[u8]) -> f64 {
    /// A multiple of `LANES`, so that only the last part of a block has a rest.
    const PART: usize = 512;
    let squares = block.chunks(2 * PART).fold(Squares::default(), |squares, bytes| {
        let mut values = [0.0; PART];
        let values = &mut values[..bytes.len() / 2];
        widen(DType::Bf16, bytes, values);
        squares.with(values)
    });
    squares.sum()
}

vectorized! {
    /// Adds squares to the sum of each lane and returns the sum of those that are left.
    fn add_squares<S: Simd>(simd: S, values: &[f32], sums: &mut [f64; LANES]) -> f64 {
        let (chunks, rest) = values.as_chunks::<LANES>();
        for chunk in chunks {
            for lane in 0..LANES {
                let x = f64::from(chunk[lane]);
                // The square of a float is exact in double precision, so a fused operation would give the same result.
                sums[lane] += x * x;
            }
        }
        rest.iter().map(|&x| f64::from(x) * f64::from(x)).sum::<f64>()
    }
}
