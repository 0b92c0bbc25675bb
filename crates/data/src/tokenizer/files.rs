//! A tokenizer as the files of a model folder, in the format that `transformers` and compatible programs open.

use super::byt5;
use super::byte_level::{MERGES_NAME, VOCAB_NAME, built_in, bytes_json, gpt2_json};
use super::file::{FILE_NAME, TokenizerFile};
use super::special::TOKENIZER_CONFIG;
use super::{Codec, Tokenizer, TokenizerSpec};
use crate::chats::TEMPLATE_NAME;
use crate::{ChatTemplate, DataError};
use flate2::Compression;
use flate2::read::DeflateDecoder;
use flate2::write::DeflateEncoder;
use plimsoll_units::Bytes;
use serde_json::{Map, Value, json};
use std::io::{self, Write};
use std::path::Path;

/// The default generation settings of a model, which come with its weights.
const GENERATION_NAME: &str = "generation_config.json";

/// The files of a model folder in addition to its weights and its config.json.
pub const MODEL_FILES: [&str; 10] = [
    FILE_NAME,
    TOKENIZER_CONFIG,
    TEMPLATE_NAME,
    "special_tokens_map.json",
    "added_tokens.json",
    VOCAB_NAME,
    MERGES_NAME,
    "tokenizer.model",
    "spiece.model",
    GENERATION_NAME,
];

const FILE_BYTES_MAX: Bytes = Bytes::mib(64);

/// A file of a model folder, compressed in memory, since a run keeps it from its start to its last checkpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelFile {
    /// One of [`MODEL_FILES`].
    pub name: &'static str,
    /// Its size.
    pub bytes: u64,
    deflated: Vec<u8>,
}

impl ModelFile {
    fn new(name: &'static str, contents: &[u8]) -> Self {
        let mut encoder = DeflateEncoder::new(Vec::new(), Compression::fast());
        let deflated =
            encoder.write_all(contents).and_then(|()| encoder.finish()).expect("writes to memory do not fail");
        Self { name, bytes: contents.len() as u64, deflated }
    }

    /// Writes its contents. Errors: those of `to`.
    pub fn write(&self, mut to: impl Write) -> io::Result<()> {
        io::copy(&mut DeflateDecoder::new(&*self.deflated), &mut to).map(drop)
    }
}

/// The files of a model folder in addition to its weights and config.json: the tokenizer and the files next to it, the
/// chat template of the run, and the generation_config.json from the folder of the initial weights, extended by the ids
/// that end an answer of the template.
/// `saved` is the folder of an earlier checkpoint of the run, whose export of `gpt2` is reused: making one takes 13
/// MiB.
/// Errors: `Unreadable`, `FileTooLong`, and those of [`Tokenizer::open`].
pub fn model_files(
    tokenizer: &Tokenizer,
    template: Option<&ChatTemplate>,
    weights: Option<&Path>,
    saved: Option<&Path>,
) -> Result<Vec<ModelFile>, DataError> {
    let exported = match (tokenizer.spec(), saved) {
        (TokenizerSpec::Gpt2, Some(folder)) => exported_gpt2(folder)?,
        _ => None,
    };
    let mut files = match tokenizer.spec() {
        _ if let Some(exported) = exported => exported,
        TokenizerSpec::File(path) => files_of(path)?,
        TokenizerSpec::ByT5 => vec![ModelFile::new(TOKENIZER_CONFIG, byt5::config_json().as_bytes())],
        TokenizerSpec::Bytes => vec![ModelFile::new(FILE_NAME, bytes_json().as_bytes())],
        TokenizerSpec::Gpt2 => vec![ModelFile::new(FILE_NAME, gpt2_json().as_bytes())],
    };
    if !files.iter().any(|file| file.name == TOKENIZER_CONFIG) {
        files.push(ModelFile::new(TOKENIZER_CONFIG, config_of(tokenizer).as_bytes()));
    }
    if let Some(template) = template.filter(|template| !template.is_of(tokenizer)) {
        files.retain(|file| file.name != TEMPLATE_NAME);
        files.push(ModelFile::new(TEMPLATE_NAME, template.text().as_bytes()));
    }
    let published = weights.map(|folder| contents_of(folder, GENERATION_NAME)).transpose()?.flatten();
    let generation = match template {
        Some(template) => with_ends(published, tokenizer, template),
        None => published,
    };
    files.extend(generation.map(|contents| ModelFile::new(GENERATION_NAME, &contents)));
    Ok(files)
}

