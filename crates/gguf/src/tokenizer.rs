//! A tokenizer.json as keys of a file.
//!
//! | model in tokenizer.json | llama.cpp's |
//! | --- | --- |
//! | BPE of bytes | `gpt2`: tokens, merges, and a name for the pattern that splits texts |
//! | BPE with byte tokens, from SentencePiece | `llama`: tokens with scores, which the order of merges gives |
//! | Unigram | `t5`: tokens with scores, and the table of characters |
//! | WordPiece | `bert`: tokens with a mark where a word begins |
//!
//! Source: `Vocab` and `_set_vocab_…` of llama.cpp's converter; `llama-vocab.cpp` for the patterns.

mod patterns;

use crate::GgufError;
use crate::value::{Metadata, Value};
use base64::Engine;
use serde_json::Value as Json;
use std::collections::{HashMap, HashSet};

/// What a file says about a tokenizer.
#[derive(Debug, Clone, Default)]
pub struct TokenizerParts {
    /// The text of its tokenizer.json.
    pub json: String,
    /// The chat template.
    pub template: Option<String>,
    /// The token before a text.
    pub begin: Option<u32>,
    /// The token after a text.
    pub end: Option<u32>,
    /// The token that ends an answer, if it is not `end`.
    pub end_of_answer: Option<u32>,
    /// The token of padding.
    pub pad: Option<u32>,
}

/// Types of tokens. Source: `enum llama_token_type`.
const NORMAL: i32 = 1;
const UNKNOWN: i32 = 2;
const CONTROL: i32 = 3;
const USER_DEFINED: i32 = 4;
const UNUSED: i32 = 5;
const BYTE: i32 = 6;

/// The mark of a space in SentencePiece's tokens, and of the beginning of a word in llama.cpp's BERT.
const SPACE: &str = "\u{2581}";

fn lacks(problem: impl Into<String>) -> GgufError {
    GgufError::Tokenizer { problem: problem.into() }
}

impl TokenizerParts {
    /// The keys, with a token for each of a model's ids. Errors: `Tokenizer`.
    pub(crate) fn keys(&self, vocab_size: usize) -> Result<Metadata, GgufError> {
        let json: Json = serde_json::from_str(&self.json).map_err(|error| lacks(format!("tokenizer.json: {error}")))?;
        let model = &json["model"];
        // Older files of byte-pair encodings omit the type.
        let kind = model["type"].as_str().unwrap_or(if model["merges"].is_array() { "BPE" } else { "" });
        let mut tokens = Tokens::read(&json, vocab_size)?;
        let mut keys = Metadata::default();
        match kind {
            "BPE" if model["byte_fallback"] == true => pieces(&json, tokens, &mut keys)?,
            "BPE" => bytes(&json, tokens, &mut keys)?,
            "Unigram" => unigram(&json, tokens, &mut keys)?,
            "WordPiece" => {
                tokens.mark_words(model["continuing_subword_prefix"].as_str().unwrap_or("##"));
                words(&json, tokens, &mut keys)?;
            }
            other => return Err(lacks(format!("its model is `{other}`, not BPE, Unigram or WordPiece"))),
        }
        let surrounding = Surrounding::of(&json["post_processor"]);
        if surrounding.before.len().max(surrounding.after.len()) > 1 {
            return Err(lacks("it puts more than one token before or after a text"));
        }
        self.special(&json, kind, &surrounding, &mut keys);
        Ok(keys)
    }

