//! The training files that a file of settings names. Other trainers also name data sets of a hub there, or entries of
//! LLaMA-Factory's `dataset_info.json`.

use plimsoll_hub::is_hub_name;
use plimsoll_trainers::document::{Document, Value};
use plimsoll_units::Bytes;
use serde_json::{Map, Value as Json};
use std::path::Path;

/// Limit on the size of the list of data sets.
const LIST_BYTES_MAX: Bytes = Bytes::mib(4);

/// LLaMA-Factory's list of data sets, in the folder that `dataset_dir` names.
const LIST: &str = "dataset_info.json";

/// Format names of `datasets.load_dataset`, which are not data.
const FORMS: &[&str] = &["text", "json", "csv", "parquet"];

/// The files of a key's value. `shown`: the key. Errors: no such files, as the problem and what to do.
pub(super) fn files_of(document: &Document, shown: &str, value: &Value) -> Result<Vec<String>, (String, String)> {
    let mut named = Vec::new();
    let resolved =
        |text: &str| document.resolve(text).map_err(|what| (format!("`{shown}: {text}`: {what}"), HINT.into()));
    match value {
        Value::Null | Value::Code => {}
        Value::Plain(text) => named.push(resolved(text)?),
        Value::List(items) => {
            for item in items {
                match &item.value {
                    Value::Plain(text) => named.push(resolved(text)?),
                    other => return Err((format!("`{shown}` must be a list of paths, not {other}"), HINT.to_owned())),
                }
            }
        }
        Value::Map(_) => return Err((format!("`{shown}` must be a path, not {value}"), HINT.to_owned())),
    }
    let of_source = shown.ends_with(".source") || shown.ends_with(".path");
    named.retain(|name| !(of_source && FORMS.contains(&name.as_str())));
    let found = named.iter().map(|name| files(document, name)).collect::<Option<Vec<_>>>();
    found.map(|found| found.concat()).ok_or_else(|| {
        let what = format!("`{shown}: {value}` names a data set that is not on this machine");
        (what, HINT.to_owned())
    })
}

/// What to do about data that is not on this machine.
pub(super) const HINT: &str = "data is read from files: download the files, and name them with `--data PATH`";

/// The files of one name: its path, or the files of entries in LLaMA-Factory's list. `None` if the name is neither.
fn files(document: &Document, name: &str) -> Option<Vec<String>> {
    let is_path = |name: &str| {
        let may_be_on_hub = is_hub_name(name) || !name.contains(['/', '\\', '.', '*', '?', '[']);
        Path::new(name).exists() || !may_be_on_hub
    };
    if is_path(name) {
        return Some(vec![name.to_owned()]);
    }
    let folder = document.plain("dataset_dir").unwrap_or("data");
    let text = plimsoll_files::read_text(&Path::new(folder).join(LIST), LIST_BYTES_MAX).ok()?;
    let list = serde_json::from_str::<Map<String, Json>>(&text).ok()?;
    let file = |name: &str| {
        let file = Path::new(folder).join(list.get(name.trim())?.get("file_name")?.as_str()?);
        file.exists().then(|| file.to_string_lossy().into_owned())
    };
    name.split(',').map(file).collect()
}
