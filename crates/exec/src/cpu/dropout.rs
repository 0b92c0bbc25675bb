//! Dropout: zeroes elements by a mask that is recomputed wherever it is needed, here and in attention.

use super::CpuKernel;
use super::half::Float;
use super::parallel;
use super::tiles::{in_precision, in_stack_tiles, operand_unless_in_output, results};
use super::vectorize::vectorized;
use crate::call::Call;
use crate::philox::{dropout_bits, dropout_threshold};
use plimsoll_graph::Scalars;
use plimsoll_graph::ops::{self, DropoutKey, dropout_site_of_head};
use rayon::iter::IntoParallelIterator;

/// Most columns of a matrix per call.
pub(super) const MOST_COLUMNS: usize = 64;

impl CpuKernel for ops::Dropout {
    fn run(&self, call: Call) {
        in_precision!(call, run(self, call));
    }
}

fn run<E: Float>(op: &ops::Dropout, mut call: Call) {
    let x = operand_unless_in_output::<E>(&call, 0);
    let sample_size = call.io.outputs[0].elements() / call.io.outputs[0].shape[0];
    let mask = Mask::new(op.key, call.scalars);
    let [y] = results(&mut call);
    let elements = y.len();
    let chunks = parallel::chunks_of_samples(y, sample_size);
    parallel::for_each(8 * elements, chunks.into_par_iter(), |(sample, mut first, y)| {
        let x = x.map(|x| &x[sample * sample_size + first..][..y.len()]);
        in_stack_tiles([y], [x], |[y], [x]| {
            drop_out(y, x, &mask, sample, first);
            first += y.len();
        });
    });
}

/// The random words of one site in one execution.
pub(super) struct Draws {
    seed: u64,
    step: u64,
    first_sample: u64,
    site: u32,
}

impl Draws {
    pub(super) fn new(site: u32, scalars: &Scalars) -> Self {
        let Scalars { seed, step, first_sample, .. } = *scalars;
        Self { seed, step, first_sample, site }
    }

    /// Sets y to `rule` of the elements of x and of their random words; if x is `None`, y contains it. Both begin at element
    /// `first` of the micro-batch's sample `sample`. Panics if `first` is not a multiple of four.
    #[inline(always)]
    pub(super) fn apply(
        &self,
        y: &mut [f32],
        x: Option<&[f32]>,
        sample: usize,
        first: usize,
        rule: impl Fn(f32, u32) -> f32,
    ) {
        /// Quads of words drawn at a time, so that the generator's rounds run on whole vectors.
        const QUADS: usize = 32;
        /// Aligned to cache lines, so that reads of vectors match the writes.
        #[repr(align(64))]
        struct Words([[u32; 4]; QUADS]);
        let mut words = Words([[0; 4]; QUADS]);
        assert!(first.is_multiple_of(4), "element {first} is not a multiple of four");
        for (part, y) in y.chunks_mut(4 * QUADS).enumerate() {
            let start = part * 4 * QUADS;
            for (quad, words) in words.0.iter_mut().enumerate() {
                *words = self.draw(self.site, sample, ((first + start) / 4 + quad) as u32);
            }
            let words = words.0.as_flattened();
            match x {
                Some(x) => {
                    for ((y, &x), &word) in y.iter_mut().zip(&x[start..]).zip(words) {
                        *y = rule(x, word);
                    }
                }
                None => {
                    for (y, &word) in y.iter_mut().zip(words) {
                        *y = rule(*y, word);
                    }
                }
            }
        }
    }

    /// The random words of the four elements of a sample from `4 * quad` on.
    #[inline(always)]
    fn draw(&self, site: u32, sample: usize, quad: u32) -> [u32; 4] {
        dropout_bits(self.seed, self.step, self.first_sample + sample as u64, site, quad)
    }
}

/// The masks of one dropout in one execution.
pub(super) struct Mask {
    draws: Draws,
    /// Elements are kept if their random word is at least this.
    threshold: u32,
    /// The factor of kept elements.
    pub(super) scale: f32,
}

impl Mask {
    pub(super) fn new(key: DropoutKey, scalars: &Scalars) -> Self {
        let (threshold, scale) = (dropout_threshold(key.rate), 1.0 / (1.0 - key.rate));
        Self { draws: Draws::new(key.site, scalars), threshold, scale }
    }

    /// The factor of an element with this random word. A choice between the product and zero would compile to a load
    /// that waits for the random word, and could not run ahead of the generator.
    #[inline(always)]
    fn factor(&self, word: u32) -> f32 {
        if word >= self.threshold { self.scale } else { 0.0 }
    }

