//! The flags of the objective, and of the learning rates of layers.

use super::options::{number_from_zero, part, rate};
use clap::Args;
use plimsoll_graph::Objective;

#[derive(Debug, Clone, Args)]
pub(super) struct ObjectiveArgs {
    /// Label smoothing: fraction of each target spread over the vocabulary; not used in held-out losses
    #[arg(long, value_name = "X", value_parser = rate, default_value = "0")]
    pub label_smoothing: f32,
    /// R-Drop: weight of the divergence between two passes with different dropout; 0 disables it
    #[arg(long, value_name = "X", value_parser = number_from_zero, default_value = "0")]
    pub r_drop: f64,
    /// Layer-wise learning rate decay: factor from each block's learning rate to that of the block before it
    #[arg(long, value_name = "X", value_parser = part, default_value = "1")]
    pub layer_decay: f32,
}

impl ObjectiveArgs {
    pub(super) fn objective(&self) -> Objective {
        let r_drop = (self.r_drop > 0.0).then_some(self.r_drop as f32);
        Objective { label_smoothing: self.label_smoothing, r_drop }
    }
}
