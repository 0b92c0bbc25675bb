//! Tokenizers as keys of a file.

use crate::files::{config, exported, tokenizer};
use plimsoll_gguf::{FileType, GgufError};
use proptest::prelude::*;
use serde_json::{Value, json};

const SPACE: &str = "\u{2581}";

/// The keys of a tokenizer, without `tokenizer.ggml.`; or why there are none.
fn keys(json: &Value) -> Result<impl Fn(&str) -> String + use<>, String> {
    match exported(&config(&json!({})), json, FileType::F32) {
        Ok(read) => Ok(move |name: &str| read.keys.get(&format!("tokenizer.ggml.{name}")).cloned().unwrap_or_default()),
        Err(GgufError::Tokenizer { problem }) => Err(problem),
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn bytes_are_named_by_their_pattern() {
    let found = keys(&tokenizer()).expect("keys");
    assert_eq!([found("model"), found("pre"), found("merges")], ["gpt2", "gpt-2", "a b"]);
    assert_eq!(found("tokens"), "a|b|c|d|e|f|g|<end>");
    assert_eq!(found("token_type"), "1|1|1|1|1|1|1|3");
    assert_eq!([found("eos_token_id"), found("add_bos_token"), found("add_eos_token")], ["7", "0", "0"]);

    let digits = json!({"type": "Digits", "individual_digits": true});
    let bytes = |use_regex: bool| json!({"type": "ByteLevel", "add_prefix_space": false, "use_regex": use_regex});
    let split =
        |regex: &str| json!({"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": false});
    let qwen = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
    let llama = qwen.replacen(r"|\p{N}|", r"|\p{N}{1,3}|", 1);
    for (parts, ignores, pre) in [
        (json!([digits, bytes(true)]), false, "smollm"),
        (json!([split(qwen), bytes(false)]), false, "qwen2"),
        (json!([split(&llama), bytes(false)]), true, "llama-bpe"),
        (json!([split(&llama), bytes(false)]), false, "dbrx"),
    ] {
        let mut json = tokenizer();
        json["pre_tokenizer"] = json!({"type": "Sequence", "pretokenizers": parts});
        json["model"]["ignore_merges"] = json!(ignores);
        assert_eq!(keys(&json).expect(pre)("pre"), pre);
    }
    let mut other = tokenizer();
    other["pre_tokenizer"] = json!({"type": "Sequence", "pretokenizers": [split("[a-z]+"), bytes(false)]});
    assert!(keys(&other).err().expect("a pattern without a name").contains("[a-z]+"));
}

#[test]
fn pieces_get_scores_in_the_order_of_their_merges() {
    let mut json = tokenizer();
    json["model"] = json!({
        "type": "BPE", "byte_fallback": true, "unk_token": "<unk>", "merges": ["a b", format!("{SPACE} ab")],
        "vocab": {"<unk>": 0, "<0x0A>": 1, "a": 2, "b": 3, "ab": 4, SPACE: 5, format!("{SPACE}ab"): 6},
    });
    json["normalizer"] = json!({"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": SPACE}]});
    json["post_processor"] = json!({
        "type": "TemplateProcessing", "special_tokens": {"<end>": {"id": "<end>", "ids": [7], "tokens": ["<end>"]}},
        "single": [{"SpecialToken": {"id": "<end>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
    });
    let found = keys(&json).expect("keys");
    assert_eq!([found("model"), found("add_space_prefix"), found("add_bos_token")], ["llama", "1", "1"]);
    assert_eq!(found("token_type"), "2|6|1|1|1|1|1|3");
    assert_eq!(found("scores"), "0|0|0|0|-1|0|-2|0");
    assert_eq!([found("unknown_token_id"), found("bos_token_id"), found("eos_token_id")], ["0", "7", "7"]);
    // llama.cpp would merge this pair, too.
    json["model"]["vocab"][format!("{SPACE}a")] = json!(7);
    json["added_tokens"] = json!([]);
    let problem = keys(&json).err().expect("a pair is missing");
    assert!(problem.contains("does not merge") && problem.contains("\"b\""), "{problem}");
}

#[test]
fn unigrams_keep_their_scores_and_their_table() {
    let mut json = tokenizer();
    json["model"] = json!({"type": "Unigram", "unk_id": 1, "vocab": [["<pad>", 0.0], ["<unk>", -1.0], ["x", -2.5]]});
    json["normalizer"] = json!({"type": "Precompiled", "precompiled_charsmap": "AQID"});
    json["pre_tokenizer"] = json!({"type": "Metaspace", "replacement": SPACE, "prepend_scheme": "always"});
    let found = keys(&json).expect("keys");
    assert_eq!([found("model"), found("precompiled_charsmap"), found("add_space_prefix")], ["t5", "1|2|3", "1"]);
    assert_eq!(found("scores"), "0|-1|-2.5|0|0|0|0|0");
    // Ids without a token are unused.
    assert_eq!(found("tokens"), "<pad>|<unk>|x|[PAD3]|[PAD4]|[PAD5]|[PAD6]|<end>");
    assert_eq!(found("token_type"), "1|2|1|5|5|5|5|3");
}

#[test]
fn words_are_marked_where_they_begin() {
    let mut json = tokenizer();
    json["model"] = json!({
        "type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##",
        "vocab": {"[UNK]": 0, "[CLS]": 1, "[SEP]": 2, "ship": 3, "##s": 4},
    });
    json["added_tokens"] =
        json!([{"id": 1, "content": "[CLS]", "special": true}, {"id": 2, "content": "[SEP]", "special": true}]);
    json["normalizer"] = json!({"type": "BertNormalizer", "lowercase": true, "strip_accents": null});
    json["post_processor"] = json!({"type": "BertProcessing", "sep": ["[SEP]", 2], "cls": ["[CLS]", 1]});
    let found = keys(&json).expect("keys");
    assert_eq!(found("tokens"), format!("[UNK]|[CLS]|[SEP]|{SPACE}ship|s|[PAD5]|[PAD6]|[PAD7]"));
    assert_eq!([found("model"), found("bos_token_id"), found("seperator_token_id")], ["bert", "1", "2"]);
    json["normalizer"]["lowercase"] = json!(false);
    assert!(keys(&json).err().expect("case matters").contains("upper and lower case"));
}

#[test]
fn tokens_beyond_the_model_and_unknown_kinds_are_refused() {
    let mut json = tokenizer();
    json["added_tokens"][0]["id"] = json!(8);
    assert!(keys(&json).err().expect("too many tokens").contains("the model has 8 ids"));
    json["model"] = json!({"type": "WordLevel", "vocab": {}});
    assert!(keys(&json).err().is_some());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn damaged_files_are_read_or_refused(at in any::<prop::sample::Index>(), with in "[0-9a-z\\[\\]{}\",:]{1,4}") {
        let mut text = tokenizer().to_string();
        let at = at.index(text.len());
        text.replace_range(at..at + 1, &with);
        if let Ok(json) = serde_json::from_str::<Value>(&text) {
            let _ = keys(&json).map(|_| ());
        }
    }
}
