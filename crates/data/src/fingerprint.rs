//! Identifies data and tokenizer together by a hash of their contents, so that tokens are made once and found again.
//! Not part of the hash: where the files are stored, and how many threads read them.

use crate::header::FORMAT_VERSION;
use crate::{Compression, DataError, Format, Progress, Source, Sources, Tokenizer};
use plimsoll_units::Bytes;
use rayon::prelude::*;
use std::fs::{self, Metadata};
use std::io::{self, Read};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::SystemTime;

/// Read size: enough for blake3 to use several cores on one file.
const BUFFER_BYTES: usize = 4 << 20;

/// The hash of data and tokenizer, and the files' stamps for detecting later changes.
pub(crate) struct Fingerprint {
    pub key: blake3::Hash,
    /// Total size of all files on disk.
    pub raw_bytes: Bytes,
    /// Permissions for a cache that exposes no more than these files do.
    pub mode: u32,
    stamps: Vec<Stamp>,
}

/// Length and modification time.
type Stamp = (u64, Option<SystemTime>);

/// Hashes all files as stored on disk, several at a time. `reading` describes how rows are read, unless each is a
/// document.
pub(crate) fn fingerprint(
    sources: &Sources,
    tokenizer: &Tokenizer,
    reading: &[u8],
    progress: &(dyn Fn(Progress<'_>) + Sync),
) -> Result<Fingerprint, DataError> {
    let found = sources.files.iter().map(metadata).collect::<Result<Vec<_>, _>>()?;
    let mode = strictest_mode(&found);
    let stamps: Vec<Stamp> = found.iter().map(stamp).collect();
    drop(found);
    let lengths = || sources.files.iter().zip(&stamps).map(|(file, stamp)| limited(file, stamp.0));
    let total = Bytes(lengths().sum());
    let done = AtomicU64::new(0);
    let report = |bytes: u64| {
        let done = Bytes(done.fetch_add(bytes, Ordering::Relaxed) + bytes);
        progress(Progress::Hashing { done, total });
    };
    let hashes: Vec<Result<blake3::Hash, DataError>> =
        sources.files.par_iter().map(|file| hash_file(file, &report)).collect();

    let mut key = blake3::Hasher::new();
    key.update(&FORMAT_VERSION.to_le_bytes());
    update_framed(&mut key, tokenizer.identity().as_bytes());
    update_framed(&mut key, sources.text_field.as_bytes());
    for ((file, length), hash) in sources.files.iter().zip(lengths()).zip(hashes) {
        key.update(&[format_code(file.format), compression_code(file.compression)]);
        key.update(&length.to_le_bytes());
        key.update(hash?.as_bytes());
    }
    if !reading.is_empty() {
        update_framed(&mut key, reading);
    }
    Ok(Fingerprint { key: key.finalize(), raw_bytes: total, mode, stamps })
}

impl Fingerprint {
    /// Errors: `ChangedWhileRead` if a file changed after it was hashed.
    pub(crate) fn check_unchanged(&self, sources: &Sources) -> Result<(), DataError> {
        for (file, before) in sources.files.iter().zip(&self.stamps) {
            if stamp(&metadata(file)?) != *before {
                return Err(DataError::ChangedWhileRead { path: file.path.clone() });
            }
        }
        Ok(())
    }
}

fn metadata(file: &Source) -> Result<Metadata, DataError> {
    fs::metadata(&file.path).map_err(|error| DataError::unreadable(&file.path, error))
}

fn stamp(metadata: &Metadata) -> Stamp {
    (metadata.len(), metadata.modified().ok())
}

/// Readable by all users if all of these files are, otherwise by the owner only: a new file may have a different group.
fn strictest_mode(files: &[Metadata]) -> u32 {
    #[cfg(unix)]
    if files.iter().any(|file| std::os::unix::fs::PermissionsExt::mode(&file.permissions()) & 0o004 == 0) {
        return 0o600;
    }
    #[cfg(not(unix))]
    let _ = files;
    0o644
}

fn limited(file: &Source, bytes: u64) -> u64 {
    file.limit.map_or(bytes, |limit| limit.0.min(bytes))
}

fn hash_file(file: &Source, report: &(impl Fn(u64) + Sync)) -> Result<blake3::Hash, DataError> {
    let hash = || -> io::Result<blake3::Hash> {
        let mut reader = plimsoll_files::open_regular(&file.path)?.take(file.limit.map_or(u64::MAX, |limit| limit.0));
        let mut hasher = blake3::Hasher::new();
        let mut buffer = Vec::new();
        while reader.by_ref().take(BUFFER_BYTES as u64).read_to_end(&mut buffer)? > 0 {
            hasher.update_rayon(&buffer);
            report(buffer.len() as u64);
            buffer.clear();
        }
        Ok(hasher.finalize())
    };
    hash().map_err(|error| DataError::unreadable(&file.path, error))
}

fn update_framed(key: &mut blake3::Hasher, bytes: &[u8]) {
    key.update(&(bytes.len() as u64).to_le_bytes()).update(bytes);
}

fn format_code(format: Format) -> u8 {
    match format {
        Format::Text => 0,
        Format::JsonLines => 1,
        Format::Json => 2,
        Format::Parquet => 3,
    }
}

fn compression_code(compression: Compression) -> u8 {
    match compression {
        Compression::None => 0,
        Compression::Gzip => 1,
        Compression::Zstd => 2,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{TokenizerSpec, resolve};
    use std::collections::HashSet;
    use std::path::Path;

    fn key(folder: &Path, files: &[(&str, &str)], field: &str, spec: &TokenizerSpec) -> blake3::Hash {
        let write = |(name, text): &(&str, &str)| {
            let path = folder.join(name);
            fs::write(&path, text).unwrap();
            path.to_str().unwrap().to_owned()
        };
        let arguments: Vec<String> = files.iter().map(write).collect();
        let sources = resolve(&arguments, field).unwrap();
        fingerprint(&sources, &Tokenizer::open(spec).unwrap(), &[], &|_| {}).unwrap().key
    }

    #[test]
    fn only_what_changes_tokens_changes_the_key() {
        let (a, b) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let bytes = &TokenizerSpec::Bytes;
        let two = [("a.txt", "one"), ("b.txt", "two")];
        let base = key(a.path(), &two, "text", bytes);
        assert_eq!(base, key(b.path(), &[("x.md", "one"), ("y.rs", "two")], "text", bytes), "names and folders");
        let keys = [
            base,
            key(a.path(), &two, "text", &TokenizerSpec::Gpt2),
            key(a.path(), &two, "body", bytes),
            key(a.path(), &[("b.txt", "two"), ("a.txt", "one")], "text", bytes),
            key(a.path(), &[("a.txt", "onet"), ("b.txt", "wo")], "text", bytes),
            key(a.path(), &[("a.txt", "one")], "text", bytes),
            key(a.path(), &[("a.jsonl", "one"), ("b.txt", "two")], "text", bytes),
            key(a.path(), &[("a.gz", "one"), ("b.txt", "two")], "text", bytes),
        ];
        assert_eq!(keys.iter().collect::<HashSet<_>>().len(), keys.len());
    }

    #[test]
    fn a_change_is_detected() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.txt");
        fs::write(&path, "before").unwrap();
        let sources = resolve(&[path.to_str().unwrap()], "text").unwrap();
        let tokenizer = Tokenizer::open(&TokenizerSpec::Bytes).unwrap();
        let print = fingerprint(&sources, &tokenizer, &[], &|_| {}).unwrap();
        print.check_unchanged(&sources).unwrap();
        fs::write(&path, "before and after").unwrap();
        assert!(matches!(print.check_unchanged(&sources), Err(DataError::ChangedWhileRead { .. })));
    }
}
