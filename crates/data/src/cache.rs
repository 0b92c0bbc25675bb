//! Cache files: found by key, built if absent, and renamed into place whole.
//! Not here: their contents (`shards.rs`, `pairs/prepare.rs`) and their layout (`header.rs`).
//!
//! A cache is written under a unique temporary name, synced, and renamed into place, so that neither a crash nor a
//! second process exposes a partial cache. If two processes, on one machine or several, build the same cache, the last
//! rename wins; both files are identical. A cache is readable by no more users than the data is: see [`Cache::mode`].

use crate::header::{CacheKind, HEADER_BYTES, Header, token_bytes_for};
use crate::store::{OpenError, append_tokens};
use crate::{Damage, DataError, Progress};
use std::fs::{self, File};
use std::io::{self, BufWriter, Read, Seek, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Temporary files older than this are left over from a killed build and are removed. A running build writes
/// continuously.
const ABANDONED: Duration = Duration::from_secs(24 * 3600);
const UNFINISHED: &str = "unfinished";

/// The file `FOLDER/KEY.EXTENSION`.
pub(crate) struct Cache<'a> {
    pub folder: &'a Path,
    pub key: &'a blake3::Hash,
    pub extension: &'static str,
    /// The permissions of the file, at most those of the data. A folder created for the cache is private to its user.
    pub mode: u32,
}

impl Cache<'_> {
    /// Returns what `open` reads from the file. Calls `build` first if the file is absent or damaged; `build` returns
    /// the number of tokens it wrote.
    /// Errors: the errors of `build`; `CacheUnwritable`, `CacheUnreadable`, `CacheDamaged`.
    pub(crate) fn open_or_build<T>(
        &self,
        open: impl Fn(&Path, &blake3::Hash) -> Result<T, OpenError>,
        build: impl FnOnce(&File) -> Result<u64, DataError>,
        progress: &(dyn Fn(Progress<'_>) + Sync),
    ) -> Result<T, DataError> {
        let path = self.folder.join(format!("{}.{}", self.key.to_hex(), self.extension));
        match open(&path, self.key) {
            Ok(opened) => {
                self.tighten(&path);
                progress(Progress::CacheHit { path: &path });
                return Ok(opened);
            }
            Err(OpenError::Absent) => {}
            Err(OpenError::Damaged(damage)) => progress(Progress::CacheDamaged { path: &path, damage: &damage }),
            Err(OpenError::Unreadable(source)) => return Err(DataError::CacheUnreadable { path, source }),
        }
        let tokens = self.install(&path, build)?;
        let opened = open(&path, self.key).map_err(|error| match error {
            OpenError::Damaged(damage) => DataError::CacheDamaged { path: path.clone(), damage },
            OpenError::Absent => {
                DataError::CacheDamaged { path: path.clone(), damage: Damage::NoHeader { found_bytes: 0 } }
            }
            OpenError::Unreadable(source) => DataError::CacheUnreadable { path: path.clone(), source },
        })?;
        progress(Progress::Written { path: &path, tokens });
        Ok(opened)
    }

    fn install(&self, path: &Path, build: impl FnOnce(&File) -> Result<u64, DataError>) -> Result<u64, DataError> {
        create_private_folder(self.folder).map_err(|error| self.unwritable(error))?;
        remove_abandoned(self.folder);
        let (unfinished, file) = Unfinished::create(path, self.mode).map_err(|error| self.unwritable(error))?;
        let tokens = build(&file)?;
        file.sync_all()
            .and_then(|()| unfinished.rename_to(path))
            .and_then(|()| plimsoll_files::sync_folder(self.folder))
            .map_err(|error| self.unwritable(error))?;
        Ok(tokens)
    }

    /// An unlinked temporary file for data collected while the cache is built. The system removes it when it is closed.
    /// Errors: `CacheUnwritable`.
    pub(crate) fn scratch(&self) -> Result<File, DataError> {
        let path = self.folder.join(format!("{}.{}", self.key.to_hex(), self.extension));
        // Only the name is removed here; the file lasts while it is open.
        Unfinished::create(&path, 0o600).map(|(_, file)| file).map_err(|error| self.unwritable(error))
    }

    /// Removes permissions that the data does not grant, for a cache built from a more permissive copy. Best effort:
    /// another user may own the file.
    fn tighten(&self, path: &Path) {
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt;
            let found = path.metadata().map_or(0, |metadata| metadata.permissions().mode() & 0o777);
            if found & !self.mode != 0 {
                let _ = fs::set_permissions(path, fs::Permissions::from_mode(found & self.mode));
            }
        }
        #[cfg(not(unix))]
        let _ = path;
    }

    pub(crate) fn unwritable(&self, source: io::Error) -> DataError {
        DataError::CacheUnwritable { folder: self.folder.to_owned(), source }
    }
}

