//! The process that changed a card, identified by its process ID and its start time.

use serde::{Deserialize, Serialize};
use std::fs;

/// A process that changed a card.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Owner {
    /// Its process ID.
    pub pid: u32,
    /// Its start time in ticks since boot; `None` if the system does not report it.
    pub started: Option<u64>,
    /// The boot ID of the machine.
    pub boot: String,
    /// Its PID namespace: containers have their own.
    pub numbers: String,
    /// A description: the command and the run.
    pub what: String,
}

/// The state of an owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Life {
    /// It runs.
    Alive,
    /// It ended.
    Gone,
    /// The machine was rebooted since, which reset its cards.
    BeforeReboot,
    /// It is not visible from here: it is in another container, or the system does not report it.
    Unknown,
}

impl Owner {
    /// This process.
    pub fn own(what: impl Into<String>) -> Self {
        let pid = std::process::id();
        let (boot, numbers) = here();
        Self { pid, started: started(pid), boot, numbers, what: what.into() }
    }

    /// Its state.
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

/// The boot ID and the PID namespace of this process.
fn here() -> (String, String) {
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default().trim().to_owned();
    let numbers = fs::read_link("/proc/self/ns/pid").unwrap_or_default().to_string_lossy().into_owned();
    (boot, numbers)
}

/// The start time of a process in ticks since boot; `None` if it has ended, even if it is still a zombie.
/// Source: proc(5), fields 3 and 22 of `stat`. Names may contain spaces and parentheses.
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
    fn owners_are_identified_by_their_start_time() {
        let own = Owner::own("a test");
        assert_eq!(own.life(), Life::Alive);
        assert_eq!(Owner { started: Some(1), ..own.clone() }.life(), Life::Gone);
        assert_eq!(Owner { pid: u32::MAX, ..own.clone() }.life(), Life::Gone);
        assert_eq!(Owner { boot: "another".to_owned(), ..own.clone() }.life(), Life::BeforeReboot);
        assert_eq!(Owner { numbers: "pid:[1]".to_owned(), ..own.clone() }.life(), Life::Unknown);
        assert_eq!(Owner { started: None, ..own }.life(), Life::Unknown);
    }
}
