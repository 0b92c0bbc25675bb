//! All errors that can end a run early.

use crate::checkpoint::CheckpointError;
use crate::folder::FolderError;
use plimsoll_exec::DeviceError;
use plimsoll_plan::PlanViolation;
use plimsoll_telemetry::JournalError;

/// Why a run could not start or continue.
#[derive(Debug, thiserror::Error)]
pub enum TrainError {
    /// The plan is unsound: a bug in Plimsoll.
    #[error("the plan is invalid: {0}")]
    Unsound(#[from] PlanViolation),
    /// The device failed.
    #[error("device: {0}")]
    Device(#[from] DeviceError),
    /// A checkpoint can't be used.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// The run's folder can't be used.
    #[error(transparent)]
    Folder(#[from] FolderError),
    /// The journal can't be opened.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// The next batch can't be made.
    #[error(transparent)]
    Data(#[from] plimsoll_data::DataError),
    /// The tokenizer has ids outside the model's embedding table.
    #[error("the tokenizer has {tokenizer} ids, the model's vocabulary has {model}")]
    Vocabulary {
        /// Number of ids in the tokenizer.
        tokenizer: usize,
        /// Rows in the model's table.
        model: usize,
    },
    /// No token is left to train on.
    #[error("all of the text's {tokens} tokens are held out; nothing is left to train on")]
    NothingToTrainOn {
        /// Number of all tokens.
        tokens: u64,
    },
}
