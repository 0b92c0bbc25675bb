//! Batches of preferences: for each example two rows, the prompt with its chosen answer and with its rejected one; or one row,
//! the prompt with a judged answer, whose targets are of the second group if it is disliked.
//! Not here: their tokens (`chats/preferences.rs`, `chats/prepare.rs`), the examples of a step (`pairs/grouping.rs`), and
//! padded lengths (`pairs/buckets.rs`).
//!
//! ```text
//!   tokens    p₀ p₁ c₀ c₁ c₂  0        chosen
//!             p₀ p₁ r₀ r₁  0  0        rejected
//!   targets   -1 c₀ c₁ c₂ -1 -1
//!             -1 r₀ r₁ -1 -1 -1
//! ```
//!
//! If prompts are trained on, the targets in the prompt of the chosen answer are those of the second group, -2 - p₁ instead of
//! the first -1. Rows are cut at the maximum length, as in TRL's `DPOTrainer`: an example whose prompt is that long is left out.

use crate::held_out::HeldOutSubset;
use crate::micro_batch::{Batch, PADDING_TARGET, Shape, StepBatches, other_target};
use crate::pairs::{Buckets, Grouping};
use crate::split::{EveryNth, HeldOut};
use crate::{ChatStore, DataError};
use std::collections::BTreeSet;
use std::ops::Range;

/// One example in this many is held out.
const EXAMPLES_PER_HELD_OUT: u64 = 100;

/// The rows of an example. Targets of the second group: see [`other_target`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PreferenceRows {
    /// A row for each of two answers, which are trained on.
    Answers,
    /// The same, and the prompt of the chosen answer is trained on, with targets of the second group.
    AnswersAndPrompt,
    /// A row for one judged answer, with targets of the second group if it is disliked.
    Judged {
        /// Whether batches have `mismatched` answers.
        mismatches: bool,
    },
}

impl PreferenceRows {
    fn of_example(self) -> usize {
        if self.is_judged() { 1 } else { 2 }
    }

    fn is_judged(self) -> bool {
        matches!(self, Self::Judged { .. })
    }
}

/// How examples become rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PreferenceSettings {
    /// Maximum tokens of a row, at least 2.
    pub len_max: usize,
    /// Lengths are rounded up to multiples of this.
    pub bucket: usize,
    /// The seed of the order.
    pub seed: u64,
    /// The held-out share.
    pub held_out: HeldOut,
    /// The rows of an example.
    pub rows: PreferenceRows,
}

/// The positions of an example's tokens: those of its chosen sequence begin at the first bound, those of the rejected one at
/// the second and end at the third. The second sequence of a judged answer is empty.
type Bounds = [u64; 3];

/// The positions of the tokens of an example's prompt, and of the answer to the example before, that to the last one for the first.
fn mismatched(examples: &[Bounds], answers: &[u64], example: usize) -> [Range<u64>; 2] {
    let other = example.checked_sub(1).unwrap_or(examples.len() - 1);
    [examples[example][0]..answers[example], answers[other]..examples[other][1]]
}

/// Batches of preferences: one example in a hundred is held out; of fewer than a hundred, the last.
#[derive(Debug)]
pub struct PreferencePairs {
    store: ChatStore,
    /// How examples become rows.
    pub settings: PreferenceSettings,
    /// Of each example that is not left out.
    examples: Vec<Bounds>,
    /// The position of the first token of each example's answer, if batches have mismatched answers.
    answers: Vec<u64>,
    split: EveryNth,
    grouping: Grouping,
    buckets: Buckets,
    shapes: Vec<Shape>,
    truncated: u64,
    left_out: u64,
}

