//! The tokens that end documents and answers and the token that pads, from the files next to a tokenizer.json,
//! otherwise by well-known names.
//! Not here: the tokens before a document, which come from the tokenizer's post-processor (`file.rs`).

use crate::DataError;
use plimsoll_units::Bytes;
use serde_json::Value;
use std::io;
use std::path::Path;

pub(super) const TOKENIZER_CONFIG: &str = "tokenizer_config.json";
const TOKENS_MAP: &str = "special_tokens_map.json";
const GENERATION_CONFIG: &str = "generation_config.json";
const MODEL_CONFIG: &str = "config.json";
/// The first file that names a token wins.
const FILES: [&str; 4] = [TOKENIZER_CONFIG, TOKENS_MAP, GENERATION_CONFIG, MODEL_CONFIG];
const FILE_BYTES_MAX: Bytes = Bytes::mib(16);

/// Tokens that end a document in known families, the most specific first.
const ENDS: [&str; 8] =
    ["<|endoftext|>", "</s>", "<|end_of_text|>", "<｜end▁of▁sentence｜>", "<eos>", "<|eos|>", "[EOS]", "[SEP]"];
/// Padding tokens in known families.
const PADDINGS: [&str; 4] = ["<pad>", "[PAD]", "<|pad|>", "<PAD>"];

/// The special tokens of a tokenizer.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct SpecialTokens {
    /// The separator, and the file that names it; `None` as the file if it is well known.
    pub separator: Option<(u32, Option<&'static str>)>,
    /// All tokens that end an answer, the separator first.
    pub ends: Vec<u32>,
    pub pad: Option<u32>,
    /// The token that the files name as the beginning of a text.
    pub begin: Option<u32>,
}

impl SpecialTokens {
    /// Reads the files in a folder. `id` looks up a token; `is_id` tells whether an id exists.
    /// Errors: `Unreadable`, `FileTooLong`; `BadTokenizer` for a file that is not JSON.
    pub(super) fn of_folder(
        folder: &Path,
        id: &dyn Fn(&str) -> Option<u32>,
        is_id: &dyn Fn(u32) -> bool,
    ) -> Result<Self, DataError> {
        let files = FILES.map(|name| read(&folder.join(name)));
        let [tokenizer, map, generation, model] = files;
        let files = [tokenizer?, map?, generation?, model?];
        let named = |kind: &str| {
            let of_file = |(file, name): (&Value, &'static str)| {
                let ids: Vec<u32> = tokens_of(file, kind, id).into_iter().filter(|&id| is_id(id)).collect();
                (!ids.is_empty()).then_some((ids, name))
            };
            files.iter().zip(FILES).filter_map(of_file).collect::<Vec<_>>()
        };
        let by_name = |names: &[&str]| names.iter().find_map(|name| id(name));
        let ends = named("eos_token");
        let separator = match ends.first() {
            Some((ids, file)) => Some((ids[0], Some(*file))),
            None => by_name(&ENDS).map(|id| (id, None)),
        };
        let mut all: Vec<u32> = separator.iter().map(|&(id, _)| id).collect();
        for id in ends.into_iter().flat_map(|(ids, _)| ids) {
            if !all.contains(&id) {
                all.push(id);
            }
        }
        let pad = named("pad_token").first().map(|(ids, _)| ids[0]).or_else(|| by_name(&PADDINGS));
        let begin = named("bos_token").first().map(|(ids, _)| ids[0]);
        Ok(Self { separator, ends: all, pad, begin })
    }
}

/// The ids in a folder's generation_config.json that end answers; empty if there is no such file.
/// Errors: `Unreadable`, `FileTooLong`; `BadTokenizer` for a file that is not JSON.
pub fn generation_ends(folder: &Path) -> Result<Vec<u32>, DataError> {
    Ok(tokens_of(&read(&folder.join(GENERATION_CONFIG))?, "eos_token", &|_| None))
}

