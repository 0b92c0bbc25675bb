//! Checks every key that is listed as not affecting memory, with values of every kind.

use super::*;
use crate::read;
use crate::read::Read;

/// A file of each trainer without the keys, and the lists of ignored keys.
fn claims() -> Vec<(TrainerKind, &'static str, Vec<&'static [&'static str]>)> {
    let shared = hugging_face::others::IGNORED;
    vec![
        (
            TrainerKind::HuggingFace,
            "model_name_or_path: gpt2\n",
            vec![shared, hugging_face::others::IGNORED_IN_SCRIPTS],
        ),
        (TrainerKind::Axolotl, "base_model: gpt2\n", vec![shared, axolotl::others::IGNORED]),
        (TrainerKind::LlamaFactory, "model_name_or_path: gpt2\n", vec![shared, llama_factory::IGNORED]),
        (TrainerKind::LlamaFactory, "model: gpt2\nmodel_class: llm\n", vec![llama_factory_v1::IGNORED]),
        (TrainerKind::Torchtune, "batch_size: 1\n", vec![torchtune::IGNORED]),
        (TrainerKind::Unsloth, "model_name: gpt2\n", vec![shared, unsloth::IGNORED]),
        (TrainerKind::DeepSpeed, "zero_optimization: {stage: 1}\n", vec![deepspeed::IGNORED]),
        (TrainerKind::Accelerate, "num_processes: 1\n", vec![accelerate::IGNORED]),
    ]
}

/// Reads a settings file with this key added; `None` if the file has the key already or is refused.
fn with_key(kind: TrainerKind, begun: &str, key: &str, value: &str) -> Option<Read> {
    let parts = key.split('.').collect::<Vec<_>>();
    if begun.lines().any(|line| line.starts_with(&format!("{}:", parts[0]))) {
        return None;
    }
    let indented = parts.iter().enumerate().map(|(depth, part)| {
        let value = if depth + 1 == parts.len() { format!(" {value}") } else { String::new() };
        format!("{}{part}:{value}\n", "  ".repeat(depth))
    });
    read(kind, &format!("{begun}{}", indented.collect::<String>())).ok()
}

#[test]
fn ignored_keys_change_nothing() {
    let (mut checked, mut wrong) = (0, vec![]);
    for (kind, begun, lists) in claims() {
        let plain = read(kind, begun).expect("a file");
        for pattern in lists.concat() {
            let key = pattern.replace('*', "of_a_kind");
            for value in ["true", "false", "7", "0.5", "some_words", "[a, b]", "null"] {
                let Some(found) = with_key(kind, begun, &key, value) else { continue };
                let is_used =
                    found.used.iter().any(|used| used.key == key) && !plain.used.iter().any(|used| used.key == key);
                let is_noted = found.unmodeled.iter().any(|noted| noted.key == key);
                checked += 1;
                if !is_used && !is_noted && (found.run != plain.run || !found.unknown.is_empty()) {
                    wrong.push(format!("{kind}: {key}: {value}: {:?}", found.unknown));
                }
            }
        }
        // A key in no list is reported as unknown.
        let unknown = with_key(kind, begun, "no_such_key", "7").expect("a file");
        assert!(unknown.unknown.iter().any(|unknown| unknown.key == "no_such_key"), "{kind}");
    }
    assert!(checked > 3000, "{checked}");
    assert!(wrong.is_empty(), "{} of {checked}:\n{}", wrong.len(), wrong.join("\n"));
}
