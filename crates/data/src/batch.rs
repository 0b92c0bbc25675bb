//! Fills batches of token ids: rows in training order, or held-out rows in stream order.
//! Not here: which windows exist (`split.rs`) and their order (`order.rs`).

use crate::held_out::HeldOutSubset;
use crate::micro_batch::{Batch, Shape, StepBatches};
use crate::{DataError, Order, Split, TokenStore, Windows};

/// Batches of a token store: rows of consecutive tokens, whose targets are one token later.
#[derive(Debug)]
pub struct Batches {
    /// The tokens.
    pub store: TokenStore,
    /// The samples.
    pub windows: Windows,
    /// Their order in training.
    pub order: Order,
}

impl Batches {
    /// Splits a store into samples of `seq_len` tokens and orders them. A seed alone holds out the default share.
    /// Errors: `TooShort` if not even one sample fits.
    pub fn new(store: TokenStore, seq_len: usize, split: impl Into<Split>) -> Result<Self, DataError> {
        let split = split.into();
        let windows = Windows::new(store.len(), seq_len, split.held_out)?;
        let order = Order::new(split.seed, windows.training());
        Ok(Self { store, windows, order })
    }

    pub(crate) fn fill_step(
        &self,
        step: u64,
        global_batch: usize,
        micro_batch: usize,
        out: &mut StepBatches,
    ) -> Result<(), DataError> {
        for (first_sample, batch) in out.numbered(step, global_batch, micro_batch) {
            let positions = first_sample..first_sample + micro_batch as u64;
            let starts = positions.map(|position| self.windows.training_start(self.order.at(position)));
            self.fill(starts, micro_batch, first_sample, batch)?;
        }
        Ok(())
    }

    /// Held-out batches of `rows` rows; rows past the end are padding.
    pub(crate) fn held_out_batches(
        &self,
        samples_max: u64,
        rows: usize,
    ) -> impl Iterator<Item = Result<Batch, DataError>> + '_ {
        let subset = HeldOutSubset::new(self.windows.held_out(), samples_max);
        subset.batches(rows, move |samples, batch| {
            let first_sample = samples.start;
            let starts = samples.map(|index| self.windows.held_out_start(subset.sample(index)));
            self.fill(starts, rows, first_sample, batch)
        })
    }

    /// Fills a batch of `rows` rows with the windows that start at these tokens, at most `rows` of them. The targets are the
    /// inputs shifted by one token, so only the last target of a row is read from the store. Errors: `CacheChanged`.
    fn fill(
        &self,
        starts: impl Iterator<Item = u64>,
        rows: usize,
        first_sample: u64,
        batch: &mut Batch,
    ) -> Result<(), DataError> {
        let seq_len = self.windows.seq_len();
        batch.clear(rows, Shape { source_len: seq_len, target_len: None }, false, first_sample);
        let filled = batch.tokens.chunks_exact_mut(seq_len).zip(batch.targets.chunks_exact_mut(seq_len));
        for (start, (input, target)) in starts.zip(filled) {
            self.store.read(start, input)?;
            let (last, earlier) = target.split_last_mut().expect("a sample has a token");
            earlier.copy_from_slice(&input[1..]);
            self.store.read(start + seq_len as u64, std::slice::from_mut(last))?;
            batch.padding -= seq_len as u64;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::micro_batch::{PADDING_INPUT, PADDING_TARGET};
    use plimsoll_units::Bytes;

    /// Tokens that count up, so that each token is its own position.
    fn counting(tokens: u32, seq_len: usize) -> Batches {
        let ids: Vec<u32> = (0..tokens).collect();
        Batches::new(TokenStore::in_memory(&ids, tokens as usize, Bytes(0)), seq_len, 7).unwrap()
    }

    fn step(batches: &Batches, step: u64, rows: usize, micro_batch: usize) -> Vec<Batch> {
        let mut out = StepBatches { micro: vec![Batch::default(); rows / micro_batch], ..StepBatches::default() };
        batches.fill_step(step, rows, micro_batch, &mut out).unwrap();
        out.micro
    }

    #[test]
    fn an_epoch_of_batches_is_every_training_window_once() {
        let batches = counting(3000, 16);
        let count = batches.windows.training();
        let batch = step(&batches, 1, count as usize, count as usize).remove(0);
        assert!(batch.tokens.iter().zip(&batch.targets).all(|(input, target)| input + 1 == *target));
        assert_eq!((batch.padding, batch.segments), (0, None));
        let mut starts: Vec<u64> = batch.tokens.iter().step_by(16).map(|&token| token as u64).collect();
        assert_ne!(starts[..4], [0, 16, 32, 48]);
        starts.sort_unstable();
        assert!(starts.into_iter().eq((0..count).map(|window| batches.windows.training_start(window))));
    }

    #[test]
    fn batches_do_not_depend_on_their_size() {
        let batches = counting(3000, 16);
        let whole = step(&batches, 166, 6, 6).remove(0);
        let parts = step(&batches, 166, 6, 2);
        assert_eq!(parts.iter().map(|batch| batch.first_sample).collect::<Vec<_>>(), [996, 998, 1000]);
        assert_eq!(parts.iter().flat_map(|batch| batch.tokens.clone()).collect::<Vec<_>>(), whole.tokens);
        assert_eq!(parts.iter().flat_map(|batch| batch.targets.clone()).collect::<Vec<_>>(), whole.targets);
    }

    #[test]
    fn held_out_rows_past_the_end_are_padding() {
        let batches = counting(20_000, 64);
        let all = batches.held_out_batches(u64::MAX, 4).collect::<Result<Vec<_>, _>>().unwrap();
        assert_eq!(
            all.iter().map(|batch| (batch.first_sample, batch.padding)).collect::<Vec<_>>(),
            [(0, 0), (4, 0), (8, 0), (12, 64)]
        );
        let last = &all[3];
        assert_eq!((last.tokens[0], last.targets[0]), (19_000 + 12 * 64, 19_000 + 12 * 64 + 1));
        assert!(last.tokens[3 * 64..].iter().all(|&token| token == PADDING_INPUT));
        assert!(last.targets[3 * 64..].iter().all(|&token| token == PADDING_TARGET));
    }
}