impl PreferencePairs {
    /// Splits and orders the examples of a store.
    /// Errors: `LongPrompts` if all are left out, `OneLabel`, `CacheChanged`.
    pub fn new(store: ChatStore, settings: PreferenceSettings) -> Result<Self, DataError> {
        assert!(settings.bucket > 0 && settings.len_max > 1, "{settings:?}");
        let mut ends = Vec::new();
        store.for_each_end(|end| ends.push(end))?;
        let of_example = settings.rows.of_example();
        let starts = std::iter::once(0).chain(ends.iter().skip(of_example - 1).step_by(of_example).copied());
        let all = starts.zip(ends.chunks_exact(of_example)).map(|(start, ends)| [start, ends[0], ends[of_example - 1]]);
        let all = all.collect::<Vec<Bounds>>();
        let most = settings.len_max as u64;
        let (mut examples, mut answers, mut lengths, mut truncated) = (Vec::new(), Vec::new(), BTreeSet::new(), 0);
        let mut labels = [false; 2];
        for &[start, middle, end] in &all {
            let longest = (middle - start).max(end - middle);
            let mut trained = vec![false; most.min(middle - start) as usize];
            store.read_trained(start, &mut trained)?;
            if let Some(prompt) = trained[1..].iter().position(|&is_trained| is_trained) {
                answers.push(start + 1 + prompt as u64);
                labels[usize::from(trained[0])] = true;
                truncated += u64::from(longest > most);
                lengths.insert([longest.min(most) as usize, 1]);
                examples.push([start, middle, end]);
            }
        }
        if examples.is_empty() {
            return Err(DataError::LongPrompts { tokens: settings.len_max });
        }
        if settings.rows.is_judged() && labels != [true; 2] {
            return Err(DataError::OneLabel { label: labels[0] });
        }
        let (kept, left_out) = (examples.len() as u64, (all.len() - examples.len()) as u64);
        let period = settings.held_out.period(EXAMPLES_PER_HELD_OUT);
        let split = period.map_or(EveryNth::all(kept), |period| EveryNth::new(kept, period));
        match settings.rows {
            PreferenceRows::Judged { mismatches: true } => {
                let of_all = (0..examples.len()).map(|example| {
                    let [prompt, answer] = mismatched(&examples, &answers, example);
                    (prompt.end - prompt.start + answer.end - answer.start).min(most) as usize
                });
                lengths.extend(of_all.map(|tokens| [tokens, 1]));
            }
            _ => answers.clear(),
        }
        let (buckets, shapes) = Buckets::choose(settings.bucket, [settings.len_max, 1], &lengths);
        let shapes = shapes.into_iter().map(|[source_len, _]| Shape { source_len, target_len: None }).collect();
        let grouping = Grouping::new(settings.seed, split.training());
        Ok(Self { store, settings, examples, answers, split, grouping, buckets, shapes, truncated, left_out })
    }

    /// The tokens of all examples.
    pub fn store(&self) -> &ChatStore {
        &self.store
    }

    /// Training examples. At least one.
    pub fn training(&self) -> u64 {
        self.split.training()
    }

    /// Held-out examples.
    pub fn held_out(&self) -> u64 {
        self.split.held_out()
    }

    /// All shapes that a batch can have, sorted; at most sixteen.
    pub fn shapes(&self) -> &[Shape] {
        &self.shapes
    }

    /// Number of examples of which an answer is cut at the maximum length.
    pub fn truncated(&self) -> u64 {
        self.truncated
    }

    /// Number of examples whose prompt is at least as long as a row.
    pub fn left_out(&self) -> u64 {
        self.left_out
    }

    pub(crate) fn fill_step(
        &self,
        step: u64,
        global_batch: usize,
        micro_batch: usize,
        out: &mut StepBatches,
    ) -> Result<(), DataError> {
        let mut chosen = Vec::with_capacity(global_batch);
        let shape = |index| Ok([self.padded(self.split.training_at(index)), 1]);
        self.grouping.batch(step, global_batch as u64, shape, &mut chosen)?;
        for (micro, (first, batch)) in chosen.chunks(micro_batch).zip(out.numbered(step, global_batch, micro_batch)) {
            let micro: Vec<u64> = micro.iter().map(|&index| self.split.training_at(index)).collect();
            self.fill(&micro, micro_batch, first, batch)?;
        }
        Ok(())
    }

