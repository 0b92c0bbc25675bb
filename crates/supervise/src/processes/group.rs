//! The processes of a worker: its process group, and those that left the group, as a process that was forked twice does.
//! They carry the worker's mark in their environment, or descend from its keeper, which takes the place of parents that ended.

use super::Process;
use super::table::{self, Row};
use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use std::collections::HashSet;

/// The variable by which processes of a run are found, whoever their parent is by then.
pub const MARK: &str = "PLIMSOLL_RUN";

/// A worker's processes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Group {
    /// The process that was started, whose number is the group's.
    pub(crate) leader: Process,
    /// `NAME=value` in the environment that the first one was given.
    pub(crate) mark: String,
    /// The process that keeps it, from which all of them descend while it runs.
    pub(crate) keeper: Option<Process>,
}

/// A process that runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Member {
    pub(crate) row: Row,
    /// Whether it is in the group, and not only marked.
    pub(crate) in_group: bool,
}

impl Group {
    /// Those that have not ended. Where the system has no table, none is known.
    pub(crate) fn members(&self) -> Vec<Member> {
        // Once nobody holds the leader's number, another program may have it, and a group of the same number.
        let is_ours = self.leader.holds_its_number();
        let own = rustix::process::geteuid().as_raw();
        let earliest = self.leader.started.parse::<u64>().unwrap_or(0);
        let rows = table::rows();
        let keeper = self.keeper.as_ref().filter(|keeper| keeper.is_alive() && keeper.is_mine());
        let kept = keeper.map_or_else(HashSet::new, |keeper| table::descendants(&rows, keeper.pid));
        let rows = rows.into_iter().filter(|row| !row.is_zombie && row.started >= earliest);
        let member = |row: Row| {
            let in_group = is_ours && row.group == self.leader.pid;
            // Any user can give a process any variable.
            let is_marked = || row.uid == own && table::has_variable(row.pid, &self.mark);
            (in_group || kept.contains(&row.pid) || is_marked()).then_some(Member { row, in_group })
        };
        rows.filter_map(member).collect()
    }

    /// Sends a signal to the group, as a terminal would. Nobody is asked twice whether they still run.
    pub(crate) fn signal(&self, signal: Signal) {
        if let Some(pid) = pid(self.leader.pid).filter(|_| self.leader.holds_its_number()) {
            let _ = kill_process_group(pid, signal);
        }
    }

    /// Sends a signal to all of them, those that left the group too.
    pub(crate) fn signal_all(&self, signal: Signal) {
        let outside = self.members().into_iter().filter(|member| !member.in_group);
        let outside = outside.filter_map(|member| pid(member.row.pid)).collect::<Vec<_>>();
        self.signal(signal);
        for pid in outside {
            let _ = kill_process(pid, signal);
        }
    }
}

/// This user's processes that carry a variable, `NAME=value`, or one whose value begins so. Any user can give a process any
/// variable, and root can read the variables of all.
pub(crate) fn marked(prefix: &str) -> Vec<Row> {
    let own = rustix::process::geteuid().as_raw();
    let rows = table::rows().into_iter().filter(|row| !row.is_zombie && row.uid == own);
    rows.filter(|row| table::has_variable_beginning(row.pid, prefix)).collect()
}

/// A number of a process, as the system's calls take it.
pub(crate) fn pid(number: u32) -> Option<Pid> {
    Pid::from_raw(i32::try_from(number).ok()?)
}
