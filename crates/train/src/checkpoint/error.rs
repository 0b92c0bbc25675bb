//! What can be wrong with a checkpoint.

use std::io;
use std::path::PathBuf;

/// Why a checkpoint can't be read or written.
#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    /// The system refused.
    #[error("{path}: {source}")]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// A file is not what its checksum says.
    #[error("{path} is damaged: {problem}")]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        problem: String,
    },
    /// A safetensors file lacks a tensor.
    #[error("{path} has no tensor `{tensor}`")]
    MissingTensor {
        /// The file.
        path: PathBuf,
        /// The tensor.
        tensor: String,
    },
    /// A safetensors file has a tensor that the model lacks.
    #[error("{path} has a tensor `{tensor}` that the model lacks")]
    ForeignTensor {
        /// The file.
        path: PathBuf,
        /// The tensor.
        tensor: String,
    },
    /// A tensor has another shape or dtype than the model's.
    #[error("{path}: `{tensor}` is {found}, the model needs {expected}")]
    WrongTensor {
        /// The file.
        path: PathBuf,
        /// The tensor.
        tensor: String,
        /// Shape and dtype needed.
        expected: String,
        /// Shape and dtype found.
        found: String,
    },
    /// The checkpoint belongs to a run with other data or sizes, so that going on would not be the same run.
    #[error("{path} was made with {what} {found}, this run has {expected}")]
    OtherRun {
        /// The checkpoint.
        path: PathBuf,
        /// What differs.
        what: &'static str,
        /// Of the checkpoint.
        found: String,
        /// Of this run.
        expected: String,
    },
    /// Nothing to resume from.
    #[error("{path} holds no whole checkpoint")]
    None {
        /// Where it was looked for.
        path: PathBuf,
    },
}
