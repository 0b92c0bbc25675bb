//! Differences between families in the code of transformers and other programs, which affect memory but no result.

use plimsoll_graph::models::ModelConfig;
use plimsoll_trainers::{Attention, Run};

/// The family whose code in transformers was copied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Code {
    Gpt2,
    Llama,
}

/// How programs treat a family. Fields that name no source are from its `modeling_*.py` in transformers 5.24.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Source {
    pub code: Code,
    /// Layers that PEFT adapts by default.
    /// Source: `TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING` of PEFT's `utils/constants.py`.
    pub lora_targets: &'static [&'static str],
    /// Whether Liger and cut-cross-entropy patch the family.
    /// Source: `MODEL_TYPE_TO_APPLY_LIGER_FN` of Liger-Kernel 0.8.5; cut-cross-entropy's `transformers/patch.py`.
    pub has_fused_kernels: bool,
    /// Whether the model accepts PyTorch's attention kernels: `_supports_sdpa`.
    pub has_sdpa: bool,
    /// Whether the model creates one mask for all blocks instead of one for each kind of block.
    pub has_one_mask: bool,
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
}

/// Llama, and the families whose code equals Llama's but for the description.
const LLAMA: Source = Source {
    code: Code::Llama,
    lora_targets: &["q_proj", "v_proj"],
    has_fused_kernels: true,
    has_sdpa: true,
    has_one_mask: false,
    has_angles_by_kind: false,
    rotates_in_single_precision: false,
    rotates_parts: false,
    scales_before_cast: false,
    normalizes_transposed: false,
    declares_output_first: false,
    has_multipliers: false,
    drops_embeddings: true,
};

const OLMO2: Source = Source { rotates_in_single_precision: true, scales_before_cast: true, ..LLAMA };

const PHI3: Source =
    Source { has_one_mask: true, rotates_parts: true, declares_output_first: true, drops_embeddings: false, ..LLAMA };

impl Source {
    pub fn of(model: &ModelConfig) -> Self {
        match model.model_type() {
            "gpt2" => Self { code: Code::Gpt2, lora_targets: &["c_attn"], has_fused_kernels: false, ..LLAMA },
            "t5" => Self { lora_targets: &["q", "v"], has_fused_kernels: false, ..LLAMA },
            "mistral" => Self { has_one_mask: true, ..LLAMA },
            "gemma2" => Self { has_sdpa: false, ..LLAMA },
            "gemma3_text" => Self { has_angles_by_kind: true, normalizes_transposed: true, ..LLAMA },
            "phi3" => PHI3,
            "olmo2" => OLMO2,
            "olmo3" => Self { has_angles_by_kind: true, ..OLMO2 },
            "granite" => Self { has_multipliers: true, ..LLAMA },
            _ => LLAMA,
        }
    }

    /// The attention that a run of the family uses.
    pub fn attention(&self, run: &Run) -> Attention {
        match run.attention {
            Attention::Sdpa if !self.has_sdpa => Attention::Eager,
            attention => attention,
        }
    }
}
