//! The names of presets on the Hugging Face hub.

/// For each preset the names of the weights with its sizes, the preferred one first, in the order of the presets.
const NAMES: &[(&str, &[&str])] = &[
    ("gpt2", &["openai-community/gpt2"]),
    ("gpt2-medium", &["openai-community/gpt2-medium"]),
    ("gpt2-large", &["openai-community/gpt2-large"]),
    ("gpt2-xl", &["openai-community/gpt2-xl"]),
    ("smollm2-135m", &["HuggingFaceTB/SmolLM2-135M", "HuggingFaceTB/SmolLM2-135M-Instruct"]),
    ("smollm2-360m", &["HuggingFaceTB/SmolLM2-360M", "HuggingFaceTB/SmolLM2-360M-Instruct"]),
    ("smollm2-1.7b", &["HuggingFaceTB/SmolLM2-1.7B", "HuggingFaceTB/SmolLM2-1.7B-Instruct"]),
    (
        "tinyllama-1.1b",
        &[
            "TinyLlama/TinyLlama-1.1B-intermediate-step-1431k-3T",
            "TinyLlama/TinyLlama-1.1B-Chat-v1.0",
            "TinyLlama/TinyLlama_v1.1",
            "unsloth/tinyllama",
        ],
    ),
    ("open-llama-3b", &["openlm-research/open_llama_3b", "openlm-research/open_llama_3b_v2"]),
    ("open-llama-7b", &["openlm-research/open_llama_7b", "openlm-research/open_llama_7b_v2"]),
    ("open-llama-13b", &["openlm-research/open_llama_13b"]),
    ("llama-7b", &["huggyllama/llama-7b"]),
    ("llama-13b", &["huggyllama/llama-13b"]),
    ("llama-30b", &["huggyllama/llama-30b"]),
    ("llama-65b", &["huggyllama/llama-65b"]),
    ("llama-2-7b", &["meta-llama/Llama-2-7b-hf", "lmsys/vicuna-7b-v1.5"]),
    ("llama-2-13b", &["meta-llama/Llama-2-13b-hf", "lmsys/vicuna-13b-v1.5"]),
    ("llama-2-70b", &["meta-llama/Llama-2-70b-hf"]),
    ("codellama-7b", &["codellama/CodeLlama-7b-hf"]),
    ("codellama-13b", &["codellama/CodeLlama-13b-hf"]),
    ("codellama-34b", &["codellama/CodeLlama-34b-hf", "codellama/CodeLlama-34b-Python-hf"]),
    ("codellama-7b-python", &["codellama/CodeLlama-7b-Python-hf"]),
    ("codellama-13b-python", &["codellama/CodeLlama-13b-Python-hf"]),
    ("llama-3.2-1b", &["meta-llama/Llama-3.2-1B", "meta-llama/Llama-3.2-1B-Instruct"]),
    (
        "llama-3.2-3b",
        &["meta-llama/Llama-3.2-3B", "meta-llama/Llama-3.2-3B-Instruct", "deepcogito/cogito-v1-preview-llama-3B"],
    ),
    ("llama-3-8b", &["meta-llama/Meta-Llama-3-8B", "meta-llama/Meta-Llama-3-8B-Instruct"]),
    ("llama-3-70b", &["meta-llama/Meta-Llama-3-70B"]),
    (
        "llama-3.1-8b",
        &[
            "meta-llama/Llama-3.1-8B",
            "meta-llama/Llama-3.1-8B-Instruct",
            "meta-llama/Meta-Llama-3.1-8B",
            "deepseek-ai/DeepSeek-R1-Distill-Llama-8B",
            "neuralmagic/Sparse-Llama-3.1-8B-2of4",
        ],
    ),
    ("llama-3.1-70b", &["meta-llama/Llama-3.1-70B"]),
    ("llama-3.1-405b", &["meta-llama/Llama-3.1-405B"]),
    ("llama-3.3-70b", &["meta-llama/Llama-3.3-70B-Instruct", "deepseek-ai/DeepSeek-R1-Distill-Llama-70B"]),
    ("mistral-7b", &["mistralai/Mistral-7B-v0.1", "HuggingFaceH4/zephyr-7b-beta"]),
    ("mistral-7b-v0.2", &["mistralai/Mistral-7B-Instruct-v0.2"]),
    ("mistral-7b-v0.3", &["mistralai/Mistral-7B-v0.3", "mistralai/Mistral-7B-Instruct-v0.3"]),
    ("mistral-nemo-12b", &["mistralai/Mistral-Nemo-Base-2407", "mistralai/Mistral-Nemo-Instruct-2407"]),
    ("ministral-8b", &["mistralai/Ministral-8B-Instruct-2410"]),
    ("mistral-small-24b", &["mistralai/Mistral-Small-24B-Base-2501", "mistralai/Mistral-Small-24B-Instruct-2501"]),
    ("qwen2-0.5b", &["Qwen/Qwen2-0.5B"]),
    ("qwen2-1.5b", &["Qwen/Qwen2-1.5B"]),
    ("qwen2-7b", &["Qwen/Qwen2-7B"]),
    ("qwen2-72b", &["Qwen/Qwen2-72B"]),
    ("qwen2.5-0.5b", &["Qwen/Qwen2.5-0.5B", "Qwen/Qwen2.5-0.5B-Instruct", "Qwen/Qwen2.5-Coder-0.5B"]),
    (
        "qwen2.5-1.5b",
        &["Qwen/Qwen2.5-1.5B", "Qwen/Qwen2.5-1.5B-Instruct", "Qwen/Qwen2.5-Coder-1.5B", "Qwen/Qwen2.5-Math-1.5B"],
    ),
    ("qwen2.5-3b", &["Qwen/Qwen2.5-3B", "Qwen/Qwen2.5-3B-Instruct", "Qwen/Qwen2.5-Coder-3B"]),
    (
        "qwen2.5-7b",
        &[
            "Qwen/Qwen2.5-7B",
            "Qwen/Qwen2.5-Coder-7B",
            "Qwen/Qwen2.5-Math-7B",
            "deepseek-ai/DeepSeek-R1-Distill-Qwen-7B",
        ],
    ),
    ("qwen2.5-14b", &["Qwen/Qwen2.5-14B", "Qwen/Qwen2.5-Coder-14B", "deepseek-ai/DeepSeek-R1-Distill-Qwen-14B"]),
    ("qwen2.5-32b", &["Qwen/Qwen2.5-32B", "Qwen/Qwen2.5-Coder-32B", "deepseek-ai/DeepSeek-R1-Distill-Qwen-32B"]),
    ("qwen2.5-72b", &["Qwen/Qwen2.5-72B", "Qwen/Qwen2.5-Math-72B"]),
    ("r1-distill-qwen-1.5b", &["deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B"]),
    ("qwen3-0.6b", &["Qwen/Qwen3-0.6B"]),
    ("qwen3-1.7b", &["Qwen/Qwen3-1.7B"]),
    ("qwen3-4b", &["Qwen/Qwen3-4B"]),
    ("qwen3-8b", &["Qwen/Qwen3-8B", "deepseek-ai/DeepSeek-R1-0528-Qwen3-8B"]),
    ("qwen3-14b", &["Qwen/Qwen3-14B"]),
    ("qwen3-32b", &["Qwen/Qwen3-32B"]),
    ("qwen3-30b-a3b", &["Qwen/Qwen3-30B-A3B"]),
    ("olmoe-1b-7b", &["allenai/OLMoE-1B-7B-0924", "allenai/OLMoE-1B-7B-0924-Instruct"]),
    ("mixtral-8x7b", &["mistralai/Mixtral-8x7B-v0.1", "mistralai/Mixtral-8x7B-Instruct-v0.1"]),
    ("gpt-oss-20b", &["openai/gpt-oss-20b"]),
    ("gpt-oss-120b", &["openai/gpt-oss-120b"]),
    ("gemma-2-2b", &["google/gemma-2-2b", "google/gemma-2-2b-it"]),
    ("gemma-2-9b", &["google/gemma-2-9b", "google/gemma-2-9b-it"]),
    ("gemma-2-27b", &["google/gemma-2-27b", "google/gemma-2-27b-it"]),
    ("gemma-3-270m", &["google/gemma-3-270m", "google/gemma-3-270m-it"]),
    ("gemma-3-1b", &["google/gemma-3-1b-pt", "google/gemma-3-1b-it"]),
    ("gemma-3-4b", &["google/gemma-3-4b-pt", "google/gemma-3-4b-it"]),
    ("gemma-3-12b", &["google/gemma-3-12b-pt", "google/gemma-3-12b-it"]),
    ("gemma-3-27b", &["google/gemma-3-27b-pt", "google/gemma-3-27b-it"]),
    ("phi-3-mini-4k", &["microsoft/Phi-3-mini-4k-instruct"]),
    ("phi-4", &["microsoft/phi-4"]),
    ("smollm3-3b", &["HuggingFaceTB/SmolLM3-3B", "HuggingFaceTB/SmolLM3-3B-Base"]),
    ("olmo-2-1b", &["allenai/OLMo-2-0425-1B", "allenai/OLMo-2-0425-1B-Instruct"]),
    ("olmo-2-7b", &["allenai/OLMo-2-1124-7B", "allenai/OLMo-2-1124-7B-Instruct"]),
    ("olmo-2-13b", &["allenai/OLMo-2-1124-13B", "allenai/OLMo-2-1124-13B-Instruct"]),
    ("olmo-2-32b", &["allenai/OLMo-2-0325-32B", "allenai/OLMo-2-0325-32B-Instruct"]),
    ("granite-3.3-2b", &["ibm-granite/granite-3.3-2b-base", "ibm-granite/granite-3.3-2b-instruct"]),
    ("granite-3.3-8b", &["ibm-granite/granite-3.3-8b-base", "ibm-granite/granite-3.3-8b-instruct"]),
    ("t5-small", &["google-t5/t5-small"]),
    ("t5-base", &["google-t5/t5-base"]),
    ("t5-large", &["google-t5/t5-large"]),
    ("t5-xl", &["google-t5/t5-3b"]),
    ("flan-t5-small", &["google/flan-t5-small"]),
    ("flan-t5-base", &["google/flan-t5-base"]),
    ("flan-t5-large", &["google/flan-t5-large"]),
    ("flan-t5-xl", &["google/flan-t5-xl"]),
    ("flan-t5-xxl", &["google/flan-t5-xxl"]),
    ("mt5-small", &["google/mt5-small"]),
    ("mt5-base", &["google/mt5-base"]),
    ("mt5-large", &["google/mt5-large"]),
    ("mt5-xl", &["google/mt5-xl"]),
    ("byt5-small", &["google/byt5-small"]),
    ("byt5-base", &["google/byt5-base"]),
    ("byt5-large", &["google/byt5-large"]),
    ("minilm-l6", &["sentence-transformers/all-MiniLM-L6-v2", "sentence-transformers/multi-qa-MiniLM-L6-cos-v1"]),
    ("bge-small", &["BAAI/bge-small-en-v1.5", "sentence-transformers/all-MiniLM-L12-v2"]),
    ("bert-base", &["google-bert/bert-base-uncased", "BAAI/bge-base-en-v1.5"]),
    ("bert-large", &["google-bert/bert-large-uncased", "BAAI/bge-large-en-v1.5"]),
    ("modernbert-base", &["answerdotai/ModernBERT-base"]),
    ("modernbert-large", &["answerdotai/ModernBERT-large"]),
];

