//! Differences between families in the code of transformers and other programs, which affect memory but no result.

use plimsoll_graph::models::ModelConfig;

/// The family whose code in transformers was copied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Code {
    Gpt2,
    Llama,
}

/// How programs treat a family.
pub(crate) struct Source {
    pub code: Code,
    /// Layers that PEFT adapts by default.
    /// Source: `TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING` of PEFT's `utils/constants.py`.
    pub lora_targets: &'static [&'static str],
    /// Whether Liger and cut-cross-entropy patch the family.
    /// Source: `MODEL_TYPE_TO_APPLY_LIGER_FN` of Liger-Kernel 0.8.5; cut-cross-entropy's `transformers/patch.py`.
    pub has_fused_kernels: bool,
    /// Whether the model creates one mask for all blocks instead of one for each kind of block.
    pub has_one_mask: bool,
}

impl Source {
    pub fn of(model: &ModelConfig) -> Self {
        let llama = Self {
            code: Code::Llama,
            lora_targets: &["q_proj", "v_proj"],
            has_fused_kernels: true,
            has_one_mask: false,
        };
        match model.model_type() {
            "gpt2" => Self { code: Code::Gpt2, lora_targets: &["c_attn"], has_fused_kernels: false, ..llama },
            "t5" => Self { lora_targets: &["q", "v"], has_fused_kernels: false, ..llama },
            "mistral" => Self { has_one_mask: true, ..llama },
            _ => llama,
        }
    }
}
