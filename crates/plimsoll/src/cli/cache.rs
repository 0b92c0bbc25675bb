//! The user's folder for what can be made again: tokenized text and measured times.

use super::Failure;
use std::path::PathBuf;

/// Plimsoll's folder in the user's cache. Errors: the environment names no home folder.
pub(super) fn default_cache_dir() -> Result<PathBuf, Failure> {
    let set = |name: &str| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
    let base = set("XDG_CACHE_HOME").or_else(|| set("HOME").map(|home| home.join(".cache")));
    let none =
        || Failure::bad_flag("neither HOME nor XDG_CACHE_HOME is set").hint("choose a folder with `--cache-dir PATH`");
    Ok(base.ok_or_else(none)?.join("plimsoll"))
}
