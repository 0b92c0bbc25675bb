//! The published sizes of the families that share Llama's keys.

use super::config::{LlamaConfig, Variant, default_range};
use crate::ops::RopeScaling;

/// A named model size.
struct Preset {
    name: &'static str,
    variant: Variant,
    vocab_size: usize,
    width: usize,
    inner: usize,
    layers: usize,
    heads: usize,
    kv_heads: usize,
    positions: usize,
    window: Option<usize>,
    epsilon: f32,
    theta: f32,
    /// The factor by which Llama 3.1 and later stretch their positions.
    stretch: Option<f32>,
    tied: bool,
}

/// The values that most Llama models share.
const PLAIN: Preset = Preset {
    name: "",
    variant: Variant::Llama,
    vocab_size: 32_000,
    width: 0,
    inner: 0,
    layers: 0,
    heads: 0,
    kv_heads: 0,
    positions: 2048,
    window: None,
    epsilon: 1e-5,
    theta: 10_000.0,
    stretch: None,
    tied: false,
};
/// The first version of Llama.
const LLAMA1: Preset = Preset { epsilon: 1e-6, ..PLAIN };
const LLAMA2: Preset = Preset { positions: 4096, ..PLAIN };
const CODE_LLAMA: Preset = Preset { positions: 16_384, theta: 1_000_000.0, ..PLAIN };
const SMOLLM2: Preset = Preset { vocab_size: 49_152, positions: 8192, theta: 100_000.0, tied: true, ..PLAIN };
const LLAMA3: Preset = Preset { vocab_size: 128_256, positions: 131_072, theta: 500_000.0, ..PLAIN };
const MISTRAL: Preset = Preset {
    variant: Variant::Mistral,
    width: 4096,
    inner: 14_336,
    layers: 32,
    heads: 32,
    kv_heads: 8,
    positions: 32_768,
    ..PLAIN
};
const QWEN2: Preset = Preset {
    variant: Variant::Qwen2,
    vocab_size: 151_936,
    positions: 32_768,
    epsilon: 1e-6,
    theta: 1_000_000.0,
    tied: true,
    ..PLAIN
};

/// Qwen2 and Qwen2.5 of 7B and larger.
const LARGE_QWEN2: Preset = Preset { vocab_size: 152_064, positions: 131_072, tied: false, ..QWEN2 };

