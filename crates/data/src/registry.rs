//! The Rust sources that cargo downloaded: text available on every machine with cargo, so that a first run needs no
//! data.
//! Not here: sources that the user names (`sources.rs`).

use crate::sources::list_files;
use crate::{Compression, DEFAULT_TEXT_FIELD, DataError, FILES_MAX, Format, Source, Sources};
use plimsoll_units::Bytes;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};

/// Enough for a first run, and small enough to tokenize in seconds.
const CAP: Bytes = Bytes::mib(16);

/// The `.rs` files below `$CARGO_HOME/registry/src` (default `$HOME/.cargo`), at most 16 MiB; the last one is cut at a
/// UTF-8 boundary. They are sorted by their path within each registry's folder, so the order does not depend on the
/// machine. Skips files that are not UTF-8.
/// Errors: `NoCargoSources` if there are none, `Unreadable`.
pub fn cargo_registry_sources() -> Result<Sources, DataError> {
    registry_sources_in(&registry_folder(), CAP)
}

fn registry_folder() -> PathBuf {
    let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let cargo_home = set("CARGO_HOME").or_else(|| Some(set("HOME")?.join(".cargo")));
    cargo_home.unwrap_or_else(|| PathBuf::from(".cargo")).join("registry").join("src")
}

fn registry_sources_in(root: &Path, cap: Bytes) -> Result<Sources, DataError> {
    let mut files = Vec::new();
    let mut left_bytes = cap.0 as usize;
    for package in packages_by_name(root)?.values() {
        let mut paths = Vec::new();
        list_files(package, FILES_MAX, &mut paths)?;
        for path in paths.into_iter().filter(|path| path.extension().is_some_and(|e| e == "rs")) {
            let start = start_of(&path, left_bytes).map_err(|error| DataError::unreadable(&path, error))?;
            let is_whole = start.len() <= left_bytes;
            let Some(taken_bytes) = utf8_bytes(&start, left_bytes) else { continue };
            if taken_bytes > 0 {
                let limit = (!is_whole).then_some(Bytes(taken_bytes as u64));
                files.push(Source { limit, ..Source::new(path, Format::Text, Compression::None) });
            }
            left_bytes -= taken_bytes;
            if !is_whole || left_bytes == 0 {
                return Ok(Sources::new(files, DEFAULT_TEXT_FIELD));
            }
        }
    }
    match files.is_empty() {
        true => Err(DataError::NoCargoSources { path: root.to_owned() }),
        false => Ok(Sources::new(files, DEFAULT_TEXT_FIELD)),
    }
}

/// The first `limit` bytes of a file and, if it is longer, one more.
fn start_of(path: &Path, limit: usize) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    plimsoll_files::open_regular(path)?.take(limit as u64 + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Number of bytes, at most `limit`, that form whole characters; `None` if the text is not UTF-8.
fn utf8_bytes(bytes: &[u8], limit: usize) -> Option<usize> {
    let is_whole = bytes.len() <= limit;
    let bytes = &bytes[..bytes.len().min(limit)];
    match str::from_utf8(bytes) {
        Ok(text) => Some(text.len()),
        Err(error) if error.error_len().is_none() && !is_whole => Some(error.valid_up_to()),
        Err(_) => None,
    }
}

/// The folders of all packages by name (`serde-1.0.229`). If two registries hold a package, the first wins.
fn packages_by_name(root: &Path) -> Result<BTreeMap<OsString, PathBuf>, DataError> {
    let mut packages = BTreeMap::new();
    for registry in folders_in(root).map_err(|_| DataError::NoCargoSources { path: root.to_owned() })? {
        let inside = folders_in(&registry).map_err(|source| DataError::Unreadable { path: registry, source })?;
        for package in inside {
            let name = package.file_name().unwrap_or_default().to_owned();
            packages.entry(name).or_insert(package);
        }
    }
    Ok(packages)
}

fn folders_in(folder: &Path) -> std::io::Result<Vec<PathBuf>> {
    let paths = fs::read_dir(folder)?.map(|entry| Ok(entry?.path())).collect::<std::io::Result<Vec<_>>>()?;
    let mut folders: Vec<PathBuf> = paths.into_iter().filter(|path| path.is_dir()).collect();
    folders.sort();
    Ok(folders)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn registry(files: &[(&str, &[u8])]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for (file, text) in files {
            let path = root.path().join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        root
    }

    fn taken(root: &Path, cap: u64) -> Vec<(String, Option<u64>)> {
        let sources = registry_sources_in(root, Bytes(cap)).unwrap();
        let relative = |s: &Source| s.path.strip_prefix(root).unwrap().to_str().unwrap().to_owned();
        sources.files.iter().map(|s| (relative(s), s.limit.map(|l| l.0))).collect()
    }

    #[test]
    fn order_is_that_of_the_path_within_a_registry() {
        let root = registry(&[
            ("github.com-1/b-1/src/lib.rs", b"b"),
            ("index-2/a-1/src/lib.rs", b"a"),
            ("index-2/a-1/README.md", b"not rust"),
            ("index-2/a-1/src/latin1.rs", b"\xe9"),
            ("index-2/b-1/src/lib.rs", b"b again"),
            ("index-2/c-1/src/lib.rs", b"c"),
        ]);
        let order: Vec<String> = taken(root.path(), 1000).into_iter().map(|(path, _)| path).collect();
        assert_eq!(order, ["index-2/a-1/src/lib.rs", "github.com-1/b-1/src/lib.rs", "index-2/c-1/src/lib.rs"]);
    }

    #[test]
    fn the_cap_cuts_the_last_file_at_a_character() {
        let root = registry(&[("r/a/1.rs", b"12345"), ("r/a/2.rs", "äöü".as_bytes()), ("r/a/3.rs", b"x")]);
        let whole = |path: &str| (path.to_owned(), None);
        assert_eq!(taken(root.path(), 8), [whole("r/a/1.rs"), ("r/a/2.rs".to_owned(), Some(2))]);
        assert_eq!(taken(root.path(), 6), [whole("r/a/1.rs")]);
        assert_eq!(taken(root.path(), 5), [whole("r/a/1.rs")]);
        assert_eq!(taken(root.path(), 12), [whole("r/a/1.rs"), whole("r/a/2.rs"), whole("r/a/3.rs")]);
    }

    #[test]
    fn missing_sources_are_an_error() {
        let root = registry(&[("r/a/readme.txt", b"x")]);
        for path in [root.path().join("absent"), root.path().to_owned()] {
            let error = registry_sources_in(&path, CAP).unwrap_err();
            assert!(matches!(error, DataError::NoCargoSources { .. }));
        }
    }
}
