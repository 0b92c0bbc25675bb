//! Locates chat templates: in a named file, or next to a tokenizer.json as `transformers` saves them.
//! Not here: what they contain (`template.rs`).

use crate::{DataError, TokenizerSpec};
use plimsoll_units::Bytes;
use serde::Deserialize;
use serde_json::Value;
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

/// The file with the template alone, next to the tokenizer.
pub(crate) const TEMPLATE_NAME: &str = "chat_template.jinja";
const CONFIG_NAME: &str = "tokenizer_config.json";
const CONFIG_BYTES_MAX: Bytes = Bytes::mib(16);
const TEMPLATE_BYTES_MAX: Bytes = Bytes::mib(1);

/// A template, if there is one, and the special tokens that it may use.
#[derive(Debug, Default)]
pub(super) struct TemplateFile {
    /// The path of the template.
    pub path: PathBuf,
    pub text: Option<String>,
    /// `bos_token` and similar.
    pub special_tokens: Vec<(String, String)>,
}

/// The parts of a tokenizer_config.json that templates need.
#[derive(Debug, Default, Deserialize)]
struct Config {
    chat_template: Option<Templates>,
    #[serde(flatten)]
    others: BTreeMap<String, Value>,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Templates {
    One(String),
    NamedTemplate(Vec<NamedTemplate>),
}

#[derive(Debug, Deserialize)]
struct NamedTemplate {
    name: String,
    template: String,
}

/// The template in `file`, otherwise the one next to the tokenizer; and the tokenizer's special tokens.
/// Errors: `NotFound`, `Unreadable`, `FileTooLong`; `BadChatTemplate` for a file without a template.
pub(super) fn template_file(tokenizer: &TokenizerSpec, file: Option<&Path>) -> Result<TemplateFile, DataError> {
    let folder = match tokenizer {
        TokenizerSpec::File(path) if path.is_dir() => Some(path.clone()),
        TokenizerSpec::File(path) => path.parent().map(Path::to_owned),
        TokenizerSpec::Bytes | TokenizerSpec::ByT5 | TokenizerSpec::Gpt2 => None,
    };
    let config_path = folder.as_ref().map(|folder| folder.join(CONFIG_NAME));
    let config = config_path.as_deref().map(config_of).transpose()?.flatten().unwrap_or_default();
    let special_tokens = special_tokens(&config.others);
    if let Some(path) = file {
        let text = if path.extension().is_some_and(|extension| extension == "json") {
            let config = config_of(path)?.ok_or_else(|| not_found(path))?;
            chosen(config.chat_template, path)?.ok_or_else(|| bad(path, "it has no `chat_template`"))?
        } else {
            text_of(path)?.ok_or_else(|| not_found(path))?
        };
        return Ok(TemplateFile { path: path.to_owned(), text: Some(text), special_tokens });
    }
    let template_path = folder.map(|folder| folder.join(TEMPLATE_NAME)).unwrap_or_default();
    if let Some(text) = if template_path.as_os_str().is_empty() { None } else { text_of(&template_path)? } {
        return Ok(TemplateFile { path: template_path, text: Some(text), special_tokens });
    }
    let path = config_path.unwrap_or_default();
    Ok(TemplateFile { text: chosen(config.chat_template, &path)?, path, special_tokens })
}

/// Of several templates, selects the one for chats without tools.
fn chosen(templates: Option<Templates>, path: &Path) -> Result<Option<String>, DataError> {
    match templates {
        None => Ok(None),
        Some(Templates::One(text)) => Ok(Some(text)),
        Some(Templates::NamedTemplate(all)) => {
            let default = all.into_iter().find(|named| named.name == "default");
            default.map(|named| Some(named.template)).ok_or_else(|| bad(path, "none of its templates is `default`"))
        }
    }
}

/// Texts, or objects whose `content` is a text, under names that end in `_token`.
fn special_tokens(fields: &BTreeMap<String, Value>) -> Vec<(String, String)> {
    let token = |value: &Value| value.as_str().or_else(|| value.get("content")?.as_str()).map(str::to_owned);
    let named = fields.iter().filter(|(name, _)| name.ends_with("_token"));
    named.filter_map(|(name, value)| Some((name.clone(), token(value)?))).collect()
}

fn config_of(path: &Path) -> Result<Option<Config>, DataError> {
    let Some(text) = read(path, CONFIG_BYTES_MAX)? else { return Ok(None) };
    serde_json::from_str(&text).map(Some).map_err(|error| bad(path, &error.to_string()))
}

fn text_of(path: &Path) -> Result<Option<String>, DataError> {
    read(path, TEMPLATE_BYTES_MAX)
}

/// `None` if there is no such file.
fn read(path: &Path, most: Bytes) -> Result<Option<String>, DataError> {
    match plimsoll_files::read_text(path, most) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(DataError::unreadable(path, error)),
    }
}

