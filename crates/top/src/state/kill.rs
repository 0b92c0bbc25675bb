//! Ending a process from the screen: it is looked at first, asked for, and told before it is killed. Never the first process,
//! this one, or one whose number may mean another here.

use super::{Action, Overlay, ProcessRow, State};
use plimsoll_telemetry::Level;
use plimsoll_watch::ProcessInfo;

/// A question.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Confirm {
    pub process: ProcessInfo,
    /// Whether it was asked to end before, so that now it is ended.
    pub is_kill: bool,
}

/// Why a process is not ended from here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Refusal {
    First,
    Own,
    OutsideNumber,
    Replay,
}

impl Refusal {
    fn words(self) -> &'static str {
        match self {
            Self::First => "the system's first process is not ended from here",
            Self::Own => "that is this program; `q` leaves it",
            Self::OutsideNumber => {
                "in a container the driver's numbers are those outside: another process may have this one here"
            }
            Self::Replay => "a replay shows what was",
        }
    }
}

impl State {
    fn refusal(&self, row: &ProcessRow) -> Option<Refusal> {
        // Of our own runs the number is their own word.
        let is_theirs = row.is_by_driver && row.run.is_none();
        match row.pid {
            _ if self.replay.is_some() => Some(Refusal::Replay),
            0 | 1 => Some(Refusal::First),
            pid if pid == self.own_pid => Some(Refusal::Own),
            // `kill` takes negative numbers for groups.
            pid if i32::try_from(pid).is_err() => Some(Refusal::First),
            _ if self.is_contained && is_theirs => Some(Refusal::OutsideNumber),
            _ => None,
        }
    }

    /// Somebody wants to end the process that is selected.
    pub(super) fn ask_to_kill(&mut self) -> Vec<Action> {
        let rows = self.shown_processes();
        let keys = rows.iter().map(ProcessRow::key).collect::<Vec<_>>();
        let Some(row) = self.processes.index(keys.iter()).map(|index| &rows[index]) else {
            self.message = Some((Level::Warn, "no process is selected".to_owned()));
            return vec![];
        };
        match self.refusal(row) {
            Some(refusal) => {
                self.message = Some((Level::Warn, format!("process {}: {}", row.pid, refusal.words())));
                vec![]
            }
            None => vec![Action::Find(row.pid)],
        }
    }

    /// A process that was looked for.
    pub(super) fn found(&mut self, pid: u32, process: Option<ProcessInfo>) {
        let Some(process) = process.filter(|process| process.pid == pid) else {
            self.message = Some((Level::Warn, format!("no process {pid} is here; it may have ended")));
            return;
        };
        let is_kill = self.asked.contains(&process);
        self.overlay = Overlay::Confirm(Confirm { process, is_kill });
    }

    /// Somebody said yes.
    pub(super) fn confirmed(&mut self, confirm: Confirm) -> Vec<Action> {
        self.overlay = Overlay::None;
        let Confirm { process, is_kill } = confirm;
        if !is_kill {
            // More than a screen's are not remembered.
            self.asked.truncate(100);
            self.asked.insert(0, process.clone());
        }
        vec![Action::Signal { process, is_kill }]
    }

    /// What came of it.
    pub(super) fn signaled(&mut self, pid: u32, result: Result<(), String>) {
        let was_asked_once = self.asked.iter().filter(|process| process.pid == pid).count() == 1;
        self.message = Some(match result {
            Ok(()) if was_asked_once => {
                (Level::Info, format!("process {pid} was asked to end (SIGTERM); `k` again kills it if it does not"))
            }
            Ok(()) => (Level::Info, format!("process {pid} was told to end")),
            Err(reason) => {
                self.asked.retain(|process| process.pid != pid);
                (Level::Error, format!("process {pid}: {reason}"))
            }
        });
    }
}
