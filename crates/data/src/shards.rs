//! Tokenizes the data once and keeps the tokens: `CACHE/KEY.tokens`, one file a key, where the key names data and
//! tokenizer (`fingerprint.rs`).
//! Not here: the file's layout (`header.rs`), reading it (`store.rs`), where documents are cut (`pieces.rs`).
//!
//! A cache is written under a name of its own, synced, and renamed into place, so that neither a crash nor a second
//! process ever shows a broken one; of two processes that build the same, the last rename wins, and both files are the
//! same. Text passes through in groups, so memory does not grow with the data.

use crate::documents::{Piece, PieceReader};
use crate::fingerprint::{Fingerprint, fingerprint};
use crate::header::{HEADER_BYTES, Header, token_bytes_for};
use crate::pieces::PIECE_BYTES_MAX;
use crate::store::{OpenError, TokenStore, append_tokens};
use crate::{Damage, DataError, EncodeError, Progress, Sources, Tokenizer};
use rayon::prelude::*;
use std::fs::{self, File};
use std::io::{self, BufWriter, Seek, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// What a build that died leaves behind is removed when it is this old. A build that lives writes all the time.
const ABANDONED: Duration = Duration::from_secs(24 * 3600);
const UNFINISHED: &str = "unfinished";

/// The tokens of the data: from the cache where they are there and whole, else tokenized on all cores of the current
/// rayon pool. They do not depend on the number of threads. After each document comes the tokenizer's separator, where
/// it has one; documents without text are left out.
/// Errors: what reading and tokenizing can meet, `Empty`, `CacheUnwritable`, `CacheUnreadable`, `CacheDamaged`.
pub fn prepare(
    sources: &Sources,
    tokenizer: &Tokenizer,
    cache_folder: &Path,
    progress: &(dyn Fn(Progress<'_>) + Sync),
) -> Result<TokenStore, DataError> {
    let print = fingerprint(sources, tokenizer, progress)?;
    let path = cache_folder.join(format!("{}.tokens", print.key.to_hex()));
    match TokenStore::open(&path, &print.key) {
        Ok(store) => {
            progress(Progress::CacheHit { path: &path });
            return Ok(store);
        }
        Err(OpenError::Absent) => {}
        Err(OpenError::Damaged(damage)) => progress(Progress::CacheDamaged { path: &path, damage: &damage }),
        Err(OpenError::Unreadable(source)) => return Err(DataError::CacheUnreadable { path, source }),
    }
    let job = Build { sources, tokenizer, print: &print, folder: cache_folder };
    let tokens = job.run(&path, progress)?;
    let store = TokenStore::open(&path, &print.key).map_err(|error| match error {
        OpenError::Damaged(damage) => DataError::CacheDamaged { path: path.clone(), damage },
        OpenError::Absent => {
            DataError::CacheDamaged { path: path.clone(), damage: Damage::NoHeader { found_bytes: 0 } }
        }
        OpenError::Unreadable(source) => DataError::CacheUnreadable { path: path.clone(), source },
    })?;
    progress(Progress::Written { path: &path, tokens });
    Ok(store)
}

struct Build<'a> {
    sources: &'a Sources,
    tokenizer: &'a Tokenizer,
    print: &'a Fingerprint,
    folder: &'a Path,
}

impl Build<'_> {
    /// Writes the cache to `path` and returns how many tokens it has.
    fn run(&self, path: &Path, progress: &(dyn Fn(Progress<'_>) + Sync)) -> Result<u64, DataError> {
        fs::create_dir_all(self.folder).map_err(|error| self.unwritable(error))?;
        remove_abandoned(self.folder);
        let unfinished = Unfinished::beside(path);
        let mut writer = CacheWriter::create(&unfinished.0, self.tokenizer).map_err(|error| self.unwritable(error))?;
        let mut reader = PieceReader::new(self.sources);
        loop {
            let group = reader.next_group(group_bytes())?;
            if group.is_empty() {
                break;
            }
            let encoded: Vec<_> = group.par_iter().map(|piece| self.tokenizer.encode_piece(&piece.text)).collect();
            for (piece, ids) in group.iter().zip(encoded) {
                let ids = ids.map_err(|error| self.encode_error(piece, error))?;
                writer.write(piece, &ids).map_err(|error| self.unwritable(error))?;
            }
            let (done, tokens) = (reader.raw_bytes(), writer.header.tokens);
            progress(Progress::Tokenizing { done, total: self.print.raw_bytes, tokens });
        }
        self.print.check_unchanged(self.sources)?;
        if writer.header.text_bytes == 0 {
            let first = self.sources.files[0].path.clone();
            return Err(DataError::Empty { files: self.sources.files.len(), first });
        }
        let tokens = writer.finish(&self.print.key).map_err(|error| self.unwritable(error))?;
        fs::rename(&unfinished.0, path)
            .and_then(|()| sync_folder(self.folder))
            .map_err(|error| self.unwritable(error))?;
        Ok(tokens)
    }

    fn unwritable(&self, source: io::Error) -> DataError {
        DataError::CacheUnwritable { folder: self.folder.to_owned(), source }
    }

    fn encode_error(&self, piece: &Piece, error: EncodeError) -> DataError {
        let path = self.sources.files[piece.source].path.clone();
        match error {
            EncodeError::NotUtf8 { offset } => DataError::NotUtf8 { path, offset: piece.offset + offset },
            EncodeError::Failed { message } => DataError::TokenizerFailed { path, message },
        }
    }
}

/// How much text is tokenized at a time: four pieces a thread, so that all have work, and at least 8 MiB. What the
/// tokens are does not depend on it. With its tokens it takes up to five times as much memory.
fn group_bytes() -> usize {
    (4 * PIECE_BYTES_MAX * rayon::current_num_threads()).max(8 << 20)
}

/// Writes tokens behind a header that is filled in last.
struct CacheWriter {
    file: BufWriter<File>,
    hasher: blake3::Hasher,
    header: Header,
    separator: Option<u32>,
}

impl CacheWriter {
    fn create(path: &Path, tokenizer: &Tokenizer) -> io::Result<Self> {
        let mut file = BufWriter::new(File::create_new(path)?);
        file.write_all(&[0; HEADER_BYTES])?;
        let vocab_size = tokenizer.vocab_size() as u64;
        let token_bytes = token_bytes_for(vocab_size);
        let header = Header { token_bytes, vocab_size, tokens: 0, text_bytes: 0, tokens_hash: [0; 32], key: [0; 32] };
        Ok(Self { file, hasher: blake3::Hasher::new(), header, separator: tokenizer.separator() })
    }

    fn write(&mut self, piece: &Piece, ids: &[u32]) -> io::Result<()> {
        let separator = self.separator.as_slice();
        let separator = if piece.ends_document { separator } else { &[] };
        let mut bytes = Vec::new();
        for tokens in [ids, separator] {
            append_tokens(tokens, self.header.vocab_size as usize, self.header.token_bytes, &mut bytes);
            self.header.tokens += tokens.len() as u64;
        }
        self.header.text_bytes += piece.text.len() as u64;
        self.hasher.update(&bytes);
        self.file.write_all(&bytes)
    }

    fn finish(mut self, key: &blake3::Hash) -> io::Result<u64> {
        self.header.tokens_hash = *self.hasher.finalize().as_bytes();
        self.header.key = *key.as_bytes();
        self.file.rewind()?;
        self.file.write_all(&self.header.to_bytes())?;
        self.file.into_inner().map_err(io::IntoInnerError::into_error)?.sync_all()?;
        Ok(self.header.tokens)
    }
}

/// The name under which a cache is written; removed when dropped, which does nothing once it is renamed.
struct Unfinished(PathBuf);

impl Unfinished {
    fn beside(path: &Path) -> Self {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        Self(path.with_extension(format!("{}-{count}.{UNFINISHED}", std::process::id())))
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

/// Removes what builds left behind that were killed. Best effort: nothing depends on it.
fn remove_abandoned(folder: &Path) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    for path in entries.flatten().map(|entry| entry.path()).filter(|p| p.extension().is_some_and(|e| e == UNFINISHED)) {
        let age = path.metadata().and_then(|metadata| metadata.modified()).ok().and_then(|time| time.elapsed().ok());
        if age.is_some_and(|age| age > ABANDONED) {
            let _ = fs::remove_file(path);
        }
    }
}

/// Makes a rename outlive a power cut. Only Unix can sync a folder.
fn sync_folder(folder: &Path) -> io::Result<()> {
    if cfg!(unix) { File::open(folder)?.sync_all() } else { Ok(()) }
}
