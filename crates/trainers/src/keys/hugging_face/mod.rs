//! Hugging Face's `TrainingArguments`, and other arguments of scripts that use them (TRL's `SFTConfig` and
//! `ModelConfig`, transformers' examples). Source: transformers 5.23, `training_args.py`; TRL 1.16.

mod adapters;
mod read;
mod sharding;
mod write;

pub(super) use adapters::{method_of, quantized};
pub(super) use read::{attention, checkpoints, mixed, note_evaluation, note_skipped_layers, read, shared_run};
pub(super) use sharding::layers;
pub(super) use write::{attention_name, checkpointing, edits, shared};

use super::present;
use crate::document::Document;

/// Keys for the micro-batch, the usual one first.
pub(super) const MICRO_BATCH: &[&str] =
    &["per_device_train_batch_size", "per_gpu_train_batch_size", "train_batch_size", "micro_batch_size"];

/// Keys for the length of a sample or of its source.
pub(super) const SEQ_LEN: &[&str] = &[
    "max_length",
    "max_seq_length",
    "max_seq_len",
    "block_size",
    "max_source_length",
    "model_max_length",
    "cutoff_len",
];

/// Keys for the type in which weights are loaded.
pub(super) const DTYPE: &[&str] = &["dtype", "torch_dtype", "model_dtype"];

/// Keys that only TRL's `SFTConfig` has.
const OF_TRL: &[&str] =
    &["assistant_only_loss", "completion_only_loss", "dataset_text_field", "padding_free", "packing_strategy"];

/// Whether settings are for TRL's trainer.
fn is_of_trl(document: &Document) -> bool {
    present(document, OF_TRL).is_some()
}
