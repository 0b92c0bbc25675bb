//! The cache in the layout of the Hugging Face hub's tools, so that they find downloaded files:
//!
//! ```text
//!     models--organization--name/blobs/ETAG                     a file's bytes; ETAG.incomplete during the download
//!     models--organization--name/snapshots/COMMIT/config.json   a link to them
//!     models--organization--name/refs/main                      the commit
//!     .locks/models--organization--name/ETAG.lock               locked by the process that fetches it
//! ```
//!
//! Source: huggingface_hub, "Understand caching".

use crate::client::{Hash, RemoteFile};
use crate::error::HubError;
use plimsoll_files::{open_regular, sync_folder, write_whole};
use ring::digest::{Context, SHA1_FOR_LEGACY_USE_ONLY, SHA256};
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// Bytes that are read or written at a time.
const CHUNK: usize = 1 << 18;

/// Partial files are kept this long after their last byte arrived.
const PART_AGE: Duration = Duration::from_secs(24 * 3600);

/// A model's place in the cache.
#[derive(Debug)]
pub(crate) struct Store {
    model: PathBuf,
    locks: PathBuf,
}

/// A file that is being fetched under its lock, so that no other process fetches it.
#[derive(Debug)]
pub(crate) struct Partial {
    path: PathBuf,
    file: File,
    size: u64,
    _lock: File,
}

impl Store {
    pub(crate) fn new(cache: &Path, model: &str) -> Self {
        let folder = format!("models--{}", model.replace('/', "--"));
        Self { locks: cache.join(".locks").join(&folder), model: cache.join(folder) }
    }

    fn blob(&self, file: &RemoteFile) -> PathBuf {
        self.model.join("blobs").join(&file.etag)
    }

    fn incomplete(&self, file: &RemoteFile) -> PathBuf {
        self.model.join("blobs").join(format!("{}.incomplete", file.etag))
    }

    /// Whether a file is complete. A file that can't be verified is fetched again, since other contents may have its name.
    pub(crate) fn has(&self, file: &RemoteFile) -> bool {
        file.hash().is_some() && length(&self.blob(file)) == Some(file.size.0)
    }

    /// The number of bytes of a file on disk.
    pub(crate) fn held(&self, file: &RemoteFile) -> u64 {
        if self.has(file) {
            return file.size.0;
        }
        let part = length(&self.incomplete(file)).filter(|&length| length <= file.size.0 && file.hash().is_some());
        part.unwrap_or(0)
    }

    /// The partial file, under its lock; `None` if the file is complete. `waits` is called if another process has the lock.
    /// Errors: the system refuses the folders, the lock or the file.
    pub(crate) fn partial(&self, file: &RemoteFile, waits: impl FnOnce()) -> Result<Option<Partial>, HubError> {
        let (blobs, lock) = (self.model.join("blobs"), self.locks.join(format!("{}.lock", file.etag)));
        fs::create_dir_all(&blobs).map_err(at(&blobs))?;
        fs::create_dir_all(&self.locks).map_err(at(&self.locks))?;
        let held = OpenOptions::new().write(true).create(true).truncate(false).open(&lock).map_err(at(&lock))?;
        match held.try_lock() {
            Err(TryLockError::WouldBlock) => {
                waits();
                held.lock().map_err(at(&lock))?;
            }
            // Some network file systems have no locks.
            Err(TryLockError::Error(error)) if error.kind() != io::ErrorKind::Unsupported => {
                return Err(at(&lock)(error));
            }
            _ => {}
        }
        if self.has(file) {
            return Ok(None);
        }
        let path = self.incomplete(file);
        let opened = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path);
        let opened = opened.map_err(at(&path))?;
        let partial = Partial { path, file: opened, size: file.size.0, _lock: held };
        // In a file that can't be verified, a mix of different contents would not be detected.
        if partial.held()? > partial.size || file.hash().is_none() {
            partial.restart()?;
        }
        Ok(Some(partial))
    }

    /// Gives a complete file its name. Errors: `Damaged` if its bytes differ from the hub's description, and it is
    /// deleted then; the system's error.
    pub(crate) fn finish(&self, partial: Partial, file: &RemoteFile) -> Result<(), HubError> {
        let found = partial.held()?;
        let problem = match found == file.size.0 {
            false => Some(format!("it has {found} bytes instead of {}", file.size.0)),
            true => wrong_hash(&partial.path, file)?,
        };
        if let Some(problem) = problem {
            fs::remove_file(&partial.path).map_err(at(&partial.path))?;
            return Err(HubError::Damaged { file: file.name.clone(), problem });
        }
        partial.file.sync_all().map_err(at(&partial.path))?;
        let blob = self.blob(file);
        fs::rename(&partial.path, &blob).map_err(at(&blob))
    }

    /// Links files under their names at a commit, and points the main branch to it. Until then no program sees any of them.
    pub(crate) fn publish(&self, commit: &str, files: &[RemoteFile]) -> Result<PathBuf, HubError> {
        let snapshot = self.model.join("snapshots").join(commit);
        fs::create_dir_all(&snapshot).map_err(at(&snapshot))?;
        for file in files {
            let link = snapshot.join(&file.name);
            match fs::remove_file(&link) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(at(&link)(error)),
                _ => show(&self.blob(file), &file.etag, &link).map_err(at(&link))?,
            }
        }
        sync_folder(&self.model.join("blobs")).and_then(|()| sync_folder(&snapshot)).map_err(at(&snapshot))?;
        let refs = self.model.join("refs");
        fs::create_dir_all(&refs).map_err(at(&refs))?;
        write_whole(&refs.join("main"), commit.as_bytes()).map_err(at(&refs))?;
        self.remove_old_parts(SystemTime::now());
        Ok(snapshot)
    }

    /// Removes partial files that no process has extended for a day: those of older commits are never continued. A file that can't be
    /// removed stays.
    fn remove_old_parts(&self, now: SystemTime) {
        for entry in fs::read_dir(self.model.join("blobs")).into_iter().flatten().flatten() {
            let name = entry.file_name();
            let Some(etag) = name.to_str().and_then(|name| name.strip_suffix(".incomplete")) else { continue };
            let written = entry.metadata().and_then(|found| found.modified());
            let is_old = written.is_ok_and(|time| now.duration_since(time).is_ok_and(|age| age > PART_AGE));
            let lock = File::open(self.locks.join(format!("{etag}.lock")));
            let is_locked = lock.is_ok_and(|lock| matches!(lock.try_lock(), Err(TryLockError::WouldBlock)));
            if is_old && !is_locked {
                let _ = fs::remove_file(entry.path());
            }
        }
    }
}