/// The published sizes, those of the first of each preset's names in `hub.rs`. For Qwen2 and Qwen2.5 these are the base
/// models; the instruction-tuned ones have 32,768 positions and an epsilon of 1e-6 in all sizes.
/// Source: each model's config.json on the Hugging Face hub, compared with copies of it. SmolLM2, TinyLlama, OpenLLaMA,
/// Code Llama, Mistral and Llama from 2 on: litgpt 0.5.13, `config.py`. Llama 1: EasyLM, `LLAMA_STANDARD_CONFIGS`.
/// Qwen2.5: torchtune, `qwen2_5/_model_builders.py`. Qwen2: NeMo, `collections/llm/gpt/model/qwen2.py`.
/// torchtune, `qwen2_5/_model_builders.py`. Qwen2: NeMo, `collections/llm/gpt/model/qwen2.py`.
#[rustfmt::skip]
const PRESETS: &[Preset] = &[
    Preset { name: "smollm2-135m", width: 576, inner: 1536, layers: 30, heads: 9, kv_heads: 3, ..SMOLLM2 },
    Preset { name: "smollm2-360m", width: 960, inner: 2560, layers: 32, heads: 15, kv_heads: 5, ..SMOLLM2 },
    Preset { name: "smollm2-1.7b", width: 2048, inner: 8192, layers: 24, heads: 32, kv_heads: 32, theta: 130_000.0, ..SMOLLM2 },
    Preset { name: "tinyllama-1.1b", width: 2048, inner: 5632, layers: 22, heads: 32, kv_heads: 4, ..PLAIN },
    Preset { name: "open-llama-3b", width: 3200, inner: 8640, layers: 26, heads: 32, kv_heads: 32, ..LLAMA1 },
    Preset { name: "open-llama-7b", width: 4096, inner: 11_008, layers: 32, heads: 32, kv_heads: 32, ..LLAMA1 },
    Preset { name: "open-llama-13b", width: 5120, inner: 13_824, layers: 40, heads: 40, kv_heads: 40, ..LLAMA1 },
    Preset { name: "llama-7b", width: 4096, inner: 11_008, layers: 32, heads: 32, kv_heads: 32, ..LLAMA1 },
    Preset { name: "llama-13b", width: 5120, inner: 13_824, layers: 40, heads: 40, kv_heads: 40, ..LLAMA1 },
    Preset { name: "llama-30b", width: 6656, inner: 17_920, layers: 60, heads: 52, kv_heads: 52, ..LLAMA1 },
    Preset { name: "llama-65b", width: 8192, inner: 22_016, layers: 80, heads: 64, kv_heads: 64, epsilon: 1e-5, ..LLAMA1 },
    Preset { name: "llama-2-7b", width: 4096, inner: 11_008, layers: 32, heads: 32, kv_heads: 32, ..LLAMA2 },
    Preset { name: "llama-2-13b", width: 5120, inner: 13_824, layers: 40, heads: 40, kv_heads: 40, ..LLAMA2 },
    Preset { name: "llama-2-70b", width: 8192, inner: 28_672, layers: 80, heads: 64, kv_heads: 8, ..LLAMA2 },
    Preset { name: "codellama-7b", vocab_size: 32_016, width: 4096, inner: 11_008, layers: 32, heads: 32, kv_heads: 32, ..CODE_LLAMA },
    Preset { name: "codellama-13b", vocab_size: 32_016, width: 5120, inner: 13_824, layers: 40, heads: 40, kv_heads: 40, ..CODE_LLAMA },
    Preset { name: "codellama-34b", width: 8192, inner: 22_016, layers: 48, heads: 64, kv_heads: 8, ..CODE_LLAMA },
    Preset { name: "codellama-7b-python", width: 4096, inner: 11_008, layers: 32, heads: 32, kv_heads: 32, ..CODE_LLAMA },
    Preset { name: "codellama-13b-python", width: 5120, inner: 13_824, layers: 40, heads: 40, kv_heads: 40, ..CODE_LLAMA },
    Preset { name: "llama-3.2-1b", width: 2048, inner: 8192, layers: 16, heads: 32, kv_heads: 8, stretch: Some(32.0), tied: true, ..LLAMA3 },
    Preset { name: "llama-3.2-3b", width: 3072, inner: 8192, layers: 28, heads: 24, kv_heads: 8, stretch: Some(32.0), tied: true, ..LLAMA3 },
    Preset { name: "llama-3-8b", width: 4096, inner: 14_336, layers: 32, heads: 32, kv_heads: 8, positions: 8192, ..LLAMA3 },
    Preset { name: "llama-3-70b", width: 8192, inner: 28_672, layers: 80, heads: 64, kv_heads: 8, positions: 8192, ..LLAMA3 },
    Preset { name: "llama-3.1-8b", width: 4096, inner: 14_336, layers: 32, heads: 32, kv_heads: 8, stretch: Some(8.0), ..LLAMA3 },
    Preset { name: "llama-3.1-70b", width: 8192, inner: 28_672, layers: 80, heads: 64, kv_heads: 8, stretch: Some(8.0), ..LLAMA3 },
    Preset { name: "llama-3.1-405b", width: 16_384, inner: 53_248, layers: 126, heads: 128, kv_heads: 8, stretch: Some(8.0), ..LLAMA3 },
    Preset { name: "llama-3.3-70b", width: 8192, inner: 28_672, layers: 80, heads: 64, kv_heads: 8, stretch: Some(8.0), ..LLAMA3 },
    Preset { name: "mistral-7b", window: Some(4096), ..MISTRAL },
    Preset { name: "mistral-7b-v0.2", theta: 1_000_000.0, ..MISTRAL },
    Preset { name: "mistral-7b-v0.3", vocab_size: 32_768, theta: 1_000_000.0, ..MISTRAL },
    Preset { name: "qwen2-0.5b", width: 896, inner: 4864, layers: 24, heads: 14, kv_heads: 2, positions: 131_072, ..QWEN2 },
    Preset { name: "qwen2-1.5b", width: 1536, inner: 8960, layers: 28, heads: 12, kv_heads: 2, positions: 131_072, ..QWEN2 },
    Preset { name: "qwen2-7b", width: 3584, inner: 18_944, layers: 28, heads: 28, kv_heads: 4, ..LARGE_QWEN2 },
    Preset { name: "qwen2-72b", width: 8192, inner: 29_568, layers: 80, heads: 64, kv_heads: 8, epsilon: 1e-5, ..LARGE_QWEN2 },
    Preset { name: "qwen2.5-0.5b", width: 896, inner: 4864, layers: 24, heads: 14, kv_heads: 2, ..QWEN2 },
    Preset { name: "qwen2.5-1.5b", width: 1536, inner: 8960, layers: 28, heads: 12, kv_heads: 2, positions: 131_072, ..QWEN2 },
    Preset { name: "qwen2.5-3b", width: 2048, inner: 11_008, layers: 36, heads: 16, kv_heads: 2, ..QWEN2 },
    Preset { name: "qwen2.5-7b", width: 3584, inner: 18_944, layers: 28, heads: 28, kv_heads: 4, ..LARGE_QWEN2 },
    Preset { name: "qwen2.5-14b", width: 5120, inner: 13_824, layers: 48, heads: 40, kv_heads: 8, epsilon: 1e-5, ..LARGE_QWEN2 },
    Preset { name: "qwen2.5-32b", width: 5120, inner: 27_648, layers: 64, heads: 40, kv_heads: 8, epsilon: 1e-5, ..LARGE_QWEN2 },
    Preset { name: "qwen2.5-72b", width: 8192, inner: 29_568, layers: 80, heads: 64, kv_heads: 8, epsilon: 1e-5, ..LARGE_QWEN2 },
    Preset { name: "r1-distill-qwen-1.5b", width: 1536, inner: 8960, layers: 28, heads: 12, kv_heads: 2, positions: 131_072, theta: 10_000.0, tied: false, ..QWEN2 },
];

