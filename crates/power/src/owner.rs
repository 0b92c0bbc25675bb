//! Who set something: a process, told from a later one of the same number by when it was started.

use serde::{Deserialize, Serialize};
use std::fs;

/// A process that set something.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Owner {
    /// Its number.
    pub pid: u32,
    /// When it was started, in ticks since the machine was; `None` where the system does not tell.
    pub started: Option<u64>,
    /// The machine's start that it belongs to.
    pub boot: String,
    /// The space in which it is numbered: containers have their own.
    pub numbers: String,
    /// What it is, in words: the command and the run.
    pub what: String,
}

/// What became of an owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Life {
    /// It runs.
    Alive,
    /// It ended.
    Gone,
    /// The machine was started again since, and cards have forgotten what they were told.
    BeforeReboot,
    /// It can't be seen from here: another container's, or the system does not tell.
    Unknown,
}

impl Owner {
    /// This process.
    pub fn own(what: impl Into<String>) -> Self {
        let pid = std::process::id();
        let (boot, numbers) = here();
        Self { pid, started: started(pid), boot, numbers, what: what.into() }
    }

    /// What became of it.
    pub fn life(&self) -> Life {
        let (boot, numbers) = here();
        match self.started {
            _ if !boot.is_empty() && !self.boot.is_empty() && boot != self.boot => Life::BeforeReboot,
            Some(then) if numbers == self.numbers && !numbers.is_empty() => {
                if started(self.pid) == Some(then) {
                    Life::Alive
                } else {
                    Life::Gone
                }
            }
            _ => Life::Unknown,
        }
    }
}

/// This start of the machine, and the space of processes.
fn here() -> (String, String) {
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default().trim().to_owned();
    let numbers = fs::read_link("/proc/self/ns/pid").unwrap_or_default().to_string_lossy().into_owned();
    (boot, numbers)
}

/// When a process was started, in ticks since the machine was; none for one that ended, even where nobody has waited for it
/// yet. Source: proc(5), fields 3 and 22 of `stat`; names may have spaces and parentheses.
fn started(pid: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let mut fields = stat.rsplit_once(')')?.1.split_ascii_whitespace();
    let state = fields.next()?;
    fields.nth(18)?.parse().ok().filter(|_| !matches!(state, "Z" | "X"))
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn owners_are_told_apart_by_when_they_were_started() {
        let own = Owner::own("a test");
        assert_eq!(own.life(), Life::Alive);
        assert_eq!(Owner { started: Some(1), ..own.clone() }.life(), Life::Gone);
        assert_eq!(Owner { pid: u32::MAX, ..own.clone() }.life(), Life::Gone);
        assert_eq!(Owner { boot: "another".to_owned(), ..own.clone() }.life(), Life::BeforeReboot);
        assert_eq!(Owner { numbers: "pid:[1]".to_owned(), ..own.clone() }.life(), Life::Unknown);
        assert_eq!(Owner { started: None, ..own }.life(), Life::Unknown);
    }
}
