//! Which tokens are trained on and which are held out, and where each sample starts. Pure arithmetic: no list is
//! stored. `EveryNth`, at the end, splits documents and pairs by their numbers.
//! Not here: the order of samples (`order.rs`) and reading them (`batch.rs`).
//!
//! ```text
//!   blocks      0    1    2   …   18 │ 19 │ 20   21  …   38 │ 39 │ 40 …
//!               └────── a run ───────┘held└────── a run ────┘held└─ the last run may be shorter
//!   windows     [ T+1 ][ T+1 ][ T+1 ]     [ T+1 ]…      each T tokens after the previous one, so neighbors share one
//!                                                       token: the last target of one is the first input of the next
//! ```
//!
//! A window is inside one run, or inside one held-out block, never across.

use crate::DataError;

/// The block size of a long stream, if the sequence length allows.
const BLOCK_TOKENS: u64 = 4096;
/// By default, the last of every this many blocks is held out.
const BLOCKS_PER_PERIOD: u64 = 20;

/// The share of the data that is held out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum HeldOut {
    /// The default: a twentieth of text and of chats, a hundredth of pairs.
    #[default]
    Usual,
    /// Nothing.
    Nothing,
    /// One chunk, document or pair in this many, at least 2.
    OneIn(u64),
}

impl HeldOut {
    /// The period: one in this many is held out; `usual` is the default.
    pub(crate) fn period(self, usual: u64) -> Option<u64> {
        match self {
            Self::Usual => Some(usual),
            Self::Nothing => None,
            Self::OneIn(period) => Some(period),
        }
    }
}

/// The held-out share, and the order of the rest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Split {
    /// The seed of the order.
    pub seed: u64,
    /// What is held out.
    pub held_out: HeldOut,
}

/// Ordered by this seed, with the default share held out.
impl From<u64> for Split {
    fn from(seed: u64) -> Self {
        Self { seed, held_out: HeldOut::Usual }
    }
}

/// The samples of a token stream. A sample is a window of `seq_len + 1` consecutive tokens: input, and target one later.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Windows {
    tokens: u64,
    seq_len: u64,
    /// Tokens of a run between two held-out blocks.
    run_tokens: u64,
    /// Tokens of a held-out block; 0 if nothing is held out.
    block_tokens: u64,
}

impl Windows {
    /// Splits a stream of `tokens`. By default every twentieth block of 4096 tokens is held out; in streams shorter
    /// than 20 such blocks, every twentieth block of `tokens / 20`; in streams shorter than 20 × (`seq_len` + 1),
    /// nothing.
    /// Errors: `TooShort` if not even one sample fits.
    pub fn new(tokens: u64, seq_len: usize, held_out: HeldOut) -> Result<Self, DataError> {
        assert!(seq_len > 0, "a sample needs at least one token");
        let seq_len = seq_len as u64;
        let needed = seq_len + 1;
        if tokens < needed {
            return Err(DataError::TooShort { tokens, needed });
        }
        // Many blocks, if samples are short enough, so that a short stream also has the requested split.
        let small = |period: u64| tokens / period.max(BLOCKS_PER_PERIOD);
        let block = |period: u64| BLOCK_TOKENS.min(small(period)).max(needed).min(tokens / period);
        let period = held_out.period(BLOCKS_PER_PERIOD).filter(|&period| block(period) >= needed);
        Ok(match period {
            Some(period) => {
                Self { tokens, seq_len, run_tokens: (period - 1) * block(period), block_tokens: block(period) }
            }
            None => Self { tokens, seq_len, run_tokens: tokens, block_tokens: 0 },
        })
    }

    /// Tokens of a sample's input.
    pub fn seq_len(&self) -> usize {
        self.seq_len as usize
    }

    /// Training windows. At least one.
    pub fn training(&self) -> u64 {
        self.periods() * self.windows_in(self.run_tokens) + self.windows_in(self.tail_tokens().min(self.run_tokens))
    }

    /// Held-out windows; 0 if the stream is too short.
    pub fn held_out(&self) -> u64 {
        let tail = self.tail_tokens().saturating_sub(self.run_tokens);
        self.periods() * self.windows_in(self.block_tokens) + self.windows_in(tail)
    }

    /// Tokens that are in no training window.
    pub fn held_out_tokens(&self) -> u64 {
        self.periods() * self.block_tokens + self.tail_tokens().saturating_sub(self.run_tokens)
    }

    /// The first token of a training window.
    pub fn training_start(&self, window: u64) -> u64 {
        assert!(window < self.training(), "training window {window} of {}", self.training());
        let per_run = self.windows_in(self.run_tokens);
        window / per_run * self.period_tokens() + window % per_run * self.seq_len
    }

    /// The first token of a held-out window.
    pub fn held_out_start(&self, window: u64) -> u64 {
        assert!(window < self.held_out(), "held-out window {window} of {}", self.held_out());
        let per_block = self.windows_in(self.block_tokens);
        window / per_block * self.period_tokens() + self.run_tokens + window % per_block * self.seq_len
    }

    fn period_tokens(&self) -> u64 {
        self.run_tokens + self.block_tokens
    }

    fn periods(&self) -> u64 {
        self.tokens / self.period_tokens()
    }

    /// Tokens after the last whole period.
    fn tail_tokens(&self) -> u64 {
        self.tokens % self.period_tokens()
    }

    fn windows_in(&self, tokens: u64) -> u64 {
        tokens.saturating_sub(1) / self.seq_len
    }
}

/// A split of samples that do not overlap: the last of every `period` is held out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct EveryNth {
    samples: u64,
    period: u64,
}

