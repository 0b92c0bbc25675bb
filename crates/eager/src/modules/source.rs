//! Differences between families in the code of transformers and other programs, which affect memory but no result.

use crate::versions;
use plimsoll_graph::models::ModelConfig;
use plimsoll_trainers::{Attention, Loss, Run};

/// The family whose code in transformers was copied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Code {
    Gpt2,
    Llama,
}

/// How a router computes the weights of a token's experts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Router {
    /// Softmax over all experts in single precision.
    Softmax,
    /// The same, cast to the type of the logits.
    SoftmaxCast,
    /// Softmax over the token's experts, in the type of the logits.
    ChosenSoftmax,
}

/// Names of the layers of experts in PEFT's targets, which earlier versions of transformers had as modules.
/// Source: `_MOE_TARGET_MODULE_MAPPING` of PEFT's `utils/transformers_weight_conversion.py`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ExpertLayers {
    /// The router.
    pub router: &'static [&'static str],
    /// The layers whose weights are one tensor; PEFT adapts all of them or none.
    pub up: &'static [&'static str],
    /// The layer down.
    pub down: &'static [&'static str],
}

/// Without names, PEFT adapts no experts.
const NO_NAMES: ExpertLayers = ExpertLayers { router: &[], up: &[], down: &[] };

/// How programs treat a family. Fields that name no source are from its `modeling_*.py` in transformers 5.24.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Source {
    pub code: Code,
    /// Layers that PEFT adapts by default; none if PEFT requires their names.
    /// Source: `TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING` of PEFT's `utils/constants.py`.
    pub lora_targets: &'static [&'static str],
    /// Whether Liger replaces the family's modules by the kernels that it has for Llama. For Gemma, Phi-3, OLMo and
    /// Granite, it has other kernels, or none for the loss.
    /// Source: `MODEL_TYPE_TO_APPLY_LIGER_FN` of Liger-Kernel 0.8.5.
    has_liger: bool,
    /// Whether cut-cross-entropy patches the family. Source: its `transformers/patch.py`.
    has_cut_cross_entropy: bool,
    /// Whether the model accepts PyTorch's attention kernels: `_supports_sdpa`.
    pub has_sdpa: bool,
    /// Whether it accepts them only since a later version of transformers.
    has_late_sdpa: bool,
    /// Whether the model creates one mask for all blocks instead of one for each kind of block.
    pub has_one_mask: bool,
    /// Whether the model creates the mask of windows even if no block has one.
    pub always_masks_windows: bool,
    /// Whether each kind of block, without a window or with one, has its rotary positions.
    pub has_angles_by_kind: bool,
    /// Whether cosines and sines stay in single precision, and rotated queries and keys are cast instead.
    pub rotates_in_single_precision: bool,
    /// Whether the rotated channels are concatenated with the other channels, of which there may be none.
    pub rotates_parts: bool,
    /// Whether RMSNorm multiplies by the weight before the cast to the input's type, not after it.
    pub scales_before_cast: bool,
    /// Whether queries and keys are normalized after all projections and transpositions.
    pub normalizes_transposed: bool,
    /// Whether attention declares the layer of its result before those of queries, keys and values.
    pub declares_output_first: bool,
    /// Whether embeddings, results of a block's parts and logits are multiplied by factors outside of other modules,
    /// even by one.
    pub has_multipliers: bool,
    /// Whether embeddings have dropout if the config has a rate for it.
    pub drops_embeddings: bool,
    /// How a router computes weights.
    pub router: Router,
    /// Names of the layers of experts.
    pub expert_layers: ExpertLayers,
    /// Whether a mixture of experts declares the experts before the router.
    pub declares_experts_first: bool,
    /// Whether a feed-forward layer returns the router's weights in addition to its result.
    pub returns_scores: bool,
    /// Whether an encoder computes a layer for its first token.
    pub has_pooler: bool,
    /// Whether the two halves of a head's channels are rotated separately, by angles of half the channels.
    pub rotates_halves: bool,
}

