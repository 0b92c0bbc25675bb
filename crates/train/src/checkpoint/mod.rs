//! Checkpoints: a folder each, whole or not there. Weights under the names of their family, so that `transformers`
//! opens them; moments beside them; `state.json` with everything else and the checksums of all files.
//!
//! ```text
//!   step-000200/  model.safetensors  optimizer.safetensors  (average.safetensors)  config.json  state.json
//!                 tokenizer.json and what else `plimsoll_data::model_files` names
//!   branches.json, once an older checkpoint was resumed
//! ```

mod archive;
mod contents;
mod error;
mod find;
mod hash;
mod model_folder;
mod names;
mod read;
mod same_run;
mod size;
mod state;
mod tensors;
mod write;

pub use error::CheckpointError;
pub(crate) use find::later;
pub use find::{Newest, Skipped, list, newest_whole, read_state, verify};
pub use model_folder::ModelFolder;
pub use read::{has_own_head, load_averages, load_weights, restore};
pub(crate) use same_run::check_same_run;
pub use size::{room, sizes};
pub use state::{FileSum, Seen, State};
pub use write::{Keep, Saved, save, sweep};

/// Weights, under their family's names.
pub const MODEL_FILE: &str = "model.safetensors";
/// Which shard holds which weights, where others split them. We save one file.
pub const INDEX_FILE: &str = "model.safetensors.index.json";
/// Moments, under the weights' names and `.exp_avg` or `.exp_avg_sq`.
pub const OPTIMIZER_FILE: &str = "optimizer.safetensors";
/// Averaged weights, under the weights' names, where a run keeps them.
pub const AVERAGE_FILE: &str = "average.safetensors";
/// The model's configuration, as `transformers` reads it.
pub const CONFIG_FILE: &str = "config.json";
/// Everything else.
pub const STATE_FILE: &str = "state.json";
