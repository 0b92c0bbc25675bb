//! The processes of a worker: its process group and processes that left the group, such as daemons. They have the
//! worker's mark in their environment, or descend from its keeper, which adopts orphans.

use super::Process;
use super::table::{self, Row, pid};
use rustix::process::{Signal, kill_process, kill_process_group};
use std::collections::HashSet;

/// Prefix of the environment variable that marks a run's processes, regardless of their parent.
pub const MARK: &str = "PLIMSOLL_RUN";

/// A worker's processes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Group {
    /// The first process. Its ID is the group's.
    pub leader: Process,
    /// `NAME=value` in the environment of the first process.
    pub mark: String,
    /// The keeper. All of the processes descend from it while it runs.
    pub keeper: Option<Process>,
}

/// A running process of a worker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    /// Its row in the process table.
    pub row: Row,
    /// Whether it is in the process group, not only marked.
    pub in_group: bool,
}

impl Group {
    /// The processes that have not ended. Empty on systems without `/proc`.
    pub fn members(&self) -> Vec<Member> {
        // Once the leader is reaped, its process ID and group ID may belong to another program.
        let is_ours = self.leader.holds_its_number();
        let own = rustix::process::geteuid().as_raw();
        let earliest = self.leader.started.parse::<u64>().unwrap_or(0);
        let rows = table::rows();
        let keeper = self.keeper.as_ref().filter(|keeper| keeper.is_alive() && keeper.is_mine());
        let kept = keeper.map_or_else(HashSet::new, |keeper| table::descendants(&rows, keeper.pid));
        let rows = rows.into_iter().filter(|row| !row.is_zombie && row.started >= earliest);
        let member = |row: Row| {
            let in_group = is_ours && row.group == self.leader.pid;
            // Any user can set any variable, so check the owner too.
            let is_marked = || row.uid == own && table::has_variable(row.pid, &self.mark);
            (in_group || kept.contains(&row.pid) || is_marked()).then_some(Member { row, in_group })
        };
        rows.filter_map(member).collect()
    }

    /// Sends a signal to the process group, as a terminal does.
    pub fn signal(&self, signal: Signal) {
        if let Some(pid) = pid(self.leader.pid).filter(|_| self.leader.holds_its_number()) {
            let _ = kill_process_group(pid, signal);
        }
    }

    /// Sends a signal to all of the processes, including those that left the group.
    pub fn signal_all(&self, signal: Signal) {
        let outside = self.members().into_iter().filter(|member| !member.in_group);
        let outside = outside.filter_map(|member| pid(member.row.pid)).collect::<Vec<_>>();
        self.signal(signal);
        for pid in outside {
            let _ = kill_process(pid, signal);
        }
    }
}

/// This user's processes with an environment variable that starts with `prefix` (`NAME=value`). Limited to this user,
/// because any user can set any variable and root can read those of all users.
pub fn marked(prefix: &str) -> Vec<Row> {
    let own = rustix::process::geteuid().as_raw();
    let rows = table::rows().into_iter().filter(|row| !row.is_zombie && row.uid == own);
    rows.filter(|row| table::has_variable_beginning(row.pid, prefix)).collect()
}
