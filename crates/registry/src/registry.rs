//! The registry of runs. A file in each run's folder describes its processes, and a file in the user's state folder
//! contains the path of the run's folder, so that any command finds it.

use crate::entry::{Entry, LONGEST, RunState};
use plimsoll_files::{Disk, read_at_most};
use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// Where to look for runs.
#[derive(Debug, Clone)]
pub struct Registry {
    /// The folder of paths in the user's state folder; `None` if the user has none.
    pub state: Option<PathBuf>,
    /// A folder of runs.
    pub runs: PathBuf,
}

impl Registry {
    /// Adds a run. Errors: those of the system; the run can still be found by its folder.
    pub fn add(&self, entry: &Entry) -> io::Result<()> {
        entry.write()?;
        let Some(state) = &self.state else { return Ok(()) };
        let disk = Disk::default();
        disk.create_folders(state)?;
        for name in fs::read_dir(state).into_iter().flatten().flatten() {
            disk.remove_abandoned(&name.path(), SystemTime::now());
        }
        disk.replace(&state.join(&entry.token), entry.folder.as_os_str().as_bytes())
    }

    /// All runs, the oldest first. Removes paths of deleted folders.
    pub fn entries(&self) -> Vec<Entry> {
        let listed = |folder: &Path| {
            let entries = fs::read_dir(folder).into_iter().flatten().flatten();
            entries.map(|entry| entry.path()).collect::<Vec<_>>()
        };
        let mut found = listed(&self.runs).iter().filter_map(|folder| Entry::read(folder).ok()).collect::<Vec<_>>();
        for name in self.state.iter().flat_map(|state| listed(state)) {
            let Ok(folder) = read_at_most(&name, LONGEST) else { continue };
            match Entry::read(Path::new(OsStr::from_bytes(&folder))) {
                Ok(entry) if name.file_name() == Some(OsStr::new(&entry.token)) => found.push(entry),
                // A file that is being written starts with a dot.
                _ if name.file_name().is_some_and(|name| name.as_bytes().starts_with(b".")) => {}
                _ => drop(fs::remove_file(&name)),
            }
        }
        found.sort_by(|a, b| a.started_s.total_cmp(&b.started_s).then_with(|| a.token.cmp(&b.token)));
        found.dedup_by(|a, b| a.token == b.token);
        found
    }

