//! Ending a process: look it up, confirm, send SIGTERM, and SIGKILL only the second time. Never pid 1, this process, or
//! a pid that may be another process's in this container.

use super::{Action, Overlay, ProcessRow, State};
use plimsoll_telemetry::Level;
use plimsoll_watch::ProcessInfo;

/// Question before a signal is sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Confirm {
    pub process: ProcessInfo,
    /// Send SIGKILL, because the process did not end after SIGTERM.
    pub is_kill: bool,
}

/// Why a process cannot be ended from this screen.
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
            Self::First => "the system's first process cannot be ended here",
            Self::Own => "that is `plimsoll top` itself; press `q` to quit",
            Self::OutsideNumber => {
                "in a container the driver reports pids of the host: here this pid may be another process"
            }
            Self::Replay => "processes of a replay have ended",
        }
    }
}

impl State {
    fn refusal(&self, row: &ProcessRow) -> Option<Refusal> {
        // A run reports a pid of this container; the driver reports one of the host.
        let is_theirs = row.is_by_driver && row.run.is_none();
        match row.pid {
            _ if self.replay.is_some() => Some(Refusal::Replay),
            0 | 1 => Some(Refusal::First),
            pid if pid == self.own_pid => Some(Refusal::Own),
            // `kill` treats negative numbers as process groups.
            pid if i32::try_from(pid).is_err() => Some(Refusal::First),
            _ if self.is_contained && is_theirs => Some(Refusal::OutsideNumber),
            _ => None,
        }
    }

    /// Starts ending the selected process.
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

    /// Handles the result of a lookup.
    pub(super) fn found(&mut self, pid: u32, process: Option<ProcessInfo>) {
        let Some(process) = process.filter(|process| process.pid == pid) else {
            self.message = Some((Level::Warn, format!("process {pid} not found; it may have ended")));
            return;
        };
        let is_kill = self.terminated.contains(&process);
        self.overlay = Overlay::Confirm(Confirm { process, is_kill });
    }

    /// Sends the signal that the user confirmed.
    pub(super) fn confirmed(&mut self, confirm: Confirm) -> Vec<Action> {
        self.overlay = Overlay::None;
        let Confirm { process, is_kill } = confirm;
        if !is_kill {
            // Limit the memory of terminated processes.
            self.terminated.truncate(100);
            self.terminated.insert(0, process.clone());
        }
        vec![Action::Signal { process, is_kill }]
    }

    /// Handles the result of sending a signal.
    pub(super) fn signaled(&mut self, pid: u32, result: Result<(), String>) {
        let is_first_signal = self.terminated.iter().filter(|process| process.pid == pid).count() == 1;
        self.message = Some(match result {
            Ok(()) if is_first_signal => {
                (Level::Info, format!("sent SIGTERM to process {pid}; if it does not end, `k` again sends SIGKILL"))
            }
            Ok(()) => (Level::Info, format!("sent SIGKILL to process {pid}")),
            Err(reason) => {
                self.terminated.retain(|process| process.pid != pid);
                (Level::Error, format!("process {pid}: {reason}"))
            }
        });
    }
}
