//! Tokenizers: text to ids and back. One file per kind below; `spec.rs` selects the kind.
//! Not here: files, documents and separators (`shards.rs`).

mod byt5;
mod byte_level;
mod bytes;
mod file;
mod files;
mod gpt2;
mod growth;
mod spec;
mod special;
mod train;

pub use files::{MODEL_FILES, ModelFile, model_files};
pub use spec::TokenizerSpec;
pub use special::generation_ends;
pub use train::{TokenizerKind, train_tokenizer};

use crate::DataError;
use crate::pieces::pieces;
use file::{FileTokenizer, TokenizerFile};
use plimsoll_units::Bytes;
use std::ops::Range;

/// Replaces an id that the tokenizer does not know.
const REPLACEMENT: &str = "\u{fffd}";

/// Why a text could not be tokenized.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EncodeError {
    /// The tokenizer needs UTF-8.
    #[error("the text is not UTF-8 at byte {offset}")]
    NotUtf8 {
        /// The first invalid byte, counted from 0.
        offset: u64,
    },
    /// The tokenizer itself failed.
    #[error("the tokenizer failed: {message}")]
    Failed {
        /// The library's message.
        message: String,
    },
}

/// A tokenizer that any thread can use.
pub struct Tokenizer {
    spec: TokenizerSpec,
    codec: Codec,
}

enum Codec {
    Bytes,
    ByT5,
    Gpt2,
    File(Box<FileTokenizer>),
}

impl Tokenizer {
    /// Loads the tokenizer. A folder with the configuration of ByT5's tokenizer opens as [`TokenizerSpec::ByT5`]. A tokenizer.json that [`model_files`] wrote for a built-in tokenizer opens as that one.
    /// Errors: `NotFound`, `Unreadable`, `NoTokenizerInFolder`, `BadTokenizer` for a file.
    pub fn open(spec: &TokenizerSpec) -> Result<Self, DataError> {
        let codec = match spec {
            TokenizerSpec::Bytes => Codec::Bytes,
            TokenizerSpec::ByT5 => Codec::ByT5,
            TokenizerSpec::Gpt2 => Codec::Gpt2,
            TokenizerSpec::File(path) if byt5::is_in(path) => return Self::open(&TokenizerSpec::ByT5),
            TokenizerSpec::File(path) => {
                let file = TokenizerFile::read(path)?;
                match byte_level::built_in(&file.text) {
                    Some(built_in) => built_in,
                    None => Codec::File(Box::new(FileTokenizer::new(file)?)),
                }
            }
        };
        Ok(Self { spec: spec.clone(), codec })
    }

    /// The spec it was opened from.
    pub fn spec(&self) -> &TokenizerSpec {
        &self.spec
    }

    /// What determines its ids, independent of its path: its name, or the hash of its file.
    pub fn identity(&self) -> String {
        match &self.codec {
            Codec::Bytes => "bytes".to_owned(),
            Codec::ByT5 => "byt5".to_owned(),
            Codec::Gpt2 => "gpt2".to_owned(),
            Codec::File(file) => match (file.special().separator, file.beginning()) {
                (Some((_, None)) | None, []) => format!("file {}", file.hash()),
                (separator, beginning) => {
                    format!("file {} {:?} {beginning:?}", file.hash(), separator.map(|(id, _)| id))
                }
            },
        }
    }

    /// One more than the largest id.
    pub fn vocab_size(&self) -> usize {
        match &self.codec {
            Codec::Bytes => bytes::VOCAB_SIZE,
            Codec::ByT5 => byt5::VOCAB_SIZE,
            Codec::Gpt2 => gpt2::VOCAB_SIZE,
            Codec::File(file) => file.vocab_size(),
        }
    }

    /// The id after each document, if the tokenizer has one.
    pub fn separator(&self) -> Option<u32> {
        match &self.codec {
            Codec::Bytes => Some(bytes::SEPARATOR),
            Codec::ByT5 => Some(byt5::END),
            Codec::Gpt2 => Some(gpt2::SEPARATOR),
            Codec::File(file) => file.special().separator.map(|(id, _)| id),
        }
    }

    /// The ids before a document or a prompt: those that a tokenizer.json's post-processor prepends.
    pub fn beginning(&self) -> &[u32] {
        match &self.codec {
            Codec::Bytes | Codec::ByT5 | Codec::Gpt2 => &[],
            Codec::File(file) => file.beginning(),
        }
    }

    /// All ids that end an answer: the separator, and those named in the files next to a tokenizer.json.
    pub fn ends(&self) -> Vec<u32> {
        match &self.codec {
            Codec::Bytes | Codec::ByT5 | Codec::Gpt2 => self.separator().into_iter().collect(),
            Codec::File(file) => file.special().ends.clone(),
        }
    }

