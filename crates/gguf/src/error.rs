//! Why a file can't be written.

use plimsoll_train::checkpoint::CheckpointError;
use plimsoll_units::Bytes;
use std::io;
use std::path::PathBuf;

/// Why an export fails. Nothing is written then.
#[derive(Debug, thiserror::Error)]
pub enum GgufError {
    /// llama.cpp does not have the model's family, or not what this model has.
    #[error("llama.cpp can't run this {family} model: {}", .problems.join("; "))]
    Unsupported {
        /// The `model_type`.
        family: String,
        /// What it lacks; at least one.
        problems: Vec<String>,
    },
    /// llama.cpp has no such tokenizer.
    #[error("llama.cpp has no such tokenizer: {problem}")]
    Tokenizer {
        /// What it lacks.
        problem: String,
    },
    /// The adapters have more than llama.cpp applies.
    #[error("llama.cpp can't apply these adapters: {problem}")]
    Adapters {
        /// What it lacks.
        problem: String,
    },
    /// The weights can't be read.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// The disk has too little free space.
    #[error("{path} needs {needed}, but {free} is free")]
    NoRoom {
        /// The file.
        path: PathBuf,
        /// Its size.
        needed: Bytes,
        /// Free space of its disk.
        free: Bytes,
    },
    /// The system refused.
    #[error("{path}: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
}

/// Why the tensors can't be written.
pub(crate) enum WriteError {
    Io(io::Error),
    Checkpoint(CheckpointError),
}

impl From<io::Error> for WriteError {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

impl From<CheckpointError> for WriteError {
    fn from(error: CheckpointError) -> Self {
        Self::Checkpoint(error)
    }
}
