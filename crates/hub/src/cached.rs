//! Weights in the local cache of the Hugging Face hub, as its own tools leave them:
//! `models--organization--name/snapshots/COMMIT/`, of which `refs/main` names the commit of the main branch.
//! Not here: how they get there (`download.rs`).

use crate::index::{INDEX_BYTES_MAX, Index};
use plimsoll_graph::models::ModelConfig;
use plimsoll_train::checkpoint::{CONFIG_FILE, INDEX_FILE, MODEL_FILE};
use plimsoll_units::Bytes;
use std::collections::BTreeSet;
use std::env::var_os;
use std::path::{Path, PathBuf};

/// The name of a commit is shorter.
const REF_BYTES_MAX: Bytes = Bytes(1024);

/// Whether a text can be the name of weights on the Hugging Face hub, `organization/model`, and is no path.
pub fn is_hub_name(text: &str) -> bool {
    let parts = text.split('/').collect::<Vec<_>>();
    let is_part = |part: &&str| {
        let may_be = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        !part.is_empty() && !part.starts_with('.') && part.chars().all(may_be)
    };
    parts.len() == 2 && parts.iter().all(is_part) && !Path::new(parts[0]).exists()
}

/// Whether weights are on this machine under a name: in a folder, or in the cache under a name on the hub or a preset's.
pub fn has_weights(named: &str) -> bool {
    let folder = Path::new(named);
    match weights(folder) {
        Weights::Folder => has_tensors(folder),
        Weights::Cached(_) => true,
        Weights::Missing { .. } => false,
    }
}

/// Where weights are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Weights {
    /// In the folder that was named.
    Folder,
    /// In this folder of the cache.
    Cached(PathBuf),
    /// Named, but not in the cache.
    Missing {
        /// The name on the hub, or that of a preset.
        name: String,
        /// Whether the hub may have them: a preset of Plimsoll's own is not there.
        is_on_hub: bool,
    },
}

/// Where the weights are that a path, a name on the hub or a preset's name means.
pub fn weights(named: &Path) -> Weights {
    let Some(name) = named.to_str().filter(|_| !named.exists()) else { return Weights::Folder };
    let preset = ModelConfig::preset_name(name);
    let names = match &preset {
        _ if is_hub_name(name) => vec![name],
        Some(preset) => [ModelConfig::hub_names(preset), &[name]].concat(),
        None => return Weights::Folder,
    };
    let found = cache().and_then(|cache| names.iter().find_map(|name| snapshot(&cache, name, is_whole)));
    // On the hub, the name of one of Plimsoll's own presets is another model's.
    let is_on_hub = is_hub_name(names[0]);
    found.map_or_else(|| Weights::Missing { name: names[0].to_owned(), is_on_hub }, Weights::Cached)
}

/// The folder in the cache with the config.json of a model, whose weights may be missing.
pub fn cached_config(name: &str) -> Option<PathBuf> {
    cache().filter(|_| is_hub_name(name)).and_then(|cache| snapshot(&cache, name, has_config))
}

/// Where the hub's tools keep what they fetched; `None` if the environment names no home folder. Source: huggingface_hub, "Environment variables".
pub fn cache() -> Option<PathBuf> {
    given("HF_HUB_CACHE").or_else(|| given("HUGGINGFACE_HUB_CACHE")).or_else(|| home().map(|home| home.join("hub")))
}

/// Where the hub's tools keep what they know: the cache, and the token.
pub(crate) fn home() -> Option<PathBuf> {
    let of_user = || {
        let home = || given(if cfg!(windows) { "USERPROFILE" } else { "HOME" }).map(|home| home.join(".cache"));
        given("XDG_CACHE_HOME").or_else(home).map(|cache| cache.join("huggingface"))
    };
    given("HF_HOME").or_else(of_user)
}

fn given(name: &str) -> Option<PathBuf> {
    var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from)
}

/// The folder of a model's files in the cache: of the commit that its main branch was at, else of any that is complete.
fn snapshot(cache: &Path, name: &str, is_complete: fn(&Path) -> bool) -> Option<PathBuf> {
    let model = cache.join(format!("models--{}", name.replace('/', "--")));
    let snapshots = model.join("snapshots");
    let main = plimsoll_files::read_text(&model.join("refs/main"), REF_BYTES_MAX).ok();
    let is_commit = |text: &&str| !text.is_empty() && text.chars().all(|c| c.is_ascii_alphanumeric());
    let main = main.as_deref().map(str::trim).filter(is_commit);
    let main = main.map(|commit| snapshots.join(commit)).filter(|folder| is_complete(folder));
    let others = || {
        let mut folders = std::fs::read_dir(&snapshots).ok()?.flatten().map(|entry| entry.path()).collect::<Vec<_>>();
        folders.sort();
        folders.into_iter().find(|folder| is_complete(folder))
    };
    main.or_else(others)
}

