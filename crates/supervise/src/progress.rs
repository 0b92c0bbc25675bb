//! How far a trainer has come, read from what it prints.

use serde::{Deserialize, Serialize};

/// How far a trainer has come. The later one is the greater.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Progress {
    /// The epoch, where steps are counted from one to the next.
    pub epoch: Option<u64>,
    /// The step.
    pub step: u64,
    /// The last step, where it is told.
    pub of: Option<u64>,
}
