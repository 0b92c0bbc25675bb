//! Fills batches of token ids: rows in training order, or held-out rows in stream order.
//! Not here: which windows exist (`split.rs`) and their order (`order.rs`).

use crate::micro_batch::{Batch, PADDING_INPUT, PADDING_TARGET, StepBatches};
use crate::{DataError, Order, Split, TokenStore, Windows};

/// Batches of a token store. A batch is two slices (B, T), row after row: inputs, and targets one token later.
#[derive(Debug)]
pub struct Batches {
    /// The tokens.
    pub store: TokenStore,
    /// The samples.
    pub windows: Windows,
    /// Their order in training.
    pub order: Order,
}

/// The held-out windows that an evaluation uses: all of them, or a subset that is spread evenly.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HeldOutSubset {
    windows: u64,
    taken: u64,
}

impl HeldOutSubset {
    /// At most `max` of the windows.
    pub(crate) fn new(windows: u64, max: u64) -> Self {
        Self { windows, taken: windows.min(max) }
    }

    /// Number of windows.
    pub fn len(&self) -> u64 {
        self.taken
    }

    /// Whether nothing is held out, or the limit is 0.
    pub fn is_empty(&self) -> bool {
        self.taken == 0
    }

    /// The held-out window that is the `index`-th of the subset.
    pub fn window(&self, index: u64) -> u64 {
        assert!(index < self.taken, "window {index} of {}", self.taken);
        (u128::from(index) * u128::from(self.windows) / u128::from(self.taken)) as u64
    }
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

    /// Fills `rows` rows for training: row r is the sample at position `first_position + r`, counted over all epochs.
    /// inputs, targets: (B, T). Errors: `CacheChanged`. Panics if they are not `rows` × `seq_len` long.
    pub fn fill(
        &self,
        first_position: u64,
        rows: usize,
        inputs: &mut [i32],
        targets: &mut [i32],
    ) -> Result<(), DataError> {
        self.check_lengths(rows, inputs, targets);
        for (row, (input, target)) in self.rows(inputs, targets).enumerate() {
            let window = self.order.at(first_position + row as u64);
            self.fill_row(self.windows.training_start(window), input, target)?;
        }
        Ok(())
    }

    pub(crate) fn fill_step(
        &self,
        step: u64,
        global_batch: usize,
        micro_batch: usize,
        out: &mut StepBatches,
    ) -> Result<(), DataError> {
        for (index, batch) in out.micro.iter_mut().enumerate() {
            let first_sample = step * global_batch as u64 + (index * micro_batch) as u64;
            batch.clear(micro_batch, self.windows.seq_len(), None, first_sample);
            batch.segments = None;
            self.fill(first_sample, micro_batch, &mut batch.tokens, &mut batch.targets)?;
        }
        Ok(())
    }

