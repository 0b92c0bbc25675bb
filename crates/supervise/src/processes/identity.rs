//! Processes and machines so that they are recognized later: a number alone may be another's by then.

use super::table;
use rustix::process::{Pid, test_kill_process};
use serde::{Deserialize, Serialize};
use std::fs;
use std::process::Command;
use std::time::Duration;

/// A process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Process {
    /// Its number.
    pub pid: u32,
    /// When it was started, in words of the system's; no two processes of one number have the same.
    pub started: String,
}

impl Process {
    /// The one that has this number now; `None` if none has, or if it has ended.
    pub fn of(pid: u32) -> Option<Self> {
        Some(Self { pid, started: started(pid)? })
    }

    /// This process.
    pub fn own() -> Self {
        let pid = std::process::id();
        Self { pid, started: started(pid).unwrap_or_default() }
    }

    /// Whether it still runs; one that has ended does not, whether or not its parent asked how.
    pub fn is_alive(&self) -> bool {
        started(self.pid).is_some_and(|started| started == self.started)
    }

    /// Whether it runs as this user. Systems without a table of processes let a user signal no other user's processes anyway.
    pub(crate) fn is_mine(&self) -> bool {
        let own = rustix::process::geteuid().as_raw();
        !cfg!(target_os = "linux") || table::row(self.pid).is_some_and(|row| row.uid == own)
    }

    /// Returns once it has ended. It need not be a child of this process.
    pub(crate) fn wait(&self) {
        #[cfg(target_os = "linux")]
        {
            use rustix::event::{PollFd, PollFlags, poll};
            use rustix::process::{PidfdFlags, pidfd_open};
            let open =
                Pid::from_raw(i32::try_from(self.pid).unwrap_or(0)).map(|pid| pidfd_open(pid, PidfdFlags::empty()));
            // What the descriptor means does not change, so looking behind its opening is enough.
            if let Some(Ok(descriptor)) = open {
                while self.is_alive() && poll(&mut [PollFd::new(&descriptor, PollFlags::IN)], None).is_err() {}
                return;
            }
        }
        while self.is_alive() {
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// Whether its number is still its own. A process that has ended keeps it until its parent asks how.
    pub(crate) fn holds_its_number(&self) -> bool {
        match cfg!(target_os = "linux") {
            true => table::row(self.pid).is_some_and(|row| row.started.to_string() == self.started),
            false => self.is_alive(),
        }
    }
}

/// When a process was started. Linux says it in ticks since its own start, other systems as a date.
fn started(pid: u32) -> Option<String> {
    if cfg!(target_os = "linux") {
        let row = table::row(pid)?;
        return (!row.is_zombie).then(|| row.started.to_string());
    }
    test_kill_process(Pid::from_raw(i32::try_from(pid).ok()?)?).ok()?;
    let said = Command::new("ps").args(["-o", "lstart=", "-p", &pid.to_string()]).output().ok()?;
    let said = String::from_utf8_lossy(&said.stdout).trim().to_owned();
    (!said.is_empty()).then_some(said)
}

/// A machine between two starts, as its processes see it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machine {
    /// Its name.
    pub host: String,
    /// What only this start of it has, where the system tells.
    pub boot: String,
    /// The space in which processes are numbered: containers have their own.
    pub numbers: String,
}

impl Machine {
    /// This one.
    pub fn own() -> Self {
        let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
        let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default().trim().to_owned();
        let numbers = fs::read_link("/proc/self/ns/pid").unwrap_or_default().to_string_lossy().into_owned();
        Self { host, boot, numbers }
    }

    /// Whether it is the other one before its last start, so that nothing of it runs.
    pub(crate) fn is_before(&self, now: &Self) -> bool {
        self.host == now.host && self.boot != now.boot
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_that_another_has_now_is_not_the_process() {
        let own = Process::own();
        assert!(own.is_alive() && own.holds_its_number() && Process::of(own.pid) == Some(own.clone()));
        let earlier = Process { started: "1".to_owned(), ..own };
        assert!(!earlier.is_alive() && !earlier.holds_its_number());
    }

    #[test]
    fn a_process_that_ended_is_not_alive_but_keeps_its_number_until_it_is_waited_for() {
        let mut child = Command::new("sleep").arg("600").spawn().expect("a child");
        let process = Process::of(child.id()).expect("it runs");
        child.kill().expect("it runs");
        while process.is_alive() {
            std::thread::yield_now();
        }
        assert!(!cfg!(target_os = "linux") || process.holds_its_number());
        child.wait().expect("it ended");
        assert!(!process.holds_its_number());
    }
}
