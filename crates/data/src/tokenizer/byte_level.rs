//! Byte-level byte-pair encodings as a tokenizer.json: the two built-in tokenizers, and GPT-2's older pair of files,
//! vocab.json and merges.txt. Not here: reading a tokenizer.json (`file.rs`).

use super::{Codec, bytes, gpt2};
use crate::DataError;
use plimsoll_units::Bytes;
use serde_json::{Value, json};
use std::collections::{BTreeMap, HashMap};
use std::io;
use std::path::Path;

pub(super) const VOCAB_NAME: &str = "vocab.json";
pub(super) const MERGES_NAME: &str = "merges.txt";
const FILE_BYTES_MAX: Bytes = Bytes::mib(64);

/// The `transformers` class whose tokenizer a vocab.json and a merges.txt fully describe, with or without `Fast`.
const GPT2_CLASS: &str = "GPT2Tokenizer";

/// A byte-level byte-pair encoding.
struct Encoding {
    /// JSON: the id of each token, by name.
    vocab: String,
    /// JSON: two names joined by a space per merge, the first merge first.
    merges: String,
    /// Tokens that are matched in the text before it is split.
    added: BTreeMap<u32, String>,
    add_prefix_space: bool,
    /// Whether GPT-2's pattern first splits the text into words.
    splits_words: bool,
}

impl Encoding {
    /// The tokenizer.json. Its bytes depend only on the encoding.
    fn to_json(&self) -> String {
        let token = |(id, content): (&u32, &String)| {
            format!(
                r#"{{"id":{id},"content":{},"single_word":false,"lstrip":false,"rstrip":false,"normalized":false,"special":true}}"#,
                json!(content)
            )
        };
        let added = self.added.iter().map(token).collect::<Vec<_>>().join(",");
        let byte_level = format!(
            r#"{{"type":"ByteLevel","add_prefix_space":{},"trim_offsets":true,"use_regex":{}}}"#,
            self.add_prefix_space, self.splits_words
        );
        let Self { vocab, merges, .. } = self;
        format!(
            r#"{{"version":"1.0","truncation":null,"padding":null,"added_tokens":[{added}],"normalizer":null,"pre_tokenizer":{byte_level},"post_processor":null,"decoder":{byte_level},"model":{{"type":"BPE","dropout":null,"unk_token":null,"continuing_subword_prefix":null,"end_of_word_suffix":null,"fuse_unk":false,"byte_fallback":false,"ignore_merges":false,"vocab":{vocab},"merges":{merges}}}}}"#
        )
    }
}

/// The character for each byte in the names of tokens. Source: `bytes_to_unicode` of GPT-2's encoder.py.
fn characters() -> [char; 256] {
    let is_itself = |byte: u8| matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
    let mut others = (256..).filter_map(char::from_u32);
    let mut of_byte = |byte: u8| if is_itself(byte) { byte.into() } else { others.next().expect("68 characters") };
    let mut characters = ['\0'; 256];
    (0..=255u8).for_each(|byte| characters[usize::from(byte)] = of_byte(byte));
    characters
}

/// `bytes` as a tokenizer.json. The zero byte, which separates documents, is an added token.
pub(super) fn bytes_json() -> String {
    let separator = char::from(bytes::SEPARATOR as u8).to_string();
    let mut vocab: BTreeMap<_, _> = (0..).zip(characters()).map(|(id, name)| (name.to_string(), id)).collect();
    vocab.retain(|_, id| *id != bytes::SEPARATOR);
    vocab.insert(separator.clone(), bytes::SEPARATOR);
    let added = BTreeMap::from([(bytes::SEPARATOR, separator)]);
    let (vocab, merges) = (json_of(&vocab), "[]".to_owned());
    Encoding { vocab, merges, added, add_prefix_space: false, splits_words: false }.to_json()
}

/// The hash of [`gpt2_json`], which is slow to compute.
const GPT2_JSON_BLAKE3: &str = "8570f9130c7eabfae287b84b5d204150320a1511d301ffe784b1259e5538264c";

/// The built-in tokenizer that a tokenizer.json was exported from; `None` for others.
pub(super) fn built_in(text: &str) -> Option<Codec> {
    if text == bytes_json() {
        Some(Codec::Bytes)
    } else if blake3::hash(text.as_bytes()).to_hex().as_str() == GPT2_JSON_BLAKE3 {
        Some(Codec::Gpt2)
    } else {
        None
    }
}

