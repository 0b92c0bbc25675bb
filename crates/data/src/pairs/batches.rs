//! Fills batches of pairs for an encoder and a decoder, or for an encoder alone.
//! Not here: the pairs of a step (`grouping.rs`), and their padded shapes (`buckets.rs`).
//!
//! ```text
//!   tokens          s₀ s₁ s₂ </s>  0  0      as long as the longest source of the batch, rounded up
//!   segments         1  1  1   1   0  0
//!   decoder_tokens  ▸  t₀ t₁  0              ▸ the decoder's start token
//!   targets         t₀ t₁ </s> -1
//! ```
//!
//! For an encoder alone, all texts have the tokenizer's first and last tokens. `decoder_tokens` has the candidates, with
//! segments of their own: the second text of each row, then the first negative of each row, and so on. `targets` has the
//! number of each row that has a pair.

use super::PairStore;
use super::buckets::Buckets;
use super::grouping::Grouping;
use super::store::PairSpan;
use crate::DataError;
use crate::held_out::HeldOutSubset;
use crate::micro_batch::{Batch, PADDING_TARGET, Shape, StepBatches};
use crate::split::{EveryNth, HeldOut};
use std::collections::BTreeSet;

/// One pair in this many is held out.
const PAIRS_PER_HELD_OUT: u64 = 100;

/// How pairs become rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PairSettings {
    /// Maximum tokens of a source, its end token included; at least 1.
    pub source_len_max: usize,
    /// Maximum tokens of a target, its end token included; at least 1.
    pub target_len_max: usize,
    /// Lengths are rounded up to multiples of this; 64 suits most data.
    pub bucket: usize,
    /// Ends each source and target, truncated ones too, if the tokenizer has such a token.
    pub end_token: Option<u32>,
    /// The first input token of the decoder.
    pub decoder_start: u32,
    /// The seed of the order.
    pub seed: u64,
    /// The held-out share.
    pub held_out: HeldOut,
}

impl PairSettings {
    fn most(&self) -> [usize; 2] {
        [self.source_len_max, self.target_len_max]
    }

    /// Lengths of the rows for a pair with these token counts, its source's and its longest other text's, and whether any were truncated. `beginning`: number of tokens
    /// before each text.
    fn row_lengths(&self, tokens: [usize; 2], beginning: usize) -> ([usize; 2], bool) {
        let whole = tokens.map(|length| beginning + length + usize::from(self.end_token.is_some()));
        let most = self.most();
        ([0, 1].map(|side| whole[side].min(most[side])), whole[0] > most[0] || whole[1] > most[1])
    }
}

/// Batches of pairs: one in a hundred is held out; of fewer than a hundred, the last.
#[derive(Debug)]
pub struct Pairs {
    /// The tokens.
    pub store: PairStore,
    /// How they become rows.
    pub settings: PairSettings,
    /// The tokens before each text of an encoder alone; `None` for an encoder and a decoder.
    beginning: Option<Vec<i32>>,
    split: EveryNth,
    grouping: Grouping,
    buckets: Buckets,
    shapes: Vec<Shape>,
    truncated: u64,
}

impl Pairs {
    /// Splits and orders the pairs of a store.
    /// Errors: `TooShort` for an empty store, `CacheChanged`. A store of `prepare_pairs` is never empty.
    pub fn new(store: PairStore, settings: PairSettings) -> Result<Self, DataError> {
        Self::with_beginning(store, settings, None)
    }

    /// The same for an encoder alone, whose texts begin with these tokens. Errors: as [`Self::new`].
    pub fn for_encoder(store: PairStore, settings: PairSettings, beginning: &[u32]) -> Result<Self, DataError> {
        let beginning = beginning.iter().map(|&token| token as i32).collect();
        Self::with_beginning(store, settings, Some(beginning))
    }

    fn with_beginning(
        store: PairStore,
        settings: PairSettings,
        beginning: Option<Vec<i32>>,
    ) -> Result<Self, DataError> {
        if store.is_empty() {
            return Err(DataError::TooShort { tokens: 0, needed: 1 });
        }
        assert!(settings.bucket > 0 && settings.source_len_max > 0 && settings.target_len_max > 0, "{settings:?}");
        let period = settings.held_out.period(PAIRS_PER_HELD_OUT);
        let split = period.map_or(EveryNth::all(store.len()), |period| EveryNth::new(store.len(), period));
        let (mut lengths, mut truncated) = (BTreeSet::new(), 0);
        let before = beginning.as_ref().map_or(0, Vec::len);
        store.for_each_span(|span| {
            let (row, cut) = settings.row_lengths(span.lengths(), before);
            lengths.insert(row);
            truncated += u64::from(cut);
        })?;
        let (buckets, shapes) = Buckets::choose(settings.bucket, settings.most(), &lengths);
        let shapes = shapes.into_iter().map(|[source_len, t]| Shape { source_len, target_len: Some(t) }).collect();
        let grouping = Grouping::new(settings.seed, split.training());
        Ok(Self { split, grouping, buckets, shapes, truncated, store, settings, beginning })
    }

    /// Training pairs. At least one.
    pub fn training(&self) -> u64 {
        self.split.training()
    }

    /// Held-out pairs.
    pub fn held_out(&self) -> u64 {
        self.split.held_out()
    }

    /// Hard negatives of each sample of an encoder.
    pub fn negatives(&self) -> usize {
        self.store.sides() - 2
    }

    /// All shapes that a batch can have, sorted; at most sixteen.
    pub fn shapes(&self) -> &[Shape] {
        &self.shapes
    }