    pub(crate) fn held_out_batches(
        &self,
        samples_max: u64,
        rows: usize,
    ) -> impl Iterator<Item = Result<Batch, DataError>> + '_ {
        let subset = self.held_out_subset(samples_max);
        (0..subset.len()).step_by(rows).map(move |first| {
            let mut batch = Batch::default();
            batch.clear(rows, self.windows.seq_len(), None, first);
            let filled = self.fill_held_out(subset, first, rows, &mut batch.tokens, &mut batch.targets)?;
            batch.padding = ((rows - filled) * self.windows.seq_len()) as u64;
            Ok(batch)
        })
    }

    /// Held-out windows for an evaluation, at most `max` of them, always the same, spread evenly over the stream.
    pub fn held_out_subset(&self, max: u64) -> HeldOutSubset {
        HeldOutSubset::new(self.windows.held_out(), max)
    }

    /// Fills `rows` rows from a subset of the held-out windows: row r is window `first + r` of the subset. Rows past
    /// the end are padding. Returns the number of rows that are not padding. inputs, targets: (B, T).
    /// Errors: `CacheChanged`. Panics if they are not `rows` × `seq_len` long.
    pub fn fill_held_out(
        &self,
        subset: HeldOutSubset,
        first: u64,
        rows: usize,
        inputs: &mut [i32],
        targets: &mut [i32],
    ) -> Result<usize, DataError> {
        self.check_lengths(rows, inputs, targets);
        let filled = subset.len().saturating_sub(first).min(rows as u64) as usize;
        for (row, (input, target)) in self.rows(inputs, targets).enumerate() {
            if row < filled {
                let window = subset.window(first + row as u64);
                self.fill_row(self.windows.held_out_start(window), input, target)?;
            } else {
                input.fill(PADDING_INPUT);
                target.fill(PADDING_TARGET);
            }
        }
        Ok(filled)
    }

    /// The targets are the inputs shifted by one token, so only the last target is read from the store.
    fn fill_row(&self, start: u64, input: &mut [i32], target: &mut [i32]) -> Result<(), DataError> {
        self.store.read(start, input)?;
        let (last, earlier) = target.split_last_mut().expect("a sample has a token");
        earlier.copy_from_slice(&input[1..]);
        self.store.read(start + input.len() as u64, std::slice::from_mut(last))
    }

    fn rows<'a>(
        &self,
        inputs: &'a mut [i32],
        targets: &'a mut [i32],
    ) -> impl Iterator<Item = (&'a mut [i32], &'a mut [i32])> {
        let seq_len = self.windows.seq_len();
        inputs.chunks_exact_mut(seq_len).zip(targets.chunks_exact_mut(seq_len))
    }

    fn check_lengths(&self, rows: usize, inputs: &[i32], targets: &[i32]) {
        let wanted = rows * self.windows.seq_len();
        assert!(
            inputs.len() == wanted && targets.len() == wanted,
            "{rows} rows of {} tokens do not fill inputs of {} and targets of {}",
            self.windows.seq_len(),
            inputs.len(),
            targets.len()
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_units::Bytes;

    /// Tokens that count up, so that each token is its own position.
    fn counting(tokens: u32, seq_len: usize) -> Batches {
        let ids: Vec<u32> = (0..tokens).collect();
        Batches::new(TokenStore::in_memory(&ids, tokens as usize, Bytes(0)), seq_len, 7).unwrap()
    }

    #[test]
    fn an_epoch_of_batches_is_every_training_window_once() {
        let batches = counting(3000, 16);
        let count = batches.windows.training();
        let mut inputs = vec![0; count as usize * 16];
        let mut targets = inputs.clone();
        batches.fill(count, count as usize, &mut inputs, &mut targets).unwrap();
        assert!(inputs.iter().zip(&targets).all(|(input, target)| input + 1 == *target));
        let mut starts: Vec<u64> = inputs.iter().step_by(16).map(|&token| token as u64).collect();
        assert_ne!(starts[..4], [0, 16, 32, 48]);
        starts.sort_unstable();
        assert!(starts.into_iter().eq((0..count).map(|window| batches.windows.training_start(window))));
    }

    #[test]
    fn batches_do_not_depend_on_their_size() {
        let batches = counting(3000, 16);
        let mut whole = (vec![0; 96], vec![0; 96]);
        batches.fill(1000, 6, &mut whole.0, &mut whole.1).unwrap();
        for row in 0..6 {
            let mut one = ([0; 16], [0; 16]);
            batches.fill(1000 + row as u64, 1, &mut one.0, &mut one.1).unwrap();
            assert_eq!((&one.0[..], &one.1[..]), (&whole.0[row * 16..][..16], &whole.1[row * 16..][..16]));
        }
    }

    #[test]
    fn held_out_rows_past_the_end_are_padding() {
        let batches = counting(20_000, 64);
        let all = batches.held_out_subset(u64::MAX);
        assert_eq!(all.len(), 15);
        let (mut inputs, mut targets) = (vec![9; 4 * 64], vec![9; 4 * 64]);
        assert_eq!(batches.fill_held_out(all, 13, 4, &mut inputs, &mut targets).unwrap(), 2);
        assert_eq!(inputs[0], 19_000 + 13 * 64);
        assert_eq!(targets[0], 19_000 + 13 * 64 + 1);
        assert!(inputs[2 * 64..].iter().all(|&token| token == PADDING_INPUT));
        assert!(targets[2 * 64..].iter().all(|&token| token == PADDING_TARGET));
        assert_eq!(batches.fill_held_out(all, 99, 4, &mut inputs, &mut targets).unwrap(), 0);
    }

    #[test]
    fn a_limited_evaluation_is_spread_evenly() {
        let batches = counting(20_000, 64);
        let few = batches.held_out_subset(4);
        assert_eq!((0..few.len()).map(|index| few.window(index)).collect::<Vec<_>>(), [0, 3, 7, 11]);
        assert!(batches.held_out_subset(0).is_empty());
        assert!(counting(100, 64).held_out_subset(9).is_empty());
    }
}
