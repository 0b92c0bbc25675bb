//! The flags that say what is minimised, and how layers learn.

use super::options::{number_from_zero, part, rate};
use clap::Args;
use graph::Objective;

#[derive(Debug, Clone, Args)]
pub(super) struct ObjectiveArgs {
    /// The part of each target that is spread over the whole vocabulary; held-out losses are without it
    #[arg(long, value_name = "X", value_parser = rate, default_value = "0")]
    pub label_smoothing: f32,
    /// R-Drop: every sample passes twice under two dropout draws, and their divergence counts this much; 0: off
    #[arg(long, value_name = "X", value_parser = number_from_zero, default_value = "0")]
    pub r_drop: f64,
    /// What the learning rate is multiplied by from one block to the one before it
    #[arg(long, value_name = "X", value_parser = part, default_value = "1")]
    pub layer_decay: f32,
}

impl ObjectiveArgs {
    pub(super) fn objective(&self) -> Objective {
        let r_drop = (self.r_drop > 0.0).then_some(self.r_drop as f32);
        Objective { label_smoothing: self.label_smoothing, r_drop }
    }
}