    /// The tokens before each text of an encoder alone; `None` for an encoder and a decoder.
    pub(crate) fn beginning(&self) -> Option<&[i32]> {
        self.beginning.as_deref()
    }

    /// Number of pairs truncated to the maximum lengths.
    pub fn truncated(&self) -> u64 {
        self.truncated
    }

    pub(crate) fn fill_step(
        &self,
        step: u64,
        global_batch: usize,
        micro_batch: usize,
        out: &mut StepBatches,
    ) -> Result<(), DataError> {
        let mut pairs = Vec::with_capacity(global_batch);
        let shape = |index| Ok(self.padded(&self.store.span(self.split.training_at(index))?));
        self.grouping.batch(step, global_batch as u64, shape, &mut pairs)?;
        for (micro, (first_sample, batch)) in
            pairs.chunks(micro_batch).zip(out.numbered(step, global_batch, micro_batch))
        {
            let micro: Vec<u64> = micro.iter().map(|&index| self.split.training_at(index)).collect();
            self.fill(&micro, micro_batch, first_sample, batch)?;
        }
        Ok(())
    }

    /// Held-out batches of `rows` rows, short pairs first; rows past the end are padding.
    /// Errors: `CacheChanged`.
    pub(crate) fn held_out_batches(
        &self,
        samples_max: u64,
        rows: usize,
    ) -> Result<impl Iterator<Item = Result<Batch, DataError>> + '_, DataError> {
        let subset = HeldOutSubset::new(self.held_out(), samples_max);
        let keyed = |index| {
            let pair = self.split.held_out_at(subset.sample(index));
            Ok((self.padded(&self.store.span(pair)?), pair))
        };
        let mut keyed = (0..subset.len()).map(keyed).collect::<Result<Vec<([usize; 2], u64)>, DataError>>()?;
        keyed.sort_by_key(|(shape, _)| *shape);
        let pairs: Vec<u64> = keyed.into_iter().map(|(_, pair)| pair).collect();
        Ok(subset.batches(rows, move |samples, batch| {
            self.fill(&pairs[samples.start as usize..samples.end as usize], rows, samples.start, batch)
        }))
    }

    fn row_lengths(&self, span: &PairSpan) -> ([usize; 2], bool) {
        self.settings.row_lengths(span.lengths(), self.beginning.as_ref().map_or(0, Vec::len))
    }

    fn padded(&self, span: &PairSpan) -> [usize; 2] {
        self.buckets.round(self.row_lengths(span).0)
    }

    /// Fills a batch of `rows` rows with these pairs, at most `rows` of them. Errors: `CacheChanged`.
    fn fill(&self, pairs: &[u64], rows: usize, first_sample: u64, batch: &mut Batch) -> Result<(), DataError> {
        let spans = pairs.iter().map(|&pair| self.store.span(pair)).collect::<Result<Vec<PairSpan>, DataError>>()?;
        let shapes = spans.iter().map(|span| self.padded(span));
        let [source_len, target_len] = shapes.fold([1, 1], |a, b| [a[0].max(b[0]), a[1].max(b[1])]);
        batch.clear(rows, Shape { source_len, target_len: Some(target_len) }, true, first_sample);
        let candidates = self.store.sides() - 1;
        if self.beginning.is_some() {
            batch.set_candidates(candidates);
        }
        let segments = batch.segments.as_mut().expect("they were just reset");
        for (row, span) in spans.iter().enumerate() {
            let ([source, target], cut) = self.row_lengths(span);
            let at = row * source_len..row * source_len + source;
            self.read(span, 0, &mut batch.tokens[at.clone()])?;
            segments[at].fill(1);
            batch.padding -= source as u64;
            if let Some(beginning) = &self.beginning {
                for side in 1..=candidates {
                    let whole = [0, span.length(side)];
                    let (length, first) = (
                        self.settings.row_lengths(whole, beginning.len()).0[1],
                        ((side - 1) * rows + row) * target_len,
                    );
                    self.read(span, side, &mut batch.decoder_tokens[first..first + length])?;
                    batch.decoder_segments[first..first + length].fill(1);
                    batch.padding -= length as u64;
                }
                batch.targets[row] = row as i32;
            } else {
                let at = row * target_len..row * target_len + target;
                self.read(span, 1, &mut batch.targets[at.clone()])?;
                shift_right(&batch.targets[at.clone()], self.settings.decoder_start, &mut batch.decoder_tokens[at]);
                batch.padding -= target as u64;
            }
            batch.truncated += u64::from(cut);
        }
        Ok(())
    }

    /// Fills a row with the tokens before a text, the first tokens of one side of a pair, and the end token if there is one.
    fn read(&self, span: &PairSpan, side: usize, row: &mut [i32]) -> Result<(), DataError> {
        let beginning = self.beginning.as_deref().unwrap_or_default();
        let (before, row) = row.split_at_mut(beginning.len().min(row.len()));
        before.copy_from_slice(&beginning[..before.len()]);
        let room = row.len().saturating_sub(usize::from(self.settings.end_token.is_some()));
        let (text, end) = row.split_at_mut(room.min(span.length(side)));
        self.store.read(span, side, text)?;
        for (slot, token) in end.iter_mut().zip(self.settings.end_token) {
            *slot = token as i32;
        }
        Ok(())
    }
}

fn shift_right(targets: &[i32], start: u32, out: &mut [i32]) {
    debug_assert!(!targets.contains(&PADDING_TARGET), "only real targets are shifted");
    if let Some((_, before_last)) = targets.split_last() {
        out[0] = start as i32;
        out[1..].copy_from_slice(before_last);
    }
}
