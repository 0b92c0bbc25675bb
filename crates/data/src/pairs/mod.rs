//! Pairs of a source and a target text for sequence-to-sequence models: rows of a table → tokens → buckets → batches.
//! Read next: `rows.rs` for the input, `prepare.rs` for the cache, `batches.rs` for the interface to training.

mod batches;
mod buckets;
mod column;
mod grouping;
mod negatives;
mod prepare;
mod rows;
mod store;

pub(crate) use buckets::Buckets;
pub(crate) use grouping::Grouping;

pub use batches::{PairSettings, Pairs};
pub use column::{Column, PairColumns};
pub use prepare::{prepare_pairs, tokenize_pairs};
pub use rows::{FirstRow, first_row, is_table};
pub use store::PairStore;
