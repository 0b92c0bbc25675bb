//! A process, identified by ID and start time: another process may get the same ID later.

use crate::text::{LINE, NAME, clean};
use serde::Serialize;
use std::fs;

/// A running process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ProcessInfo {
    /// Process ID.
    pub pid: u32,
    /// Start time in the system's format; no two processes with the same ID share it.
    pub started: String,
    /// Name of its program.
    pub name: Option<String>,
    /// Its command line.
    pub command: Option<String>,
    /// User ID.
    pub uid: Option<u32>,
}

impl ProcessInfo {
    /// The process with this ID; `None` if there is none, or if the system does not report processes.
    pub fn of(pid: u32) -> Option<Self> {
        let started = started(pid)?;
        let file = |name: &str| fs::read(format!("/proc/{pid}/{name}")).ok();
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).replace('\0', " ").trim().to_owned();
        let said = |name: &str, most: usize| {
            file(name).map(text).filter(|text| !text.is_empty()).map(|text| clean(&text, most))
        };
        Some(Self { pid, started, name: said("comm", NAME), command: said("cmdline", LINE), uid: owner(pid) })
    }

    /// Whether it is still running.
    pub fn is_alive(&self) -> bool {
        started(self.pid).is_some_and(|started| started == self.started)
    }
}

#[cfg(unix)]
fn started(pid: u32) -> Option<String> {
    plimsoll_registry::Process::of(pid).map(|process| process.started)
}

/// User ID of a process.
#[cfg(unix)]
pub(crate) fn owner(pid: u32) -> Option<u32> {
    use std::os::unix::fs::MetadataExt;
    fs::metadata(format!("/proc/{pid}")).ok().map(|metadata| metadata.uid())
}

#[cfg(not(unix))]
fn started(_: u32) -> Option<String> {
    None
}

#[cfg(not(unix))]
pub(crate) fn owner(_: u32) -> Option<u32> {
    None
}

/// Whether this process is in a container with its own process IDs, which differ from the ones that the driver reports.
pub fn has_own_numbers() -> bool {
    // Inode of the initial PID namespace: `PROC_PID_INIT_INO` in the kernel's `proc_ns.h`.
    const FIRST: &str = "pid:[4026531836]";
    fs::read_link("/proc/self/ns/pid").is_ok_and(|link| link.as_os_str() != FIRST)
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn a_process_is_identified_by_its_start_time() {
        let own = ProcessInfo::of(std::process::id()).expect("it runs");
        assert!(own.is_alive() && own.uid.is_some() && own.command.is_some_and(|command| command.contains("plimsoll")));
        let mut child = Command::new("sleep").arg("600").spawn().expect("a child");
        let theirs = ProcessInfo::of(child.id()).expect("it runs");
        assert!(!ProcessInfo { started: "1".to_owned(), ..theirs.clone() }.is_alive());
        child.kill().expect("it runs");
        child.wait().expect("it ends");
        assert!(!theirs.is_alive());
        assert_eq!(ProcessInfo::of(child.id()), None);
    }
}
