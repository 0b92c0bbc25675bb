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
    has_liger: true,
    has_cut_cross_entropy: true,
    has_sdpa: true,
    has_late_sdpa: false,
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

impl Source {
    pub fn of(model: &ModelConfig) -> Self {
        match model.model_type() {
            "gpt2" => Self { code: Code::Gpt2, lora_targets: &["c_attn"], ..OTHER },
            "t5" | "mt5" => Self { lora_targets: &["q", "v"], has_late_sdpa: true, ..OTHER },
            "mistral" => Self { has_one_mask: true, ..LLAMA },
            "qwen3" => Self { has_cut_cross_entropy: false, ..LLAMA },
            "smollm3" => Self { has_liger: true, ..OTHER },
            "ministral" => OTHER,
            "gemma" => GEMMA,
            "gemma2" => Self { has_cut_cross_entropy: true, has_sdpa: false, ..GEMMA },
            "gemma3_text" => Self { has_angles_by_kind: true, normalizes_transposed: true, ..GEMMA },
            "phi3" => PHI3,
            "olmo2" => OLMO2,
            "olmo3" => Self { has_angles_by_kind: true, ..OLMO2 },
            "granite" => Self { has_multipliers: true, ..OTHER },
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
