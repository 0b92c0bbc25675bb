//! Rounding of a gradient to the format in which it is kept until the update.

use super::CpuKernel;
use super::half::widen;
use super::parallel::{self, CHUNK};
use super::rounding::{Draws, round_at_random};
use super::sums::accumulate;
use crate::call::Call;
use crate::philox::{Purpose, site_counter, step_key};
use plimsoll_graph::{DType, Scalars, ops};
use rayon::iter::IndexedParallelIterator;
use rayon::slice::{ParallelSlice, ParallelSliceMut};

impl CpuKernel for ops::KeepGradient {
    fn run(&self, mut call: Call) {
        let gradient = call.f32(0);
        let Scalars { seed, step, first_sample, .. } = *call.scalars;
        let (key, rest) = (step_key(Purpose::Gradient, seed, step), site_counter(self.site, first_sample));
        let kept = call.take_byte_outputs().next().expect("the op has a result");
        let parts = kept.par_chunks_mut(2 * CHUNK).zip(gradient.par_chunks(CHUNK)).enumerate();
        parallel::for_each(2 * gradient.len(), parts, |(chunk, (kept, gradient))| {
            let first = (chunk * CHUNK / 8) as u32;
            let draws = Draws { first, rest, key };
            if !self.accumulate {
                return round_at_random(gradient, kept, &draws);
            }
            let mut sums = [0.0; CHUNK];
            let sums = &mut sums[..gradient.len()];
            widen(DType::Bf16, kept, sums);
            accumulate(sums, gradient);
            round_at_random(sums, kept, &draws);
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::call::{Input, Output};
    use ::half::bf16;
    use plimsoll_graph::ops::KeepGradient;
    use plimsoll_graph::{Io, TensorType};

    /// Each contribution is an eighth of the distance between neighbors, so that rounding to the nearest would drop it.
    #[test]
    fn small_contributions_add_up() {
        const ELEMENTS: usize = 40_000;
        let (single, half) = (TensorType::f32(&[ELEMENTS]), TensorType::f32(&[ELEMENTS]).with_dtype(DType::Bf16));
        let mut kept = vec![0; 2 * ELEMENTS];
        let mut keep = |gradient: f32, accumulate: bool, first_sample: u64| {
            let scalars = Scalars { first_sample, ..Scalars::default() };
            KeepGradient { accumulate, site: 7 }.run(Call {
                inputs: vec![Input::F32(&[gradient; ELEMENTS])],
                outputs: vec![Output::Raw(&mut kept)],
                scratch: &mut [],
                io: Io::new([&single], [&half]),
                scalars: &scalars,
                threads: 2,
            });
        };
        keep(1.0, false, 0);
        (1..=512).for_each(|sample| keep(1.0 / 1024.0, true, sample));
        let values = kept.chunks_exact(2).map(|bytes| bf16::from_le_bytes([bytes[0], bytes[1]]).to_f64());
        let mean = values.sum::<f64>() / ELEMENTS as f64;
        assert!((mean - 1.5).abs() < 2e-3, "{mean}");
    }
}
