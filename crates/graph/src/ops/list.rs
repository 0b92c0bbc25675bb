//! The list of ops, and the enum that holds any of them as plain data.

pub use super::attention::{
    ATTENTION_ROWS, AttentionExtents, DROPOUT_TOKENS, EMPTY_LSE, MOST_BUCKETS, RelativeBias, attends_on_tensor_cores,
    card_queries, dropout_site_of_head,
};
pub use super::dropout::DropoutKey;
pub use super::expert_linear::MOST_EXPERT_ROWS;
pub use super::fp8_linear::{Fp8, Fp8Factors};
pub use super::gated::Activation;
pub use super::grad_norm::NORM_BLOCK;
pub use super::head::{HeadAdapterGrads, HeadGradients, logits_stride};
pub use super::head_log_probs::grouped_target;
pub use super::keep_gradient::GradientFormat;
pub use super::linear::WeightLayout;
pub use super::parameter_update::{STATE_BLOCK, WeightFormat};
pub use super::pool::Pooling;
pub use super::preference_loss::{PreferenceKind, REWARDS};
pub use super::quantized_expert_linear::groups;
pub use super::quantized_linear::strips;
pub use super::rotary::{RopeScaling, inverse_frequencies};
pub use super::route::tokens_of_part;

use super::{Example, Operation};
use serde::{Deserialize, Serialize};

/// Takes a `$`, for the macro that it defines, and a line per file: its name and its ops.
macro_rules! ops {
    ($dollar:tt $($file:ident: $($name:ident),+;)+) => {
        $(pub use super::$file::{$($name),+};)+

        /// Any op, as plain data.
        #[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
        #[serde(rename_all = "snake_case")]
        #[expect(missing_docs, reason = "each variant is documented at the struct that it holds")]
        pub enum Op {
            $($($name($name)),+),+
        }

        $($(impl From<$name> for Op {
            fn from(op: $name) -> Self {
                Self::$name(op)
            }
        })+)+

        /// `match_op!(op, own => value)` matches on an [`Op`] with the same arm for every op, where `own` is the op's
        /// struct. A backend calls its trait with it, so that the compiler requires an implementation for every op.
        #[macro_export]
        macro_rules! match_op {
            ($dollar op:expr, $dollar own:ident => $dollar value:expr) => {
                match $dollar op {
                    $($($crate::Op::$name($dollar own) => $dollar value),+),+
                }
            };
        }

        impl std::ops::Deref for Op {
            type Target = dyn Operation;
            fn deref(&self) -> &Self::Target {
                match_op!(self, op => op)
            }
        }

        impl Op {
            /// The examples of every op.
            pub fn all_examples() -> Vec<Example> {
                let mut all = Vec::new();
                $($(all.extend($name::examples());)+)+
                all
            }

            /// The variants' names, so that an oracle can check that it covers them all.
            pub const VARIANTS: &[&str] = &[$($(stringify!($name)),+),+];

            /// This variant's name.
            pub fn variant(&self) -> &'static str {
                match self {
                    $($(Self::$name(_) => stringify!($name)),+),+
                }
            }
        }
    };
}

ops! { $
    add: Add;
    attention: Attention, AttentionGrad;
    await_transfer: AwaitTransfer;
    by_rows: ByRows, ByRowsGrad;
    cached_attention: CachedAttention;
    cast: Cast;
    clamped_swiglu: ClampedSwiglu, ClampedSwigluGrad;
    column_scale: ColumnScale, ColumnScaleGrad;
    contrastive_loss: ContrastiveLoss, ContrastiveLossGrad;
    dispatch: Dispatch, Combine, CombineWeightGrad;
    dropout: Dropout;
    embedding: Embedding, EmbeddingGrad;
    exact_gelu: ExactGelu, ExactGeluGrad;
    expert_linear: ExpertLinear, ExpertLinearInputGrad, ExpertLinearWeightGrad;
    fp8_linear: Fp8Linear;
    gated: Gated, GatedGrad;
    gelu: Gelu, GeluGrad;
    grad_clip: GradClip;
    grad_norm: GradNorm;
    head_log_probs: HeadLogProbs, HeadLogProbsGrad;
    head_loss: HeadLoss, HeadLossGrad;
    keep_gradient: KeepGradient;
    layer_norm: LayerNorm, LayerNormGrad;
    linear: Linear, LinearInputGrad, LinearWeightGrad;
    linear_add: LinearAdd;
    low_rank_norm: LowRankNorm;
    moving_average: MovingAverage;
    paired_head_loss: PairedHeadLoss, PairedHeadLossGrad;
    parameter_update: ParameterUpdate;
    pool: Pool, PoolGrad;
    positions: Positions, PositionsGrad;
    preference_loss: PreferenceLoss, PreferenceLossGrad;
    quantized_expert_linear: QuantizedExpertLinear, QuantizedExpertLinearInputGrad;
    quantized_linear: QuantizedLinear, QuantizedLinearInputGrad;
    relu: Relu, ReluGrad;
    rms_norm: RmsNorm, RmsNormGrad;
    rotary: Rotary;
    route: Route, RouteGrad;
    router_loss: RouterLoss;
    scale: Scale;
    soft_cap: SoftCap, SoftCapGrad;
    take_row: TakeRow;
    transfer: Transfer;
    uniform_noise: UniformNoise;
}
