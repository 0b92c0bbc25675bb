//! The patterns by which byte-level tokenizers split texts before they merge bytes, and llama.cpp's names for them.
//! Source: `llama-vocab.cpp` of llama.cpp.

use super::list;
use serde_json::Value as Json;

/// Patterns that split texts, and llama.cpp's name for each: without `ignore_merges`, and with it.
const PATTERNS: &[(&str, [Option<&str>; 2])] = &[
    (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        [Some("dbrx"), Some("llama-bpe")],
    ),
    (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        [Some("qwen2"), None],
    ),
    (
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        [Some("gpt-4o"), Some("gpt-4o")],
    ),
    (
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        [Some("tekken"), Some("tekken")],
    ),
];

/// The names of GPT-2's pattern, alone and after single digits.
pub(super) const GPT2: &str = "gpt-2";
const GPT2_AFTER_DIGITS: &str = "smollm";

/// llama.cpp's name for the way in which a tokenizer.json splits texts; `None` if it has none.
pub(super) fn name_of(json: &Json) -> Option<&'static str> {
    let splitter = &json["pre_tokenizer"];
    let parts = match splitter["type"].as_str() {
        Some("Sequence") => list(&splitter["pretokenizers"]).iter().collect(),
        _ => vec![splitter],
    };
    let ignores = usize::from(json["model"]["ignore_merges"] == true);
    let kinds = parts.iter().map(|part| part["type"].as_str().unwrap_or_default()).collect::<Vec<_>>();
    let splits = |part: &Json| part["use_regex"] != false && part["add_prefix_space"] != true;
    let is_normalized = !json["normalizer"].is_null() && json["normalizer"]["type"] != "NFC";
    match (kinds.as_slice(), parts.as_slice()) {
        _ if is_normalized => None,
        (["ByteLevel"], [bytes]) if splits(bytes) => Some(GPT2),
        (["Digits", "ByteLevel"], [digits, bytes]) if digits["individual_digits"] == true && splits(bytes) => {
            Some(GPT2_AFTER_DIGITS)
        }
        (["Split", "ByteLevel"], [split, bytes]) if bytes["use_regex"] == false && split["behavior"] == "Isolated" => {
            let pattern = split["pattern"]["Regex"].as_str().unwrap_or_default();
            PATTERNS.iter().find(|(known, _)| *known == pattern).and_then(|(_, names)| names[ignores])
        }
        _ => None,
    }
}
