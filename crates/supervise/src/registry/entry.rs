//! A run, as the file in its folder tells of it.

use crate::card_peaks::CardPeak;
use crate::keeper::End;
use crate::processes::{Group, MARK, Machine, Process, has_open, marked};
use crate::repair::{Attempt, Past};
use crate::report::Status;
use crate::restarts::Seen;
use crate::worker::Outcome;
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

/// The file in a run's folder.
pub(super) const FILE: &str = "process.json";

/// Far more than such a file has.
pub(super) const LONGEST: Bytes = Bytes::mib(1);

/// Who runs the training.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// A supervisor, which started other programs.
    Supervised,
    /// The process itself.
    Own,
}

/// A worker of a supervised run: what of it runs, and what another supervisor needs to go on with it. Written before a
/// program is started, so that one that was started is known to have been.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkerEntry {
    /// Its number, from 0.
    pub worker: usize,
    /// Which attempt of it, from 1.
    pub attempt: u32,
    /// The process that was started; `None` before that, and if it is done.
    pub leader: Option<Process>,
    /// The pipes that it prints to, by the system's numbers.
    pub pipes: Vec<u64>,
    /// The process that keeps it.
    pub keeper: Option<Process>,
    /// What is started.
    pub(crate) command: Attempt,
    /// What the attempts before it came to.
    pub(crate) past: Past,
    /// Its restarts.
    pub(crate) seen: Seen,
    /// What came of it, once nothing of it is started any more.
    pub(crate) outcome: Option<Outcome>,
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
    /// The workers that were started.
    pub workers: Vec<WorkerEntry>,
    /// What `plimsoll run` was given, for another supervisor.
    pub arguments: Vec<OsString>,
    /// Restarts so far.
    pub restarts: u32,
    /// The most memory that was used on each card that it could see, as of its last attempt.
    #[serde(default)]
    pub cards: Vec<CardPeak>,
    /// How it ended, once it has.
    pub ended: Option<Ended>,
}