    /// The run with this name or in this folder; `None` if there is none. Prefers running ones, then the newest.
    pub fn find(&self, name: &str) -> Option<Entry> {
        if let Ok(entry) = Entry::read(Path::new(name)) {
            return Some(entry);
        }
        let named = self.entries().into_iter().filter(|entry| entry.name() == name);
        // Prefer this user's runs to those of other users.
        named.max_by_key(|entry| {
            (entry.trusted().is_ok(), matches!(entry.state(), RunState::Running | RunState::Orphaned))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::entry::{Ended, FILE, RunKind};
    use crate::report::Status;
    use crate::worker::WorkerEntry;

    fn run(registry: &Registry, name: &str) -> Entry {
        let folder = registry.runs.join(name);
        fs::create_dir_all(&folder).expect("a folder");
        Entry::new(RunKind::Supervised, &folder.canonicalize().expect("it is there"), vec!["train".to_owned()])
    }

    #[test]
    fn runs_are_found_from_any_folder_until_their_folder_is_deleted() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let registry = Registry { state: Some(folder.path().join("state")), runs: folder.path().join("runs") };
        let entry = run(&registry, "a");
        registry.add(&entry).expect("entered");
        let elsewhere = Registry { runs: folder.path().join("other"), ..registry.clone() };
        for registry in [&registry, &elsewhere] {
            assert_eq!(registry.entries(), std::slice::from_ref(&entry));
            assert_eq!(registry.find("a"), Some(entry.clone()));
            assert_eq!(registry.find("b"), None);
        }
        assert_eq!(registry.find(entry.folder.to_str().expect("text")), Some(entry.clone()));
        fs::remove_dir_all(&entry.folder).expect("it was there");
        assert_eq!(elsewhere.entries(), []);
        assert_eq!(fs::read_dir(folder.path().join("state")).expect("a folder").count(), 0);
    }

    /// File names there are unique per run, so later writes do not replace leftovers of a crash.
    #[test]
    fn the_next_run_removes_leftovers_of_a_crash_from_the_state_folder() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let registry = Registry { state: Some(folder.path().join("state")), runs: folder.path().join("runs") };
        registry.add(&run(&registry, "a")).expect("entered");
        let state = folder.path().join("state");
        let [old, new] = [".0123.writing", ".4567.writing"].map(|name| state.join(name));
        for (path, age_s) in [(&old, 600), (&new, 0)] {
            let file = fs::File::create(path).expect("made");
            file.set_modified(SystemTime::now() - std::time::Duration::from_secs(age_s)).expect("set");
        }
        registry.add(&run(&registry, "b")).expect("entered");
        assert!(!old.exists() && new.exists());
        assert_eq!(registry.entries().len(), 2);
    }

    #[test]
    fn a_reused_process_id_is_not_the_run() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let registry = Registry { state: None, runs: folder.path().to_owned() };
        let mut entry = run(&registry, "a");
        assert_eq!(entry.state(), RunState::Running);
        // The process ID exists, but its process started at another time.
        entry.process.started = "1".to_owned();
        assert_eq!(entry.state(), RunState::Gone);
        let leader = entry.process.clone();
        entry.workers = vec![WorkerEntry { attempt: 1, leader: Some(leader), ..WorkerEntry::default() }];
        assert_eq!((entry.state(), entry.survivors()), (RunState::Gone, vec![]));
        entry.machine.boot = "another".to_owned();
        assert_eq!(entry.state(), RunState::Gone, "the machine was rebooted");
        entry.machine.host = "another".to_owned();
        assert_eq!(entry.state(), RunState::Elsewhere);
        entry.ended = Some(Ended { status: Status::Finished, code: Some(0), time_s: 0.0 });
        assert_eq!(entry.state(), RunState::Ended);
    }

    /// The duration of a run whose processes are gone does not grow.
    #[test]
    fn a_run_lasts_until_its_end_or_the_last_write_to_its_files() {
        use std::time::Duration;
        let folder = tempfile::tempdir().expect("a temporary folder");
        let registry = Registry { state: None, runs: folder.path().to_owned() };
        let mut entry = run(&registry, "a");
        entry.started_s -= 1000.0;
        entry.write().expect("written");
        assert!((entry.ran_s(entry.state()) - 1000.0).abs() < 60.0, "it runs");
        let started = std::time::UNIX_EPOCH + Duration::from_secs_f64(entry.started_s);
        for (name, after_s) in [(FILE, 1), ("output.log", 30)] {
            let file = fs::File::options().create(true).append(true).open(entry.folder.join(name)).expect("a file");
            file.set_modified(started + Duration::from_secs(after_s)).expect("set");
        }
        fs::write(entry.folder.join("report.html"), "made later").expect("written");
        entry.process.started = "1".to_owned();
        assert_eq!(entry.state(), RunState::Gone);
        assert!((entry.ran_s(RunState::Gone) - 30.0).abs() < 0.1, "{}", entry.ran_s(RunState::Gone));
        entry.ended = Some(Ended { status: Status::Failed, code: Some(1), time_s: entry.started_s + 7.0 });
        assert!((entry.ran_s(entry.state()) - 7.0).abs() < 1e-3);
    }

    #[test]
    fn invalid_entries_are_not_runs() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let registry = Registry { state: None, runs: folder.path().to_owned() };
        let mut entry = run(&registry, "a");
        let path = entry.folder.join(FILE);
        for text in ["", "{}", "[1", "\u{0}"] {
            fs::write(&path, text).expect("written");
            assert_eq!(registry.entries(), []);
        }
        "../../../etc".clone_into(&mut entry.token);
        entry.write().expect("written");
        assert_eq!(registry.entries(), []);
    }
}
