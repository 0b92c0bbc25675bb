//! How a device is opened, and why a test can't run on it.

use plimsoll_exec::{Device, DeviceError};
use plimsoll_plan::PlanError;
use plimsoll_train::TrainError;
use plimsoll_units::Bytes;
use std::io;

/// Opens the device, with products in single precision rounded to TF32 or not.
pub type OpenDevice<'a> = &'a dyn Fn(bool) -> Result<Box<dyn Device>, DeviceError>;

/// Why the protocol could not begin.
#[derive(Debug, thiserror::Error)]
pub enum StressError {
    /// The smallest workloads need more memory.
    #[error("the smallest workloads need {needed}, but there are {available}")]
    DoesNotFit {
        /// Bytes that they need.
        needed: Bytes,
        /// Bytes that may be filled.
        available: Bytes,
    },
    /// The device failed.
    #[error(transparent)]
    Train(#[from] TrainError),
    /// The training steps can't be planned.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// The system refuses the thread that samples the card.
    #[error("can't watch the GPU: {0}")]
    NoSampler(io::Error),
}
