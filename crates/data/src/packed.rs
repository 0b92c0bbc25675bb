//! Whole documents or chats in rows, for causal models and data of many short documents.
//! Not here: where documents end in the store (at separators written by `shards.rs`), and which tokens of chats are
//! trained on (`chats/`); the others have no targets.
//!
//! ```text
//!   tokens    a₀ a₁ a₂ ␄  b₀ ␄  0  0      ␄ the separator, which ends a document
//!   segments   1  1  1  1  2  2  0  0
//!   targets   a₁ a₂ ␄  -1 ␄  -1 -1 -1
//! ```
//!
//! Documents longer than a row are cut. The parts are packed longest first, each into the first row with room
//! (first-fit decreasing), identically for every seed; the seed orders the rows. One document in twenty is held out; of
//! fewer than twenty, none.
//! Source: Johnson 1973, "Near-optimal bin packing algorithms".

use crate::held_out::HeldOutSubset;
use crate::micro_batch::{Batch, PADDING_TARGET, Shape, StepBatches};
use crate::split::{EveryNth, Split};
use crate::{ChatStore, DataError, Order, TokenStore, Tokenizer};

const DOCUMENTS_PER_HELD_OUT: u64 = 20;
/// Tokens read at a time while searching for the ends of documents.
const SCAN_TOKENS: usize = 1 << 16;
/// Each document uses about 60 bytes of memory during packing.
const DOCUMENTS_MAX: usize = 1 << 24;

/// Packed rows of a token store.
#[derive(Debug)]
pub struct Packed {
    store: Store,
    seq_len: usize,
    packing: Packing,
    order: Order,
    training: Rows,
    /// Number of targets in those rows.
    targets: u64,
    held_out: Rows,
}

/// The documents that are packed.
#[derive(Debug)]
enum Store {
    Documents(TokenStore),
    Chats(ChatStore),
}

/// Whether a row holds several documents.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Packing {
    /// As many as fit.
    Packed,
    /// One per row; the rest of the row is padding.
    OneEach,
}

/// A document, or a part of a document that is longer than a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Part {
    start: u64,
    len: u32,
    /// Whether the document ends here; if not, the token after the part is its last target.
    ends_document: bool,
}

/// Parts in the order of their rows.
#[derive(Debug, Default)]
struct Rows {
    parts: Vec<Part>,
    /// The end index of each row's parts.
    ends: Vec<usize>,
}

impl Packed {
    /// Packs the documents of a store that `prepare` made with this tokenizer into rows of `seq_len`.
    /// Errors: `NoSeparator` if the tokenizer writes nothing between documents; `TooShort` without documents;
    /// `TooManyDocuments`; `CacheChanged`.
    pub fn new(
        store: TokenStore,
        tokenizer: &Tokenizer,
        seq_len: usize,
        split: impl Into<Split>,
    ) -> Result<Self, DataError> {
        let no_separator = || DataError::NoSeparator { tokenizer: tokenizer.spec().to_string() };
        let separator = tokenizer.separator().ok_or_else(no_separator)?;
        Self::of_documents(store, separator, seq_len, split.into())
    }

    fn of_documents(store: TokenStore, separator: u32, seq_len: usize, split: Split) -> Result<Self, DataError> {
        let ends = document_ends(&store, separator)?;
        Self::with_ends(Store::Documents(store), &ends, Packing::Packed, seq_len, split)
    }

    /// Puts chats into rows of `seq_len`. Skips chats, and parts of long chats, that have nothing to train on.
    /// Errors: `TooShort` without chats; `TooManyDocuments`; `CacheChanged`.
    pub fn of_chats(
        store: ChatStore,
        packing: Packing,
        seq_len: usize,
        split: impl Into<Split>,
    ) -> Result<Self, DataError> {
        if store.len() >= DOCUMENTS_MAX as u64 {
            return Err(DataError::TooManyDocuments { documents_max: DOCUMENTS_MAX });
        }
        let mut ends = Vec::with_capacity(store.len() as usize);
        store.for_each_end(|end| ends.push(end))?;
        Self::with_ends(Store::Chats(store), &ends, packing, seq_len, split.into())
    }

