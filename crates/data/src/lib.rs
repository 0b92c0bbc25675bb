//! Text in, integer batches out: sources → tokenizer → token store → windows → order → batches.
//! Not here: what a batch is used for, and any terminal output; progress is told through callbacks.
//! Read next: `sources.rs` for what is read, `shards.rs` for the cache, `batch.rs` for what training asks.
//!
//! Sequence-to-sequence pairs and length buckets would enter beside `split.rs` and `batch.rs`: another kind of sample
//! over the same store, with the padding (`PADDING_INPUT`, `PADDING_TARGET`) that held-out batches use already.

mod batch;
mod damage;
mod decompress;
mod documents;
mod error;
mod fingerprint;
mod header;
mod jsonl;
mod order;
mod pieces;
mod progress;
mod registry;
mod shards;
mod sources;
mod split;
mod store;
mod tokenizer;

pub use batch::{Batches, HeldOutSubset, PADDING_INPUT, PADDING_TARGET};
pub use damage::Damage;
pub use error::DataError;
pub use order::Order;
pub use progress::Progress;
pub use registry::cargo_registry_sources;
pub use shards::prepare;
pub use sources::{DEFAULT_TEXT_FIELD, Format, Packing, Source, Sources, resolve};
pub use split::Windows;
pub use store::TokenStore;
pub use tokenizer::{EncodeError, Tokenizer, TokenizerSpec};
