//! The user's folder for what can be made again: tokenized text and measured times.

use super::Failure;
use super::failure::io_failure;
use crate::streams::talk;
use plimsoll_data::DataError;
use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

/// What is missing if [`default_cache_dir`] is `None`.
pub(super) const NO_HOME: &str = "neither HOME nor XDG_CACHE_HOME is set";

/// Plimsoll's folder in the user's cache; `None` if the environment names no home folder.
pub(super) fn default_cache_dir() -> Option<PathBuf> {
    let set = |name: &str| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
    let base = set("XDG_CACHE_HOME").or_else(|| set("HOME").map(|home| home.join(".cache")));
    base.map(|base| base.join("plimsoll"))
}

/// Prepares data with the cache in the folder of `--cache-dir`, or in the user's. If the user's can't be used, prepares it
/// without a cache and says so. Errors: those of `prepare`; there is no place for temporary files either.
pub(super) fn with_cache<T>(
    asked: Option<&Path>,
    prepare: impl Fn(&Path) -> Result<T, DataError>,
) -> Result<T, Failure> {
    if let Some(folder) = asked {
        return Ok(prepare(folder)?);
    }
    let why = match default_cache_dir().map(|folder| prepare(&folder)) {
        Some(Err(error @ (DataError::CacheUnwritable { .. } | DataError::CacheUnreadable { .. }))) => error.to_string(),
        Some(prepared) => return Ok(prepared?),
        None => NO_HOME.to_owned(),
    };
    talk(format_args!(
        "note: tokens are not cached, so the next run tokenizes the data again: {why}\n\
         hint: choose a folder with `--cache-dir PATH`"
    ));
    let folder = TemporaryFolder::new().map_err(io_failure("temporary files"))?;
    Ok(prepare(&folder.0)?)
}

/// A folder that no other user can read. Removed on drop; files that are still open stay readable.
struct TemporaryFolder(PathBuf);

impl TemporaryFolder {
    fn new() -> io::Result<Self> {
        let mut builder = fs::DirBuilder::new();
        #[cfg(unix)]
        std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
        let process = std::process::id();
        for number in 0_u32.. {
            let folder = std::env::temp_dir().join(format!("plimsoll-{process}-{number}"));
            match builder.create(&folder) {
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
                created => return created.map(|()| Self(folder)),
            }
        }
        Err(ErrorKind::AlreadyExists.into())
    }
}

impl Drop for TemporaryFolder {
    fn drop(&mut self) {
        // What stays is in the system's folder for temporary files.
        let _ = fs::remove_dir_all(&self.0);
    }
}
