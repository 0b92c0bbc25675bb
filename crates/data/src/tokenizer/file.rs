//! A tokenizer.json in the format of Hugging Face's libraries, read by their `tokenizers` crate.

use super::byte_level::{VOCAB_NAME, json_of_pair};
use super::special::SpecialTokens;
use super::{EncodeError, REPLACEMENT, growth};
use crate::DataError;
use crate::quiet::caught;
use plimsoll_units::Bytes;
use std::collections::HashSet;
use std::fs;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use tokenizers::{Encoding, ModelWrapper, Tokenizer as Inner};

pub(super) const FILE_NAME: &str = "tokenizer.json";
/// The largest of known families, Gemma's, has 33 MB. Loaded, a file takes about ten times as much memory.
const FILE_BYTES_MAX: Bytes = Bytes::mib(64);

/// The text of a tokenizer.json.
pub(super) struct TokenizerFile {
    /// Its path; for an older pair of files, the vocab.json.
    pub path: PathBuf,
    pub text: String,
}

impl TokenizerFile {
    /// Reads the file that `path` names; in a folder, the tokenizer.json, otherwise vocab.json and merges.txt.
    /// Errors: `NotFound`, `Unreadable`, `FileTooLong`, `NoTokenizerInFolder`; `BadTokenizer` for a pair of files of a
    /// tokenizer other than GPT-2's.
    pub(super) fn read(path: &Path) -> Result<Self, DataError> {
        let file = match fs::metadata(path) {
            Ok(metadata) if !metadata.is_dir() => path.to_owned(),
            Ok(_) if path.join(FILE_NAME).is_file() => path.join(FILE_NAME),
            Ok(_) => {
                let text = json_of_pair(path)?;
                let text = text.ok_or_else(|| DataError::NoTokenizerInFolder { folder: path.to_owned() })?;
                return Ok(Self { path: path.join(VOCAB_NAME), text });
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(DataError::NotFound { path: path.to_owned(), nearest: None });
            }
            Err(source) => return Err(DataError::Unreadable { path: path.to_owned(), source }),
        };
        let text =
            plimsoll_files::read_text(&file, FILE_BYTES_MAX).map_err(|error| DataError::unreadable(&file, error))?;
        Ok(Self { path: file, text })
    }
}

pub(super) struct FileTokenizer {
    inner: Inner,
    hash: blake3::Hash,
    vocab_size: usize,
    /// Upper bound of the factor by which it lengthens a text.
    worst_growth: usize,
    special: SpecialTokens,
    /// The ids that the post-processor puts before a text.
    beginning: Vec<u32>,
    /// The added tokens that the file marks as special, and those that end or pad texts.
    marks: HashSet<u32>,
}

impl FileTokenizer {
    /// Disables truncation and padding, even if the file enables them.
    /// Errors: `BadTokenizer`; errors of reading the files next to it.
    pub(super) fn new(TokenizerFile { path: file, text }: TokenizerFile) -> Result<Self, DataError> {
        let hash = blake3::hash(text.as_bytes());
        let bad = |message: String| DataError::BadTokenizer { path: file.clone(), message };
        let (mut inner, worst_growth) = parsed(text.as_bytes()).map_err(&bad)?;
        inner.with_truncation(None).map_err(|error| bad(error.to_string()))?;
        inner.with_padding(None);
        if let Some(dropout) = dropout(inner.get_model()) {
            return Err(bad(format!("its dropout of {dropout} makes tokenization random")));
        }
        let largest_id = inner.get_vocab(true).into_values().max().ok_or_else(|| bad("it has no tokens".to_owned()))?;
        if i32::try_from(largest_id).is_err() {
            return Err(bad(format!("its largest id is {largest_id}, above the limit of {}", i32::MAX)));
        }
        let vocab_size = largest_id as usize + 1;
        let folder = file.parent().unwrap_or(Path::new(""));
        let is_id = |id: u32| (id as usize) < vocab_size && inner.id_to_token(id).is_some();
        let special = SpecialTokens::of_folder(folder, &|name| inner.token_to_id(name), &is_id)?;
        let beginning = beginning(&inner).into_iter().filter(|&id| is_id(id)).collect();
        let added = inner.get_added_tokens_decoder().into_iter().filter(|(_, token)| token.special).map(|(id, _)| id);
        let marks = added.chain(special.ends.iter().copied()).chain(special.pad).collect();
        Ok(Self { inner, hash, vocab_size, worst_growth, special, beginning, marks })
    }

