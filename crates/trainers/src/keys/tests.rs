//! Checks every key that is listed as not affecting memory, with values of every kind.

use super::*;
use crate::read;
use crate::read::Read;
use crate::words::{self, Layout, Memory};

/// A file of each trainer without the keys, and its ignored keys.
fn claims() -> Vec<(TrainerKind, &'static str, Vec<&'static str>)> {
    let ignored = |layout| {
        let is_ignored = |memory: &Memory| matches!(memory, Memory::Ignored(_));
        words::of_layout(layout).filter(|(_, memory)| is_ignored(memory)).map(|(word, _)| word).collect()
    };
    vec![
        (TrainerKind::HuggingFace, "model_name_or_path: gpt2\n", ignored(Layout::HuggingFace)),
        (TrainerKind::Axolotl, "base_model: gpt2\n", ignored(Layout::Axolotl)),
        (TrainerKind::LlamaFactory, "model_name_or_path: gpt2\n", ignored(Layout::LlamaFactory)),
        (TrainerKind::LlamaFactory, "model: gpt2\nmodel_class: llm\n", ignored(Layout::LlamaFactoryV1)),
        (TrainerKind::Torchtune, "batch_size: 1\n", ignored(Layout::Torchtune)),
        (TrainerKind::Unsloth, "model_name: gpt2\n", ignored(Layout::Unsloth)),
        (TrainerKind::DeepSpeed, "zero_optimization: {stage: 1}\n", deepspeed::IGNORED.to_vec()),
        (TrainerKind::Accelerate, "num_processes: 1\n", accelerate::IGNORED.to_vec()),
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
    for (kind, begun, ignored) in claims() {
        let plain = read(kind, begun).expect("a file");
        for pattern in ignored {
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
