//! The published sizes of the families that share Llama's keys.

use super::{ARCHITECTURES, DecoderConfig};
use serde_json::{Map, Value, json};

/// A named model size.
struct Preset {
    name: &'static str,
    model_type: &'static str,
    vocab_size: usize,
    width: usize,
    inner: usize,
    layers: usize,
    heads: usize,
    kv_heads: usize,
    positions: usize,
    window: Option<usize>,
    epsilon: f64,
    theta: f64,
    /// Channels of a head, if not those of the width divided by the heads.
    head_size: Option<usize>,
    /// The factor by which Llama 3.1 and later stretch their positions.
    stretch: Option<f64>,
    tied: bool,
    /// Further keys, as a JSON object.
    more: &'static str,
}

/// The values that most Llama models share.
const PLAIN: Preset = Preset {
    name: "",
    model_type: "llama",
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
    head_size: None,
    stretch: None,
    tied: false,
    more: "{}",
};
/// The first version of Llama.
const LLAMA1: Preset = Preset { epsilon: 1e-6, ..PLAIN };
const LLAMA2: Preset = Preset { positions: 4096, ..PLAIN };
const CODE_LLAMA: Preset = Preset { positions: 16_384, theta: 1_000_000.0, ..PLAIN };
const SMOLLM2: Preset = Preset { vocab_size: 49_152, positions: 8192, theta: 100_000.0, tied: true, ..PLAIN };
const LLAMA3: Preset = Preset { vocab_size: 128_256, positions: 131_072, theta: 500_000.0, ..PLAIN };
const MISTRAL: Preset = Preset {
    model_type: "mistral",
    width: 4096,
    inner: 14_336,
    layers: 32,
    heads: 32,
    kv_heads: 8,
    positions: 32_768,
    ..PLAIN
};
const QWEN2: Preset = Preset {
    model_type: "qwen2",
    vocab_size: 151_936,
    positions: 32_768,
    epsilon: 1e-6,
    theta: 1_000_000.0,
    tied: true,
    ..PLAIN
};

/// Qwen2 and Qwen2.5 of 7B and larger.
const LARGE_QWEN2: Preset = Preset { vocab_size: 152_064, positions: 131_072, tied: false, ..QWEN2 };

/// Without keys for scaled positions, which then are the published ones.
const GPT_OSS: Preset = Preset {
    model_type: "gpt_oss",
    vocab_size: 201_088,
    width: 2880,
    inner: 2880,
    heads: 64,
    kv_heads: 8,
    head_size: Some(64),
    positions: 131_072,
    window: Some(128),
    theta: 150_000.0,
    ..PLAIN
};

const QWEN3: Preset = Preset {
    model_type: "qwen3",
    vocab_size: 151_936,
    kv_heads: 8,
    head_size: Some(128),
    positions: 40_960,
    epsilon: 1e-6,
    theta: 1_000_000.0,
    ..PLAIN
};
const GEMMA2: Preset = Preset {
    model_type: "gemma2",
    vocab_size: 256_000,
    head_size: Some(256),
    positions: 8192,
    window: Some(4096),
    epsilon: 1e-6,
    tied: true,
    ..PLAIN
};
/// The text models of the larger Gemma 3, whose checkpoints also read images.
const GEMMA3: Preset = Preset {
    model_type: "gemma3_text",
    vocab_size: 262_208,
    positions: 131_072,
    window: Some(1024),
    theta: 1_000_000.0,
    more: r#"{"rope_scaling": {"rope_type": "linear", "factor": 8.0}}"#,
    ..GEMMA2
};
const SMALL_GEMMA3: Preset = Preset { vocab_size: 262_144, positions: 32_768, window: Some(512), more: "{}", ..GEMMA3 };
const OLMO2: Preset =
    Preset { model_type: "olmo2", vocab_size: 100_352, positions: 4096, epsilon: 1e-6, theta: 500_000.0, ..PLAIN };
const GRANITE: Preset = Preset {
    model_type: "granite",
    vocab_size: 49_159,
    heads: 32,
    kv_heads: 8,
    positions: 131_072,
    theta: 10_000_000.0,
    tied: true,
    ..PLAIN
};