/// What a process was started in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Surroundings {
    /// Its folder.
    pub folder: PathBuf,
    /// Its variables.
    pub variables: Vec<(OsString, OsString)>,
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
            arguments: vec![],
            restarts: 0,
            cards: vec![],
            ended: None,
        }
    }

    /// Of the run in a folder, to be shown. Any user may have written it, so it decides neither what is signaled nor what is
    /// run: that takes [`Entry::trusted`]. Errors: there is none, or the file can't be read.
    pub fn read(folder: &Path) -> io::Result<Self> {
        Self::parse(folder, &read_inside(&folder.join(FILE), 1, LONGEST)?)
    }

    /// The same run, read again from files that only this user and root can have written.
    /// Errors: `PermissionDenied` with a [`Distrust`](plimsoll_files::Distrust) if another user controls the folder, one of
    /// its parents or the file; the file can't be read; the folder holds another run by now.
    pub fn trusted(&self) -> io::Result<Self> {
        check_folder(&self.folder)?;
        let entry = Self::parse(&self.folder, &read_trusted(&self.folder.join(FILE), LONGEST)?)?;
        match entry.token == self.token {
            true => Ok(entry),
            false => Err(io::Error::other(format!("{} holds another run by now", self.folder.display()))),
        }
    }

    fn parse(folder: &Path, bytes: &[u8]) -> io::Result<Self> {
        let mut entry = serde_json::from_slice::<Self>(bytes)?;
        // It becomes the name of a variable and of a file.
        if entry.token.len() != 16 || !entry.token.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Err(ErrorKind::InvalidData.into());
        }
        entry.folder = folder.canonicalize()?;
        entry.ended = entry.ended.take().or_else(|| entry.ended_alone());
        Ok(entry)
    }

    /// How it ended while it had no supervisor, as the programs' keepers saw it.
    fn ended_alone(&self) -> Option<Ended> {
        let here = Machine::own();
        let is_here = self.machine == here;
        let may_run = is_here && (self.process.is_alive() || !self.survivors().is_empty());
        if self.kind != Kind::Supervised || may_run || !(is_here || self.machine.is_before(&here)) {
            return None;
        }
        let mut time_s = self.started_s;
        let mut outcomes = Vec::new();
        for worker in 0..self.worker_count {
            let worker = self.workers.iter().find(|entry| entry.worker == worker)?;
            outcomes.push(match worker.outcome {
                Some(outcome) => outcome,
                None => {
                    let end = End::read(&self.folder, worker.worker, worker.attempt)?;
                    time_s = end.time_s.max(time_s);
                    Outcome::of(end.status.code, end.status.signal)
                }
            });
        }
        let failed = outcomes.iter().find(|outcome| !outcome.is_success);
        let status = if failed.is_some() { Status::Failed } else { Status::Finished };
        Some(Ended { status, code: failed.map_or(Some(0), |outcome| outcome.code), time_s })
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
            None if is_here || self.machine.is_before(&here) => State::Gone,
            None => State::Elsewhere,
        }
    }

    /// How long it has run in this state, or ran, in seconds: to its end or, of a run that is gone or elsewhere, to the last
    /// write of one of its files.
    pub fn ran_s(&self, state: State) -> f64 {
        let end_s = match (&self.ended, state) {
            (Some(ended), _) => ended.time_s,
            (None, State::Running | State::Orphaned) => plimsoll_telemetry::now_s(),
            (None, State::Ended | State::Gone | State::Elsewhere) => self.last_write_s().unwrap_or(self.started_s),
        };
        (end_s - self.started_s).max(0.0)
    }

    /// When one of the files in its folder and in its history was written to last: seconds since 1970.
    fn last_write_s(&self) -> Option<f64> {
        let folders = [self.folder.clone(), self.folder.join("samples")];
        let entries = folders.iter().filter_map(|folder| fs::read_dir(folder).ok()).flatten().flatten();
        // A report that is made later is no sign of life, nor is a page.
        let files = entries.filter(|entry| {
            let name = entry.file_name();
            let name = name.to_string_lossy();
            [".jsonl", ".log", ".bin"].iter().any(|ending| name.ends_with(ending)) || name == FILE
        });
        let written = files.filter_map(|entry| entry.metadata().ok()?.modified().ok());
        let newest = written.max()?.duration_since(std::time::UNIX_EPOCH).ok()?;
        Some(newest.as_secs_f64())
    }

    /// The supervisor, or the process that trains, if it is proved to be this run's: it is alive, runs as this user, and has the
    /// run's lock open. Other systems than Linux show no open files, so there the first two have to do.
    pub(crate) fn proved(&self) -> Option<&Process> {
        let has_lock = || !cfg!(target_os = "linux") || has_open(self.process.pid, &self.folder.join(LOCK));
        let is_proved = self.process.is_alive() && self.process.is_mine() && has_lock();
        is_proved.then_some(&self.process)
    }

    /// The numbers of its programs' processes that run. Those that nobody entered yet, since the supervisor was ended just
    /// then, are found by their mark.
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

    /// What its supervisor was started in, as a keeper of its programs still is, or a program whose keeper was not entered yet;
    /// `None` if there is none, or the system does not tell. They are nowhere written down, since variables have secrets.
    pub fn surroundings(&self) -> Option<Surroundings> {
        let keepers = self.workers.iter().filter_map(|worker| worker.keeper.clone());
        let programs = self.workers.iter().filter_map(|worker| self.leader(worker));
        let alive = keepers.chain(programs).filter(|process| process.is_alive() && process.is_mine());
        // What carries it is a program of the run.
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

    /// The name of the variable that its programs carry; the value is the worker's number.
    pub(crate) fn mark(&self) -> String {
        format!("{MARK}_{}", self.token)
    }

    /// The processes of a worker, where its first was entered.
    fn group(&self, worker: &WorkerEntry) -> Option<Group> {
        let leader = worker.leader.clone()?;
        let mark = format!("{}={}", self.mark(), worker.worker);
        Some(Group { leader, mark, keeper: worker.keeper.clone() })
    }

    /// The first process of a worker: as it was entered, or, where the supervisor was ended before that, the oldest group's
    /// that carries the worker's mark.
    pub(crate) fn leader(&self, worker: &WorkerEntry) -> Option<Process> {
        let found = || {
            let rows = marked(&format!("{}={}\0", self.mark(), worker.worker));
            let first = rows.into_iter().filter(|row| row.pid == row.group).min_by_key(|row| row.started)?;
            Process::of(first.pid)
        };
        worker.leader.clone().or_else(found)
    }
}