/// The ids of a token such as `eos_token` in a file: a text, an object with a text, or, as `eos_token_id`, one or more
/// numbers.
fn tokens_of(file: &Value, kind: &str, id: &dyn Fn(&str) -> Option<u32>) -> Vec<u32> {
    let token = file.get(kind).and_then(|token| token.as_str().or_else(|| token.get("content")?.as_str()));
    if let Some(id) = token.and_then(id) {
        return vec![id];
    }
    let key = format!("{kind}_id");
    // Multimodal models store the ids of their text model in a nested object.
    let ids = file.get(&key).filter(|ids| !ids.is_null()).or_else(|| file.get("text_config")?.get(&key));
    let number = |id: &Value| id.as_u64().and_then(|id| u32::try_from(id).ok());
    match ids {
        Some(Value::Array(ids)) => ids.iter().filter_map(number).collect(),
        Some(id) => number(id).into_iter().collect(),
        None => Vec::new(),
    }
}

/// Reads the file; null if it does not exist.
fn read(path: &Path) -> Result<Value, DataError> {
    match plimsoll_files::read_text(path, FILE_BYTES_MAX) {
        Ok(text) => serde_json::from_str(&text)
            .map_err(|error| DataError::BadTokenizer { path: path.to_owned(), message: error.to_string() }),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Value::Null),
        Err(error) => Err(DataError::unreadable(path, error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(files: &[(&str, &str)]) -> Result<SpecialTokens, DataError> {
        let folder = tempfile::tempdir().unwrap();
        files.iter().for_each(|(name, text)| std::fs::write(folder.path().join(name), text).unwrap());
        let names = ["</s>", "<|end|>", "<eot>", "<pad>", "<unk>"];
        let id = |name: &str| names.iter().position(|known| *known == name).map(|id| id as u32);
        SpecialTokens::of_folder(folder.path(), &id, &|id| id < 5)
    }

    #[test]
    fn files_name_the_tokens_before_names_do() {
        let tokens = |separator, ends: &[u32], pad| SpecialTokens { separator, ends: ends.to_vec(), pad, begin: None };
        let (config, generation) = ("tokenizer_config.json", "generation_config.json");
        for (files, expected) in [
            (&[][..], tokens(Some((0, None)), &[0], Some(3))),
            (
                &[(config, r#"{"eos_token":"<|end|>","pad_token":"<unk>"}"#)],
                tokens(Some((1, Some(config))), &[1], Some(4)),
            ),
            (&[(config, r#"{"eos_token":{"content":"<eot>"}}"#)], tokens(Some((2, Some(config))), &[2], Some(3))),
            (
                &[(config, r#"{"eos_token":"<eot>"}"#), (generation, r#"{"eos_token_id":[1,2,99]}"#)],
                tokens(Some((2, Some(config))), &[2, 1], Some(3)),
            ),
            (&[(generation, r#"{"eos_token_id":[2,1]}"#)], tokens(Some((2, Some(generation))), &[2, 1], Some(3))),
            (
                &[("special_tokens_map.json", r#"{"eos_token":"<|end|>"}"#), ("config.json", r#"{"eos_token_id":2}"#)],
                tokens(Some((1, Some("special_tokens_map.json"))), &[1, 2], Some(3)),
            ),
            (
                &[("config.json", r#"{"text_config":{"eos_token_id":1}}"#)],
                tokens(Some((1, Some("config.json"))), &[1], Some(3)),
            ),
            (&[(config, r#"{"eos_token":null}"#), ("config.json", "[]")], tokens(Some((0, None)), &[0], Some(3))),
            (&[(config, r#"{"eos_token":"unknown"}"#)], tokens(Some((0, None)), &[0], Some(3))),
        ] {
            assert_eq!(found(files).unwrap(), expected, "{files:?}");
        }
        assert_eq!(found(&[(config, r#"{"bos_token":"<eot>"}"#)]).unwrap().begin, Some(2));
        assert!(matches!(found(&[(config, "{")]), Err(DataError::BadTokenizer { .. })));
        let folder = tempfile::tempdir().unwrap();
        assert!(generation_ends(folder.path()).unwrap().is_empty());
        for (ids, expected) in [("[7, 8]", &[7, 8][..]), ("7", &[7]), ("null", &[])] {
            std::fs::write(folder.path().join(generation), format!(r#"{{"eos_token_id":{ids}}}"#)).unwrap();
            assert_eq!(generation_ends(folder.path()).unwrap(), expected);
        }
    }
}
