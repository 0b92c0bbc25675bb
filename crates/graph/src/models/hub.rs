//! The names that presets have on the Hugging Face hub.

/// Presets with the names of the weights that have their sizes, the one that is meant first, in the order of the presets.
const NAMES: &[(&str, &[&str])] = &[
    ("gpt2", &["openai-community/gpt2"]),
    ("gpt2-medium", &["openai-community/gpt2-medium"]),
    ("gpt2-large", &["openai-community/gpt2-large"]),
    ("gpt2-xl", &["openai-community/gpt2-xl"]),
    ("smollm2-135m", &["HuggingFaceTB/SmolLM2-135M", "HuggingFaceTB/SmolLM2-135M-Instruct"]),
    ("smollm2-360m", &["HuggingFaceTB/SmolLM2-360M", "HuggingFaceTB/SmolLM2-360M-Instruct"]),
    ("smollm2-1.7b", &["HuggingFaceTB/SmolLM2-1.7B", "HuggingFaceTB/SmolLM2-1.7B-Instruct"]),
    ("tinyllama-1.1b", &["TinyLlama/TinyLlama-1.1B-intermediate-step-1431k-3T", "TinyLlama/TinyLlama-1.1B-Chat-v1.0"]),
    ("llama-3.2-1b", &["meta-llama/Llama-3.2-1B", "meta-llama/Llama-3.2-1B-Instruct"]),
    ("llama-3.2-3b", &["meta-llama/Llama-3.2-3B", "meta-llama/Llama-3.2-3B-Instruct"]),
    ("llama-3-8b", &["meta-llama/Meta-Llama-3-8B", "meta-llama/Meta-Llama-3-8B-Instruct"]),
    ("llama-3.1-8b", &["meta-llama/Llama-3.1-8B", "meta-llama/Llama-3.1-8B-Instruct", "meta-llama/Meta-Llama-3.1-8B"]),
    ("mistral-7b", &["mistralai/Mistral-7B-v0.1"]),
    ("mistral-7b-v0.3", &["mistralai/Mistral-7B-v0.3", "mistralai/Mistral-7B-Instruct-v0.3"]),
    ("qwen2.5-0.5b", &["Qwen/Qwen2.5-0.5B", "Qwen/Qwen2.5-0.5B-Instruct"]),
    ("qwen2.5-1.5b", &["Qwen/Qwen2.5-1.5B", "Qwen/Qwen2.5-1.5B-Instruct"]),
    ("qwen2.5-3b", &["Qwen/Qwen2.5-3B", "Qwen/Qwen2.5-3B-Instruct"]),
    ("qwen2.5-7b", &["Qwen/Qwen2.5-7B"]),
    ("t5-small", &["google-t5/t5-small"]),
    ("t5-base", &["google-t5/t5-base"]),
    ("t5-large", &["google-t5/t5-large"]),
    ("t5-xl", &["google-t5/t5-3b"]),
    ("flan-t5-small", &["google/flan-t5-small"]),
    ("flan-t5-base", &["google/flan-t5-base"]),
    ("flan-t5-large", &["google/flan-t5-large"]),
    ("flan-t5-xl", &["google/flan-t5-xl"]),
    ("flan-t5-xxl", &["google/flan-t5-xxl"]),
];

/// The names of a preset on the hub, the one that is meant first; none for our own.
pub(super) fn names(preset: &str) -> &'static [&'static str] {
    NAMES.iter().find(|(name, _)| *name == preset).map_or(&[], |(_, names)| names)
}

/// The preset with the sizes of the weights of this name on the hub.
pub(super) fn preset(name: &str) -> Option<&'static str> {
    let is_it = |names: &[&str]| names.iter().any(|known| known.eq_ignore_ascii_case(name));
    NAMES.iter().find(|(_, names)| is_it(names)).map(|(preset, _)| *preset)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::models::ModelConfig;
    use std::collections::BTreeSet;

    #[test]
    fn all_presets_but_our_own_have_names_that_mean_them_alone() {
        let ours = ["nano", "t5-nano"];
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
}
