//! The held-out samples that an evaluation uses, in batches, for all kinds of samples.

use crate::DataError;
use crate::micro_batch::Batch;
use std::ops::Range;

/// The held-out samples of an evaluation: all of them, or a subset that is spread evenly and always the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct HeldOutSubset {
    held_out: u64,
    len: u64,
}

impl HeldOutSubset {
    /// At most `max` of the samples.
    pub(crate) fn new(held_out: u64, max: u64) -> Self {
        Self { held_out, len: held_out.min(max) }
    }

    /// Number of samples.
    pub(crate) fn len(self) -> u64 {
        self.len
    }

    /// The held-out sample that is the `index`-th of the subset.
    pub(crate) fn sample(self, index: u64) -> u64 {
        assert!(index < self.len, "sample {index} of {}", self.len);
        (u128::from(index) * u128::from(self.held_out) / u128::from(self.len)) as u64
    }

    /// Its batches of `rows` rows. `fill` fills one with these samples of the subset, by their index; the rows after them are
    /// padding.
    pub(crate) fn batches<'a>(
        self,
        rows: usize,
        fill: impl Fn(Range<u64>, &mut Batch) -> Result<(), DataError> + 'a,
    ) -> impl Iterator<Item = Result<Batch, DataError>> + 'a {
        (0..self.len).step_by(rows).map(move |first| {
            let mut batch = Batch::default();
            fill(first..self.len.min(first + rows as u64), &mut batch)?;
            Ok(batch)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limited_evaluation_is_spread_evenly() {
        let samples = |held_out, max| {
            let subset = HeldOutSubset::new(held_out, max);
            (0..subset.len()).map(|index| subset.sample(index)).collect::<Vec<_>>()
        };
        assert_eq!(samples(15, 4), [0, 3, 7, 11]);
        assert_eq!(samples(3, u64::MAX), [0, 1, 2]);
        assert!(samples(15, 0).is_empty() && samples(0, 9).is_empty());
    }

    #[test]
    fn the_last_batch_has_the_samples_that_are_left() {
        let fill = |samples: Range<u64>, batch: &mut Batch| {
            batch.rows = (samples.end - samples.start) as usize;
            Ok(())
        };
        let rows = HeldOutSubset::new(9, 7).batches(3, fill).map(|batch| batch.map(|batch| batch.rows));
        assert_eq!(rows.collect::<Result<Vec<_>, _>>().expect("nothing fails"), [3, 3, 1]);
    }
}