/// The names of a preset on the hub, the preferred one first; empty for Plimsoll's own presets.
pub(super) fn names(preset: &str) -> &'static [&'static str] {
    NAMES.iter().find(|(name, _)| *name == preset).map_or(&[], |(_, names)| names)
}

/// Parts of names that do not affect the sizes: the purpose of fine-tuning, and the storage format. `base` is not one
/// of them, because it is a size of T5.
const PARTS_WITHOUT_SIZE: &[&str] = &[
    "hf", "meta", "instruct", "chat", "it", "unsloth", "bnb", "4bit", "8bit", "nf4", "bf16", "fp16", "fp32", "1m",
    "gguf", "mlx", "dynamic", "sft", "dpo", "pt",
];

/// Parts of names for quantization formats that trainers keep in memory. They do not affect the sizes.
const QUANTIZED_PARTS: &[&str] = &["gptq", "awq", "aqlm", "hqq", "exl2", "int4", "int8", "fp8", "2bit", "1x16"];

/// Whether the name has a part for a quantization format that trainers keep in memory.
pub(super) fn is_quantized(name: &str) -> bool {
    name.to_ascii_lowercase().split(['-', '_', '/']).any(|part| QUANTIZED_PARTS.contains(&part))
}

/// The preset with the sizes of the weights of this name on the hub: a published name, a copy by another owner
/// (`NousResearch/Llama-2-7b-hf`) or a variant with the same sizes (`Qwen/Qwen2-1.5B-Instruct`).
pub(super) fn preset(name: &str) -> Option<&'static str> {
    let published = NAMES.iter().find(|(_, names)| names.iter().any(|known| known.eq_ignore_ascii_case(name)));
    let same_sizes = || {
        let wanted = sized_name(model_part(name)?);
        let is_same = |known: &str| model_part(known).is_some_and(|known| sized_name(known) == wanted);
        NAMES.iter().find(|(preset, names)| is_same(preset) || names.iter().any(|known| is_same(known)))
    };
    published.or_else(same_sizes).map(|(preset, _)| *preset)
}