/// Whether a model can be started from a folder's files.
fn is_whole(folder: &Path) -> bool {
    let has_weights = || folder.join(MODEL_FILE).is_file() || (folder.join(INDEX_FILE).is_file() && has_shards(folder));
    has_config(folder) && has_weights()
}

fn has_config(folder: &Path) -> bool {
    folder.join(CONFIG_FILE).is_file()
}

/// Whether all shards are there that an index names; what is wrong with an index is said when it is read.
fn has_shards(folder: &Path) -> bool {
    let index = plimsoll_files::read_text(&folder.join(INDEX_FILE), INDEX_BYTES_MAX).ok();
    let index = index.and_then(|index| serde_json::from_str::<Index>(&index).ok());
    let shards = index.map(|index| index.weight_map.into_values().collect::<BTreeSet<_>>()).unwrap_or_default();
    shards.iter().all(|shard| folder.join(shard).is_file())
}

/// Whether a folder has weights, in one file or in shards.
fn has_tensors(folder: &Path) -> bool {
    [MODEL_FILE, INDEX_FILE].iter().any(|file| folder.join(file).is_file())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{create_dir_all, write};

    fn put(cache: &Path, model: &str, commit: &str, files: &[&str]) -> PathBuf {
        let folder = cache.join(model).join("snapshots").join(commit);
        create_dir_all(&folder).expect("a new folder");
        files.iter().for_each(|file| write(folder.join(file), "{}").expect("a new file"));
        folder
    }

    #[test]
    fn the_main_branch_is_meant_and_halves_are_skipped() {
        let cache = tempfile::tempdir().expect("a temporary folder");
        let cache = cache.path();
        let both = [CONFIG_FILE, MODEL_FILE];
        let (a, b) = (put(cache, "models--o--m", "aaa", &both), put(cache, "models--o--m", "bbb", &both));
        assert_eq!(snapshot(cache, "o/m", is_whole), Some(a.clone()), "without a branch the first");
        create_dir_all(cache.join("models--o--m/refs")).expect("a new folder");
        write(cache.join("models--o--m/refs/main"), "bbb\n").expect("a new file");
        assert_eq!(snapshot(cache, "o/m", is_whole), Some(b.clone()));
        write(cache.join("models--o--m/refs/main"), "../../models--o--other/snapshots/ccc").expect("a new file");
        put(cache, "models--o--other", "ccc", &both);
        assert_eq!(snapshot(cache, "o/m", is_whole), Some(a.clone()), "a commit is no path");
        write(cache.join("models--o--m/refs/main"), "bbb\n").expect("a new file");
        std::fs::remove_file(b.join(MODEL_FILE)).expect("it is there");
        assert_eq!(snapshot(cache, "o/m", is_whole), Some(a), "the main branch was not fetched to its end");
        put(cache, "models--o--half", "ccc", &[MODEL_FILE]);
        assert_eq!(snapshot(cache, "o/half", is_whole), None);
        let sharded = put(cache, "models--o--big", "ddd", &[CONFIG_FILE, INDEX_FILE]);
        assert_eq!(snapshot(cache, "o/big", is_whole), Some(sharded.clone()));
        write(sharded.join(INDEX_FILE), r#"{"weight_map": {"a": "a.safetensors"}}"#).expect("a new file");
        assert_eq!(snapshot(cache, "o/big", is_whole), None, "a shard was not fetched");
        put(cache, "models--o--big", "ddd", &["a.safetensors"]);
        assert_eq!(snapshot(cache, "o/big", is_whole), Some(sharded));
        assert_eq!(snapshot(cache, "o/none", is_whole), None);
        let planned = put(cache, "models--o--planned", "eee", &[CONFIG_FILE]);
        assert_eq!(snapshot(cache, "o/planned", is_whole), None);
        assert_eq!(snapshot(cache, "o/planned", has_config), Some(planned));
    }
}
