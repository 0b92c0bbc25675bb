//! Weights in the local cache of the Hugging Face hub, as its own tools leave them:
//! `models--organization--name/snapshots/COMMIT/`, of which `refs/main` names the commit that is meant.

use super::Failure;
use super::model::is_hub_name;
use crate::streams::talk;
use ::plimsoll_train::checkpoint::{CONFIG_FILE, INDEX_FILE, MODEL_FILE};
use plimsoll_graph::models::ModelConfig;
use plimsoll_units::Bytes;
use std::env::var_os;
use std::path::{Path, PathBuf};

/// The name of a commit is shorter.
const REF_BYTES_MAX: Bytes = Bytes(1024);

/// The folder of the weights that are named: a folder, or what lies in the cache under a name on the hub or a preset's, which
/// is said. Errors: it is such a name, and no weights lie there.
pub(super) fn weights_of(named: PathBuf) -> Result<PathBuf, Failure> {
    let found = weights(&named)?;
    if found != named {
        talk(format_args!("weights: {}", found.display()));
    }
    Ok(found)
}

/// Whether weights are here under a name: in a folder, or in the cache under a name on the hub or a preset's.
pub(super) fn has_weights(named: &str) -> bool {
    let folder = Path::new(named);
    if folder.exists() { has_tensors(folder) } else { weights(folder).is_ok_and(|found| found != folder) }
}

fn weights(named: &Path) -> Result<PathBuf, Failure> {
    let Some(name) = named.to_str().filter(|_| !named.exists()) else { return Ok(named.to_owned()) };
    let preset = ModelConfig::preset_name(name);
    let names = match &preset {
        _ if is_hub_name(name) => vec![name],
        Some(preset) => [ModelConfig::hub_names(preset), &[name]].concat(),
        None => return Ok(named.to_owned()),
    };
    let cache = cache();
    let found = cache.as_deref().and_then(|cache| names.iter().find_map(|name| snapshot(cache, name)));
    found.ok_or_else(|| {
        let place = cache.map_or("the Hugging Face cache".to_owned(), |cache| cache.display().to_string());
        let name = names[0];
        Failure::bad_input(format!("the weights of {name} are not in {place}")).hint(format!(
            "`hf download {name}` fetches them (pip install huggingface_hub); or `--init` takes a folder with a {MODEL_FILE}"
        ))
    })
}

/// Where the hub's tools keep what they fetched. Source: huggingface_hub, "Environment variables".
pub(super) fn cache() -> Option<PathBuf> {
    let given = |name: &str| var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let of_user = || {
        let home = || given(if cfg!(windows) { "USERPROFILE" } else { "HOME" }).map(|home| home.join(".cache"));
        given("XDG_CACHE_HOME").or_else(home).map(|cache| cache.join("huggingface"))
    };
    let hub = || given("HF_HOME").or_else(of_user).map(|home| home.join("hub"));
    given("HF_HUB_CACHE").or_else(|| given("HUGGINGFACE_HUB_CACHE")).or_else(hub)
}

/// The folder of a model's files in the cache: of the commit that its main branch was at, else of any that is whole.
fn snapshot(cache: &Path, name: &str) -> Option<PathBuf> {
    let model = cache.join(format!("models--{}", name.replace('/', "--")));
    let snapshots = model.join("snapshots");
    let main = plimsoll_files::read_text(&model.join("refs/main"), REF_BYTES_MAX).ok();
    let is_commit = |text: &&str| !text.is_empty() && text.chars().all(|c| c.is_ascii_alphanumeric());
    let main = main.as_deref().map(str::trim).filter(is_commit);
    let main = main.map(|commit| snapshots.join(commit)).filter(|folder| is_whole(folder));
    let others = || {
        let mut folders = std::fs::read_dir(&snapshots).ok()?.flatten().map(|entry| entry.path()).collect::<Vec<_>>();
        folders.sort();
        folders.into_iter().find(|folder| is_whole(folder))
    };
    main.or_else(others)
}

/// Whether a model can be started from a folder's files.
fn is_whole(folder: &Path) -> bool {
    folder.join(CONFIG_FILE).is_file() && has_tensors(folder)
}

/// Whether weights lie in a folder, in one file or in shards.
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
        assert_eq!(snapshot(cache, "o/m"), Some(a.clone()), "without a branch the first");
        create_dir_all(cache.join("models--o--m/refs")).expect("a new folder");
        write(cache.join("models--o--m/refs/main"), "bbb\n").expect("a new file");
        assert_eq!(snapshot(cache, "o/m"), Some(b.clone()));
        write(cache.join("models--o--m/refs/main"), "../../models--o--other/snapshots/ccc").expect("a new file");
        put(cache, "models--o--other", "ccc", &both);
        assert_eq!(snapshot(cache, "o/m"), Some(a.clone()), "a commit is no path");
        write(cache.join("models--o--m/refs/main"), "bbb\n").expect("a new file");
        std::fs::remove_file(b.join(MODEL_FILE)).expect("it is there");
        assert_eq!(snapshot(cache, "o/m"), Some(a), "the main branch was not fetched to its end");
        put(cache, "models--o--half", "ccc", &[MODEL_FILE]);
        assert_eq!(snapshot(cache, "o/half"), None);
        let sharded = put(cache, "models--o--big", "ddd", &[CONFIG_FILE, INDEX_FILE]);
        assert_eq!(snapshot(cache, "o/big"), Some(sharded));
        assert_eq!(snapshot(cache, "o/none"), None);
    }
}
