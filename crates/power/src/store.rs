//! Stores records of cards' old values: one file per card, in a folder that only its user can read. Readers and writers
//! lock the folder, so that two runs never mistake each other's values for a card's own.

use crate::record::{Record, RecordError};
use plimsoll_files::{FolderLock, LockError, UNFINISHED, create_unique, read_text, remove_leftovers, sync_folder};
use plimsoll_units::Bytes;
use std::fs;
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;
use std::time::SystemTime;

/// Size limit of a record; real ones are far smaller.
const MAX_RECORD: Bytes = Bytes(64 << 10);

/// Limit on the number of records to read.
const MAX_CARDS: usize = 1024;

/// How often, and how long, to wait for another process that holds the folder.
const TRIES: u32 = 100;
const PAUSE: Duration = Duration::from_millis(20);

/// A folder of records.
#[derive(Debug, Clone)]
pub struct Store {
    folder: PathBuf,
}

impl Store {
    /// A store in this folder, which need not exist.
    pub fn new(folder: impl Into<PathBuf>) -> Self {
        Self { folder: folder.into() }
    }

    /// Creates and locks the folder. Errors: it can't be created or locked.
    pub(crate) fn lock(&self) -> Result<FolderLock, RecordError> {
        self.make_folder().map_err(|source| RecordError::Io { path: self.folder.clone(), source })?;
        for _ in 0..TRIES {
            match FolderLock::take(&self.folder) {
                Err(LockError::InUse { .. }) => std::thread::sleep(PAUSE),
                Err(LockError::Io { path, source }) => return Err(RecordError::Io { path, source }),
                Ok(lock) => return Ok(lock),
            }
        }
        Err(RecordError::Busy { path: self.folder.clone() })
    }

    fn make_folder(&self) -> io::Result<()> {
        let mut builder = fs::DirBuilder::new();
        builder.recursive(true);
        #[cfg(unix)]
        std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
        builder.create(&self.folder)
    }

    /// The cards with a record; none if the folder does not exist. Errors: the folder can't be read.
    pub(crate) fn cards(&self) -> Result<Vec<String>, RecordError> {
        let entries = match fs::read_dir(&self.folder) {
            Ok(entries) => entries,
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => return Ok(vec![]),
            Err(source) => return Err(RecordError::Io { path: self.folder.clone(), source }),
        };
        let names = entries.take(MAX_CARDS).flatten().map(|entry| entry.path());
        let records = names.filter(|path| path.extension().is_some_and(|extension| extension == "json"));
        let stem = |path: PathBuf| path.file_stem().and_then(|stem| stem.to_str()).map(str::to_owned);
        let mut cards = records.filter_map(stem).filter(|card| is_plain(card)).collect::<Vec<_>>();
        cards.sort();
        Ok(cards)
    }

    /// The file of a card. Errors: its UUID is not a valid file name.
    pub(crate) fn path(&self, card: &str) -> Result<PathBuf, RecordError> {
        if is_plain(card) {
            Ok(self.folder.join(format!("{card}.json")))
        } else {
            Err(RecordError::BadName { card: card.to_owned() })
        }
    }

    /// A card's record; `None` if there is none. Errors: it can't be read, or is damaged.
    pub(crate) fn read(&self, card: &str) -> Result<Option<Record>, RecordError> {
        let path = self.path(card)?;
        let text = match read_text(&path, MAX_RECORD) {
            Ok(text) => text,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(source) => return Err(RecordError::Io { path, source }),
        };
        let damaged = |reason: String| RecordError::Damaged { path: path.clone(), reason };
        let record = serde_json::from_str::<Record>(&text).map_err(|error| damaged(error.to_string()))?;
        match record.problem(card) {
            Some(problem) => Err(damaged(problem.to_owned())),
            None => Ok(Some(record)),
        }
    }

    /// Writes a record atomically and syncs it. Errors: the disk fails.
    pub(crate) fn write(&self, record: &Record) -> Result<(), RecordError> {
        let path = self.path(&record.card)?;
        let text = serde_json::to_vec_pretty(record).expect("plain data");
        self.replace(&path, &text).map_err(|source| RecordError::Io { path, source })
    }

    fn replace(&self, path: &Path, text: &[u8]) -> io::Result<()> {
        remove_leftovers(path, SystemTime::now());
        let (unfinished, mut file) = create_unique(path, UNFINISHED, 0o600)?;
        let written = file.write_all(text).and_then(|()| file.sync_all()).and_then(|()| fs::rename(&unfinished, path));
        if written.is_err() {
            // Report the first error rather than a failure to remove the partial file.
            let _ = fs::remove_file(&unfinished);
        }
        written?;
        sync_folder(&self.folder)
    }

    /// Removes a card's record. Errors: it can't be removed.
    pub(crate) fn remove(&self, card: &str) -> Result<(), RecordError> {
        let path = self.path(card)?;
        match fs::remove_file(&path) {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
            result => {
                result.and_then(|()| sync_folder(&self.folder)).map_err(|source| RecordError::Io { path, source })
            }
        }
    }
}

/// Whether a UUID has NVML's format, and so is not a path.
fn is_plain(card: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '-';
    (1..=96).contains(&card.len()) && card.chars().all(plain)
}