/// Extends the published generation_config.json so that other programs stop at the end of the template's answer.
/// Returns the published file unchanged if it is damaged, and `None` if there is no published file and no end that
/// config.json lacks.
fn with_ends(published: Option<Vec<u8>>, tokenizer: &Tokenizer, template: &ChatTemplate) -> Option<Vec<u8>> {
    let mut config = match published.as_deref().map(serde_json::from_slice::<Map<String, Value>>) {
        Some(Ok(config)) => config,
        Some(Err(_)) => return published,
        None => Map::new(),
    };
    let mut ends = match config.get("eos_token_id") {
        Some(Value::Array(ids)) => ids.clone(),
        Some(id @ Value::Number(_)) => vec![id.clone()],
        _ => tokenizer.end_token().map(|id| json!(id)).into_iter().collect(),
    };
    let known = ends.len();
    for id in template.answer_ends(tokenizer).ids.into_iter().map(|id| json!(id)) {
        if !ends.contains(&id) {
            ends.push(id);
        }
    }
    if ends.len() == known {
        return published;
    }
    config.insert("eos_token_id".to_owned(), Value::Array(ends));
    for (key, id) in [("bos_token_id", tokenizer.begin_token()), ("pad_token_id", tokenizer.pad_token())] {
        if let Some(id) = id {
            config.entry(key).or_insert(json!(id));
        }
    }
    Some(serde_json::to_vec_pretty(&config).expect("plain data"))
}

/// The exported files of `gpt2` in a folder; `None` if its tokenizer.json differs from [`gpt2_json`].
fn exported_gpt2(folder: &Path) -> Result<Option<Vec<ModelFile>>, DataError> {
    let path = folder.join(FILE_NAME);
    let Ok(text) = plimsoll_files::read_text(&path, FILE_BYTES_MAX) else { return Ok(None) };
    if !matches!(built_in(&text), Some(Codec::Gpt2)) {
        return Ok(None);
    }
    let files = [Some(ModelFile::new(FILE_NAME, text.as_bytes())), read(folder, TOKENIZER_CONFIG)?];
    Ok(Some(files.into_iter().flatten().collect()))
}

/// A tokenizer.json and the model files next to it.
fn files_of(path: &Path) -> Result<Vec<ModelFile>, DataError> {
    let TokenizerFile { path, text } = TokenizerFile::read(path)?;
    let folder = path.parent().unwrap_or(Path::new(""));
    let mut files = vec![ModelFile::new(FILE_NAME, text.as_bytes())];
    for name in MODEL_FILES.into_iter().filter(|&name| name != FILE_NAME && name != GENERATION_NAME) {
        files.extend(read(folder, name)?);
    }
    Ok(files)
}

/// A tokenizer_config.json for a tokenizer that has none.
fn config_of(tokenizer: &Tokenizer) -> String {
    let tokens = [
        ("bos_token", tokenizer.begin_token()),
        ("eos_token", tokenizer.end_token()),
        ("pad_token", tokenizer.pad_token()),
    ];
    let mut config = Map::new();
    config.insert("tokenizer_class".to_owned(), json!("PreTrainedTokenizerFast"));
    config.insert("clean_up_tokenization_spaces".to_owned(), json!(false));
    config.extend(tokens.into_iter().filter_map(|(key, id)| Some((key.to_owned(), json!(tokenizer.name_of(id?))))));
    serde_json::to_string_pretty(&Value::Object(config)).expect("plain data")
}

/// `None` if there is no such file.
fn read(folder: &Path, name: &'static str) -> Result<Option<ModelFile>, DataError> {
    Ok(contents_of(folder, name)?.map(|contents| ModelFile::new(name, &contents)))
}

