//! Which runs there are: a file in each run's folder says whose processes it is, and a file in the user's state folder
//! names the run's folder, so that it is found from everywhere.

use crate::processes::{Group, MARK, Machine, Process, marked};
use crate::report::Status;
use plimsoll_files::{Disk, read_at_most};
use plimsoll_units::Bytes;
use serde::{Deserialize, Serialize};
use std::collections::hash_map::RandomState;
use std::ffi::OsStr;
use std::fs;
use std::hash::{BuildHasher, Hasher};
use std::io::{self, ErrorKind};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// The file in a run's folder.
const FILE: &str = "process.json";

/// Far more than such a file has.
const LONGEST: Bytes = Bytes::mib(1);

/// Who runs the training.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// A supervisor, which started other programs.
    Supervised,
    /// The process itself.
    Own,
}

/// A program of a supervised run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkerEntry {
    /// Its number, from 0.
    pub worker: usize,
    /// Which attempt of it, from 1.
    pub attempt: u32,
    /// The process that was started.
    pub leader: Process,
    /// The pipes that it prints to, by the system's numbers.
    pub pipes: Vec<u64>,
}

/// How a run ended.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Ended {
    /// What came of it.
    pub status: Status,
    /// The exit code; `None` if nobody knows.
    pub code: Option<i32>,
    /// When, in seconds since 1970, UTC.
    pub time_s: f64,
}

/// A run, as its folder tells of it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Entry {
    /// What no other run has.
    pub token: String,
    /// Who runs the training.
    pub kind: Kind,
    /// Its folder, from the root; where the file was found, whatever it says.
    #[serde(skip)]
    pub folder: PathBuf,
    /// The command.
    pub command: Vec<String>,
    /// Where its processes are.
    pub machine: Machine,
    /// The supervisor, or the process that trains.
    pub process: Process,
    /// When the run began, in seconds since 1970, UTC.
    pub started_s: f64,
    /// How many programs run side by side.
    pub worker_count: usize,
    /// How long a program may take to end once it was asked to, in seconds.
    pub grace_s: f64,
    /// The programs that run.
    pub workers: Vec<WorkerEntry>,
    /// Restarts so far.
    pub restarts: u32,
    /// How it ended, once it has.
    pub ended: Option<Ended>,
}

/// What a run is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// It runs.
    Running,
    /// Its programs run, and their supervisor is gone.
    Orphaned,
    /// It ended, and said how.
    Ended,
    /// All of its processes are gone, and none said how it ended.
    Gone,
    /// It belongs to another machine, or to a container with processes of its own.
    Elsewhere,
}

impl Entry {
    /// Of a run that this process begins.
    pub fn new(kind: Kind, folder: &Path, command: Vec<String>) -> Self {
        Self {
            // The standard library seeds these from the system, the only randomness that it gives out.
            token: format!("{:016x}", RandomState::new().build_hasher().finish()),
            kind,
            folder: folder.to_owned(),
            command,
            machine: Machine::own(),
            process: Process::own(),
            started_s: plimsoll_telemetry::now_s(),
            worker_count: 1,
            grace_s: 0.0,
            workers: vec![],
            restarts: 0,
            ended: None,
        }
    }

    /// Of the run in a folder. Errors: there is none, or the file can't be read.
    pub fn read(folder: &Path) -> io::Result<Self> {
        let bytes = read_at_most(&folder.join(FILE), LONGEST)?;
        let mut entry = serde_json::from_slice::<Self>(&bytes)?;
        // It becomes the name of a variable and of a file.
        if entry.token.len() != 16 || !entry.token.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Err(ErrorKind::InvalidData.into());
        }
        entry.folder = folder.canonicalize()?;
        Ok(entry)
    }

    /// Puts it into the run's folder. Errors: what the system says.
    pub fn write(&self) -> io::Result<()> {
        let text = serde_json::to_vec_pretty(self).expect("plain data");
        Disk::default().replace(&self.folder.join(FILE), &text)
    }

    /// The run's name.
    pub fn name(&self) -> String {
        self.folder.file_name().unwrap_or_default().to_string_lossy().into_owned()
    }

    /// What it is doing now.
    pub fn state(&self) -> State {
        let here = Machine::own();
        let is_here = self.machine == here;
        let survives = || match self.kind {
            Kind::Supervised => is_here && !self.survivors().is_empty(),
            Kind::Own => false,
        };
        match &self.ended {
            _ if is_here && self.process.is_alive() && self.ended.is_none() => State::Running,
            Some(_) => State::Ended,
            None if survives() => State::Orphaned,
            // After a restart of the machine nothing is left of what ran before.
            None if is_here || (self.machine.host == here.host && self.machine.boot != here.boot) => State::Gone,
            None => State::Elsewhere,
        }
    }

    /// The numbers of its programs' processes that run. Those that nobody entered yet, since the supervisor was ended just
    /// then, are found by their mark.
    pub fn survivors(&self) -> Vec<u32> {
        let groups = self.workers.iter().map(|worker| self.group(worker));
        let members = groups.flat_map(|group| group.members()).map(|member| member.row.pid);
        let marked = marked(&format!("{}=", self.mark())).into_iter().map(|row| row.pid);
        let mut pids = members.chain(marked).collect::<Vec<_>>();
        if !cfg!(target_os = "linux") {
            pids.extend(
                self.workers.iter().map(|w| &w.leader).filter(|leader| leader.is_alive()).map(|leader| leader.pid),
            );
        }
        pids.sort_unstable();
        pids.dedup();
        pids
    }

    /// The name of the variable that its programs carry; the value is the worker's number.
    pub(crate) fn mark(&self) -> String {
        format!("{MARK}_{}", self.token)
    }

    /// The processes of a worker.
    pub(crate) fn group(&self, worker: &WorkerEntry) -> Group {
        Group { leader: worker.leader.clone(), mark: format!("{}={}", self.mark(), worker.worker) }
    }
}

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
        named.max_by_key(|entry| matches!(entry.state(), State::Running | State::Orphaned))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        entry.workers = vec![WorkerEntry { worker: 0, attempt: 1, leader, pipes: vec![] }];
        assert_eq!((entry.state(), entry.survivors()), (State::Gone, vec![]));
        entry.machine.boot = "another".to_owned();
        assert_eq!(entry.state(), State::Gone, "the machine was started again");
        entry.machine.host = "another".to_owned();
        assert_eq!(entry.state(), State::Elsewhere);
        entry.ended = Some(Ended { status: Status::Finished, code: Some(0), time_s: 0.0 });
        assert_eq!(entry.state(), State::Ended);
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