/// Writes a header placeholder, tokens, and the data after them. The header is filled in last.
pub(crate) struct CacheWriter<W: Write + Seek> {
    file: BufWriter<W>,
    hasher: blake3::Hasher,
    header: Header,
    /// Bytes of text that the tokens encode; the caller updates it.
    pub text_bytes: u64,
}

impl<W: Write + Seek> CacheWriter<W> {
    pub(crate) fn create(file: W, kind: CacheKind, vocab_size: usize) -> io::Result<Self> {
        let mut file = BufWriter::new(file);
        file.write_all(&[0; HEADER_BYTES])?;
        let vocab_size = vocab_size as u64;
        let token_bytes = token_bytes_for(vocab_size);
        let header =
            Header { kind, token_bytes, vocab_size, tokens: 0, text_bytes: 0, tokens_hash: [0; 32], key: [0; 32] };
        Ok(Self { file, hasher: blake3::Hasher::new(), header, text_bytes: 0 })
    }

    /// Tokens written so far.
    pub(crate) fn tokens(&self) -> u64 {
        self.header.tokens
    }

    pub(crate) fn write_tokens(&mut self, ids: &[u32]) -> io::Result<()> {
        let mut bytes = Vec::new();
        append_tokens(ids, self.header.vocab_size as usize, self.header.token_bytes, &mut bytes);
        self.header.tokens += ids.len() as u64;
        self.write_bytes(&bytes)
    }

    pub(crate) fn write_bytes(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.hasher.update(bytes);
        self.file.write_all(bytes)
    }

    /// Appends data collected in another file.
    pub(crate) fn append(&mut self, collected: BufWriter<impl Read + Write + Seek>) -> io::Result<()> {
        let mut collected = collected.into_inner().map_err(io::IntoInnerError::into_error)?;
        collected.rewind()?;
        let mut buffer = vec![0; 1 << 16];
        loop {
            match collected.read(&mut buffer)? {
                0 => return Ok(()),
                count => self.write_bytes(&buffer[..count])?,
            }
        }
    }

    /// Fills in the header. The file is flushed, not synced.
    pub(crate) fn finish(mut self, key: &blake3::Hash) -> io::Result<W> {
        self.header.text_bytes = self.text_bytes;
        self.header.tokens_hash = *self.hasher.finalize().as_bytes();
        self.header.key = *key.as_bytes();
        self.file.rewind()?;
        self.file.write_all(&self.header.to_bytes())?;
        self.file.into_inner().map_err(io::IntoInnerError::into_error)
    }
}

/// The unique temporary name of a cache that is being written; the file is removed on drop unless it was renamed.
struct Unfinished(Option<PathBuf>);

impl Unfinished {
    /// Creates the file in the folder of `path`.
    fn create(path: &Path, mode: u32) -> io::Result<(Self, File)> {
        let (path, file) = plimsoll_files::create_unique(path, UNFINISHED, mode)?;
        Ok((Self(Some(path)), file))
    }

    fn rename_to(mut self, path: &Path) -> io::Result<()> {
        let from = self.0.as_deref().expect("it was not renamed before");
        fs::rename(from, path)?;
        // After the rename, another process may use the name.
        self.0 = None;
        Ok(())
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        if let Some(path) = &self.0 {
            let _ = fs::remove_file(path);
        }
    }
}

/// Creates a folder and its missing parents, private to the user.
fn create_private_folder(folder: &Path) -> io::Result<()> {
    let mut builder = fs::DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(folder)
}

/// Removes temporary files of killed builds. Best effort: nothing depends on it.
fn remove_abandoned(folder: &Path) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    for path in entries.flatten().map(|entry| entry.path()).filter(|p| p.extension().is_some_and(|e| e == UNFINISHED)) {
        let age = path.metadata().and_then(|metadata| metadata.modified()).ok().and_then(|time| time.elapsed().ok());
        if age.is_some_and(|age| age > ABANDONED) {
            let _ = fs::remove_file(path);
        }
    }
}