impl Partial {
    /// Bytes on disk.
    pub(crate) fn held(&self) -> Result<u64, HubError> {
        Ok(self.file.metadata().map_err(at(&self.path))?.len())
    }

    /// Discards the bytes on disk.
    pub(crate) fn restart(&self) -> Result<(), HubError> {
        self.file.set_len(0).map_err(at(&self.path))
    }

    /// Appends the received bytes, up to the file's size plus one, which shows that it is too long. `tell` receives the number of bytes
    /// that arrived. Errors: `Io` for a failed write; the inner error for a failed read.
    pub(crate) fn append(
        &mut self,
        body: &mut impl Read,
        mut tell: impl FnMut(u64),
    ) -> Result<io::Result<()>, HubError> {
        let held = self.file.seek(SeekFrom::End(0)).map_err(at(&self.path))?;
        let mut body = body.take((self.size - held).saturating_add(1));
        let mut chunk = vec![0; CHUNK];
        loop {
            let n = match body.read(&mut chunk) {
                Ok(0) => return Ok(Ok(())),
                Ok(n) => n,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Ok(Err(error)),
            };
            self.file.write_all(&chunk[..n]).map_err(at(&self.path))?;
            tell(n as u64);
        }
    }
}

/// How the bytes of a file differ from the hash in its ETag; `None` if they agree or the ETag has no known hash.
fn wrong_hash(path: &Path, file: &RemoteFile) -> Result<Option<String>, HubError> {
    let mut hash = match file.hash() {
        Some(Hash::Sha256) => Context::new(&SHA256),
        Some(Hash::Git) => {
            let mut hash = Context::new(&SHA1_FOR_LEGACY_USE_ONLY);
            hash.update(format!("blob {}\0", file.size.0).as_bytes());
            hash
        }
        None => return Ok(None),
    };
    let mut opened = open_regular(path).map_err(at(path))?;
    let mut chunk = vec![0; CHUNK];
    loop {
        match opened.read(&mut chunk).map_err(at(path))? {
            0 => break,
            n => hash.update(&chunk[..n]),
        }
    }
    let found = hash.finish().as_ref().iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let is_right = found.eq_ignore_ascii_case(&file.etag);
    Ok((!is_right).then(|| format!("its hash is {found} instead of {}", file.etag)))
}

/// Makes a file's bytes appear under its name.
#[cfg(unix)]
fn show(_: &Path, etag: &str, link: &Path) -> io::Result<()> {
    std::os::unix::fs::symlink(Path::new("../../blobs").join(etag), link)
}

#[cfg(not(unix))]
fn show(blob: &Path, _: &str, link: &Path) -> io::Result<()> {
    fs::hard_link(blob, link)
}

fn length(path: &Path) -> Option<u64> {
    path.metadata().ok().filter(fs::Metadata::is_file).map(|found| found.len())
}

pub(crate) fn at(path: &Path) -> impl FnOnce(io::Error) -> HubError {
    move |source| HubError::Io { path: path.to_owned(), source }
}
