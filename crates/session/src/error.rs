//! Why a session ends without an outcome.

use plimsoll_train::{FolderError, TrainError};
use std::io;

/// Why a session can't begin or continue.
#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    /// The device, the data, a checkpoint or the folder can't be used.
    #[error(transparent)]
    Train(#[from] TrainError),
    /// The system refused the thread that samples a card, so its temperature can't be limited.
    #[error("samples can't be taken: {0}")]
    NoSampler(#[source] io::Error),
}

impl From<FolderError> for SessionError {
    fn from(error: FolderError) -> Self {
        Self::Train(error.into())
    }
}