fn not_found(path: &Path) -> DataError {
    DataError::NotFound { path: path.to_owned(), nearest: None }
}

fn bad(path: &Path, message: &str) -> DataError {
    DataError::BadChatTemplate { path: path.to_owned(), message: message.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(files: &[(&str, &str)], named: Option<&str>) -> Result<TemplateFile, DataError> {
        let folder = tempfile::tempdir().unwrap();
        files.iter().for_each(|(name, text)| std::fs::write(folder.path().join(name), text).unwrap());
        let named = named.map(|name| folder.path().join(name));
        template_file(&TokenizerSpec::File(folder.path().join("tokenizer.json")), named.as_deref())
    }

    #[test]
    fn templates_are_found_where_transformers_saves_them() {
        let config = r#"{"chat_template":"of config","bos_token":"<s>","eos_token":{"content":"</s>"},"pad_token":null,"x":[1]}"#;
        let tokens = [("bos_token".to_owned(), "<s>".to_owned()), ("eos_token".to_owned(), "</s>".to_owned())];
        for (files, named, text) in [
            (&[("tokenizer.json", ""), ("tokenizer_config.json", config)][..], None, Some("of config")),
            (&[("tokenizer_config.json", config), ("chat_template.jinja", "own file")], None, Some("own file")),
            (&[("tokenizer_config.json", config), ("mine.jinja", "mine")], Some("mine.jinja"), Some("mine")),
            (&[("tokenizer_config.json", config), ("b.json", r#"{"chat_template":"b"}"#)], Some("b.json"), Some("b")),
        ] {
            let found = found(files, named).unwrap();
            assert_eq!((found.text.as_deref(), &found.special_tokens[..]), (text, &tokens[..]));
        }
        let several = r#"{"chat_template":[{"name":"rag","template":"r"},{"name":"default","template":"d"}]}"#;
        assert_eq!(found(&[("tokenizer_config.json", several)], None).unwrap().text.as_deref(), Some("d"));
        assert_eq!(found(&[("tokenizer_config.json", "{}")], None).unwrap().text, None);
        assert_eq!(found(&[], None).unwrap().text, None);
    }

    #[test]
    fn files_without_a_template_are_refused() {
        let is_bad =
            |files: &[(&str, &str)], named| matches!(found(files, named), Err(DataError::BadChatTemplate { .. }));
        assert!(is_bad(&[("tokenizer_config.json", "{")], None));
        assert!(is_bad(&[("tokenizer_config.json", r#"{"chat_template":[{"name":"rag","template":"r"}]}"#)], None));
        assert!(is_bad(&[("a.json", "{}")], Some("a.json")));
        assert!(matches!(found(&[], Some("none.jinja")), Err(DataError::NotFound { .. })));
        assert!(matches!(
            found(&[("long", &"a".repeat((1 << 20) + 1))], Some("long")),
            Err(DataError::FileTooLong { .. })
        ));
    }
}