    fn special(&self, json: &Json, kind: &str, surrounding: &Surrounding, keys: &mut Metadata) {
        let is_words = kind == "WordPiece";
        // llama.cpp puts these tokens around a text, so that they are those of the post-processor.
        let begin = surrounding.before.first().copied().or(self.begin);
        let end = surrounding.after.first().copied().or(self.end);
        let mut put = |name: &str, id: Option<u32>| {
            if let Some(id) = id {
                keys.put(format!("tokenizer.ggml.{name}_token_id"), id);
            }
        };
        put("bos", begin);
        put("eos", end);
        put("eot", self.end_of_answer);
        put("padding", self.pad);
        let named = |name: &str| added(json).find(|(_, token)| token["content"] == name).map(|(id, _)| id);
        put("unknown", unknown(json));
        if is_words {
            put("seperator", end);
            put("mask", named("[MASK]"));
        }
        keys.put("tokenizer.ggml.add_bos_token", !surrounding.before.is_empty());
        keys.put("tokenizer.ggml.add_eos_token", !surrounding.after.is_empty());
        if let Some(template) = &self.template {
            keys.put("tokenizer.chat_template", template.as_str());
        }
    }
}

/// The ids that a post-processor puts before and after a text.
#[derive(Debug, Default)]
struct Surrounding {
    before: Vec<u32>,
    after: Vec<u32>,
}

impl Surrounding {
    fn of(processor: &Json) -> Self {
        let mut found = Self::default();
        match processor["type"].as_str() {
            Some("Sequence") => {
                for part in list(&processor["processors"]) {
                    let part = Self::of(part);
                    found.before.extend(part.before);
                    found.after.extend(part.after);
                }
            }
            Some("TemplateProcessing") => {
                let mut is_after = false;
                for part in list(&processor["single"]) {
                    is_after |= part.get("Sequence").is_some();
                    let name = part["SpecialToken"]["id"].as_str().unwrap_or_default();
                    let ids = list(&processor["special_tokens"][name]["ids"]).iter().filter_map(id_of);
                    if is_after { found.after.extend(ids) } else { found.before.extend(ids) }
                }
            }
            Some("BertProcessing" | "RobertaProcessing") => {
                found.before.extend(id_of(&processor["cls"][1]));
                found.after.extend(id_of(&processor["sep"][1]));
            }
            _ => {}
        }
        found
    }
}

fn list(value: &Json) -> &[Json] {
    value.as_array().map_or(&[], Vec::as_slice)
}

fn id_of(value: &Json) -> Option<u32> {
    u32::try_from(value.as_u64()?).ok()
}

/// The added tokens, with their ids.
fn added(json: &Json) -> impl Iterator<Item = (u32, &Json)> {
    list(&json["added_tokens"]).iter().filter_map(|token| Some((id_of(&token["id"])?, token)))
}

/// The id of the token for unknown text.
fn unknown(json: &Json) -> Option<u32> {
    let model = &json["model"];
    let name = model["unk_token"].as_str();
    let in_vocabulary = name.and_then(|name| id_of(&model["vocab"][name]));
    id_of(&model["unk_id"]).or(in_vocabulary)
}

/// The tokens of a model's ids.
struct Tokens {
    names: Vec<String>,
    types: Vec<i32>,
}

impl Tokens {
    /// Ids without a token are unused. Errors: `Tokenizer` if there are more tokens than ids.
    fn read(json: &Json, vocab_size: usize) -> Result<Self, GgufError> {
        let vocab = &json["model"]["vocab"];
        let pairs = vocab.as_object().into_iter().flatten().filter_map(|(name, id)| Some((id_of(id)?, name.as_str())));
        let listed = list(vocab).iter().enumerate().filter_map(|(id, piece)| Some((id as u32, piece[0].as_str()?)));
        let mut tokens =
            Self { names: (0..vocab_size).map(|id| format!("[PAD{id}]")).collect(), types: vec![UNUSED; vocab_size] };
        for (id, name) in pairs.chain(listed) {
            tokens.set(id, name, NORMAL)?;
        }
        for (id, token) in added(json) {
            let kind = if token["special"] == true { CONTROL } else { USER_DEFINED };
            tokens.set(id, token["content"].as_str().unwrap_or_default(), kind)?;
        }
        if let Some(kind) = unknown(json).and_then(|unknown| tokens.types.get_mut(unknown as usize)) {
            *kind = UNKNOWN;
        }
        Ok(tokens)
    }

