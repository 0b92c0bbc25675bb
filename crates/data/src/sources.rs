//! Resolves files, folders and patterns to the list of files that make up the data, in a fixed order.
//! Not here: a file of the data (`source.rs`), reading them (`documents.rs`), and the Rust sources that cargo downloaded (`registry.rs`).

use crate::DataError;
use crate::json_file::json_file;
use crate::source::{Compression, Format, Source, Sources};
use crate::splits::{TrainingFiles, training_files};
use plimsoll_units::spelling;
use std::collections::{HashMap, HashSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// The maximum number of files in a folder or pattern; each uses about 200 bytes of memory.
pub const FILES_MAX: usize = 1 << 20;

const TEXT: &[&str] = &[
    "adoc", "asm", "awk", "bash", "bat", "bib", "c", "cc", "cfg", "clj", "cmake", "conf", "cpp", "cs", "css", "csv",
    "cu", "cuh", "cxx", "dart", "diff", "el", "erl", "ex", "exs", "f90", "fs", "glsl", "go", "graphql", "h", "hh",
    "hpp", "hs", "htm", "html", "ini", "ipynb", "java", "jl", "js", "json", "jsx", "kt", "lean", "lisp", "log", "lua",
    "m", "markdown", "md", "mdx", "mjs", "ml", "nim", "nix", "org", "patch", "php", "pl", "pm", "proto", "ps1", "py",
    "pyi", "r", "rb", "rs", "rst", "s", "scala", "scm", "scss", "sh", "sql", "srt", "svg", "swift", "tcl", "tex",
    "text", "toml", "ts", "tsv", "tsx", "txt", "v", "vim", "vtt", "vue", "wat", "xml", "yaml", "yml", "zig", "zsh",
];
const JSON_LINES: &[&str] = &["jsonl", "ndjson", "jsonlines"];
/// Formats in which text is often stored but that are not plain text: refused by name, with advice.
const NOT_TEXT: &[&str] = &[
    "7z",
    "arrow",
    "bin",
    "bz2",
    "doc",
    "docx",
    "epub",
    "feather",
    "lz4",
    "npy",
    "npz",
    "odt",
    "pdf",
    "rar",
    "safetensors",
    "tar",
    "tgz",
    "xz",
    "zip",
];

/// Resolves the arguments that name the data, each a file, a folder (recursive) or a pattern, in the given order; the
/// files of a folder or a pattern are sorted by path. A file that two different arguments name is read once; a repeated
/// argument is another copy of its files, which gives them more weight.
///
/// A file that is named explicitly is read as text regardless of its extension, and so is one that a pattern such as `*.log`
/// selects by extension; folders and patterns such as `*` yield only known extensions. Hidden entries and links to
/// folders are skipped inside folders. In a folder of tables, laid out like a Hugging Face data set, only the files of
/// the training split are used.
/// Errors: `NothingNamed`, `NotFound`, `Unreadable`, `NotAFile`, `BadPattern`, `NoMatch`, `NoTextInFolder`, `NotText`,
/// `TooManyFiles`.
pub fn resolve<S: AsRef<str>>(arguments: &[S], text_field: &str) -> Result<Sources, DataError> {
    resolve_at_most(FILES_MAX, arguments, text_field)
}

fn resolve_at_most<S: AsRef<str>>(files_max: usize, arguments: &[S], text_field: &str) -> Result<Sources, DataError> {
    let mut files = Vec::new();
    let mut other_splits = 0;
    let mut seen = HashSet::new();
    let mut copies: HashMap<&str, usize> = HashMap::new();
    for argument in arguments.iter().map(AsRef::as_ref) {
        let copy = *copies.entry(argument).and_modify(|copy| *copy += 1).or_default();
        let first_new = files.len();
        let path = Path::new(argument);
        match fs::metadata(path) {
            Ok(metadata) if metadata.is_dir() => {
                let (found, left_out) = in_folder(path, files_max, text_field)?;
                files.extend(found);
                other_splits += left_out;
            }
            Ok(_) => {
                // Anything but a file is refused here, before all files are hashed.
                plimsoll_files::open_regular(path).map_err(|error| DataError::unreadable(path, error))?;
                files.push(named_file(path, text_field)?);
            }
            Err(_) if argument.contains(['*', '?', '[']) => {
                files.extend(by_pattern(argument, files_max, text_field)?);
            }
            Err(source) if source.kind() == io::ErrorKind::NotFound => {
                return Err(DataError::NotFound { path: path.to_owned(), nearest: nearest_entry(path) });
            }
            Err(source) => return Err(DataError::Unreadable { path: path.to_owned(), source }),
        }
        let mut new = files.split_off(first_new);
        new.retain(|file| seen.insert((copy, file.path.canonicalize().unwrap_or_else(|_| file.path.clone()))));
        files.append(&mut new);
    }
    if files.is_empty() {
        return Err(DataError::NothingNamed);
    }
    Ok(Sources { other_splits, ..Sources::new(files, text_field) })
}

/// What a file's name says about its format.
enum Recognized {
    Known(Format, Compression),
    Unknown(Compression),
    NotText(String),
}

fn recognize(path: &Path) -> Recognized {
    let extension =
        |path: &Path| path.extension().map(|e| e.to_string_lossy().to_ascii_lowercase()).unwrap_or_default();
    let (compression, inner) = match extension(path).as_str() {
        "gz" => (Compression::Gzip, extension(Path::new(path.file_stem().unwrap_or_default()))),
        "zst" | "zstd" => (Compression::Zstd, extension(Path::new(path.file_stem().unwrap_or_default()))),
        plain => (Compression::None, plain.to_owned()),
    };
    match inner.as_str() {
        e if JSON_LINES.contains(&e) => Recognized::Known(Format::JsonLines, compression),
        "parquet" if compression == Compression::None => Recognized::Known(Format::Parquet, compression),
        "parquet" => Recognized::NotText(inner),
        e if TEXT.contains(&e) => Recognized::Known(Format::Text, compression),
        e if NOT_TEXT.contains(&e) => Recognized::NotText(inner),
        _ => Recognized::Unknown(compression),
    }
}

fn named_file(path: &Path, text_field: &str) -> Result<Source, DataError> {
    let (format, compression) = match recognize(path) {
        Recognized::Known(format, compression) => (format, compression),
        Recognized::Unknown(compression) => (Format::Text, compression),
        Recognized::NotText(extension) => return Err(DataError::NotText { path: path.to_owned(), extension }),
    };
    looked_into(Source::new(path.to_owned(), format, compression), text_field, true)
}

/// Looks into a file whose name does not determine its format: a .json. Errors: `NoRows`.
fn looked_into(source: Source, text_field: &str, is_named: bool) -> Result<Source, DataError> {
    let extensions = source.path.to_string_lossy().to_ascii_lowercase();
    let is_json = [".json", ".json.gz", ".json.zst", ".json.zstd"].iter().any(|e| extensions.ends_with(e));
    if is_json { json_file(source, text_field, is_named) } else { Ok(source) }
}

/// The files of a folder, and how many were skipped because they belong to other splits.
fn in_folder(folder: &Path, files_max: usize, text_field: &str) -> Result<(Vec<Source>, usize), DataError> {
    let mut paths = Vec::new();
    list_files(folder, files_max, &mut paths)?;
    let skipped = paths.len();
    let arrow = paths.iter().find(|path| path.extension().is_some_and(|e| e == "arrow")).cloned();
    let (paths, left_out) = match training_files(folder, &paths) {
        Some(TrainingFiles { files, .. }) if files.is_empty() && arrow.is_some() => {
            let path = arrow.expect("the caller peeked at it");
            return Err(DataError::NotText { path, extension: "arrow".to_owned() });
        }
        Some(TrainingFiles { files, left_out }) => (files, left_out),
        None => (paths, 0),
    };
    let files: Vec<Source> = paths.iter().filter_map(|path| known_file(path, text_field)).collect();
    match files.is_empty() {
        true => Err(DataError::NoTextInFolder { path: folder.to_owned(), skipped }),
        false => Ok((files, left_out)),
    }
}

fn known_file(path: &Path, text_field: &str) -> Option<Source> {
    match recognize(path) {
        Recognized::Known(format, compression) => {
            let source = Source::new(path.to_owned(), format, compression);
            looked_into(source, text_field, false).ok()
        }
        Recognized::Unknown(_) | Recognized::NotText(_) => None,
    }
}

/// Appends all files below `folder`, depth first, each folder's entries sorted by name: this is the order of the
/// relative paths, compared component by component. Skips hidden entries and links to folders (which may form cycles).
/// Errors: `Unreadable`; `TooManyFiles` if there are more than `files_max` entries.
pub(crate) fn list_files(folder: &Path, files_max: usize, found: &mut Vec<PathBuf>) -> Result<(), DataError> {
    let unreadable = |error| DataError::unreadable(folder, error);
    let too_many = || DataError::TooManyFiles { found_in: folder.to_string_lossy().into_owned(), files_max };
    let mut entries = Vec::new();
    for entry in fs::read_dir(folder).map_err(unreadable)? {
        entries.push(entry.map_err(unreadable)?);
        if found.len() + entries.len() > files_max {
            return Err(too_many());
        }
    }
    entries.sort_by_key(fs::DirEntry::file_name);
    for entry in entries {
        let hidden = entry.file_name().as_encoded_bytes().starts_with(b".");
        let kind = entry.file_type().map_err(unreadable)?;
        let path = entry.path();
        if hidden {
            continue;
        } else if kind.is_dir() {
            list_files(&path, files_max, found)?;
        } else if kind.is_file() || path.is_file() {
            found.push(path);
        }
    }
    Ok(())
}

fn by_pattern(pattern: &str, files_max: usize, text_field: &str) -> Result<Vec<Source>, DataError> {
    let bad_pattern = |error: glob::PatternError| DataError::BadPattern {
        pattern: pattern.to_owned(),
        message: error.msg.to_owned(),
        position: error.pos,
    };
    let wanted_extension = Path::new(pattern).extension().filter(|e| !e.to_string_lossy().contains(['*', '?', '[']));
    let mut files = Vec::new();
    let mut skipped = 0;
    let options = glob::MatchOptions { require_literal_leading_dot: true, ..Default::default() };
    for entry in glob::glob_with(pattern, options).map_err(bad_pattern)? {
        let path = entry.map_err(|e| DataError::Unreadable { path: e.path().to_owned(), source: e.into() })?;
        if files.len() >= files_max {
            return Err(DataError::TooManyFiles { found_in: pattern.to_owned(), files_max });
        }
        if path.is_dir() {
            let mut paths = Vec::new();
            list_files(&path, files_max - files.len(), &mut paths)?;
            files.extend(paths.iter().filter_map(|path| known_file(path, text_field)));
        } else if !path.is_file() {
            skipped += 1;
        } else if wanted_extension.is_some() && path.extension() == wanted_extension {
            files.push(named_file(&path, text_field)?);
        } else if let Some(file) = known_file(&path, text_field) {
            files.push(file);
        } else {
            skipped += 1;
        }
    }
    match files.is_empty() {
        true => Err(DataError::NoMatch { pattern: pattern.to_owned(), skipped }),
        false => Ok(files),
    }
}

/// The entry in the folder of a missing path that the user may have meant: its name is similar, or is this name plus an
/// extension.
fn nearest_entry(path: &Path) -> Option<PathBuf> {
    let parent = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let name = path.file_name()?.to_str()?;
    let entries = fs::read_dir(parent).ok()?.flatten();
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok()).collect::<Vec<_>>();
    let extended = || names.iter().filter(|entry| entry.split_once('.').is_some_and(|(stem, _)| stem == name)).min();
    let nearest = spelling::nearest(name, names.iter().map(String::as_str));
    nearest.or_else(|| extended().map(String::as_str)).map(|entry| path.with_file_name(entry))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{create_dir_all, write};

    fn folder(files: &[&str]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        for file in files {
            let path = folder.path().join(file);
            create_dir_all(path.parent().unwrap()).unwrap();
            write(path, "text").unwrap();
        }
        folder
    }

    /// Resolves arguments relative to the folder and returns paths relative to it.
    fn resolved(folder: &Path, arguments: &[&str]) -> Result<Vec<String>, DataError> {
        let absolute: Vec<String> = arguments.iter().map(|a| folder.join(a).to_str().unwrap().to_owned()).collect();
        let relative = |s: Source| s.path.strip_prefix(folder).unwrap().to_str().unwrap().to_owned();
        Ok(resolve(&absolute, "text")?.files.into_iter().map(relative).collect())
    }

    #[test]
    fn folders_are_taken_recursively_in_sorted_order() {
        let f = folder(&["b.txt", "a/z.rs", "a/b/c.md", "a-x.py", "image.png", ".git/config.toml", "a/.hidden.txt"]);
        assert_eq!(resolved(f.path(), &["."]).unwrap(), ["a/b/c.md", "a/z.rs", "a-x.py", "b.txt"]);
    }

    #[test]
    fn patterns_take_known_extensions_or_the_one_they_name() {
        let f = folder(&["a.txt", "b.weird", "c.jsonl.gz", "sub/d.txt", "e.png", ".git/config.toml", ".hidden.txt"]);
        assert_eq!(resolved(f.path(), &["*"]).unwrap(), ["a.txt", "c.jsonl.gz", "sub/d.txt"]);
        assert_eq!(resolved(f.path(), &["*.weird"]).unwrap(), ["b.weird"]);
        assert_eq!(resolved(f.path(), &["**/*.txt", "a.txt"]).unwrap(), ["a.txt", "sub/d.txt"]);
        let error = resolved(f.path(), &["*.none"]).unwrap_err();
        assert!(matches!(error, DataError::NoMatch { skipped: 0, .. }), "{error}");
        assert!(matches!(resolved(f.path(), &["***"]), Err(DataError::BadPattern { .. })));
    }

    #[test]
    fn a_repeated_argument_is_another_copy_of_its_files() {
        let f = folder(&["a.txt", "b.txt"]);
        assert_eq!(resolved(f.path(), &["a.txt", "a.txt"]).unwrap(), ["a.txt", "a.txt"]);
        assert_eq!(resolved(f.path(), &["*.txt", "a.txt", "*.txt"]).unwrap(), ["a.txt", "b.txt", "a.txt", "b.txt"]);
    }

    #[test]
    fn names_determine_format_and_compression() {
        for (name, format, compression) in [
            ("a.txt", Format::Text, Compression::None),
            ("A.JSONL", Format::JsonLines, Compression::None),
            ("a.jsonl.zst", Format::JsonLines, Compression::Zstd),
            ("a.rs.gz", Format::Text, Compression::Gzip),
            ("unknown", Format::Text, Compression::None),
            ("unknown.gz", Format::Text, Compression::Gzip),
        ] {
            let f = folder(&[name]);
            let path = f.path().join(name);
            let found = resolve(&[path.to_str().unwrap()], "text").unwrap().files.remove(0);
            assert_eq!(found, Source::new(path, format, compression), "{name}");
        }
    }

    #[test]
    fn unreadable_files_are_named() {
        let f = folder(&["input.txt", "table.feather", "x.tar.gz", "pictures/e.png"]);
        let missing = resolved(f.path(), &["imput.txt"]).unwrap_err();
        match missing {
            DataError::NotFound { path, nearest } => {
                assert_eq!((path, nearest), (f.path().join("imput.txt"), Some(f.path().join("input.txt"))));
            }
            other => panic!("{other}"),
        }
        for (name, expected) in [("table", Some("table.feather")), ("Input.TXT", Some("input.txt")), ("pic", None)] {
            let missing = resolved(f.path(), &[name]).unwrap_err();
            let DataError::NotFound { nearest, .. } = missing else { panic!("{missing}") };
            assert_eq!(nearest, expected.map(|expected| f.path().join(expected)), "{name}");
        }
        assert!(matches!(resolved(f.path(), &["table.feather"]), Err(DataError::NotText { .. })));
        assert!(matches!(resolved(f.path(), &["x.tar.gz"]), Err(DataError::NotText { .. })));
        let pictures = resolved(f.path(), &["pictures"]).unwrap_err();
        assert!(matches!(pictures, DataError::NoTextInFolder { skipped: 1, .. }), "{pictures}");
        assert!(matches!(resolved(f.path(), &[]), Err(DataError::NothingNamed)));
        assert!(matches!(resolve(&["/dev/null"], "text"), Err(DataError::NotAFile { found: "a device", .. })));
    }

    #[test]
    fn too_many_files_are_refused_before_they_are_listed() {
        for files in [["a/1.txt", "a/2.txt", "b/3.txt"], ["a/1.txt", "b/2.txt", "b/3.txt"]] {
            let f = folder(&files);
            let at_most = |files_max: usize, pattern: &str| {
                resolve_at_most(files_max, &[f.path().join(pattern).to_str().unwrap()], "text").map(|s| s.files.len())
            };
            for pattern in [".", "*", "*/*.txt"] {
                assert_eq!(at_most(10, pattern).unwrap(), 3, "{pattern} of {files:?}");
                let refused = at_most(2, pattern);
                assert!(
                    matches!(refused, Err(DataError::TooManyFiles { files_max: 0..=2, .. })),
                    "{pattern} of {files:?}: {refused:?}"
                );
            }
        }
    }

    #[test]
    fn a_file_with_brackets_in_its_name_is_a_file() {
        let f = folder(&["a[1].txt"]);
        assert_eq!(resolved(f.path(), &["a[1].txt"]).unwrap(), ["a[1].txt"]);
    }
}