    /// The tokens around documents and at the end of answers, in words; `None` for a built-in tokenizer.
    pub fn special_in_words(&self) -> Option<String> {
        let Codec::File(file) = &self.codec else { return None };
        let names =
            |ids: &[u32]| ids.iter().map(|&id| format!("`{}`", file.name_of(id))).collect::<Vec<_>>().join(", ");
        let mut words = match file.special().separator {
            None => "no token ends a document".to_owned(),
            Some((id, None)) => format!("documents end with {}", names(&[id])),
            Some((id, Some(file))) => format!("documents end with {} ({file})", names(&[id])),
        };
        if !file.beginning().is_empty() {
            words += &format!(" and begin with {}", names(file.beginning()));
        }
        if file.special().ends.len() > 1 {
            words += &format!("; answers end with {}", names(&file.special().ends));
        }
        Some(words)
    }

    /// The id that ends a source or a target; the same as the separator.
    pub fn end_token(&self) -> Option<u32> {
        self.separator()
    }

    /// The id that begins a text, if the tokenizer names one. It precedes documents only if it is in
    /// [`beginning`](Self::beginning).
    pub fn begin_token(&self) -> Option<u32> {
        match &self.codec {
            Codec::Bytes | Codec::Gpt2 => self.separator(),
            Codec::ByT5 => None,
            Codec::File(file) => file.special().begin.or(file.beginning().first().copied()),
        }
    }

    /// A token as tokenizer files spell it.
    fn name_of(&self, id: u32) -> String {
        match &self.codec {
            Codec::Bytes | Codec::ByT5 | Codec::Gpt2 => String::from_utf8_lossy(&self.decode(&[id])).into_owned(),
            Codec::File(file) => file.name_of(id),
        }
    }

    /// Whether an id is a special token, such as an end of text, and not text.
    pub fn is_special(&self, id: u32) -> bool {
        match &self.codec {
            Codec::Bytes | Codec::Gpt2 => self.separator() == Some(id),
            Codec::ByT5 => byt5::is_special(id),
            Codec::File(file) => file.is_special(id),
        }
    }

    /// The id of padding, if the tokenizer names one.
    pub fn pad_token(&self) -> Option<u32> {
        match &self.codec {
            Codec::Bytes | Codec::Gpt2 => None,
            Codec::ByT5 => Some(byt5::PAD),
            Codec::File(file) => file.special().pad,
        }
    }

    /// Upper bound of the memory that each thread needs for tokenizing, including the text and its tokens.
    pub fn memory_per_thread(&self) -> Bytes {
        match &self.codec {
            Codec::Bytes | Codec::ByT5 | Codec::Gpt2 => Bytes::mib(8),
            // The library keeps several positions per byte and about 100 bytes per token.
            Codec::File(_) => Bytes::mib(40),
        }
    }

    /// The ids of a document, without a separator. Long documents are cut into pieces (`pieces.rs`). `gpt2` treats
    /// special tokens in the text as plain text; a tokenizer.json treats them as it defines them.
    /// Errors: `NotUtf8` unless the tokenizer is `bytes`; `Failed`.
    pub fn encode(&self, text: &[u8]) -> Result<Vec<u32>, EncodeError> {
        let mut ids = Vec::new();
        let mut offset = 0;
        for piece in pieces(text) {
            let more = self.encode_piece(piece).map_err(|error| match error {
                EncodeError::NotUtf8 { offset: within } => EncodeError::NotUtf8 { offset: offset + within },
                failed => failed,
            })?;
            ids.extend(more);
            offset += piece.len() as u64;
        }
        Ok(ids)
    }

    /// The first `most` ids of a text; reads no more of it than these need, to a piece. Errors: as [`encode`](Self::encode).
    pub fn encode_first(&self, text: &[u8], most: usize) -> Result<Vec<u32>, EncodeError> {
        let mut ids = Vec::new();
        for piece in pieces(text) {
            if ids.len() >= most {
                break;
            }
            ids.extend(self.encode_piece(piece)?);
        }
        ids.truncate(most);
        Ok(ids)
    }

    /// The ids of one piece of a document.
    pub(crate) fn encode_piece(&self, piece: &[u8]) -> Result<Vec<u32>, EncodeError> {
        match &self.codec {
            Codec::Bytes => Ok(bytes::encode(piece)),
            Codec::ByT5 => Ok(byt5::encode(utf8(piece)?)),
            Codec::Gpt2 => Ok(gpt2::encode(utf8(piece)?)),
            Codec::File(file) => file.encode(utf8(piece)?),
        }
    }