    fn with_ends(
        store: Store,
        ends: &[u64],
        packing: Packing,
        seq_len: usize,
        split: Split,
    ) -> Result<Self, DataError> {
        assert!(seq_len > 0 && u32::try_from(seq_len).is_ok(), "rows of {seq_len} tokens");
        let start_of = |document: usize| document.checked_sub(1).map_or(0, |before| ends[before]);
        let parts = |document: u64| {
            let document = document as usize;
            parts_of(start_of(document), ends[document], seq_len as u64)
        };
        let rows = |documents: &mut dyn Iterator<Item = u64>| -> Result<(Rows, u64), DataError> {
            let (mut kept, mut targets) = (Vec::new(), 0);
            for part in documents.flat_map(parts) {
                let of_part = store.targets(part)?;
                targets += of_part;
                kept.extend((of_part > 0 || matches!(store, Store::Documents(_))).then_some(part));
            }
            let rows = match packing {
                Packing::Packed => Rows::pack(kept, seq_len),
                Packing::OneEach => Rows { ends: (1..=kept.len()).collect(), parts: kept },
            };
            Ok((rows, targets))
        };
        let documents = ends.len() as u64;
        let period = split.held_out.period(DOCUMENTS_PER_HELD_OUT).filter(|&period| documents >= period);
        let sides = period.map_or(EveryNth::all(documents), |period| EveryNth::new(documents, period));
        let (training, targets) = rows(&mut (0..sides.training()).map(|index| sides.training_at(index)))?;
        let (held_out, _) = rows(&mut (0..sides.held_out()).map(|index| sides.held_out_at(index)))?;
        if training.len() == 0 {
            return Err(DataError::TooShort { tokens: store.tokens().len(), needed: 1 });
        }
        let order = Order::new(split.seed, training.len());
        Ok(Self { store, packing, seq_len, order, training, targets, held_out })
    }

    /// The tokens.
    pub fn store(&self) -> &TokenStore {
        self.store.tokens()
    }

    /// The chats, if the rows hold chats.
    pub fn chats(&self) -> Option<&ChatStore> {
        match &self.store {
            Store::Chats(chats) => Some(chats),
            Store::Documents(_) => None,
        }
    }

    /// Whether rows hold several documents.
    pub fn packing(&self) -> Packing {
        self.packing
    }

    /// Targets of all training rows.
    pub fn targets(&self) -> u64 {
        self.targets
    }

    /// The share of padding in the training rows, from 0 to 1.
    pub fn padding(&self) -> f64 {
        let tokens = self.training.parts.iter().map(|part| u64::from(part.len)).sum::<u64>();
        1.0 - tokens as f64 / (self.training() * self.seq_len as u64) as f64
    }

    /// Number of training rows. At least one.
    pub fn training(&self) -> u64 {
        self.training.len()
    }

    /// Number of held-out rows.
    pub fn held_out(&self) -> u64 {
        self.held_out.len()
    }

    /// Tokens of a row.
    pub fn seq_len(&self) -> usize {
        self.seq_len
    }

    pub(crate) fn fill_step(
        &self,
        step: u64,
        global_batch: usize,
        micro_batch: usize,
        out: &mut StepBatches,
    ) -> Result<(), DataError> {
        for (first_sample, batch) in out.numbered(step, global_batch, micro_batch) {
            let rows = (first_sample..first_sample + micro_batch as u64).map(|p| self.training.row(self.order.at(p)));
            self.fill(rows, micro_batch, first_sample, batch)?;
        }
        Ok(())
    }

    /// Held-out batches of `rows` rows; rows past the end are padding.
    pub(crate) fn held_out_batches(
        &self,
        samples_max: u64,
        rows: usize,
    ) -> impl Iterator<Item = Result<Batch, DataError>> + '_ {
        let subset = HeldOutSubset::new(self.held_out(), samples_max);
        subset.batches(rows, move |samples, batch| {
            let first_sample = samples.start;
            self.fill(samples.map(|index| self.held_out.row(subset.sample(index))), rows, first_sample, batch)
        })
    }

    /// Fills a batch of `rows` rows with these parts for each row, at most `rows` of them. Errors: `CacheChanged`.
    fn fill<'a>(
        &self,
        filled: impl Iterator<Item = &'a [Part]>,
        rows: usize,
        first_sample: u64,
        batch: &mut Batch,
    ) -> Result<(), DataError> {
        batch.clear(rows, Shape { source_len: self.seq_len, target_len: None }, true, first_sample);
        let segments = batch.segments.as_mut().expect("they were just reset");
        for (row, parts) in filled.enumerate() {
            let mut at = row * self.seq_len;
            for (part, segment) in parts.iter().zip(1..) {
                let len = part.len as usize;
                self.store().read(part.start, &mut batch.tokens[at..at + len])?;
                self.store.read_targets(*part, &mut batch.targets[at..at + part.targets_max()])?;
                segments[at..at + len].fill(segment);
                at += len;
                batch.padding -= len as u64;
            }
        }
        Ok(())
    }
}

