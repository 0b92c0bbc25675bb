//! The flags of the objective, and of the learning rates of layers.

use super::options::{number_from_zero, part, positive_number, rate};
use super::pairs::column;
use clap::Args;
use plimsoll_data::Column;
use plimsoll_graph::ops::Pooling;
use plimsoll_graph::{Contrastive, Objective};

/// The names of [`Pooling`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum PoolingName {
    /// The mean of all tokens
    Mean,
    /// The first token
    Cls,
}

impl PoolingName {
    pub(super) fn pooling(self) -> Pooling {
        match self {
            Self::Mean => Pooling::Mean,
            Self::Cls => Pooling::First,
        }
    }
}

#[derive(Debug, Clone, Args)]
pub(super) struct ObjectiveArgs {
    /// Label smoothing: fraction of each target spread over the vocabulary; not used in held-out losses
    #[arg(long, value_name = "X", value_parser = rate, default_value = "0")]
    pub label_smoothing: f32,
    /// R-Drop: weight of the divergence between two passes with different dropout; 0 disables it
    #[arg(long, value_name = "X", value_parser = number_from_zero, default_value = "0")]
    pub r_drop: f64,
    /// Encoders: factor of the cosines of vectors in the loss
    #[arg(long, value_name = "X", value_parser = positive_number, default_value = "20")]
    pub similarity_scale: f64,
    /// Encoders: the tokens that a text's vector is made of
    #[arg(long, value_name = "NAME", value_enum, default_value = "mean")]
    pub pooling: PoolingName,
    /// Encoders: column or field of hard negatives; can be repeated, and each is a candidate of all anchors [default:
    /// `negative`, or `negative_1`, `negative_2`, …, as far as the first row has them]
    #[arg(long, value_name = "N|NAME", value_parser = column)]
    pub negative_column: Vec<Column>,
    /// Layer-wise learning rate decay: factor from each block's learning rate to that of the block before it
    #[arg(long, value_name = "X", value_parser = part, default_value = "1")]
    pub layer_decay: f32,
}

impl ObjectiveArgs {
    pub(super) fn objective(&self) -> Objective {
        let r_drop = (self.r_drop > 0.0).then_some(self.r_drop as f32);
        let contrastive = Contrastive {
            scale: self.similarity_scale as f32,
            pooling: self.pooling.pooling(),
            negatives: self.negative_column.len(),
        };
        Objective { label_smoothing: self.label_smoothing, r_drop, contrastive, preferences: None }
    }
}
