//! Text in, padded integer batches out: sources → tokenizer → token store → samples → order → batches.
//! Not here: how batches are used, and terminal output; callbacks report progress.
//! Read next: `sources.rs` for the inputs, `shards.rs` for the cache, `dataset.rs` for the interface to training.
//!
//! There are five kinds of samples: windows of the stream (`split.rs`, `batch.rs`), packed documents (`packed.rs`),
//! chats (`chats/`, in rows of `packed.rs`), preferences (`preferences.rs`), and pairs for sequence-to-sequence models
//! (`pairs/`).

mod array;
mod batch;
mod cache;
mod chats;
mod damage;
mod dataset;
mod decompress;
mod documents;
mod error;
mod fingerprint;
mod header;
mod held_out;
mod json_file;
mod jsonl;
mod lines;
mod loader;
mod micro_batch;
mod order;
mod packed;
mod pairs;
mod pieces;
mod preferences;
mod progress;
mod quiet;
mod registry;
mod row_number;
mod rows;
mod shards;
mod source;
mod sources;
mod split;
mod splits;
mod store;
mod table;
mod texts;
mod tokenizer;

pub use batch::Batches;
pub use chats::{
    AnswerEnds, Chat, ChatFormat, ChatSettings, ChatStore, ChatTemplate, DataFormat, Date, PreferenceData,
    TemplateHabits, TrainOn, detect_format, detect_preferences, prepare_chats, prepare_preferences,
};
pub use damage::Damage;
pub use dataset::{Dataset, HeldOutBatches};
pub use error::DataError;
pub use loader::Loader;
pub use micro_batch::{Batch, PADDING_INPUT, PADDING_TARGET, Shape, StepBatches, other_target};
pub use order::Order;
pub use packed::{Packed, Packing};
pub use pairs::{
    Column, FirstRow, PairColumns, PairSettings, PairStore, Pairs, first_row, is_table, prepare_pairs, tokenize_pairs,
};
pub use preferences::{PreferencePairs, PreferenceRows, PreferenceSettings};
pub use progress::Progress;
pub use registry::cargo_registry_sources;
pub use row_number::RowNumber;
pub use shards::{count_tokens, prepare};
pub use source::{Compression, DEFAULT_TEXT_FIELD, Format, LINE_BYTES_MAX, Source, Sources, Within};
pub use sources::{FILES_MAX, resolve};
pub use split::{HeldOut, Split, Windows};
pub use store::TokenStore;
pub use texts::Texts;
pub use tokenizer::{
    EncodeError, MODEL_FILES, ModelFile, Tokenizer, TokenizerKind, TokenizerSpec, generation_ends, model_files,
    train_tokenizer,
};