/// Whether a name is that of a preset or of published weights with its sizes. If not, only parts of the name identify
/// it.
pub(super) fn is_published(name: &str) -> bool {
    let is_preset = |preset: &str| preset.eq_ignore_ascii_case(&name.replace('_', "-"));
    NAMES.iter().any(|(preset, names)| is_preset(preset) || names.iter().any(|known| known.eq_ignore_ascii_case(name)))
}

/// The model part of `owner/model` or of a name without an owner; `None` for a path.
fn model_part(name: &str) -> Option<&str> {
    let (owner, model) = name.split_once('/').unwrap_or(("hub", name));
    let is_path = owner.is_empty() || owner.starts_with(['.', '~']) || model.contains('/');
    (!is_path).then_some(model)
}

/// A model's name in lower case, with hyphens, without the parts that do not affect the sizes.
fn sized_name(model: &str) -> String {
    let lower = model.to_ascii_lowercase().replace('_', "-");
    let is_size = |part: &&str| !PARTS_WITHOUT_SIZE.contains(part) && !QUANTIZED_PARTS.contains(part);
    let parts = lower.split('-').filter(is_size);
    parts.collect::<Vec<_>>().join("-")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::models::ModelConfig;
    use std::collections::BTreeSet;

    #[test]
    fn published_presets_have_unique_hub_names() {
        let ours = ["nano", "t5-nano", "bert-nano"];
        let presets = ModelConfig::preset_names().into_iter().filter(|name| !ours.contains(name));
        assert!(presets.eq(NAMES.iter().map(|(preset, _)| *preset)));
        let all = NAMES.iter().flat_map(|(_, names)| names.iter()).collect::<BTreeSet<_>>();
        assert_eq!(all.len(), NAMES.iter().map(|(_, names)| names.len()).sum::<usize>());
        for (name, names) in NAMES {
            for on_hub in *names {
                let found = ModelConfig::preset(&on_hub.to_ascii_lowercase());
                assert_eq!(found.ok(), ModelConfig::preset(name).ok(), "{on_hub}");
            }
        }
    }

    #[test]
    fn published_names_differ_from_names_of_similar_models() {
        for name in ["gpt2", "T5_base", "meta-llama/llama-3.2-1b-instruct", "TinyLlama/TinyLlama_v1.1", "qwen2.5-7b"] {
            assert!(is_published(name), "{name}");
        }
        for name in ["unsloth/Llama-3.2-1B-Instruct", "Qwen/Qwen2.5-7B-Instruct", "Llama-2-7b-hf"] {
            assert!(!is_published(name), "{name}");
        }
    }

    #[test]
    fn copies_and_variants_have_the_sizes_of_their_originals() {
        for (name, expected) in [
            ("NousResearch/Llama-2-7b-hf", "llama-2-7b"),
            ("NousResearch/Llama-2-13b-chat-hf", "llama-2-13b"),
            ("NousResearch/Llama-3.2-1B", "llama-3.2-1b"),
            ("NousResearch/Meta-Llama-3-8B", "llama-3-8b"),
            ("NousResearch/Meta-Llama-3.1-8B-Instruct", "llama-3.1-8b"),
            ("TinyLlama/TinyLlama_v1.1", "tinyllama-1.1b"),
            ("codellama/CodeLlama-7b-hf", "codellama-7b"),
            ("codellama/CodeLlama-34b-Instruct-hf", "codellama-34b"),
            ("codellama/CodeLlama-7b-Python-hf", "codellama-7b-python"),
            ("codellama/CodeLlama-34b-Python-hf", "codellama-34b"),
            ("unsloth/codellama-7b-bnb-4bit", "codellama-7b"),
            ("deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B", "r1-distill-qwen-1.5b"),
            ("unsloth/DeepSeek-R1-Distill-Llama-8B-unsloth-bnb-4bit", "llama-3.1-8b"),
            ("unsloth/DeepSeek-R1-Distill-Qwen-14B-bnb-4bit", "qwen2.5-14b"),
            ("Qwen/Qwen2.5-Coder-7B-Instruct", "qwen2.5-7b"),
            ("unsloth/Qwen2.5-Coder-32B-Instruct-bnb-4bit", "qwen2.5-32b"),
            ("Qwen/Qwen2.5-Math-1.5B-Instruct", "qwen2.5-1.5b"),
            ("Qwen/Qwen2.5-7B-Instruct-1M", "qwen2.5-7b"),
            ("Qwen/Qwen2.5-0.5B-Instruct-GPTQ-Int4", "qwen2.5-0.5b"),
            ("TheBloke/Llama-2-7B-GPTQ", "llama-2-7b"),
            ("TechxGenus/Meta-Llama-3-8B-Instruct-AWQ", "llama-3-8b"),
            ("ISTA-DASLab/Meta-Llama-3-8B-Instruct-AQLM-2Bit-1x16", "llama-3-8b"),
            ("lmsys/vicuna-7b-v1.5", "llama-2-7b"),
            ("Qwen/Qwen2-1.5B-Instruct", "qwen2-1.5b"),
            ("Qwen/Qwen2.5-7B-Instruct", "qwen2.5-7b"),
            ("huggyllama/llama-7b", "llama-7b"),
            ("openlm-research/open_llama_3b_v2", "open-llama-3b"),
            ("unsloth/llama-3-8b-Instruct-bnb-4bit", "llama-3-8b"),
            ("unsloth/Meta-Llama-3.1-8B-Instruct-unsloth-bnb-4bit", "llama-3.1-8b"),
            ("unsloth/mistral-7b-instruct-v0.3-bnb-4bit", "mistral-7b-v0.3"),
            ("unsloth/tinyllama-bnb-4bit", "tinyllama-1.1b"),
            ("casperhansen/llama-3-70b-fp16", "llama-3-70b"),
            ("unsloth/Llama-3.2-1B-Instruct", "llama-3.2-1b"),
            ("unsloth/llama-3-8b-bnb-4bit", "llama-3-8b"),
            ("bartowski/Meta-Llama-3.1-8B-Instruct-GGUF", "llama-3.1-8b"),
            ("Qwen/Qwen2.5-Coder-7B-Instruct-AWQ", "qwen2.5-7b"),
            ("mlx-community/Llama-3.2-3B-Instruct-4bit", "llama-3.2-3b"),
            ("neuralmagic/Meta-Llama-3-8B-Instruct-FP8", "llama-3-8b"),
            ("mistralai/Mistral-7B-Instruct-v0.1", "mistral-7b"),
            ("mistralai/Mistral-7B-Instruct-v0.2", "mistral-7b-v0.2"),
            ("mistral-community/Mistral-7B-v0.2", "mistral-7b-v0.2"),
            ("Llama-2-7b-hf", "llama-2-7b"),
            ("google/gemma-2-2b-it", "gemma-2-2b"),
            ("unsloth/gemma-3-4b-it-bnb-4bit", "gemma-3-4b"),
            ("unsloth/Qwen3-8B-bnb-4bit", "qwen3-8b"),
            // Sizes that were not published under these names.
            ("meta-llama/Llama-3.2-11B-Vision-Instruct", ""),
            ("Qwen/Qwen1.5-7B", ""),
            ("Qwen/Qwen2.5-VL-7B-Instruct", ""),
            ("google/t5", ""),
            ("karpathy/nano", ""),
            // Paths.
            ("./models/llama-2-7b", ""),
            ("/models/llama-2-7b", ""),
            ("a/b/llama-2-7b", ""),
        ] {
            assert_eq!(preset(name).unwrap_or_default(), expected, "{name}");
        }
    }
}
