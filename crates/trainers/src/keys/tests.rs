//! Every key of which it is said that no memory depends on it, with values of every kind.

use super::*;
use crate::read;
use crate::read::Read;

/// A trainer's file without the key, and the lists of keys that change nothing in it.
fn claims() -> Vec<(Kind, &'static str, Vec<&'static [&'static str]>)> {
    let shared = hugging_face::others::NOTHING;
    vec![
        (Kind::HuggingFace, "model_name_or_path: gpt2\n", vec![shared, hugging_face::others::OF_SCRIPTS]),
        (Kind::Axolotl, "base_model: gpt2\n", vec![shared, axolotl::others::NOTHING]),
        (Kind::LlamaFactory, "model_name_or_path: gpt2\n", vec![shared, llama_factory::NOTHING]),
        (Kind::LlamaFactory, "model: gpt2\nmodel_class: llm\n", vec![llama_factory_v1::NOTHING]),
        (Kind::Torchtune, "batch_size: 1\n", vec![torchtune::NOTHING]),
        (Kind::Unsloth, "model_name: gpt2\n", vec![shared, unsloth::NOTHING]),
        (Kind::DeepSpeed, "zero_optimization: {stage: 1}\n", vec![deepspeed::NOTHING]),
        (Kind::Accelerate, "num_processes: 1\n", vec![accelerate::NOTHING]),
    ]
}

/// Reads a settings file with this key added; `None` if the file has the key already or is refused.
fn with_key(kind: Kind, begun: &str, key: &str, value: &str) -> Option<Read> {
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
fn c_changes_nothing() {
    let (mut checked, mut wrong) = (0, vec![]);
    for (kind, begun, lists) in claims() {
        let plain = read(kind, begun).expect("a file");
        for pattern in lists.concat() {
            let key = pattern.replace('*', "of_a_kind");
            for value in ["true", "false", "7", "0.5", "some_words", "[a, b]", "null"] {
                let Some(found) = with_key(kind, begun, &key, value) else { continue };
                let is_told =
                    found.told.iter().any(|told| told.key == key) && !plain.told.iter().any(|told| told.key == key);
                let is_noted = found.unmodelled.iter().any(|noted| noted.key == key);
                checked += 1;
                if !is_told && !is_noted && (found.run != plain.run || !found.unknown.is_empty()) {
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