    /// The ids of a text, each with the range of bytes that it encodes. If several ids of a tokenizer.json share a
    /// character, it is in the range of each.
    /// Errors: `Failed`.
    pub(crate) fn encode_with_ranges(&self, text: &str) -> Result<Vec<(u32, Range<usize>)>, EncodeError> {
        let mut found = Vec::new();
        let mut offset = 0;
        for piece in pieces(text.as_bytes()) {
            let within = match &self.codec {
                Codec::File(file) => file.encode_with_ranges(utf8(piece)?)?,
                Codec::Bytes | Codec::ByT5 | Codec::Gpt2 => self.consecutive(self.encode_piece(piece)?),
            };
            found.extend(within.into_iter().map(|(id, range)| (id, range.start + offset..range.end + offset)));
            offset += piece.len();
        }
        Ok(found)
    }

    /// Pairs ids with consecutive byte ranges.
    fn consecutive(&self, ids: Vec<u32>) -> Vec<(u32, Range<usize>)> {
        let mut end = 0;
        let ranged = ids.into_iter().map(|id| {
            let start = end;
            end += self.decode(&[id]).len();
            (id, start..end)
        });
        ranged.collect()
    }

    /// The text of ids, separators included. An unknown id becomes U+FFFD. Ids may split a character, so the result is
    /// not always UTF-8.
    pub fn decode(&self, ids: &[u32]) -> Vec<u8> {
        match &self.codec {
            Codec::Bytes => bytes::decode(ids),
            Codec::ByT5 => byt5::decode(ids),
            Codec::Gpt2 => gpt2::decode(ids),
            Codec::File(file) => file.decode(ids),
        }
    }
}

fn utf8(text: &[u8]) -> Result<&str, EncodeError> {
    str::from_utf8(text).map_err(|error| EncodeError::NotUtf8 { offset: error.valid_up_to() as u64 })
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::pieces::PIECE_BYTES_MAX;

    /// A folder with a tokenizer.json of printable characters, these special tokens, and `<|endoftext|>`.
    pub(crate) fn file_with_tokens(tokens: &[&str]) -> tempfile::TempDir {
        let mut json = file::tests::tiny();
        let characters = (' '..='~').enumerate().map(|(id, c)| (c.to_string(), (100 + id).into()));
        json["model"]["vocab"].as_object_mut().unwrap().extend(characters);
        for (id, token) in (300..).zip(tokens) {
            let mut added = json["added_tokens"][0].clone();
            (added["id"], added["content"]) = (id.into(), (*token).into());
            json["added_tokens"].as_array_mut().unwrap().push(added);
        }
        file::tests::written(&json.to_string())
    }

    #[test]
    fn the_first_bad_byte_is_counted_over_all_pieces() {
        let tokenizer = Tokenizer::open(&TokenizerSpec::Gpt2).unwrap();
        let mut text = b"ten bytes ".repeat(PIECE_BYTES_MAX / 10 * 3);
        let offset = text.len() as u64 - 5;
        text[offset as usize] = 0xff;
        assert_eq!(tokenizer.encode(&text), Err(EncodeError::NotUtf8 { offset }));
        assert_eq!(tokenizer.encode(b"\xc3"), Err(EncodeError::NotUtf8 { offset: 0 }));
    }

    #[test]
    fn the_first_ids_are_those_of_the_whole_text() {
        let tokenizer = Tokenizer::open(&TokenizerSpec::Gpt2).unwrap();
        let text = b"ten bytes ".repeat(PIECE_BYTES_MAX / 10 * 2);
        let all = tokenizer.encode(&text).unwrap();
        for most in [0, 1, 7, all.len() - 1, all.len() + 5] {
            assert_eq!(tokenizer.encode_first(&text, most).unwrap(), all[..most.min(all.len())], "{most}");
        }
    }

    #[test]
    fn ranges_are_the_bytes_that_ids_encode() {
        let text = "ab abba 漢 d".repeat(PIECE_BYTES_MAX / 10);
        let folder = file::tests::written(&file::tests::tiny().to_string());
        for spec in [TokenizerSpec::Bytes, TokenizerSpec::Gpt2, TokenizerSpec::File(folder.path().to_owned())] {
            let tokenizer = Tokenizer::open(&spec).unwrap();
            let found = tokenizer.encode_with_ranges(&text).unwrap();
            assert_eq!(found.iter().map(|(id, _)| *id).collect::<Vec<_>>(), tokenizer.encode(text.as_bytes()).unwrap());
            for (id, range) in found.iter().filter(|(_, range)| text.get(range.clone()).is_some_and(str::is_ascii)) {
                assert_eq!(tokenizer.decode(&[*id]), text[range.clone()].as_bytes(), "{spec}");
            }
            assert!(found.is_sorted_by_key(|(_, range)| range.start) && found.len() > text.len() / 4, "{spec}");
        }
    }
}
