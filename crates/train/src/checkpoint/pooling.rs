//! The pooling of a sentence encoder in its folder: a key of our config.json, or the file of sentence-transformers.

use super::CONFIG_FILE;
use plimsoll_graph::ops::Pooling;
use plimsoll_units::Bytes;
use serde_json::Value;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// The key of a config.json that this program writes; other programs ignore it.
pub(super) const POOLING_KEY: &str = "pooling";

/// Where sentence-transformers stores the settings of its pooling.
const POOLING_FILE: &str = "1_Pooling/config.json";

/// Longer than any of these files.
const LONGEST: Bytes = Bytes::mib(1);

/// A folder asks for vectors that this program does not compute.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{} asks for {mode}", .path.display())]
pub struct UnknownPooling {
    /// The file.
    pub path: PathBuf,
    /// What it asks for.
    pub mode: String,
}

/// The name of a pooling in files and flags.
pub fn pooling_name(pooling: Pooling) -> &'static str {
    match pooling {
        Pooling::Mean => "mean",
        Pooling::First => "cls",
    }
}

/// The pooling that the encoder in a folder was trained with; `None` if no file there names one.
/// Errors: another one than the mean and the first token; the file can't be read.
pub fn read_pooling(folder: &Path) -> Result<Option<Pooling>, UnknownPooling> {
    for (file, mode_of) in [(CONFIG_FILE, own_mode as fn(&Value) -> Option<String>), (POOLING_FILE, mode)] {
        let path = folder.join(file);
        let value = match plimsoll_files::read_text(&path, LONGEST) {
            Ok(text) => serde_json::from_str::<Value>(&text).map_err(|error| error.to_string()),
            Err(error) if error.kind() == ErrorKind::NotFound => continue,
            Err(error) => Err(error.to_string()),
        };
        let value = value.map_err(|problem| format!("nothing that can be read: {problem}"));
        match value.map(|value| mode_of(&value)) {
            Ok(None) => {}
            Ok(Some(mode)) if mode == "mean" => return Ok(Some(Pooling::Mean)),
            Ok(Some(mode)) if mode == "cls" => return Ok(Some(Pooling::First)),
            Ok(Some(mode)) => return Err(UnknownPooling { path, mode: format!("`{mode}` pooling") }),
            Err(mode) => return Err(UnknownPooling { path, mode }),
        }
    }
    Ok(None)
}

fn own_mode(config: &Value) -> Option<String> {
    config.get(POOLING_KEY)?.as_str().map(str::to_owned)
}

/// The mode in a file of sentence-transformers: `pooling_mode`, or in older files flags such as
/// `pooling_mode_cls_token`. Several modes are concatenated.
fn mode(config: &Value) -> Option<String> {
    let modes = match config.get("pooling_mode") {
        Some(Value::Array(modes)) => modes.iter().filter_map(|mode| Some(mode.as_str()?.to_owned())).collect(),
        Some(Value::String(mode)) => vec![mode.clone()],
        _ => flagged(config),
    };
    (!modes.is_empty()).then(|| modes.join("+"))
}

fn flagged(config: &Value) -> Vec<String> {
    let named = config.as_object().into_iter().flatten().filter_map(|(key, value)| {
        let name = key.strip_prefix("pooling_mode_")?;
        let name = name.trim_end_matches("_tokens").trim_end_matches("_token");
        (value == &Value::Bool(true)).then(|| name.to_owned())
    });
    named.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(file: &str, text: &str) -> Result<Option<Pooling>, UnknownPooling> {
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::create_dir(folder.path().join("1_Pooling")).expect("a folder");
        std::fs::write(folder.path().join(file), text).expect("a file");
        read_pooling(folder.path())
    }

    #[test]
    fn poolings_of_both_programs_are_read() {
        for (file, text, expected) in [
            (CONFIG_FILE, r#"{"pooling": "cls"}"#, Some(Pooling::First)),
            (CONFIG_FILE, r#"{"hidden_size": 8}"#, None),
            (POOLING_FILE, r#"{"pooling_mode": "mean"}"#, Some(Pooling::Mean)),
            (POOLING_FILE, r#"{"pooling_mode": ["cls"]}"#, Some(Pooling::First)),
            (
                POOLING_FILE,
                r#"{"pooling_mode_cls_token": true, "pooling_mode_mean_tokens": false}"#,
                Some(Pooling::First),
            ),
            (POOLING_FILE, r#"{"pooling_mode_mean_tokens": true, "include_prompt": true}"#, Some(Pooling::Mean)),
        ] {
            assert_eq!(read(file, text), Ok(expected), "{file}: {text}");
        }
    }

    #[test]
    fn other_poolings_are_refused_by_name() {
        for (text, words) in [
            (r#"{"pooling_mode_max_tokens": true}"#, "`max` pooling"),
            (r#"{"pooling_mode": ["mean", "cls"]}"#, "`mean+cls` pooling"),
            ("{", "nothing that can be read"),
        ] {
            let error = read(POOLING_FILE, text).expect_err(text);
            assert!(error.to_string().contains(words), "{error}");
        }
    }
}