/// `None` if there is no such file.
fn contents_of(folder: &Path, name: &str) -> Result<Option<Vec<u8>>, DataError> {
    let path = folder.join(name);
    match plimsoll_files::read_at_most(&path, FILE_BYTES_MAX) {
        Ok(contents) => Ok(Some(contents)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(DataError::unreadable(&path, error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;
    use std::fs;

    /// Writes the files of a tokenizer to a model folder.
    fn saved(tokenizer: &Tokenizer, template: Option<&ChatTemplate>) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        for file in model_files(tokenizer, template, None, None).unwrap() {
            file.write(fs::File::create(folder.path().join(file.name)).unwrap()).unwrap();
        }
        folder
    }

    fn open(path: &Path) -> Tokenizer {
        Tokenizer::open(&TokenizerSpec::File(path.to_owned())).unwrap()
    }

    /// The library reads the exported tokenizer.json and returns the ids of the built-in tokenizer.
    #[test]
    fn exported_tokenizers_give_the_same_ids() {
        let text = "Hello  world, it's\r\n\tä 漢字 Āā\u{0} x=12345; \u{1f6a2}\u{a0}ship's \n\n  end";
        for (spec, end) in [(TokenizerSpec::Bytes, "\u{0}"), (TokenizerSpec::Gpt2, "<|endoftext|>")] {
            let built_in = Tokenizer::open(&spec).unwrap();
            let folder = saved(&built_in, None);
            let read = TokenizerFile::read(folder.path()).unwrap();
            let file = super::super::file::FileTokenizer::new(read).unwrap();
            let ids = built_in.encode(text.as_bytes()).unwrap();
            assert_eq!(file.encode(text).unwrap(), ids, "{spec}");
            assert_eq!(file.decode(&ids), text.as_bytes(), "{spec}");
            assert_eq!(file.vocab_size(), built_in.vocab_size(), "{spec}");
            assert_eq!(file.encode(end).unwrap(), [built_in.end_token().unwrap()], "{spec}");
            assert_eq!(file.special().ends, built_in.ends(), "{spec}");
            // It opens as the built-in tokenizer, so that text that is not UTF-8, and cached tokens, stay usable.
            assert_eq!(open(folder.path()).identity(), spec.to_string());
        }
    }

    #[test]
    fn the_files_next_to_a_tokenizer_come_with_it() {
        let folder = crate::tokenizer::file::tests::written(&crate::tokenizer::file::tests::tiny().to_string());
        let names = |tokenizer: &Tokenizer, weights: Option<&Path>| {
            let files = model_files(tokenizer, None, weights, None).unwrap();
            let contents = |file: ModelFile| {
                let mut contents = Vec::new();
                file.write(&mut contents).unwrap();
                (file.name, contents)
            };
            files.into_iter().map(contents).collect::<BTreeMap<_, _>>()
        };
        let own: Value = serde_json::from_slice(&names(&open(folder.path()), None)[TOKENIZER_CONFIG]).unwrap();
        assert_eq!((&own["eos_token"], &own["pad_token"]), (&json!("<|endoftext|>"), &Value::Null));
        for name in MODEL_FILES.into_iter().skip(1) {
            fs::write(folder.path().join(name), "{}").unwrap();
        }
        fs::write(folder.path().join("README.md"), "not part of the model").unwrap();
        let found = names(&open(&folder.path().join(FILE_NAME)), None);
        let expected = MODEL_FILES.into_iter().filter(|&name| name != GENERATION_NAME);
        assert_eq!(found.keys().copied().collect::<Vec<_>>(), {
            let mut names = expected.collect::<Vec<_>>();
            names.sort_unstable();
            names
        });
        assert_eq!(found[TOKENIZER_CONFIG], b"{}", "a file of the user is kept unchanged");
        assert!(names(&open(folder.path()), Some(folder.path())).contains_key(GENERATION_NAME));
    }

    #[test]
    fn the_template_that_a_run_trained_with_comes_with_it() {
        let date: crate::Date = "2024-01-01".parse().unwrap();
        let tokenizer = Tokenizer::open(&TokenizerSpec::Gpt2).unwrap();
        let chatml = ChatTemplate::chatml(date);
        let folder = saved(&tokenizer, Some(&chatml));
        let tokenizer = open(folder.path());
        let reopened = ChatTemplate::open(&tokenizer, None, date).unwrap();
        assert_eq!(reopened.text(), chatml.text());
        assert!(reopened.ends_with_separator(), "ChatML from a file ends like the built-in one");
    }

    /// vLLM and `transformers` stop at the ids in generation_config.json.
    #[test]
    fn other_programs_learn_the_ends_of_answers() {
        let date: crate::Date = "2024-01-01".parse().unwrap();
        let folder = super::super::tests::file_with_tokens(&["<|im_start|>", "<|im_end|>"]);
        let (tokenizer, chatml) = (open(folder.path()), ChatTemplate::chatml(date));
        let (end, turn) = (tokenizer.end_token().unwrap(), tokenizer.encode(b"<|im_end|>").unwrap()[0]);
        let made = |published: Option<&str>| {
            let made = with_ends(published.map(|text| text.as_bytes().to_vec()), &tokenizer, &chatml).unwrap();
            String::from_utf8(made).unwrap()
        };
        let config = |published| serde_json::from_str::<Value>(&made(published)).unwrap();
        assert_eq!(config(None)["eos_token_id"], json!([end, turn]));
        assert_eq!(config(Some(r#"{"top_p":0.9}"#)), json!({"top_p": 0.9, "eos_token_id": [end, turn]}));
        assert_eq!(config(Some(r#"{"eos_token_id":7}"#))["eos_token_id"], json!([7, end, turn]));
        for kept in [format!("{{\"eos_token_id\": [{turn}, {end}]}}"), "no JSON".to_owned()] {
            assert_eq!(made(Some(&kept)), kept);
        }
        let bytes = Tokenizer::open(&TokenizerSpec::Bytes).unwrap();
        assert_eq!(with_ends(None, &bytes, &chatml), None, "its turns end with text, not with a token");
    }
}