impl Preset {
    fn config(&self) -> LlamaConfig {
        LlamaConfig {
            vocab_size: self.vocab_size,
            hidden_size: self.width,
            intermediate_size: self.inner,
            num_hidden_layers: self.layers,
            num_attention_heads: self.heads,
            num_key_value_heads: self.kv_heads,
            head_dim: self.width / self.heads,
            max_position_embeddings: self.positions,
            rms_norm_eps: self.epsilon,
            rope_theta: self.theta,
            tie_word_embeddings: self.tied,
            attention_dropout: 0.0,
            initializer_range: default_range(),
            sliding_window: self.window,
            sliding_layers: vec![],
            variant: self.variant,
            qkv_bias: self.variant == Variant::Qwen2,
            output_bias: false,
            mlp_bias: false,
            scaling: self.stretch.map_or(RopeScaling::None, |factor| RopeScaling::Llama3 {
                factor,
                low_freq_factor: 1.0,
                high_freq_factor: 4.0,
                original_max_positions: 8192,
            }),
        }
    }
}

/// Names of the presets.
pub(super) fn names() -> impl Iterator<Item = &'static str> {
    PRESETS.iter().map(|p| p.name)
}

/// The preset of this name.
pub(super) fn find(name: &str) -> Option<LlamaConfig> {
    PRESETS.iter().find(|p| p.name == name).map(Preset::config)
}
