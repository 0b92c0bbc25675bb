//! Dropout: elements zeroed by a mask that is drawn anew wherever it is needed, here and in attention.

use super::parallel::{self, CHUNK};
use super::vectorize::vectorized;
use crate::call::Call;
use crate::philox::{dropout_bits, dropout_threshold};
use graph::Scalars;
use graph::ops::{self, DropoutKey};
use rayon::iter::IntoParallelIterator;

pub(super) fn run(op: &ops::Dropout, mut call: Call) {
    let x = call.f32_unless_in_output(0);
    let shape = &call.io.outputs[0].shape;
    let sample_size = shape[1] * shape[2];
    let mask = Mask::new(op.key, call.scalars);
    let [y] = call.take_outputs();
    let elements = y.len();
    let chunks_of_sample =
        |(sample, y)| <[f32]>::chunks_mut(y, CHUNK).enumerate().map(move |(n, y)| (sample, n * CHUNK, y));
    let chunks = y.chunks_exact_mut(sample_size).enumerate().flat_map(chunks_of_sample).collect::<Vec<_>>();
    parallel::for_each(8 * elements, chunks.into_par_iter(), |(sample, first, y)| {
        let x = x.map(|x| &x[sample * sample_size + first..][..y.len()]);
        drop_out(y, x, &mask, sample, first as u64);
    });
}

/// The masks of one dropout in one execution.
pub(super) struct Mask {
    seed: u64,
    step: u64,
    first_sample: u64,
    site: u32,
    /// Elements are kept whose random word is at least this.
    threshold: u32,
    /// What kept elements are multiplied by.
    pub(super) scale: f32,
}

impl Mask {
    pub(super) fn new(key: DropoutKey, scalars: &Scalars) -> Self {
        let Scalars { seed, step, first_sample, .. } = *scalars;
        let (threshold, scale) = (dropout_threshold(key.rate), 1.0 / (1.0 - key.rate));
        Self { seed, step, first_sample, site: key.site, threshold, scale }
    }

    /// y = x with what is dropped zeroed and the rest scaled; y holds x if that is not given. Both begin at element
    /// `first` of the micro-batch's sample `sample`.
    #[inline(always)]
    fn apply(&self, y: &mut [f32], x: Option<&[f32]>, sample: usize, first: u64) {
        /// Quads of words drawn at a time, so that the generator's rounds run on whole vectors.
        const QUADS: usize = 32;
        #[repr(align(64))]
        struct Words([[u32; 4]; QUADS]);
        let mut words = Words([[0; 4]; QUADS]);
        let (mut done, mut quad, mut skipped) = (0, (first / 4) as u32, (first % 4) as usize);
        while done < y.len() {
            for (offset, words) in words.0.iter_mut().enumerate() {
                *words = self.draw(sample, quad.wrapping_add(offset as u32));
            }
            let words = &words.0.as_flattened()[skipped..];
            let now = done..y.len().min(done + words.len());
            match x {
                Some(x) => {
                    for ((y, &x), &word) in y[now.clone()].iter_mut().zip(&x[now.clone()]).zip(words) {
                        *y = self.keep(x, word);
                    }
                }
                None => {
                    for (y, &word) in y[now.clone()].iter_mut().zip(words) {
                        *y = self.keep(*y, word);
                    }
                }
            }
            (done, quad, skipped) = (now.end, quad.wrapping_add(QUADS as u32), 0);
        }
    }

    #[inline(always)]
    fn keep(&self, value: f32, word: u32) -> f32 {
        if word >= self.threshold { value * self.scale } else { 0.0 }
    }

    /// For a matrix that lies across the elements, so that row r of column c is element `first + c * step + r`: replaces
    /// each value by what `rule` makes of it and of its random word. Panics if there are more than `COLUMNS` columns.
    #[inline(always)]
    fn apply_to_columns(
        &self,
        values: &mut [f32],
        columns: usize,
        sample: usize,
        [first, step]: [u64; 2],
        rule: impl Fn(f32, u32) -> f32,
    ) {
        const COLUMNS: usize = 64;
        let mut words = [[0; COLUMNS]; 4];
        assert!(columns <= COLUMNS, "{columns} columns");
        let aligned = first % 4 == 0 && step % 4 == 0;
        for (row, values) in values.chunks_exact_mut(columns).enumerate() {
            if aligned && row % 4 == 0 {
                // One draw serves four rows of a column.
                for column in 0..columns {
                    let quad = (first + column as u64 * step + row as u64) / 4;
                    let drawn = self.draw(sample, quad as u32);
                    for (words, drawn) in words.iter_mut().zip(drawn) {
                        words[column] = drawn;
                    }
                }
            } else if !aligned {
                for column in 0..columns {
                    let element = first + column as u64 * step + row as u64;
                    words[row % 4][column] = self.draw(sample, (element / 4) as u32)[(element % 4) as usize];
                }
            }
            for (value, &word) in values.iter_mut().zip(&words[row % 4]) {
                *value = rule(*value, word);
            }
        }
    }

    /// The random words of the four elements of a sample from `4 * quad` on.
    #[inline(always)]
    fn draw(&self, sample: usize, quad: u32) -> [u32; 4] {
        dropout_bits(self.seed, self.step, self.first_sample + sample as u64, self.site, quad)
    }
}

vectorized! {
    fn drop_out<S: Simd>(simd: S, y: &mut [f32], x: Option<&[f32]>, mask: &Mask, sample: usize, first: u64) {
        mask.apply(y, x, sample, first);
    }

    /// Zeroes what the mask drops of probabilities (keys, queries), and scales the rest. The first is element `first`
    /// of its sample, and those of a query are `time` after those of the one before.
    pub(super) fn drop_columns<S: Simd>(
        simd: S,
        values: &mut [f32],
        queries: usize,
        mask: &Mask,
        sample: usize,
        first: u64,
        time: usize,
    ) {
        let rule = |value, word| mask.keep(value, word);
        mask.apply_to_columns(values, queries, sample, [first, time as u64], rule);
    }

    /// As [`drop_columns`], but turns the sign of what is dropped, and leaves the rest as it is.
    pub(super) fn mark_columns<S: Simd>(
        simd: S,
        values: &mut [f32],
        queries: usize,
        mask: &Mask,
        sample: usize,
        first: u64,
        time: usize,
    ) {
        let rule = |value: f32, word| if word >= mask.threshold { value } else { -value };
        mask.apply_to_columns(values, queries, sample, [first, time as u64], rule);
    }
}
