//! The parts of a step's programs.

use serde::{Deserialize, Serialize};

/// The part of a program that a node belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Pass {
    /// Computes results from inputs.
    Forward,
    /// Computes gradients.
    Backward,
    /// Recomputes results of the forward pass that were not kept.
    Recompute,
    /// Updates parameters from their gradients.
    Update,
    /// Updates parameters on the host from the gradients of the step before.
    HostUpdate,
}
