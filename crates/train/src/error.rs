//! Everything that can end a run before its time.

use crate::checkpoint::CheckpointError;
use crate::folder::FolderError;
use plimsoll_exec::DeviceError;
use plimsoll_plan::PlanViolation;
use plimsoll_telemetry::JournalError;

/// Why a run could not start or go on.
#[derive(Debug, thiserror::Error)]
pub enum TrainError {
    /// The plan is unsound: a bug of ours.
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
    /// Token ids would lie outside the model's table.
    #[error("the tokenizer has {tokenizer} ids, the model's vocabulary has {model}")]
    Vocabulary {
        /// Ids of the tokenizer.
        tokenizer: usize,
        /// Rows of the model's table.
        model: usize,
    },
    /// There is nothing to train on.
    #[error("all of the text's {tokens} tokens are held out; nothing is left to train on")]
    NothingToTrainOn {
        /// Tokens in all.
        tokens: u64,
    },
}