/// `gpt2` as a tokenizer.json, in which `<|endoftext|>` in a text is the special token. Tokens and names are in two
/// buffers, which the allocator returns to the system: a run uses little memory besides its plan.
pub(super) fn gpt2_json() -> String {
    let characters = characters();
    let (mut tokens, mut names) = (Slices::default(), Slices::default());
    for id in 0..gpt2::SEPARATOR {
        let token = gpt2::decode(&[id]);
        let name = token.iter().map(|&byte| characters[usize::from(byte)]).collect::<String>();
        tokens.push(&token);
        names.push(name.as_bytes());
    }
    let end = String::from_utf8(gpt2::decode(&[gpt2::SEPARATOR])).expect("it is ASCII");
    names.push(end.as_bytes());
    let name = |id: u32| std::str::from_utf8(names.get(id)).expect("made of characters");
    let ranks: HashMap<&[u8], u32> = (0..gpt2::SEPARATOR).map(|rank| (tokens.get(rank), rank)).collect();
    let mut merges = String::from("[");
    for rank in (0..gpt2::SEPARATOR).filter(|&rank| tokens.get(rank).len() > 1) {
        let (left, right) = tokens.get(rank).split_at(last_merge(tokens.get(rank), rank, &ranks));
        merges.push_str(if merges.len() > 1 { "," } else { "" });
        merges.push_str(&json_of(&format!("{} {}", name(ranks[left]), name(ranks[right]))));
    }
    merges.push(']');
    let mut ids = (0..=gpt2::SEPARATOR).collect::<Vec<_>>();
    ids.sort_unstable_by_key(|&id| name(id));
    let mut vocab = String::from("{");
    for id in ids {
        vocab.push_str(if vocab.len() > 1 { "," } else { "" });
        vocab.push_str(&format!("{}:{id}", json_of(name(id))));
    }
    vocab.push('}');
    let added = BTreeMap::from([(gpt2::SEPARATOR, end)]);
    Encoding { vocab, merges, added, add_prefix_space: false, splits_words: true }.to_json()
}

/// Byte strings, concatenated.
#[derive(Default)]
struct Slices {
    bytes: Vec<u8>,
    ends: Vec<usize>,
}

impl Slices {
    fn push(&mut self, slice: &[u8]) {
        self.bytes.extend_from_slice(slice);
        self.ends.push(self.bytes.len());
    }

    fn get(&self, index: u32) -> &[u8] {
        let index = index as usize;
        let start = if index == 0 { 0 } else { self.ends[index - 1] };
        &self.bytes[start..self.ends[index]]
    }
}

fn json_of(value: &(impl serde::Serialize + ?Sized)) -> String {
    serde_json::to_string(value).expect("plain data")
}

/// Position of the last merge of a token: encoding its bytes with the merges of lower rank leaves two parts.
fn last_merge(token: &[u8], rank: u32, ranks: &HashMap<&[u8], u32>) -> usize {
    let mut ends: Vec<usize> = (1..=token.len()).collect();
    while ends.len() > 2 {
        let merged = |at: usize| {
            let start = if at == 0 { 0 } else { ends[at - 1] };
            ranks.get(&token[start..ends[at + 1]]).copied().filter(|&other| other < rank)
        };
        let lowest = (0..ends.len() - 1).filter_map(|at| Some((merged(at)?, at))).min();
        let (_, at) = lowest.expect("each token of GPT-2 is two earlier ones");
        ends.remove(at);
    }
    ends[0]
}

/// Builds the tokenizer.json equivalent to the vocab.json and merges.txt in a folder; `None` if the folder lacks one of
/// them.
/// Errors: `Unreadable`, `FileTooLong`; `BadTokenizer` if the files do not fully describe GPT-2's encoding.
pub(super) fn json_of_pair(folder: &Path) -> Result<Option<String>, DataError> {
    let (vocab_path, merges_path) = (folder.join(VOCAB_NAME), folder.join(MERGES_NAME));
    let (Some(vocab), Some(merges)) = (read(&vocab_path)?, read(&merges_path)?) else { return Ok(None) };
    let bad = |message: String| DataError::BadTokenizer { path: vocab_path.clone(), message };
    let vocab: BTreeMap<String, u32> = serde_json::from_str(&vocab).map_err(|error| bad(error.to_string()))?;
    let value = |name: &str| -> Result<Value, DataError> {
        let Some(text) = read(&folder.join(name))? else { return Ok(Value::Null) };
        serde_json::from_str(&text)
            .map_err(|error| DataError::BadTokenizer { path: folder.join(name), message: error.to_string() })
    };
    let (config, model) = (value("tokenizer_config.json")?, value("config.json")?);
    let class = config["tokenizer_class"].as_str().map(|class| class.trim_end_matches("Fast"));
    let kind = class.or(model["model_type"].as_str());
    if let Some(kind) = kind.filter(|kind| ![GPT2_CLASS, "gpt2"].contains(kind)) {
        return Err(bad(format!(
            "a {VOCAB_NAME} and {MERGES_NAME} describe a {GPT2_CLASS} only; {kind} needs a tokenizer.json"
        )));
    }
    let mut added = BTreeMap::new();
    for file in [&config, &value("special_tokens_map.json")?] {
        let tokens = file.as_object().into_iter().flatten().filter(|(name, _)| name.ends_with("_token"));
        let text = |token: &Value| token.as_str().or_else(|| token.get("content")?.as_str()).map(str::to_owned);
        let known = |text: String| Some((*vocab.get(&text)?, text));
        added.extend(tokens.filter_map(|(_, token)| known(text(token)?)));
    }
    for (id, token) in config["added_tokens_decoder"].as_object().into_iter().flatten() {
        let id = id.parse().map_err(|_| bad(format!("tokenizer_config.json adds a token with the id {id:?}")))?;
        added.extend(token["content"].as_str().map(|content| (id, content.to_owned())));
    }
    for (content, id) in value("added_tokens.json")?.as_object().into_iter().flatten() {
        let id = id.as_u64().and_then(|id| u32::try_from(id).ok());
        let id = id.ok_or_else(|| bad(format!("added_tokens.json has no id for {content:?}")))?;
        added.insert(id, content.clone());
    }
    // Ids of tokens outside the vocabulary must follow it without a gap.
    let mut next = vocab.values().max().map_or(0, |last| u64::from(*last) + 1);
    for (&id, content) in &added {
        match vocab.get(content) {
            Some(&known) if known == id => {}
            None if u64::from(id) == next => next += 1,
            _ => {
                return Err(bad(format!(
                    "the added token {content:?} has the id {id}, which does not follow the vocabulary"
                )));
            }
        }
    }
    let merges = merges.lines().filter(|line| !line.is_empty() && !line.starts_with("#version"));
    let add_prefix_space = config["add_prefix_space"].as_bool().unwrap_or(false);
    let (vocab, merges) = (json_of(&vocab), json_of(&merges.collect::<Vec<_>>()));
    Ok(Some(Encoding { vocab, merges, added, add_prefix_space, splits_words: true }.to_json()))
}