impl Store {
    fn tokens(&self) -> &TokenStore {
        match self {
            Self::Documents(tokens) => tokens,
            Self::Chats(chats) => chats.tokens(),
        }
    }

    /// Number of targets in a part.
    fn targets(&self, part: Part) -> Result<u64, DataError> {
        let Self::Chats(chats) = self else { return Ok(part.targets_max() as u64) };
        let mut trained = vec![false; part.targets_max()];
        chats.read_trained(part.start + 1, &mut trained)?;
        Ok(trained.iter().filter(|&&trained| trained).count() as u64)
    }

    /// Copies a part's targets into all of `out`: the tokens shifted by one, ignored where they are not trained on.
    fn read_targets(&self, part: Part, out: &mut [i32]) -> Result<(), DataError> {
        self.tokens().read(part.start + 1, out)?;
        let Self::Chats(chats) = self else { return Ok(()) };
        let mut trained = vec![false; out.len()];
        chats.read_trained(part.start + 1, &mut trained)?;
        out.iter_mut().zip(trained).filter(|(_, trained)| !trained).for_each(|(target, _)| *target = PADDING_TARGET);
        Ok(())
    }
}

impl Part {
    /// Number of tokens with a successor in their document.
    fn targets_max(self) -> usize {
        self.len as usize - usize::from(self.ends_document)
    }
}

/// The end positions of documents, separators included. Tokens after the last separator form a document too.
fn document_ends(store: &TokenStore, separator: u32) -> Result<Vec<u64>, DataError> {
    let mut ends = Vec::new();
    let mut buffer = vec![0; SCAN_TOKENS];
    for start in (0..store.len()).step_by(SCAN_TOKENS) {
        let tokens = &mut buffer[..(store.len() - start).min(SCAN_TOKENS as u64) as usize];
        store.read(start, tokens)?;
        let separators = (start + 1..).zip(tokens.iter()).filter(|(_, token)| **token == separator as i32);
        ends.extend(separators.map(|(end, _)| end));
        if ends.len() >= DOCUMENTS_MAX {
            return Err(DataError::TooManyDocuments { documents_max: DOCUMENTS_MAX });
        }
    }
    if ends.last().copied().unwrap_or(0) < store.len() {
        ends.push(store.len());
    }
    Ok(ends)
}

fn parts_of(start: u64, end: u64, seq_len: u64) -> impl Iterator<Item = Part> {
    (start..end).step_by(seq_len as usize).map(move |start| {
        let len = (end - start).min(seq_len);
        Part { start, len: len as u32, ends_document: start + len == end }
    })
}

impl Rows {
    /// First-fit decreasing. A tree over the rows finds the first row with enough room; each node holds the largest
    /// free room below it.
    fn pack(mut parts: Vec<Part>, seq_len: usize) -> Self {
        parts.sort_by_key(|part| (std::cmp::Reverse(part.len), part.start));
        let leaves = parts.len().next_power_of_two();
        let mut room = vec![seq_len as u32; 2 * leaves];
        let mut placed: Vec<(usize, Part)> = Vec::with_capacity(parts.len());
        for part in parts {
            let mut node = 1;
            while node < leaves {
                node = 2 * node + usize::from(room[2 * node] < part.len);
            }
            placed.push((node - leaves, part));
            room[node] -= part.len;
            while node > 1 {
                node /= 2;
                room[node] = room[2 * node].max(room[2 * node + 1]);
            }
        }
        placed.sort_by_key(|(row, part)| (*row, part.start));
        let rows = placed.last().map_or(0, |(row, _)| row + 1);
        let ends = (0..rows).map(|row| placed.partition_point(|(at, _)| *at <= row)).collect();
        Self { parts: placed.into_iter().map(|(_, part)| part).collect(), ends }
    }

    fn len(&self) -> u64 {
        self.ends.len() as u64
    }

