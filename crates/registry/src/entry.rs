//! The entry of a run: the file in its folder that describes its processes.

use crate::end::ProgramEnd;
use crate::processes::{Group, MARK, Machine, Process, has_open, marked};
use crate::report::{CardPeak, Status};
use crate::worker::{GpuShare, WorkerEntry, WorkerOutcome};
use plimsoll_files::{Disk, LOCK, check_folder, read_inside, read_trusted};
use plimsoll_units::Bytes;
use serde::{Deserialize, Serialize};
use std::collections::hash_map::RandomState;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::hash::{BuildHasher, Hasher};
use std::io::{self, ErrorKind};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Name of the file in a run's folder.
pub const FILE: &str = "process.json";

/// Size limit of the file; real ones are far smaller.
pub(crate) const LONGEST: Bytes = Bytes::mib(1);

/// The process that trains.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RunKind {
    /// Other programs, started by a supervisor.
    Supervised,
    /// The process that wrote the entry (`plimsoll train`).
    Own,
}

/// How a run ended.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Ended {
    /// The run's status.
    pub status: Status,
    /// The exit code; `None` if it is unknown.
    pub code: Option<i32>,
    /// When the run ended, in seconds since 1970, UTC.
    pub time_s: f64,
}

/// A run, as described in its folder.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Entry {
    /// A unique ID.
    pub token: String,
    /// The process that trains.
    pub kind: RunKind,
    /// The absolute path of its folder: where the file was found.
    #[serde(skip)]
    pub folder: PathBuf,
    /// The command.
    pub command: Vec<String>,
    /// The machine of its processes.
    pub machine: Machine,
    /// The supervisor, or the process that trains itself.
    pub process: Process,
    /// When the run started, in seconds since 1970, UTC.
    pub started_s: f64,
    /// The number of workers.
    pub worker_count: usize,
    /// How long a program may take to end after SIGTERM, in seconds.
    pub grace_s: f64,
    /// The workers started so far.
    pub workers: Vec<WorkerEntry>,
    /// The arguments of `plimsoll run`, for another supervisor.
    pub arguments: Vec<OsString>,
    /// Restarts so far.
    pub restarts: u32,
    /// Peak memory of each visible GPU, as of the last attempt.
    #[serde(default)]
    pub cards: Vec<CardPeak>,
    /// What its workers may use of their GPUs, if that is limited.
    #[serde(default)]
    pub shares: Vec<GpuShare>,
    /// How it ended; `None` while it runs.
    pub ended: Option<Ended>,
}

/// The environment of a process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Surroundings {
    /// Its working folder.
    pub folder: PathBuf,
    /// Its environment variables.
    pub variables: Vec<(OsString, OsString)>,
}

/// The state of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum RunState {
    /// Its processes run.
    Running,
    /// Its programs run without a supervisor.
    Orphaned,
    /// It ended and recorded how.
    Ended,
    /// All of its processes are gone, and none recorded how it ended.
    Gone,
    /// It belongs to another machine, or to a container with its own process IDs.
    Elsewhere,
}

impl Entry {
    /// The entry of a run that this process starts.
    pub fn new(kind: RunKind, folder: &Path, command: Vec<String>) -> Self {
        Self {
            // The standard library seeds these with random bytes from the system, and offers no other randomness.
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
            arguments: vec![],
            restarts: 0,
            cards: vec![],
            shares: vec![],
            ended: None,
        }
    }

    /// Reads the entry in a folder, for display. Any user may have written it, so do not signal or run anything based
    /// on it; use [`Entry::trusted`] for that. Errors: the folder has no entry, or the file can't be read.
    pub fn read(folder: &Path) -> io::Result<Self> {
        Self::parse(folder, &read_inside(&folder.join(FILE), 1, LONGEST)?)
    }

