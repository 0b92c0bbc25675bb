//! Checkpoints: each is a folder that is complete or does not exist. It contains the weights under the names of their
//! family, so that `transformers` can open it; the moments; and `state.json` with everything else and the checksums of
//! all files.
//!
//! ```text
//!   step-000200/  model.safetensors  optimizer.safetensors  (average.safetensors)  config.json  state.json
//!                 tokenizer.json and the other files of `plimsoll_data::model_files`
//!   With adapters:  adapter_model.safetensors  adapter_config.json  instead of model.safetensors
//!   branches.json, if an older checkpoint was resumed
//! ```

mod archive;
mod bitsandbytes;
mod contents;
mod error;
mod find;
mod hash;
mod merge;
mod model_folder;
mod mxfp4;
mod names;
mod pooling;
mod read;
mod same_run;
mod size;
mod state;
mod stored;
mod tensors;
mod write;

pub use bitsandbytes::bitsandbytes_codes;
pub use error::CheckpointError;
pub(crate) use find::later;
pub use find::{Newest, Skipped, list, newest_whole, read_state, verify};
pub use merge::Merge;
pub use model_folder::ModelFolder;
pub use pooling::{UnknownPooling, pooling_name, read_pooling};
pub(crate) use read::fingerprint;
pub use read::{has_own_head, load_adapters, load_averages, load_weights, read_adapters, restore};
pub(crate) use same_run::check_same_run;
pub use size::{room, sizes};
pub use state::{FileSum, RunState, TrainingCounts};
pub use stored::StoredWeights;
pub(crate) use write::settle;
pub use write::{Keep, Saved, save, sweep};

/// Weights, under their family's names.
pub const MODEL_FILE: &str = "model.safetensors";
/// The index of shards in other programs' checkpoints. We save one file.
pub const INDEX_FILE: &str = "model.safetensors.index.json";
/// Adapters, under the names of PEFT, in place of the weights of a run that trains only adapters.
pub const ADAPTER_FILE: &str = "adapter_model.safetensors";
/// The adapters' configuration, in PEFT's format.
pub const ADAPTER_CONFIG_FILE: &str = "adapter_config.json";
/// Moments, under the weights' names with `.exp_avg` or `.exp_avg_sq`.
pub const OPTIMIZER_FILE: &str = "optimizer.safetensors";
/// Averaged weights, under the weights' names, if the run keeps them.
pub const AVERAGE_FILE: &str = "average.safetensors";
/// The model's configuration, in the format of `transformers`.
pub const CONFIG_FILE: &str = "config.json";
/// All other state.
pub const STATE_FILE: &str = "state.json";