/// The published sizes, those of the first of each preset's names in `hub.rs`. For Qwen2 and Qwen2.5 these are the base
/// models; the instruction-tuned ones have 32,768 positions and an epsilon of 1e-6 in all sizes.
/// Source: each model's config.json on the Hugging Face hub, compared with copies of it. SmolLM2, TinyLlama, OpenLLaMA,
/// Code Llama, Mistral and Llama from 2 on: litgpt 0.5.13, `config.py`. Llama 1: EasyLM, `LLAMA_STANDARD_CONFIGS`.
/// Qwen2.5: torchtune, `qwen2_5/_model_builders.py`. Qwen2: NeMo, `collections/llm/gpt/model/qwen2.py`.
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
    Preset { name: "mistral-nemo-12b", vocab_size: 131_072, width: 5120, layers: 40, head_size: Some(128), positions: 131_072, theta: 1_000_000.0, ..MISTRAL },
    Preset { name: "ministral-8b", vocab_size: 131_072, inner: 12_288, layers: 36, theta: 100_000_000.0, window: Some(32_768), ..MISTRAL },
    Preset { name: "mistral-small-24b", vocab_size: 131_072, width: 5120, inner: 32_768, layers: 40, head_size: Some(128), theta: 100_000_000.0, ..MISTRAL },
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
    Preset { name: "qwen3-0.6b", width: 1024, inner: 3072, layers: 28, heads: 16, tied: true, ..QWEN3 },
    Preset { name: "qwen3-1.7b", width: 2048, inner: 6144, layers: 28, heads: 16, tied: true, ..QWEN3 },
    Preset { name: "qwen3-4b", width: 2560, inner: 9728, layers: 36, heads: 32, tied: true, ..QWEN3 },
    Preset { name: "qwen3-8b", width: 4096, inner: 12_288, layers: 36, heads: 32, ..QWEN3 },
    Preset { name: "qwen3-14b", width: 5120, inner: 17_408, layers: 40, heads: 40, ..QWEN3 },
    Preset { name: "qwen3-32b", width: 5120, inner: 25_600, layers: 64, heads: 64, ..QWEN3 },
    Preset { name: "qwen3-30b-a3b", model_type: "qwen3_moe", width: 2048, inner: 6144, layers: 48, heads: 32, kv_heads: 4, more: r#"{"num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 768, "norm_topk_prob": true}"#, ..QWEN3 },
    Preset { name: "olmoe-1b-7b", model_type: "olmoe", vocab_size: 50_304, width: 2048, inner: 1024, layers: 16, heads: 16, kv_heads: 16, positions: 4096, more: r#"{"num_experts": 64, "num_experts_per_tok": 8, "norm_topk_prob": false}"#, ..PLAIN },
    Preset { name: "mixtral-8x7b", model_type: "mixtral", theta: 1_000_000.0, more: r#"{"num_local_experts": 8, "num_experts_per_tok": 2}"#, ..MISTRAL },
    Preset { name: "gpt-oss-20b", layers: 24, more: r#"{"num_local_experts": 32, "num_experts_per_tok": 4}"#, ..GPT_OSS },
    Preset { name: "gpt-oss-120b", layers: 36, more: r#"{"num_local_experts": 128, "num_experts_per_tok": 4}"#, ..GPT_OSS },
    Preset { name: "gemma-2-2b", width: 2304, inner: 9216, layers: 26, heads: 8, kv_heads: 4, ..GEMMA2 },
    Preset { name: "gemma-2-9b", width: 3584, inner: 14_336, layers: 42, heads: 16, kv_heads: 8, ..GEMMA2 },
    Preset { name: "gemma-2-27b", width: 4608, inner: 36_864, layers: 46, heads: 32, kv_heads: 16, head_size: Some(128), more: r#"{"query_pre_attn_scalar": 144}"#, ..GEMMA2 },
    Preset { name: "gemma-3-270m", width: 640, inner: 2048, layers: 18, heads: 4, kv_heads: 1, ..SMALL_GEMMA3 },
    Preset { name: "gemma-3-1b", width: 1152, inner: 6912, layers: 26, heads: 4, kv_heads: 1, ..SMALL_GEMMA3 },
    Preset { name: "gemma-3-4b", width: 2560, inner: 10_240, layers: 34, heads: 8, kv_heads: 4, ..GEMMA3 },
    Preset { name: "gemma-3-12b", width: 3840, inner: 15_360, layers: 48, heads: 16, kv_heads: 8, ..GEMMA3 },
    Preset { name: "gemma-3-27b", width: 5376, inner: 21_504, layers: 62, heads: 32, kv_heads: 16, head_size: Some(128), more: r#"{"query_pre_attn_scalar": 168, "rope_scaling": {"rope_type": "linear", "factor": 8.0}}"#, ..GEMMA3 },
    Preset { name: "phi-3-mini-4k", model_type: "phi3", vocab_size: 32_064, width: 3072, inner: 8192, layers: 32, heads: 32, kv_heads: 32, positions: 4096, window: Some(2047), ..PLAIN },
    Preset { name: "phi-4", model_type: "phi3", vocab_size: 100_352, width: 5120, inner: 17_920, layers: 40, heads: 40, kv_heads: 10, positions: 16_384, theta: 250_000.0, ..PLAIN },
    Preset { name: "smollm3-3b", model_type: "smollm3", vocab_size: 128_256, width: 2048, inner: 11_008, layers: 36, heads: 16, kv_heads: 4, positions: 65_536, epsilon: 1e-6, theta: 5_000_000.0, tied: true, ..PLAIN },
    Preset { name: "olmo-2-1b", width: 2048, inner: 8192, layers: 16, heads: 16, kv_heads: 16, ..OLMO2 },
    Preset { name: "olmo-2-7b", width: 4096, inner: 11_008, layers: 32, heads: 32, kv_heads: 32, ..OLMO2 },
    Preset { name: "olmo-2-13b", width: 5120, inner: 13_824, layers: 40, heads: 40, kv_heads: 40, ..OLMO2 },
    Preset { name: "olmo-2-32b", width: 5120, inner: 27_648, layers: 64, heads: 40, kv_heads: 8, ..OLMO2 },
    Preset { name: "granite-3.3-2b", width: 2048, inner: 8192, layers: 40, more: r#"{"embedding_multiplier": 12.0, "logits_scaling": 8.0, "residual_multiplier": 0.22, "attention_multiplier": 0.015625}"#, ..GRANITE },
    Preset { name: "granite-3.3-8b", width: 4096, inner: 12_800, layers: 40, more: r#"{"embedding_multiplier": 12.0, "logits_scaling": 16.0, "residual_multiplier": 0.22, "attention_multiplier": 0.0078125}"#, ..GRANITE },
];

impl Preset {
    fn config(&self) -> DecoderConfig {
        let mut file = json!({
            "vocab_size": self.vocab_size, "hidden_size": self.width, "intermediate_size": self.inner,
            "num_hidden_layers": self.layers, "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads, "head_dim": self.head_size.unwrap_or(self.width / self.heads),
            "max_position_embeddings": self.positions, "rms_norm_eps": self.epsilon, "rope_theta": self.theta,
            "tie_word_embeddings": self.tied, "sliding_window": self.window,
            "rope_scaling": self.stretch.map(|factor| json!({
                "rope_type": "llama3", "factor": factor, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                "original_max_position_embeddings": 8192,
            })),
        });
        let more: Map<String, Value> = serde_json::from_str(self.more).expect("the table has JSON objects");
        let file = file.as_object_mut().expect("an object literal");
        file.extend(more);
        let architecture = ARCHITECTURES.iter().find(|architecture| architecture.model_type == self.model_type);
        DecoderConfig::read(architecture.expect("a family of the table"), file).expect("published sizes")
    }
}

/// Names of the presets.
pub(super) fn names() -> impl Iterator<Item = &'static str> {
    PRESETS.iter().map(|p| p.name)
}

/// The preset of this name.
pub(super) fn find(name: &str) -> Option<DecoderConfig> {
    PRESETS.iter().find(|p| p.name == name).map(Preset::config)
}
