//! Writes models and adapters as GGUF files, which llama.cpp and programs built on it run. The tensors are encoded part by
//! part, so that memory is needed for one part only.
//!
//! ```text
//!   config.json ─► architecture.rs ─► metadata.rs ─┐
//!        │               └──────────► tensors.rs ──┼─► write.rs ─► FILE
//!   tokenizer.json ─► tokenizer.rs ────────────────┤
//!   weights ─► rows.rs ─► blocks/ ─────────────────┘
//! ```
//!
//! The format, the names of keys and tensors, and the order of weights are facts about llama.cpp; each file names where they
//! are from. Not here: reading tokenizers (`data`) and checkpoints (`train`).

mod adapter;
mod architecture;
mod blocks;
mod error;
mod file_type;
mod metadata;
mod model;
mod modelfile;
mod rows;
mod tensor;
mod tensors;
mod tokenizer;
mod value;
mod write;

pub use adapter::{AdapterFileType, adapter};
pub use architecture::supported;
pub use blocks::Encoding;
pub use error::GgufError;
pub use file_type::FileType;
pub use model::{ModelParts, model};
pub use modelfile::Modelfile;
pub use rows::Summary;
pub use tokenizer::TokenizerParts;
pub use value::Value;
pub use write::Contents;