    fn row(&self, row: u64) -> &[Part] {
        let row = row as usize;
        &self.parts[row.checked_sub(1).map_or(0, |before| self.ends[before])..self.ends[row]]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_units::Bytes;
    use proptest::prelude::*;

    const SEPARATOR: u32 = 0;

    /// Documents of the given lengths, separators included. The other tokens count up from 1 across all documents.
    fn packed(lengths: &[usize], seq_len: usize) -> Packed {
        let mut tokens: Vec<u32> = (1..=lengths.iter().sum::<usize>() as u32).collect();
        let mut end = 0;
        for length in lengths {
            end += length;
            tokens[end - 1] = SEPARATOR;
        }
        let store = TokenStore::in_memory(&tokens, tokens.len() + 1, Bytes(1));
        Packed::of_documents(store, SEPARATOR, seq_len, 5.into()).unwrap()
    }

    fn batch(packed: &Packed, rows: usize) -> Batch {
        let mut out = StepBatches { micro: vec![Batch::default()], ..StepBatches::default() };
        packed.fill_step(0, rows, rows, &mut out).unwrap();
        out.micro.remove(0)
    }

    #[test]
    fn segments_separate_the_documents_of_a_row() {
        let packed = packed(&[2, 4], 8);
        let batch = batch(&packed, 1);
        assert_eq!(batch.tokens, [1, 0, 3, 4, 5, 0, 0, 0]);
        assert_eq!(batch.segments.as_deref(), Some(&[1, 1, 2, 2, 2, 2, 0, 0][..]));
        assert_eq!(batch.targets, [0, -1, 4, 5, 0, -1, -1, -1]);
        assert_eq!((batch.padding, packed.held_out()), (2, 0));
    }

    #[test]
    fn a_last_document_needs_no_separator() {
        for (tokens, ends) in [(&[1, 0, 3][..], vec![2, 3]), (&[1, 2], vec![2]), (&[1, 0], vec![2]), (&[], vec![])] {
            let store = TokenStore::in_memory(tokens, 4, Bytes(1));
            assert_eq!(document_ends(&store, SEPARATOR).unwrap(), ends, "{tokens:?}");
        }
    }

    #[test]
    fn a_long_document_is_cut_but_keeps_its_targets() {
        let packed = packed(&[7], 3);
        let batch = batch(&packed, 3);
        let mut rows: Vec<_> = batch.tokens.chunks(3).zip(batch.targets.chunks(3)).collect();
        rows.sort_by_key(|(tokens, _)| if tokens[0] == 0 { 9 } else { tokens[0] });
        assert_eq!(rows, [(&[1, 2, 3][..], &[2, 3, 4][..]), (&[4, 5, 6], &[5, 6, 0]), (&[0, 0, 0], &[-1, -1, -1])]);
    }

    #[test]
    fn held_out_rows_past_the_end_are_padding() {
        let packed = packed(&[5; 40], 10);
        assert_eq!((packed.training(), packed.held_out()), (19, 1));
        let batches: Vec<Batch> = packed.held_out_batches(9, 2).map(Result::unwrap).collect();
        assert_eq!((batches.len(), batches[0].padding, batches[0].rows), (1, 10, 2));
        assert_eq!(batches[0].tokens[..5], [96, 97, 98, 99, 0]);
    }

    proptest! {
        #[test]
        fn every_training_token_is_in_one_row_once(
            lengths in proptest::collection::vec(1usize..30, 1..80), seq_len in 1usize..24,
        ) {
            let packed = packed(&lengths, seq_len);
            let batch = batch(&packed, packed.training() as usize);
            let segments = batch.segments.unwrap();
            let mut found: Vec<i32> =
                batch.tokens.iter().zip(&segments).filter(|(t, s)| **s > 0 && **t > 0).map(|(t, _)| *t).collect();
            found.sort_unstable();
            let held_out = |document: usize| lengths.len() >= 20 && document % 20 == 19;
            let mut expected = Vec::new();
            let mut first = 1;
            for (document, length) in lengths.iter().enumerate() {
                if !held_out(document) {
                    expected.extend(first..first + *length as i32 - 1);
                }
                first += *length as i32;
            }
            prop_assert_eq!(found, expected);
            let real = segments.iter().filter(|&&segment| segment > 0).count();
            prop_assert_eq!(batch.padding as usize, batch.tokens.len() - real);
            // First-fit never leaves two rows whose contents would fit into one.
            let filled: Vec<usize> = segments.chunks(seq_len).map(|row| row.iter().filter(|s| **s > 0).count()).collect();
            prop_assert!(filled.iter().filter(|&&tokens| 2 * tokens <= seq_len).count() <= 1);
        }
    }
}