    /// Reads the same run again, from files that only this user and root can have written.
    /// Errors: `PermissionDenied` with a [`Distrust`](plimsoll_files::Distrust) if another user controls the folder,
    /// one of its parents or the file; the file can't be read; the folder now contains another run.
    pub fn trusted(&self) -> io::Result<Self> {
        check_folder(&self.folder)?;
        let entry = Self::parse(&self.folder, &read_trusted(&self.folder.join(FILE), LONGEST)?)?;
        match entry.token == self.token {
            true => Ok(entry),
            false => Err(io::Error::other(format!("{} now contains another run", self.folder.display()))),
        }
    }

    fn parse(folder: &Path, bytes: &[u8]) -> io::Result<Self> {
        let mut entry = serde_json::from_slice::<Self>(bytes)?;
        // The token becomes the name of an environment variable and of a file.
        if entry.token.len() != 16 || !entry.token.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Err(ErrorKind::InvalidData.into());
        }
        entry.folder = folder.canonicalize()?;
        entry.ended = entry.ended.take().or_else(|| entry.ended_alone());
        Ok(entry)
    }

    /// How it ended without a supervisor, as recorded by the keepers.
    fn ended_alone(&self) -> Option<Ended> {
        let here = Machine::own();
        let is_here = self.machine == here;
        let may_run = is_here && (self.process.is_alive() || !self.survivors().is_empty());
        if self.kind != RunKind::Supervised || may_run || !(is_here || self.machine.is_before(&here)) {
            return None;
        }
        let mut time_s = self.started_s;
        let mut outcomes = Vec::new();
        for worker in 0..self.worker_count {
            let worker = self.workers.iter().find(|entry| entry.worker == worker)?;
            outcomes.push(match worker.outcome {
                Some(outcome) => outcome,
                None => {
                    let end = ProgramEnd::read(&self.folder, worker.worker, worker.attempt)?;
                    time_s = end.time_s.max(time_s);
                    WorkerOutcome::of(end.status.code, end.status.signal)
                }
            });
        }
        let failed = outcomes.iter().find(|outcome| !outcome.is_success);
        let status = if failed.is_some() { Status::Failed } else { Status::Finished };
        Some(Ended { status, code: failed.map_or(Some(0), |outcome| outcome.code), time_s })
    }

    /// Writes the entry to the run's folder. Errors: those of the system.
    pub fn write(&self) -> io::Result<()> {
        let text = serde_json::to_vec_pretty(self).expect("plain data");
        Disk::default().replace(&self.folder.join(FILE), &text)
    }

    /// The run's name.
    pub fn name(&self) -> String {
        self.folder.file_name().unwrap_or_default().to_string_lossy().into_owned()
    }

    /// Its current state.
    pub fn state(&self) -> RunState {
        let here = Machine::own();
        let is_here = self.machine == here;
        let survives = || match self.kind {
            RunKind::Supervised => is_here && !self.survivors().is_empty(),
            RunKind::Own => false,
        };
        match &self.ended {
            _ if is_here && self.process.is_alive() && self.ended.is_none() => RunState::Running,
            Some(_) => RunState::Ended,
            None if survives() => RunState::Orphaned,
            // No process survives a reboot.
            None if is_here || self.machine.is_before(&here) => RunState::Gone,
            None => RunState::Elsewhere,
        }
    }

    /// How long it has run, in seconds: until now, until its end or, if it is gone or elsewhere, until the last write
    /// to one of its files.
    pub fn ran_s(&self, state: RunState) -> f64 {
        let end_s = match (&self.ended, state) {
            (Some(ended), _) => ended.time_s,
            (None, RunState::Running | RunState::Orphaned) => plimsoll_telemetry::now_s(),
            (None, RunState::Ended | RunState::Gone | RunState::Elsewhere) => {
                self.last_write_s().unwrap_or(self.started_s)
            }
        };
        (end_s - self.started_s).max(0.0)
    }

    /// The time of the last write to a file in its folder or its history, in seconds since 1970.
    fn last_write_s(&self) -> Option<f64> {
        let folders = [self.folder.clone(), self.folder.join("samples")];
        let entries = folders.iter().filter_map(|folder| fs::read_dir(folder).ok()).flatten().flatten();
        // Reports and pages may be made long after the end.
        let files = entries.filter(|entry| {
            let name = entry.file_name();
            let name = name.to_string_lossy();
            [".jsonl", ".log", ".bin"].iter().any(|ending| name.ends_with(ending)) || name == FILE
        });
        let written = files.filter_map(|entry| entry.metadata().ok()?.modified().ok());
        let newest = written.max()?.duration_since(std::time::UNIX_EPOCH).ok()?;
        Some(newest.as_secs_f64())
    }

    /// The supervisor or the process that trains, if it is proved to be this run's: it is alive, runs as this user, and
    /// has the run's lock open. The last check needs Linux, since other systems do not show open files.
    pub fn proved(&self) -> Option<&Process> {
        let has_lock = || !cfg!(target_os = "linux") || has_open(self.process.pid, &self.folder.join(LOCK));
        let is_proved = self.process.is_alive() && self.process.is_mine() && has_lock();
        is_proved.then_some(&self.process)
    }

    /// Process IDs of its programs that still run. Finds processes that a killed supervisor had not recorded by their
    /// mark.
    pub fn survivors(&self) -> Vec<u32> {
        let leaders = || self.workers.iter().filter_map(|worker| worker.leader.as_ref());
        let groups = self.workers.iter().filter_map(|worker| self.group(worker));
        let members = groups.flat_map(|group| group.members()).map(|member| member.row.pid);
        let marked = marked(&format!("{}=", self.mark())).into_iter().map(|row| row.pid);
        let mut pids = members.chain(marked).collect::<Vec<_>>();
        if !cfg!(target_os = "linux") {
            pids.extend(leaders().filter(|leader| leader.is_alive()).map(|leader| leader.pid));
        }
        pids.sort_unstable();
        pids.dedup();
        pids
    }

    /// The environment in which its supervisor was started, read from a running keeper, or from a program if its keeper
    /// was not recorded; `None` if neither runs or the system does not report it. It is not stored in a file, since
    /// environment variables contain secrets.
    pub fn surroundings(&self) -> Option<Surroundings> {
        let keepers = self.workers.iter().filter_map(|worker| worker.keeper.clone());
        let programs = self.workers.iter().filter_map(|worker| self.leader(worker));
        let alive = keepers.chain(programs).filter(|process| process.is_alive() && process.is_mine());
        // Leave out the mark: a process with it would count as a program of the run.
        let mark = OsString::from(self.mark());
        alive.map(|process| process.pid).find_map(|pid| {
            let folder = fs::read_link(format!("/proc/{pid}/cwd")).ok()?;
            let words = fs::read(format!("/proc/{pid}/environ")).ok()?;
            let parts = |word: &[u8]| {
                let at = word.iter().position(|&byte| byte == b'=')?;
                Some((OsStr::from_bytes(&word[..at]).to_owned(), OsStr::from_bytes(&word[at + 1..]).to_owned()))
            };
            let variables = words.split(|&byte| byte == 0).filter_map(parts).filter(|(name, _)| *name != mark);
            Some(Surroundings { folder, variables: variables.collect() })
        })
    }

    /// The name of the environment variable that marks its programs. The value is the worker's index.
    pub fn mark(&self) -> String {
        format!("{MARK}_{}", self.token)
    }

    /// The processes of a worker; `None` if its first process was not recorded.
    fn group(&self, worker: &WorkerEntry) -> Option<Group> {
        let leader = worker.leader.clone()?;
        let mark = format!("{}={}", self.mark(), worker.worker);
        Some(Group { leader, mark, keeper: worker.keeper.clone() })
    }

    /// The first process of a worker: as recorded or, if the supervisor was killed before that, the oldest process
    /// group leader with the worker's mark.
    pub fn leader(&self, worker: &WorkerEntry) -> Option<Process> {
        let found = || {
            let rows = marked(&format!("{}={}\0", self.mark(), worker.worker));
            let first = rows.into_iter().filter(|row| row.pid == row.group).min_by_key(|row| row.started)?;
            Process::of(first.pid)
        };
        worker.leader.clone().or_else(found)
    }
}
