//! Which runs there are: a file in each run's folder says whose processes it is, and a file in the user's state folder
//! names the run's folder, so that it is found from everywhere.

mod entry;

pub use entry::{Ended, Entry, Kind, State, Surroundings, WorkerEntry};

use entry::LONGEST;
use plimsoll_files::{Disk, read_at_most};
use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// Where runs are looked for.
#[derive(Debug, Clone)]
pub struct Registry {
    /// The user's folder of names; `None` where there is no place for one.
    pub state: Option<PathBuf>,
    /// A folder of runs.
    pub runs: PathBuf,
}

impl Registry {
    /// Makes a run known. Errors: what the system says; the run is found in its folder all the same.
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

    /// All runs, the oldest first. Names of folders that are gone are forgotten.
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
                // What is written right now has a name of its own.
                _ if name.file_name().is_some_and(|name| name.as_bytes().starts_with(b".")) => {}
                _ => drop(fs::remove_file(&name)),
            }
        }
        found.sort_by(|a, b| a.started_s.total_cmp(&b.started_s).then_with(|| a.token.cmp(&b.token)));
        found.dedup_by(|a, b| a.token == b.token);
        found
    }

    /// The run of this name, or in this folder. Of several, those that run come first, and then the newest.
    /// Errors: `None` if there is none.
    pub fn find(&self, name: &str) -> Option<Entry> {
        if let Ok(entry) = Entry::read(Path::new(name)) {
            return Some(entry);
        }
        let named = self.entries().into_iter().filter(|entry| entry.name() == name);
        // Another user's run must not hide this user's.
        named.max_by_key(|entry| (entry.trusted().is_ok(), matches!(entry.state(), State::Running | State::Orphaned)))
    }
}

#[cfg(test)]
mod tests {
    use super::entry::FILE;
    use super::*;
    use crate::report::Status;

    fn run(registry: &Registry, name: &str) -> Entry {
        let folder = registry.runs.join(name);
        fs::create_dir_all(&folder).expect("a folder");
        Entry::new(Kind::Supervised, &folder.canonicalize().expect("it is there"), vec!["train".to_owned()])
    }

    #[test]
    fn runs_are_found_from_everywhere_and_forgotten_with_their_folders() {
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

    /// Each run has a name of its own there, so no later write replaces what a crash left.
    #[test]
    fn what_a_crash_left_in_the_state_folder_is_removed_by_the_next_run() {
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
    fn a_number_that_another_process_has_now_is_not_the_run() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let registry = Registry { state: None, runs: folder.path().to_owned() };
        let mut entry = run(&registry, "a");
        assert_eq!(entry.state(), State::Running);
        // This process is there, but it is not the one that was meant.
        entry.process.started = "1".to_owned();
        assert_eq!(entry.state(), State::Gone);
        let leader = entry.process.clone();
        entry.workers = vec![WorkerEntry { attempt: 1, leader: Some(leader), ..WorkerEntry::default() }];
        assert_eq!((entry.state(), entry.survivors()), (State::Gone, vec![]));
        entry.machine.boot = "another".to_owned();
        assert_eq!(entry.state(), State::Gone, "the machine was started again");
        entry.machine.host = "another".to_owned();
        assert_eq!(entry.state(), State::Elsewhere);
        entry.ended = Some(Ended { status: Status::Finished, code: Some(0), time_s: 0.0 });
        assert_eq!(entry.state(), State::Ended);
    }

    /// One that is gone does not age.
    #[test]
    fn a_run_ran_until_its_end_or_the_last_write_of_its_files() {
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
        assert_eq!(entry.state(), State::Gone);
        assert!((entry.ran_s(State::Gone) - 30.0).abs() < 0.1, "{}", entry.ran_s(State::Gone));
        entry.ended = Some(Ended { status: Status::Failed, code: Some(1), time_s: entry.started_s + 7.0 });
        assert!((entry.ran_s(entry.state()) - 7.0).abs() < 1e-3);
    }

    #[test]
    fn what_is_no_entry_is_no_run() {
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