    /// Replaces each of the values (rows, columns) by `rule` of it and of its random word.
    #[inline(always)]
    fn apply_to_columns(&self, values: &mut [f32], columns: &Columns, rule: impl Fn(f32, u32) -> f32) {
        let Columns { sample, head, count, first, step } = *columns;
        assert!(
            first.is_multiple_of(4) && step.is_multiple_of(4),
            "columns do not begin at multiples of four: {first}, {step}"
        );
        let site = dropout_site_of_head(self.draws.site, head);
        let mut words = [[0; MOST_COLUMNS]; 4];
        for (row, values) in values.chunks_exact_mut(count).enumerate() {
            // One draw serves four rows of a column.
            if row % 4 == 0 {
                let [a, b, c, d] = words.each_mut().map(|words| &mut words[..count]);
                for (column, (((a, b), c), d)) in a.iter_mut().zip(b).zip(c).zip(d).enumerate() {
                    [*a, *b, *c, *d] = self.draws.draw(site, sample, ((first + column * step + row) / 4) as u32);
                }
            }
            for (value, &word) in values.iter_mut().zip(&words[row % 4]) {
                *value = rule(*value, word);
            }
        }
    }
}

/// The elements of a sample in a transposed matrix: row r of column c is element `first + c * step + r`. All columns
/// begin at a multiple of four.
pub(super) struct Columns {
    /// Number of the sample in the micro-batch.
    pub(super) sample: usize,
    /// The head whose site is used.
    pub(super) head: usize,
    /// Number of columns, at most [`MOST_COLUMNS`].
    pub(super) count: usize,
    pub(super) first: usize,
    pub(super) step: usize,
}

vectorized! {
    fn drop_out<S: Simd>(simd: S, y: &mut [f32], x: Option<&[f32]>, mask: &Mask, sample: usize, first: usize) {
        mask.draws.apply(y, x, sample, first, |value, word| value * mask.factor(word));
    }

    /// Zeroes the dropped probabilities of a block, and scales the rest.
    pub(super) fn drop_columns<S: Simd>(simd: S, values: &mut [f32], columns: &Columns, mask: &Mask) {
        mask.apply_to_columns(values, columns, |value, word| value * mask.factor(word));
    }

    /// Negates the dropped probabilities of a block.
    pub(super) fn mark_columns<S: Simd>(simd: S, values: &mut [f32], columns: &Columns, mask: &Mask) {
        mask.apply_to_columns(values, columns, |value, word| if word >= mask.threshold { value } else { -value });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAMPLE: usize = 3;

    fn mask() -> Mask {
        let scalars = Scalars { seed: 5, step: 2, first_sample: 10, ..Scalars::default() };
        Mask::new(DropoutKey { rate: 0.3, site: 7 }, &scalars)
    }

    /// The definition's result for an element that is one.
    fn expected(element: usize) -> f32 {
        let word = dropout_bits(5, 2, 10 + SAMPLE as u64, 7, (element / 4) as u32)[element % 4];
        if word >= dropout_threshold(0.3) { 1.0 / 0.7 } else { 0.0 }
    }

    #[test]
    fn rows_are_masked_by_definition_in_place_and_not() {
        for (first, length) in [(0, 1), (8, 127), (4, 128), (400, 1001)] {
            let wanted = (first..first + length).map(expected).collect::<Vec<_>>();
            let (mut apart, mut in_place) = (vec![f32::NAN; length], vec![1.0; length]);
            drop_out(&mut apart, Some(&vec![1.0; length]), &mask(), SAMPLE, first);
            drop_out(&mut in_place, None, &mask(), SAMPLE, first);
            assert_eq!((&apart, &in_place), (&wanted, &wanted), "{length} elements from {first} on");
        }
    }

    #[test]
    fn columns_are_masked_by_definition_wherever_they_begin() {
        for (count, rows, first, step) in
            [(1, 1, 0, 4), (64, 10, 8, 64), (5, 7, 32, 12), (20, 9, 4, 8), (3, 50, 40, 1 << 17)]
        {
            let columns = Columns { sample: SAMPLE, head: 0, count, first, step };
            let (mut dropped, mut marked) = (vec![1.0; count * rows], vec![1.0; count * rows]);
            drop_columns(&mut dropped, &columns, &mask());
            mark_columns(&mut marked, &columns, &mask());
            for index in 0..count * rows {
                let wanted = expected(first + index % count * step + index / count);
                assert_eq!(dropped[index], wanted, "element {index} of {count} columns from {first}, {step} apart");
                assert_eq!(marked[index] > 0.0, wanted > 0.0);
            }
        }
    }
}