/// Llama, and the families whose code equals Llama's but for the description.
const LLAMA: Source = Source {
    code: Code::Llama,
    lora_targets: &["q_proj", "v_proj"],
    has_liger: true,
    has_cut_cross_entropy: true,
    has_sdpa: true,
    has_late_sdpa: false,
    has_one_mask: false,
    always_masks_windows: false,
    has_angles_by_kind: false,
    rotates_in_single_precision: false,
    rotates_parts: false,
    scales_before_cast: false,
    normalizes_transposed: false,
    declares_output_first: false,
    has_multipliers: false,
    drops_embeddings: true,
    router: Router::SoftmaxCast,
    expert_layers: NO_NAMES,
    declares_experts_first: false,
    returns_scores: false,
    has_pooler: false,
    rotates_halves: false,
};

/// Llama's code without PEFT's default layers, Liger's kernels for Llama, and cut cross-entropy.
const OTHER: Source = Source { lora_targets: &[], has_liger: false, has_cut_cross_entropy: false, ..LLAMA };

const GEMMA: Source = Source { has_liger: false, has_cut_cross_entropy: false, ..LLAMA };

const OLMO2: Source = Source { rotates_in_single_precision: true, scales_before_cast: true, ..OTHER };

const PHI3: Source = Source {
    has_cut_cross_entropy: true,
    has_one_mask: true,
    rotates_parts: true,
    declares_output_first: true,
    drops_embeddings: false,
    ..OTHER
};

/// Experts. By default PEFT adapts no layers: it replaces Mixtral's names, and then has none.
const EXPERTS: Source = Source {
    has_one_mask: true,
    expert_layers: ExpertLayers { router: &["gate"], up: &["gate_proj", "up_proj"], down: &["down_proj"] },
    ..OTHER
};

const MIXTRAL: Source = Source {
    router: Router::Softmax,
    expert_layers: ExpertLayers { router: &["gate"], up: &["w1", "w3"], down: &["w2"] },
    ..EXPERTS
};

const GPT_OSS: Source = Source {
    has_sdpa: false,
    always_masks_windows: true,
    scales_before_cast: true,
    router: Router::ChosenSoftmax,
    returns_scores: true,
    rotates_halves: true,
    ..OTHER
};

impl Source {
    pub fn of(model: &ModelConfig) -> Self {
        match model.model_type() {
            "gpt2" => Self { code: Code::Gpt2, lora_targets: &["c_attn"], ..OTHER },
            "t5" | "mt5" => Self { lora_targets: &["q", "v"], has_late_sdpa: true, ..OTHER },
            "mistral" => Self { has_one_mask: true, ..LLAMA },
            "qwen3" => Self { has_cut_cross_entropy: false, ..LLAMA },
            "smollm3" => Self { has_liger: true, ..OTHER },
            "ministral" => Self { always_masks_windows: true, ..OTHER },
            "gemma" => GEMMA,
            "gemma2" => Self { has_cut_cross_entropy: true, has_sdpa: false, always_masks_windows: true, ..GEMMA },
            "gemma3_text" => {
                Self { always_masks_windows: true, has_angles_by_kind: true, normalizes_transposed: true, ..GEMMA }
            }
            "phi3" => PHI3,
            "olmo2" => OLMO2,
            "olmo3" => Self { always_masks_windows: true, has_angles_by_kind: true, ..OLMO2 },
            "granite" => Self { has_multipliers: true, ..OTHER },
            "qwen3_moe" => Self { declares_experts_first: true, ..EXPERTS },
            "olmoe" => EXPERTS,
            "mixtral" => MIXTRAL,
            "gpt_oss" => GPT_OSS,
            "bert" => Self { lora_targets: &["query", "value"], has_pooler: true, ..OTHER },
            "modernbert" => OTHER,
            _ => LLAMA,
        }
    }

    /// The attention that a run of the family uses.
    pub fn attention(&self, run: &Run) -> Attention {
        let has_sdpa = self.has_sdpa && (!self.has_late_sdpa || versions::has_t5_kernels(&run.libraries));
        match run.attention {
            Attention::Sdpa | Attention::Efficient if !has_sdpa => Attention::Eager,
            attention => attention,
        }
    }

    /// The loss that is modeled for a run of the family.
    pub fn loss(&self, run: &Run) -> Loss {
        match run.loss {
            Loss::Liger if !self.has_liger => Loss::Plain,
            Loss::CutCrossEntropy if !self.has_cut_cross_entropy => Loss::Plain,
            loss => loss,
        }
    }
}