    fn set(&mut self, id: u32, name: &str, kind: i32) -> Result<(), GgufError> {
        let (place, count) = (id as usize, self.names.len());
        if place >= count {
            return Err(lacks(format!("it has the token {name:?} with the id {id}, but the model has {count} ids")));
        }
        self.names[place] = name.to_owned();
        self.types[place] = kind;
        Ok(())
    }

    /// Marks the tokens that begin a word, instead of those that continue one after `prefix`.
    fn mark_words(&mut self, prefix: &str) {
        let words = self.names.iter_mut().zip(&self.types).filter(|(_, kind)| [NORMAL, USER_DEFINED].contains(kind));
        for (name, _) in words {
            *name = name.strip_prefix(prefix).map_or_else(|| format!("{SPACE}{name}"), str::to_owned);
        }
    }

    /// Adds the tokens. `model`: llama.cpp's name for the tokenizer.
    fn put(self, model: &str, pre: &str, scores: Option<Vec<f32>>, keys: &mut Metadata) {
        keys.put("tokenizer.ggml.model", model);
        keys.put("tokenizer.ggml.pre", pre);
        keys.put("tokenizer.ggml.tokens", Value::Texts(self.names));
        if let Some(scores) = scores {
            keys.put("tokenizer.ggml.scores", Value::Numbers(scores));
        }
        keys.put("tokenizer.ggml.token_type", Value::Integers(self.types));
    }
}

/// A byte-pair encoding of bytes. Errors: `Tokenizer` for a pattern without a name.
fn bytes(json: &Json, tokens: Tokens, keys: &mut Metadata) -> Result<(), GgufError> {
    let merges = merges(json)?;
    let pre = match merges.is_empty() {
        // Nothing is merged, however texts are split.
        true => patterns::GPT2,
        false => {
            patterns::name_of(json).ok_or_else(|| lacks(format!("it splits texts by {}", json["pre_tokenizer"])))?
        }
    };
    tokens.put("gpt2", pre, None, keys);
    let merges = merges.into_iter().map(|[left, right]| format!("{left} {right}"));
    keys.put("tokenizer.ggml.merges", Value::Texts(merges.collect()));
    Ok(())
}

/// The pairs of names, the first merge first. Errors: `Tokenizer` if one is not a pair.
fn merges(json: &Json) -> Result<Vec<[&str; 2]>, GgufError> {
    let merges = list(&json["model"]["merges"]).iter().map(|merge| {
        let pair = match merge.as_str() {
            Some(text) => text.split_once(' '),
            None => merge[0].as_str().zip(merge[1].as_str()),
        };
        pair.map(|(left, right)| [left, right]).ok_or_else(|| lacks(format!("{merge} is not a merge of two tokens")))
    });
    merges.collect()
}

/// A byte-pair encoding from SentencePiece. llama.cpp merges the pair whose token has the highest score, so that the order of
/// merges gives the scores. Errors: `Tokenizer`.
fn pieces(json: &Json, mut tokens: Tokens, keys: &mut Metadata) -> Result<(), GgufError> {
    let merges = merges(json)?;
    let mut ranks = HashMap::new();
    for (rank, [left, right]) in merges.iter().enumerate() {
        ranks.entry(format!("{left}{right}")).or_insert(rank);
    }
    check_pairs(&tokens.names, &merges, &ranks)?;
    let scores = tokens.names.iter().map(|name| ranks.get(name).map_or(0.0, |&rank| -(rank as f32) - 1.0)).collect();
    for (name, kind) in tokens.names.iter().zip(&mut tokens.types) {
        let is_byte = name.len() == 6 && name.starts_with("<0x") && name.ends_with('>');
        if is_byte && [NORMAL, CONTROL].contains(kind) {
            *kind = BYTE;
        }
    }
    tokens.put("llama", "default", Some(scores), keys);
    keys.put("tokenizer.ggml.add_space_prefix", adds_space(json));
    Ok(())
}

