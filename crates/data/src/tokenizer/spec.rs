//! Selects a tokenizer: `bytes`, `gpt2`, `byt5`, or the path to a tokenizer.json or to a folder that holds one.

use super::byt5;
use super::byte_level::{MERGES_NAME, VOCAB_NAME};
use super::file::FILE_NAME;
use crate::DataError;
use plimsoll_units::spelling;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

const NAMES: [&str; 3] = ["bytes", "gpt2", "byt5"];

/// A tokenizer by name or by path. Written and parsed as one string, also in YAML and JSON.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum TokenizerSpec {
    /// Each byte is a token, 0 separates documents.
    Bytes,
    /// ByT5's: each byte is a token, after three special ones.
    ByT5,
    /// The byte-pair encoding of GPT-2, built in.
    Gpt2,
    /// A tokenizer.json, or a folder that holds one.
    File(PathBuf),
}

impl TokenizerSpec {
    /// The tokenizer that comes with the model in a folder: its tokenizer.json, else its vocab.json and merges.txt, else
    /// ByT5's if its tokenizer_config.json names it.
    pub fn in_folder(folder: &Path) -> Option<Self> {
        let has = |name: &str| folder.join(name).is_file();
        if has(FILE_NAME) {
            Some(Self::File(folder.join(FILE_NAME)))
        } else if has(VOCAB_NAME) && has(MERGES_NAME) {
            Some(Self::File(Path::new(".").join(folder)))
        } else {
            byt5::is_in(folder).then_some(Self::ByT5)
        }
    }
}

/// Names are case-insensitive. Text that looks like a path (has a slash, ends in `.json`) or that exists is a path;
/// `Tokenizer::open` checks it.
/// Errors: `UnknownTokenizer`, with the nearest name.
impl FromStr for TokenizerSpec {
    type Err = DataError;

    fn from_str(text: &str) -> Result<Self, DataError> {
        match text.to_ascii_lowercase().as_str() {
            "bytes" => return Ok(Self::Bytes),
            "gpt2" => return Ok(Self::Gpt2),
            "byt5" => return Ok(Self::ByT5),
            _ => {}
        }
        let path = Path::new(text);
        if looks_like_path(text) {
            Ok(Self::File(path.to_owned()))
        } else if !text.is_empty() && path.exists() {
            Ok(Self::File(Path::new(".").join(path)))
        } else {
            Err(DataError::UnknownTokenizer { text: text.to_owned(), nearest: spelling::nearest(text, NAMES) })
        }
    }
}

fn looks_like_path(text: &str) -> bool {
    text.contains(std::path::is_separator) || text.to_ascii_lowercase().ends_with(".json")
}

impl fmt::Display for TokenizerSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bytes => f.pad("bytes"),
            Self::ByT5 => f.pad("byt5"),
            Self::Gpt2 => f.pad("gpt2"),
            Self::File(path) => f.pad(&path.to_string_lossy()),
        }
    }
}

impl TryFrom<String> for TokenizerSpec {
    type Error = DataError;

    fn try_from(text: String) -> Result<Self, DataError> {
        text.parse()
    }
}

impl From<TokenizerSpec> for String {
    fn from(spec: TokenizerSpec) -> Self {
        spec.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn names_and_paths_are_distinguished() {
        for (text, spec) in [
            ("bytes", TokenizerSpec::Bytes),
            ("GPT2", TokenizerSpec::Gpt2),
            ("byt5", TokenizerSpec::ByT5),
            ("tokenizer.json", TokenizerSpec::File("tokenizer.json".into())),
            ("models/llama", TokenizerSpec::File("models/llama".into())),
            ("./gpt2", TokenizerSpec::File("./gpt2".into())),
            ("src", TokenizerSpec::File("./src".into())),
        ] {
            assert_eq!(text.parse::<TokenizerSpec>().unwrap(), spec, "{text}");
        }
    }

    #[test]
    fn other_words_get_a_suggestion() {
        for (text, nearest) in [("gpt-2", Some("gpt2")), ("bites", Some("bytes")), ("llama", None), ("", None)] {
            match text.parse::<TokenizerSpec>() {
                Err(DataError::UnknownTokenizer { nearest: found, .. }) => assert_eq!(found, nearest, "{text}"),
                other => panic!("{text}: {other:?}"),
            }
        }
    }

    proptest! {
        #[test]
        fn parsing_never_panics_and_display_parses_back(text in "\\PC{0,20}|[./gpt2bytesjon]{1,8}") {
            if let Ok(spec) = text.parse::<TokenizerSpec>() {
                prop_assert_eq!(&spec.to_string().parse::<TokenizerSpec>().unwrap(), &spec);
                let json = serde_json::to_string(&spec).unwrap();
                prop_assert_eq!(serde_json::from_str::<TokenizerSpec>(&json).unwrap(), spec);
            }
        }
    }
}