impl EveryNth {
    /// If there are fewer samples than one period, the last one is held out; a single sample is trained on.
    pub(crate) fn new(samples: u64, period: u64) -> Self {
        assert!(samples > 0 && period > 1, "one of {period} of {samples}");
        let period = if samples == 1 { 2 } else { period.min(samples) };
        Self { samples, period }
    }

    /// All samples are trained on.
    pub(crate) fn all(samples: u64) -> Self {
        Self { samples, period: samples + 1 }
    }

    pub(crate) fn training(&self) -> u64 {
        self.samples - self.held_out()
    }

    pub(crate) fn held_out(&self) -> u64 {
        self.samples / self.period
    }

    pub(crate) fn training_at(&self, index: u64) -> u64 {
        index / (self.period - 1) * self.period + index % (self.period - 1)
    }

    pub(crate) fn held_out_at(&self, index: u64) -> u64 {
        index * self.period + self.period - 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn every_twentieth_block_is_held_out() {
        let windows = Windows::new(40 * 4096 + 100, 1024, HeldOut::Usual).unwrap();
        assert_eq!(windows.held_out_tokens(), 2 * 4096);
        assert_eq!((windows.held_out(), windows.training()), (2 * 3, 2 * 75));
        assert_eq!(windows.held_out_start(0), 19 * 4096);
        assert_eq!(windows.held_out_start(3), 39 * 4096);
        assert_eq!(windows.training_start(75), 20 * 4096);
    }

    #[test]
    fn short_streams_hold_out_a_twentieth_or_nothing() {
        assert_eq!(Windows::new(10_000, 64, HeldOut::Usual).unwrap().held_out_tokens(), 500);
        assert_eq!(Windows::new(20 * 65, 64, HeldOut::Usual).unwrap().held_out(), 1);
        let nothing = Windows::new(20 * 65 - 1, 64, HeldOut::Usual).unwrap();
        assert_eq!((nothing.held_out(), nothing.held_out_tokens(), nothing.training()), (0, 0, 20));
        assert_eq!(Windows::new(65, 64, HeldOut::Usual).unwrap().training(), 1);
        assert!(matches!(Windows::new(64, 64, HeldOut::Usual), Err(DataError::TooShort { tokens: 64, needed: 65 })));
        assert!(matches!(Windows::new(0, 64, HeldOut::Usual), Err(DataError::TooShort { .. })));
    }

    #[test]
    fn the_held_out_share_can_be_set() {
        let windows = |held_out| Windows::new(40 * 4096, 1024, held_out).unwrap();
        assert_eq!(windows(HeldOut::OneIn(10)).held_out_tokens(), 4 * 4096);
        assert_eq!(windows(HeldOut::OneIn(2)).held_out_tokens(), 20 * 4096);
        let all = windows(HeldOut::Nothing);
        assert_eq!((all.held_out(), all.held_out_tokens(), all.training()), (0, 0, (40 * 4096 - 1) / 1024));
        let all = EveryNth::all(7);
        assert_eq!((all.training(), all.held_out()), (7, 0));
        assert!((0..7).all(|index| all.training_at(index) == index));
    }

    #[test]
    fn long_samples_get_longer_blocks() {
        let windows = Windows::new(1_000_000, 8192, HeldOut::Usual).unwrap();
        assert_eq!((windows.held_out(), windows.held_out_tokens()), (6, 6 * 8193));
    }

    proptest! {
        #[test]
        fn every_sample_is_on_one_side(samples in 1u64..500, period in 2u64..120) {
            let split = EveryNth::new(samples, period);
            let training = (0..split.training()).map(|index| split.training_at(index));
            let mut all: Vec<u64> = training.chain((0..split.held_out()).map(|index| split.held_out_at(index))).collect();
            all.sort_unstable();
            prop_assert!(all.into_iter().eq(0..samples));
            prop_assert!(samples == 1 || (split.training() > 0 && split.held_out() > 0));
        }

        /// Compares with the blocks counted one by one.
        #[test]
        fn windows_never_leave_their_side(
            tokens in 2u64..400_000, seq_len in 1usize..6000, period in prop::option::of(2u64..40),
        ) {
            prop_assume!(tokens > seq_len as u64);
            let windows = Windows::new(tokens, seq_len, period.map_or(HeldOut::Usual, HeldOut::OneIn)).unwrap();
            let period = period.unwrap_or(20);
            let is_held_out = |token: u64| windows.block_tokens > 0 && token / windows.block_tokens % period == period - 1;
            let held_out_tokens = (0..tokens).filter(|&token| is_held_out(token)).count() as u64;
            prop_assert_eq!(windows.held_out_tokens(), held_out_tokens);
            prop_assert!(windows.training() > 0);
            prop_assert!(tokens < period * (seq_len as u64 + 1) || windows.held_out() > 0);

            let mut covered = vec![0u8; tokens as usize];
            for (count, held_out) in [(windows.training(), false), (windows.held_out(), true)] {
                for window in 0..count {
                    let start = if held_out { windows.held_out_start(window) } else { windows.training_start(window) };
                    let last = start + seq_len as u64;
                    prop_assert!(last < tokens);
                    prop_assert!([start, start + seq_len as u64 / 2, last].iter().all(|&at| is_held_out(at) == held_out));
                    prop_assert!(last - start < windows.run_tokens.max(windows.block_tokens));
                    covered[start as usize..last as usize].iter_mut().for_each(|count| *count += 1);
                }
            }
            prop_assert!(covered.iter().all(|&count| count <= 1), "two windows share an input");
            let runs = tokens.div_ceil(windows.period_tokens()) * 2;
            let uncovered = covered.iter().filter(|&&count| count == 0).count() as u64;
            prop_assert!(uncovered <= runs * seq_len as u64, "{uncovered} tokens in no window of {runs} runs");
        }
    }
}