/// llama.cpp merges any two tokens whose names together are a token's, as SentencePiece does. Errors: `Tokenizer` if the merges of
/// such a token lack a pair. `ranks`: of the tokens that are merged.
fn check_pairs(names: &[String], merges: &[[&str; 2]], ranks: &HashMap<String, usize>) -> Result<(), GgufError> {
    let (pairs, all) =
        (merges.iter().collect::<HashSet<_>>(), names.iter().map(String::as_str).collect::<HashSet<_>>());
    for name in ranks.keys() {
        for (at, _) in name.char_indices().skip(1) {
            let (left, right) = name.split_at(at);
            if all.contains(left) && all.contains(right) && !pairs.contains(&[left, right]) {
                return Err(lacks(format!("it does not merge {left:?} and {right:?}, as SentencePiece would")));
            }
        }
    }
    Ok(())
}

/// Whether a space is put before a text.
fn adds_space(json: &Json) -> bool {
    let steps = |value: &Json, list_name: &str| -> Vec<Json> {
        match value["type"].as_str() {
            Some("Sequence") => list(&value[list_name]).to_vec(),
            _ => vec![value.clone()],
        }
    };
    let prepends = steps(&json["normalizer"], "normalizers")
        .iter()
        .any(|step| step["type"] == "Prepend" && step["prepend"] == SPACE);
    let spaces = steps(&json["pre_tokenizer"], "pretokenizers").into_iter().any(|step| {
        let scheme = step["prepend_scheme"].as_str().unwrap_or(match step["add_prefix_space"].as_bool() {
            Some(false) => "never",
            _ => "always",
        });
        step["type"] == "Metaspace" && scheme != "never"
    });
    prepends || spaces
}

/// SentencePiece's unigram model. Errors: `Tokenizer` if its table of characters can't be read.
fn unigram(json: &Json, tokens: Tokens, keys: &mut Metadata) -> Result<(), GgufError> {
    let of_pieces = list(&json["model"]["vocab"]).iter().map(|piece| piece[1].as_f64().unwrap_or(0.0) as f32);
    let mut scores = of_pieces.collect::<Vec<_>>();
    scores.resize(tokens.names.len(), 0.0);
    tokens.put("t5", "default", Some(scores), keys);
    keys.put("tokenizer.ggml.add_space_prefix", adds_space(json));
    let normalizer = &json["normalizer"];
    let steps = match normalizer["type"].as_str() {
        Some("Sequence") => list(&normalizer["normalizers"]),
        _ => std::slice::from_ref(normalizer),
    };
    // A step of tokenizer.json that collapses spaces stands for SentencePiece's setting.
    let collapses = steps.iter().any(|step| step["type"] == "Replace" && step["pattern"]["Regex"] == " {2,}");
    keys.put("tokenizer.ggml.remove_extra_whitespaces", collapses);
    if let Some(table) = steps.iter().find_map(|step| step["precompiled_charsmap"].as_str()) {
        let table = base64::engine::general_purpose::STANDARD.decode(table);
        let table = table.map_err(|error| lacks(format!("its `precompiled_charsmap` is not base64: {error}")))?;
        keys.put("tokenizer.ggml.precompiled_charsmap", Value::Bytes(table));
    }
    Ok(())
}

/// BERT's words. Errors: `Tokenizer` if letters keep their case, which llama.cpp lowers.
fn words(json: &Json, tokens: Tokens, keys: &mut Metadata) -> Result<(), GgufError> {
    let normalizer = &json["normalizer"];
    if normalizer["type"] != "BertNormalizer" || normalizer["lowercase"] != true || normalizer["strip_accents"] == false
    {
        return Err(lacks("it distinguishes upper and lower case or accents, which llama.cpp removes from texts"));
    }
    tokens.put("bert", "default", None, keys);
    Ok(())
}
