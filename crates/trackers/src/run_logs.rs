//! The folder of a run's logs, and the run's ids in the trackers, so that a resumed session continues them.

use plimsoll_files::{Disk, FolderLock, LockError, is_there, read_text};
use plimsoll_units::Bytes;
use serde::{Deserialize, Serialize};
use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::io;
use std::path::{Path, PathBuf};

/// The file of ids.
const FILE: &str = "run.json";

const BYTES_MAX: Bytes = Bytes::mib(1);

/// Maximum number of runs with one name in a folder of logs.
const SAME_NAME: u32 = 10_000;

/// A folder of logs, locked by this process.
#[derive(Debug)]
pub(crate) struct RunLogs {
    pub(crate) folder: PathBuf,
    pub(crate) ids: Ids,
    _lock: FolderLock,
}

/// The identity of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Ids {
    /// The run's own folder: another run with the same name has other logs.
    pub(crate) run: PathBuf,
    /// W&B's id, eight letters.
    pub(crate) wandb: String,
    /// MLflow's id, 32 hexadecimal digits.
    pub(crate) mlflow: String,
    /// Start of its first session: seconds since 1970, UTC.
    pub(crate) began_s: f64,
}

impl RunLogs {
    /// Uses `folder`, or, if it has another run's logs, `folder-2` and so on.
    /// Errors: the system refuses it, or another process is using it.
    pub(crate) fn take(disk: &Disk, folder: &Path, run: &Path, time_s: f64) -> io::Result<Self> {
        // An absolute path does not depend on the working folder.
        let run = run.canonicalize().or_else(|_| std::path::absolute(run))?;
        for number in 1..=SAME_NAME {
            let folder = match (number, folder.file_name()) {
                (2.., Some(name)) => folder.with_file_name(format!("{}-{number}", name.to_string_lossy())),
                _ => folder.to_owned(),
            };
            let known = if is_there(&folder)? { read(&folder) } else { None };
            if known.as_ref().is_some_and(|ids| ids.run != run) {
                continue;
            }
            disk.create_folders(&folder)?;
            let lock = FolderLock::take(&folder).map_err(|error| match error {
                LockError::Io { source, .. } => source,
                in_use @ LockError::InUse { .. } => io::Error::new(io::ErrorKind::ResourceBusy, in_use.to_string()),
            })?;
            let ids = match known {
                Some(ids) => ids,
                None => {
                    let ids = Ids::new(run, time_s);
                    disk.replace(&folder.join(FILE), &serde_json::to_vec_pretty(&ids)?)?;
                    ids
                }
            };
            return Ok(Self { folder, ids, _lock: lock });
        }
        Err(io::Error::new(
            io::ErrorKind::AlreadyExists,
            format!("{} has too many runs with this name", folder.display()),
        ))
    }

    /// Stores the ids for later sessions.
    pub(crate) fn keep(&self, disk: &Disk, ids: &Ids) -> io::Result<()> {
        disk.replace(&self.folder.join(FILE), &serde_json::to_vec_pretty(ids)?)
    }
}

/// The ids stored in a folder; `None` if the file is damaged or has invalid ids.
fn read(folder: &Path) -> Option<Ids> {
    let text = read_text(&folder.join(FILE), BYTES_MAX).ok()?;
    let ids = serde_json::from_str::<Ids>(&text).ok()?;
    let is_plain = |id: &str, most: usize| {
        (1..=most).contains(&id.len()) && id.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit())
    };
    (is_plain(&ids.wandb, 64) && is_plain(&ids.mlflow, 64) && ids.began_s.is_finite()).then_some(ids)
}

impl Ids {
    fn new(run: PathBuf, began_s: f64) -> Self {
        // The standard library's random state suffices, since nothing here is a secret.
        let random = || RandomState::new().build_hasher().finish();
        let letters = b"abcdefghijklmnopqrstuvwxyz0123456789";
        let mut left = random();
        let wandb = std::iter::repeat_with(|| {
            let letter = letters[(left % 36) as usize];
            left /= 36;
            char::from(letter)
        });
        Self { run, wandb: wandb.take(8).collect(), mlflow: format!("{:016x}{:016x}", random(), random()), began_s }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_resumed_run_gets_its_folder_and_another_of_its_name_does_not() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let (disk, logs) = (Disk::default(), folder.path().join("logs/nano"));
        let runs = ["a", "b"].map(|name| folder.path().join(name));
        runs.iter().for_each(|run| std::fs::create_dir(run).expect("a folder"));
        let first = RunLogs::take(&disk, &logs, &runs[0], 5.0).expect("a free folder");
        let ids = first.ids.clone();
        assert!(RunLogs::take(&disk, &logs, &runs[0], 6.0).is_err(), "another process is using it");
        let other = RunLogs::take(&disk, &logs, &runs[1], 6.0).expect("a free folder");
        assert_eq!((first.folder.clone(), other.folder), (logs.clone(), folder.path().join("logs/nano-2")));
        assert_ne!(ids, other.ids);
        drop(first);
        assert_eq!(RunLogs::take(&disk, &logs, &runs[0], 7.0).expect("a free folder").ids, ids);
    }

    #[test]
    fn hostile_ids_are_ignored() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        for wandb in ["../../x", "", "a b", &"a".repeat(100)] {
            let ids = Ids { wandb: wandb.to_owned(), ..Ids::new(folder.path().to_owned(), 1.0) };
            std::fs::write(folder.path().join(FILE), serde_json::to_vec(&ids).expect("plain")).expect("written");
            assert_eq!(read(folder.path()), None);
        }
    }
}