    pub(super) fn hash(&self) -> blake3::Hash {
        self.hash
    }

    pub(super) fn vocab_size(&self) -> usize {
        self.vocab_size
    }

    pub(super) fn special(&self) -> &SpecialTokens {
        &self.special
    }

    /// Whether a token is special and not text.
    pub(super) fn is_special(&self, id: u32) -> bool {
        self.marks.contains(&id)
    }

    pub(super) fn beginning(&self) -> &[u32] {
        &self.beginning
    }

    /// A token as the file spells it.
    pub(super) fn name_of(&self, id: u32) -> String {
        self.inner.id_to_token(id).unwrap_or_else(|| id.to_string())
    }

    pub(super) fn encode(&self, text: &str) -> Result<Vec<u32>, EncodeError> {
        Ok(self.encoding(text, false)?.get_ids().to_owned())
    }

    /// The ids, each with its range of bytes in the text.
    pub(super) fn encode_with_ranges(&self, text: &str) -> Result<Vec<(u32, Range<usize>)>, EncodeError> {
        let encoding = self.encoding(text, true)?;
        let ranges = encoding.get_offsets().iter().map(|&(start, end)| start..end);
        Ok(encoding.get_ids().iter().copied().zip(ranges).collect())
    }

    /// Faster without ranges.
    fn encoding(&self, text: &str, with_ranges: bool) -> Result<Encoding, EncodeError> {
        let failed = |message| EncodeError::Failed { message };
        let encoding = caught(|| self.encoding_of(text, with_ranges))
            .map_err(|panic| failed(format!("the library panicked: {panic}")))??;
        match encoding.get_ids().iter().find(|&&id| id as usize >= self.vocab_size) {
            Some(id) => Err(failed(format!("it returned the id {id}, above the largest, {}", self.vocab_size - 1))),
            None => Ok(encoding),
        }
    }

    /// Panics if the library does.
    fn encoding_of(&self, text: &str, with_ranges: bool) -> Result<Encoding, EncodeError> {
        if let Some(normalizer) = self.inner.get_normalizer() {
            growth::check(normalizer, self.worst_growth, text)?;
        }
        let without_added_tokens = false;
        let encoding = match with_ranges {
            true => self.inner.encode(text, without_added_tokens),
            false => self.inner.encode_fast(text, without_added_tokens),
        };
        encoding.map_err(|error| EncodeError::Failed { message: error.to_string() })
    }

    /// Decodes runs of known ids together, since many decoders depend on neighboring ids.
    pub(super) fn decode(&self, ids: &[u32]) -> Vec<u8> {
        let is_known = |id: &u32| self.inner.id_to_token(*id).is_some();
        let keep_special_tokens = false;
        let mut text = String::new();
        for run in ids.chunk_by(|a, b| is_known(a) == is_known(b)) {
            match caught(|| self.inner.decode(run, keep_special_tokens)) {
                Ok(Ok(decoded)) if is_known(&run[0]) => text.push_str(&decoded),
                _ => text.push_str(&REPLACEMENT.repeat(run.len())),
            }
        }
        text.into_bytes()
    }
}

/// The crate panics instead of returning errors: for broken JSON inside a decoder, and for a broken table of
/// characters. A truncated download causes the first, so it is checked for first; other panics are caught. Also returns
/// the bound on the factor by which the tokenizer lengthens a text.
fn parsed(bytes: &[u8]) -> Result<(Inner, usize), String> {
    serde_json::from_slice::<serde::de::IgnoredAny>(bytes).map_err(|error| error.to_string())?;
    let opened = caught(|| {
        let worst_growth = growth::worst_growth(bytes)?;
        let inner = Inner::from_bytes(bytes).map_err(|error| error.to_string())?;
        Ok((inner, worst_growth))
    });
    opened.unwrap_or_else(|panic| Err(format!("the `tokenizers` library panicked: {panic}")))
}

