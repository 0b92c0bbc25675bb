//! Uniform noise, drawn wherever it is needed.

use super::CpuKernel;
use super::dropout::Draws;
use super::half::Float;
use super::parallel;
use super::tiles::{in_precision, in_stack_tiles, operand_unless_in_output, results};
use super::vectorize::vectorized;
use crate::call::Call;
use plimsoll_graph::ops;
use rayon::iter::IntoParallelIterator;

impl CpuKernel for ops::UniformNoise {
    fn run(&self, call: Call) {
        in_precision!(call, run(self, call));
    }
}

fn run<E: Float>(op: &ops::UniformNoise, mut call: Call) {
    let x = operand_unless_in_output::<E>(&call, 0);
    let ty = call.io.outputs[0];
    let (sample_size, factor) = (ty.elements() / ty.shape[0], op.amplitude / 2f32.powi(31));
    let draws = Draws::new(op.site, call.scalars);
    let [y] = results(&mut call);
    let elements = y.len();
    let chunks = parallel::chunks_of_samples(y, sample_size);
    parallel::for_each(8 * elements, chunks.into_par_iter(), |(sample, mut first, y)| {
        let x = x.map(|x| &x[sample * sample_size + first..][..y.len()]);
        in_stack_tiles([y], [x], |[y], [x]| {
            add_noise(y, x, &draws, factor, sample, first);
            first += y.len();
        });
    });
}

vectorized! {
    fn add_noise<S: Simd>(
        simd: S, y: &mut [f32], x: Option<&[f32]>, draws: &Draws, factor: f32, sample: usize, first: usize,
    ) {
        draws.apply(y, x, sample, first, |value, word| value + factor * word.cast_signed() as f32);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_graph::Scalars;

    #[test]
    fn noise_is_uniform_within_its_amplitude() {
        let amplitude = 0.25_f32;
        let draws = Draws::new(3, &Scalars { seed: 7, step: 2, ..Scalars::default() });
        let mut noise = vec![0.0; 90_000];
        add_noise(&mut noise, None, &draws, amplitude / 2f32.powi(31), 0, 0);
        let (mut sum, mut squares, mut largest) = (0.0, 0.0, 0.0_f64);
        for part in noise.iter().map(|noise| f64::from(noise / amplitude)) {
            (sum, squares, largest) = (sum + part, squares + part * part, largest.max(part.abs()));
        }
        let count = noise.len() as f64;
        // The deviations of the mean and of the mean square, 1/√3 and √(4/45) over 300, a few times.
        assert!((sum / count).abs() < 0.01 && (squares / count - 1.0 / 3.0).abs() < 0.005, "{sum} {squares}");
        assert!((0.999..=1.0).contains(&largest), "{largest}");
    }
}