    /// Held-out batches of `rows` examples, short ones first; those past the end are padding.
    pub(crate) fn held_out_batches(
        &self,
        samples_max: u64,
        rows: usize,
    ) -> impl Iterator<Item = Result<Batch, DataError>> + '_ {
        let subset = HeldOutSubset::new(self.held_out(), samples_max);
        let of_subset = (0..subset.len()).map(|index| self.split.held_out_at(subset.sample(index)));
        let mut examples = of_subset.collect::<Vec<u64>>();
        examples.sort_by_key(|&example| self.padded(example));
        subset.batches(rows, move |samples, batch| {
            self.fill(&examples[samples.start as usize..samples.end as usize], rows, samples.start, batch)
        })
    }

    /// The minimum length of the rows of an example.
    fn padded(&self, example: u64) -> usize {
        let [start, middle, end] = self.examples[example as usize];
        let longest = (middle - start).max(end - middle).min(self.settings.len_max as u64);
        self.buckets.round([longest as usize, 1])[0]
    }

    /// Fills a batch with these examples, at most `samples` of them. Errors: `CacheChanged`.
    fn fill(&self, examples: &[u64], samples: usize, first: u64, batch: &mut Batch) -> Result<(), DataError> {
        let source_len = examples.iter().map(|&example| self.padded(example)).max().unwrap_or(1);
        // Each row has its own random numbers for dropout.
        let of_example = self.settings.rows.of_example();
        batch.clear(samples, Shape { source_len, target_len: None }, false, of_example as u64 * first);
        batch.set_compared(of_example);
        for (sample, &example) in examples.iter().enumerate() {
            let [start, middle, end] = self.examples[example as usize];
            let most = self.settings.len_max as u64;
            let sequences = [[start, middle], [middle, end]];
            for (row, [start, end]) in (of_example * sample..).zip(sequences.into_iter().take(of_example)) {
                let tokens = (end - start).min(most) as usize;
                let at = row * source_len..row * source_len + tokens;
                let of_prompt = self.settings.rows == PreferenceRows::AnswersAndPrompt && row % 2 == 0;
                let piece = start..start + tokens as u64;
                self.read(&[piece], &mut batch.tokens[at.clone()], &mut batch.targets[at], of_prompt)?;
                batch.padding -= tokens as u64;
            }
            batch.truncated += u64::from((middle - start).max(end - middle) > most);
        }
        if !self.answers.is_empty() {
            let mut other = batch.mismatched.take().unwrap_or_default();
            self.fill_mismatched(examples, samples, first, &mut other)?;
            batch.mismatched = Some(other);
        }
        Ok(())
    }

    /// Fills a batch with the prompts of these examples, each followed by another example's answer. Errors: `CacheChanged`.
    fn fill_mismatched(
        &self,
        examples: &[u64],
        samples: usize,
        first: u64,
        batch: &mut Batch,
    ) -> Result<(), DataError> {
        let most = self.settings.len_max as u64;
        let pieces = examples.iter().map(|&example| {
            let [prompt, answer] = mismatched(&self.examples, &self.answers, example as usize);
            let room = most - (prompt.end - prompt.start);
            [prompt, answer.start..answer.end.min(answer.start + room)]
        });
        let pieces = pieces.collect::<Vec<_>>();
        let tokens_of = |pieces: &[Range<u64>]| pieces.iter().map(|piece| (piece.end - piece.start) as usize).sum();
        let padded = |pieces: &[Range<u64>; 2]| self.buckets.round([tokens_of(pieces), 1])[0];
        let source_len = pieces.iter().map(padded).max().unwrap_or(1);
        batch.clear(samples, Shape { source_len, target_len: None }, false, first);
        batch.set_compared(1);
        for (row, pieces) in pieces.into_iter().enumerate() {
            let tokens = tokens_of(&pieces);
            let at = row * source_len..row * source_len + tokens;
            self.read(&pieces, &mut batch.tokens[at.clone()], &mut batch.targets[at], false)?;
            batch.padding -= tokens as u64;
        }
        Ok(())
    }

    /// Reads a row from these pieces of the store: its tokens, and as target of each the next one if that is trained on; of the
    /// second group if the answer is disliked, or if the token is not trained on and `of_prompt`.
    fn read(
        &self,
        pieces: &[Range<u64>],
        tokens: &mut [i32],
        targets: &mut [i32],
        of_prompt: bool,
    ) -> Result<(), DataError> {
        let mut trained = vec![false; tokens.len()];
        let mut read = 0;
        for piece in pieces {
            let row = read..read + (piece.end - piece.start) as usize;
            self.store.tokens().read(piece.start, &mut tokens[row.clone()])?;
            self.store.read_trained(piece.start, &mut trained[row.clone()])?;
            read = row.end;
        }
        let is_disliked = self.settings.rows.is_judged() && trained[0];
        for (target, (&next, &is_trained)) in targets.iter_mut().zip(tokens[1..].iter().zip(&trained[1..])) {
            *target = match is_trained {
                true if is_disliked => other_target(next),
                true => next,
                false if of_prompt => other_target(next),
                false => PADDING_TARGET,
            };
        }
        Ok(())
    }
}