/// `None` if there is no such file.
fn read(path: &Path) -> Result<Option<String>, DataError> {
    match plimsoll_files::read_text(path, FILE_BYTES_MAX) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(DataError::unreadable(path, error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Tokenizer, TokenizerSpec};
    use std::fs;

    #[test]
    fn the_hash_of_the_exported_gpt2_is_known() {
        assert_eq!(blake3::hash(gpt2_json().as_bytes()).to_hex().as_str(), GPT2_JSON_BLAKE3);
    }

    fn written(files: &[(&str, &str)]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        let vocab = r#"{"a":0,"b":1,"Ġ":2,"ab":3,"Ġab":4,"<|endoftext|>":5}"#;
        for (name, text) in [(VOCAB_NAME, vocab), (MERGES_NAME, "#version: 0.2\na b\nĠ ab\n")].iter().chain(files) {
            fs::write(folder.path().join(name), text).unwrap();
        }
        folder
    }

    fn open(files: &[(&str, &str)]) -> Result<Tokenizer, DataError> {
        Tokenizer::open(&TokenizerSpec::File(written(files).path().to_owned()))
    }

    #[test]
    fn a_vocab_and_its_merges_are_a_tokenizer() {
        let tokenizer = open(&[]).unwrap();
        assert_eq!(tokenizer.encode(b"ab aab").unwrap(), [3, 2, 0, 3]);
        assert_eq!((tokenizer.vocab_size(), tokenizer.separator()), (6, Some(5)));
        let config = r#"{"tokenizer_class":"GPT2TokenizerFast","eos_token":{"content":"<|endoftext|>"},"add_prefix_space":true}"#;
        let added = ("added_tokens.json", r#"{"<pad>":6}"#);
        let tokenizer = open(&[("tokenizer_config.json", config), added]).unwrap();
        assert_eq!(tokenizer.encode(b"ab<pad>ab<|endoftext|>").unwrap(), [4, 6, 4, 5]);
        assert_eq!((tokenizer.vocab_size(), tokenizer.pad_token()), (7, Some(6)));
    }

    #[test]
    fn incomplete_pairs_of_files_are_refused() {
        for (name, text, expected) in [
            ("tokenizer_config.json", r#"{"tokenizer_class":"Qwen2Tokenizer"}"#, "Qwen2Tokenizer needs"),
            ("config.json", r#"{"model_type":"clip"}"#, "clip needs"),
            ("tokenizer_config.json", r#"{"added_tokens_decoder":{"x":{}}}"#, "the id \"x\""),
            ("added_tokens.json", r#"{"<pad>":9}"#, "\"<pad>\" has the id 9"),
            ("added_tokens.json", r#"{"<pad>":"6"}"#, "no id for \"<pad>\""),
            (VOCAB_NAME, "[]", "invalid type"),
        ] {
            match open(&[(name, text)]) {
                Err(DataError::BadTokenizer { message, .. }) => assert!(message.contains(expected), "{message}"),
                other => panic!("{name} {text}: {:?}", other.map(|tokenizer| tokenizer.identity())),
            }
        }
    }
}
