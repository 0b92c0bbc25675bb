//! The list of ops, and the enum that holds any of them as plain data.

pub use super::add::Add;
pub use super::attention::{
    ATTENTION_ROWS, Attention, AttentionExtents, AttentionGrad, DROPOUT_TOKENS, EMPTY_LSE, MOST_BUCKETS, RelativeBias,
    attends_on_tensor_cores, card_queries, dropout_site_of_head,
};
pub use super::await_transfer::AwaitTransfer;
pub use super::cached_attention::CachedAttention;
pub use super::cast::Cast;
pub use super::dropout::{Dropout, DropoutKey};
pub use super::embedding::{Embedding, EmbeddingGrad};
pub use super::gated::{Activation, Gated, GatedGrad};
pub use super::gelu::{Gelu, GeluGrad};
pub use super::grad_clip::GradClip;
pub use super::grad_norm::{GradNorm, NORM_BLOCK};
pub use super::head_loss::{HeadLoss, HeadLossGrad, logits_stride};
pub use super::layer_norm::{LayerNorm, LayerNormGrad};
pub use super::linear::{Linear, LinearInputGrad, LinearWeightGrad, WeightLayout};
pub use super::moving_average::MovingAverage;
pub use super::paired_head_loss::{PairedHeadLoss, PairedHeadLossGrad};
pub use super::parameter_update::{ParameterUpdate, STATE_BLOCK, StateFormat, WeightFormat};
pub use super::positions::{Positions, PositionsGrad};
pub use super::relu::{Relu, ReluGrad};
pub use super::rms_norm::{RmsNorm, RmsNormGrad};
pub use super::rotary::{RopeScaling, Rotary, inverse_frequencies};
pub use super::scale::Scale;
pub use super::take_row::TakeRow;
pub use super::transfer::Transfer;

use super::{Example, Operation};
use serde::{Deserialize, Serialize};

macro_rules! ops {
    ($($name:ident),* $(,)?) => {
        /// Any op, as plain data.
        #[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
        #[serde(rename_all = "snake_case")]
        #[expect(missing_docs, reason = "each variant is documented at the struct that it holds")]
        pub enum Op {
            $($name($name)),*
        }

        $(impl From<$name> for Op {
            fn from(op: $name) -> Self {
                Self::$name(op)
            }
        })*

        impl std::ops::Deref for Op {
            type Target = dyn Operation;
            fn deref(&self) -> &Self::Target {
                match self {
                    $(Self::$name(op) => op),*
                }
            }
        }

        impl Op {
            /// The examples of every op.
            pub fn all_examples() -> Vec<Example> {
                let mut all = Vec::new();
                $(all.extend($name::examples());)*
                all
            }

            /// The variants' names, so that an oracle can prove that it covers them all.
            pub const VARIANTS: &[&str] = &[$(stringify!($name)),*];

            /// This variant's name.
            pub fn variant(&self) -> &'static str {
                match self {
                    $(Self::$name(_) => stringify!($name)),*
                }
            }
        }
    };
}

ops!(
    Add,
    Attention,
    AttentionGrad,
    AwaitTransfer,
    CachedAttention,
    Cast,
    Dropout,
    Embedding,
    EmbeddingGrad,
    Gated,
    GatedGrad,
    Gelu,
    GeluGrad,
    GradClip,
    GradNorm,
    HeadLoss,
    HeadLossGrad,
    LayerNorm,
    LayerNormGrad,
    Linear,
    LinearInputGrad,
    LinearWeightGrad,
    MovingAverage,
    PairedHeadLoss,
    PairedHeadLossGrad,
    ParameterUpdate,
    Positions,
    PositionsGrad,
    Relu,
    ReluGrad,
    RmsNorm,
    RmsNormGrad,
    Rotary,
    Scale,
    TakeRow,
    Transfer,
);