/// The ids that the post-processor puts before a text; empty if it fails on a text of one letter.
fn beginning(inner: &Inner) -> Vec<u32> {
    let ids = |with_special| {
        let encoding = caught(|| inner.encode_fast("a", with_special)).ok()?.ok()?;
        Some(encoding.get_ids().to_owned())
    };
    let (Some(text), Some(all)) = (ids(false), ids(true)) else { return Vec::new() };
    let at = all.windows(text.len().max(1)).position(|window| window == text);
    all[..at.unwrap_or(0)].to_owned()
}

/// Byte-pair dropout (Provilkov et al. 2020), which picks merges at random.
fn dropout(model: &ModelWrapper) -> Option<f32> {
    match model {
        ModelWrapper::BPE(bpe) => bpe.dropout.filter(|&dropout| dropout > 0.0),
        _ => None,
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::tokenizer::Codec;
    use crate::{Tokenizer, TokenizerSpec};
    use proptest::prelude::*;
    use serde_json::{Value, json};

    /// Byte-pair encoding of the letters a to d with two merges, like a small GPT-2.
    pub(crate) fn tiny() -> Value {
        json!({
            "version": "1.0",
            "truncation": {"max_length": 4, "stride": 0, "strategy": "LongestFirst", "direction": "Right"},
            "padding": {"strategy": {"Fixed": 9}, "direction": "Right", "pad_to_multiple_of": null,
                        "pad_id": 0, "pad_type_id": 0, "pad_token": "a"},
            "added_tokens": [{"id": 8, "content": "<|endoftext|>", "single_word": false, "lstrip": false,
                              "rstrip": false, "normalized": false, "special": true}],
            "normalizer": null,
            "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
            "post_processor": null,
            "decoder": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
            "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
                      "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "ignore_merges": false,
                      "vocab": {"a": 0, "b": 1, "c": 2, "d": 3, "Ġ": 4, "Ċ": 5, "ab": 6, "Ġab": 7},
                      "merges": ["a b", "Ġ ab"]}
        })
    }

    pub(crate) fn written(json: &str) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join(FILE_NAME), json).unwrap();
        folder
    }

    fn open(json: &Value) -> Result<Tokenizer, DataError> {
        let folder = written(&json.to_string());
        Tokenizer::open(&TokenizerSpec::File(folder.path().to_owned()))
    }

    #[test]
    fn a_small_file_tokenizes_without_padding_or_truncation() {
        let tokenizer = open(&tiny()).unwrap();
        assert_eq!(tokenizer.vocab_size(), 9);
        assert_eq!(tokenizer.separator(), Some(8));
        assert_eq!(tokenizer.encode(b"ab ab\ncd").unwrap(), [6, 7, 5, 2, 3]);
        assert_eq!(tokenizer.encode(b"a<|endoftext|>b").unwrap(), [0, 8, 1]);
        assert_eq!(tokenizer.decode(&[6, 7, 11, 99, 8, 5]), "ab ab\u{fffd}\u{fffd}<|endoftext|>\n".as_bytes());
        assert_eq!(tokenizer.encode(b"ab\xff"), Err(EncodeError::NotUtf8 { offset: 2 }));
    }

    #[test]
    fn special_tokens_come_from_the_post_processor_and_neighboring_files() {
        let mut json = tiny();
        json["added_tokens"].as_array_mut().unwrap().push(json!({
            "id": 9, "content": "<|begin|>", "single_word": false, "lstrip": false, "rstrip": false, "normalized": false,
            "special": true
        }));
        json["post_processor"] = json!({
            "type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "<|begin|>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {"<|begin|>": {"id": "<|begin|>", "ids": [9], "tokens": ["<|begin|>"]}}
        });
        let folder = written(&json.to_string());
        let open = || Tokenizer::open(&TokenizerSpec::File(folder.path().to_owned())).unwrap();
        assert_eq!((open().beginning(), open().separator(), open().ends()), (&[9][..], Some(8), vec![8]));
        let before = open().identity();
        fs::write(folder.path().join("generation_config.json"), r#"{"eos_token_id": [3, 8]}"#).unwrap();
        assert_eq!((open().separator(), open().ends()), (Some(3), vec![3, 8]));
        assert_ne!(open().identity(), before);
        let words = "documents end with `d` (generation_config.json) and begin with `<|begin|>`; answers end with `d`, \
                     `<|endoftext|>`";
        assert_eq!(open().special_in_words().as_deref(), Some(words));
        // Each document begins with it exactly once.
        let data = folder.path().join("data.jsonl");
        fs::write(&data, "{\"text\":\"ab\"}\n{\"text\":\"<|begin|>c\"}\n").unwrap();
        let sources = crate::resolve(&[data.to_str().unwrap()], "text").unwrap();
        let store = crate::prepare(&sources, &open(), &folder.path().join("cache"), &|_| {}).unwrap();
        let mut ids = vec![0; store.len() as usize];
        store.read(0, &mut ids).unwrap();
        assert_eq!(ids, [9, 6, 3, 9, 2, 3]);
    }

    #[test]
    fn pieces_give_the_tokens_of_the_whole() {
        let tokenizer = open(&tiny()).unwrap();
        let text = "ab abba cab\n\n  dad\nab,".replace(',', "").repeat(40_000);
        let Codec::File(whole) = &tokenizer.codec else { unreachable!() };
        assert_eq!(tokenizer.encode(text.as_bytes()).unwrap(), whole.encode(&text).unwrap());
    }

    #[test]
    fn identity_is_the_content_of_the_file() {
        let mut other = tiny();
        other["model"]["vocab"]["e"] = json!(8);
        assert_eq!(open(&tiny()).unwrap().identity(), open(&tiny()).unwrap().identity());
        assert_ne!(open(&tiny()).unwrap().identity(), open(&other).unwrap().identity());
    }

    #[test]
    fn unusable_tokenizers_are_refused() {
        let mut with_dropout = tiny();
        with_dropout["model"]["dropout"] = json!(0.1);
        assert!(open(&with_dropout).err().unwrap().to_string().contains("dropout of 0.1"));
        let mut broken_table = tiny();
        broken_table["normalizer"] = json!({"type": "Precompiled", "precompiled_charsmap": "////"});
        assert!(matches!(open(&broken_table), Err(DataError::BadTokenizer { .. })));
        let mut huge_id = tiny();
        huge_id["model"]["vocab"]["e"] = json!(3_000_000_000u32);
        assert!(matches!(open(&huge_id), Err(DataError::BadTokenizer { .. })));
        assert!(matches!(open(&json!({})), Err(DataError::BadTokenizer { .. })));
        let empty = tempfile::tempdir().unwrap();
        let at = |path: &Path| Tokenizer::open(&TokenizerSpec::File(path.to_owned())).err().unwrap();
        assert!(matches!(at(empty.path()), DataError::NoTokenizerInFolder { .. }));
        assert!(matches!(at(&empty.path().join("x.json")), DataError::NotFound { .. }));
    }

    #[test]
    fn the_vocabulary_reaches_to_the_largest_id() {
        let mut json = tiny();
        json["model"]["vocab"]["e"] = json!(70_000);
        assert_eq!(open(&json).unwrap().vocab_size(), 70_001);
    }

    #[test]
    fn other_families_name_other_separators() {
        let mut json = tiny();
        json["added_tokens"][0]["content"] = json!("</s>");
        assert_eq!(open(&json).unwrap().separator(), Some(8));
        json["added_tokens"] = json!([]);
        assert_eq!(open(&json).unwrap().separator(), None);
    }

    proptest! {
        #[test]
        fn damaged_files_are_read_or_refused(at in any::<prop::sample::Index>(), byte in any::<u8>()) {
            let mut bytes = tiny().to_string().into_bytes();
            let at = at.index(bytes.len());
            bytes[at] = byte;
            let folder = written("");
            fs::write(folder.path().join(FILE_NAME), bytes).unwrap();
            if let Ok(tokenizer) = Tokenizer::open(&TokenizerSpec::File(folder.path().to_owned())) {
                let _ = tokenizer.encode(b"ab cab\nd<|endoftext|>e");
                tokenizer.decode(&[0, 5, 8, 99]);
            }
        }

        #[test]
        fn any_ids_decode(ids in proptest::collection::vec(0u32..30, 0..20)) {
            open(&tiny()).unwrap().decode(&ids);
        }
    }
}
