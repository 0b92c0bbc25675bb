//! The type from which training takes its batches, for all kinds of samples: windows of a stream, packed documents, or
//! pairs.
//! Not here: how each kind fills a batch (`batch.rs`, `packed.rs`, `pairs/batches.rs`), and prefetching (`loader.rs`).

use crate::micro_batch::{Batch, Shape, StepBatches};
use crate::{Batches, DataError, Packed, Packing, Pairs, PreferencePairs};

/// Batches of an evaluation, produced one by one.
pub type HeldOutBatches<'a> = Box<dyn Iterator<Item = Result<Batch, DataError>> + 'a>;

/// The data that a run trains on.
#[derive(Debug)]
pub enum Dataset {
    /// Windows of one stream of tokens, for causal models.
    Windows(Batches),
    /// Whole documents or chats in rows, for causal models.
    Packed(Packed),
    /// Sources and targets, for encoders with a decoder.
    Pairs(Pairs),
    /// Prompts with a chosen and a rejected answer, for causal models.
    Preferences(PreferencePairs),
}

impl Dataset {
    /// Samples to train on: windows, rows, or pairs.
    pub fn training(&self) -> u64 {
        match self {
            Self::Windows(batches) => batches.windows.training(),
            Self::Packed(packed) => packed.training(),
            Self::Pairs(pairs) => pairs.training(),
            Self::Preferences(pairs) => pairs.training(),
        }
    }

    /// Samples held out.
    pub fn held_out(&self) -> u64 {
        match self {
            Self::Windows(batches) => batches.windows.held_out(),
            Self::Packed(packed) => packed.held_out(),
            Self::Pairs(pairs) => pairs.held_out(),
            Self::Preferences(pairs) => pairs.held_out(),
        }
    }

    /// The batches of a step, counted from 0.
    /// Errors: `CacheChanged`.
    /// Panics unless `micro_batch` divides `global_batch` and neither is 0.
    pub fn step(&self, step: u64, global_batch: usize, micro_batch: usize) -> Result<StepBatches, DataError> {
        let mut batches = StepBatches::default();
        self.fill_step(step, global_batch, micro_batch, &mut batches)?;
        Ok(batches)
    }

    /// Like [`Dataset::step`], but reuses the memory of `out`.
    pub fn fill_step(
        &self,
        step: u64,
        global_batch: usize,
        micro_batch: usize,
        out: &mut StepBatches,
    ) -> Result<(), DataError> {
        assert!(
            micro_batch > 0 && global_batch > 0 && global_batch.is_multiple_of(micro_batch),
            "micro-batches of {micro_batch} do not make up a global batch of {global_batch}"
        );
        out.micro.resize_with(global_batch / micro_batch, Batch::default);
        match self {
            Self::Windows(batches) => batches.fill_step(step, global_batch, micro_batch, out)?,
            Self::Packed(packed) => packed.fill_step(step, global_batch, micro_batch, out)?,
            Self::Pairs(pairs) => pairs.fill_step(step, global_batch, micro_batch, out)?,
            Self::Preferences(pairs) => pairs.fill_step(step, global_batch, micro_batch, out)?,
        }
        let sum = |count: fn(&Batch) -> u64| out.micro.iter().map(count).sum();
        (out.targets, out.tokens) = (sum(Batch::real_targets), sum(Batch::real_tokens));
        (out.padding, out.truncated) = (sum(|batch| batch.padding), sum(|batch| batch.truncated));
        Ok(())
    }

    /// At most `samples_max` held-out samples, always the same, spread evenly, in batches of `rows` rows. Rows past the
    /// end are padding; if the batch has segments, theirs are 0.
    /// Errors: `CacheChanged`, at once or with a batch.
    pub fn held_out_batches(&self, samples_max: u64, rows: usize) -> Result<HeldOutBatches<'_>, DataError> {
        assert!(rows > 0, "a batch needs rows");
        Ok(match self {
            Self::Windows(batches) => Box::new(batches.held_out_batches(samples_max, rows)),
            Self::Packed(packed) => Box::new(packed.held_out_batches(samples_max, rows)),
            Self::Pairs(pairs) => Box::new(pairs.held_out_batches(samples_max, rows)?),
            Self::Preferences(pairs) => Box::new(pairs.held_out_batches(samples_max, rows)),
        })
    }

    /// All shapes that a batch can have, sorted.
    pub fn shapes(&self) -> Vec<Shape> {
        let causal = |seq_len| vec![Shape { source_len: seq_len, target_len: None }];
        match self {
            Self::Windows(batches) => causal(batches.windows.seq_len()),
            Self::Packed(packed) => causal(packed.seq_len()),
            Self::Pairs(pairs) => pairs.shapes().to_vec(),
            Self::Preferences(pairs) => pairs.shapes().to_vec(),
        }
    }

    /// Identifies the data, the tokenizer and how samples are made of them, but not the seed. For windows it is the
    /// fingerprint of the token store.
    pub fn fingerprint(&self) -> String {
        match self {
            Self::Windows(batches) => batches.store.fingerprint().to_owned(),
            Self::Packed(packed) => {
                let packing = match packed.packing() {
                    Packing::Packed => "packed",
                    Packing::OneEach => "one a row",
                };
                format!("{packing} {} {}", packed.seq_len(), packed.store().fingerprint())
            }
            Self::Pairs(pairs) => {
                let settings = crate::PairSettings { seed: 0, ..pairs.settings };
                let beginning = pairs.beginning().map_or(String::new(), |tokens| format!(" after {tokens:?}"));
                let hash = blake3::hash(format!("{} {settings:?}{beginning}", pairs.store.fingerprint()).as_bytes());
                hash.to_hex().to_string()
            }
            Self::Preferences(pairs) => {
                let settings = crate::PreferenceSettings { seed: 0, ..pairs.settings };
                format!("preferences {settings:?} {}", pairs.store().tokens().fingerprint())
            }
        }
    }

    /// One more than the largest possible id.
    pub fn vocab_size(&self) -> usize {
        match self {
            Self::Windows(batches) => batches.store.vocab_size(),
            Self::Packed(packed) => packed.store().vocab_size(),
            Self::Pairs(pairs) => pairs.store.vocab_size(),
            Self::Preferences(pairs) => pairs.store().tokens().vocab_size(),
        }
    }

    /// Tokens of the data, held-out ones included.
    pub fn tokens(&self) -> u64 {
        match self {
            Self::Windows(batches) => batches.store.len(),
            Self::Packed(packed) => packed.store().len(),
            Self::Pairs(pairs) => pairs.store.tokens(),
            Self::Preferences(pairs) => pairs.store().tokens().len(),
        }
    }
}
