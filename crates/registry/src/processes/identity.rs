//! Identities of processes and machines that stay valid: a process ID alone may be reused.

use super::table;
use rustix::process::{Signal, kill_process, test_kill_process};
use serde::{Deserialize, Serialize};
use std::fs;
use std::process::Command;
use std::time::Duration;

/// A process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Process {
    /// Its process ID.
    pub pid: u32,
    /// Its start time in the system's format. Together with the process ID it is unique.
    pub started: String,
}

impl Process {
    /// The process that has this ID now; `None` if there is none or it has ended.
    pub fn of(pid: u32) -> Option<Self> {
        Some(Self { pid, started: started(pid)? })
    }

    /// This process.
    pub fn own() -> Self {
        let pid = std::process::id();
        Self { pid, started: started(pid).unwrap_or_default() }
    }

    /// Whether it still runs. A zombie does not.
    pub fn is_alive(&self) -> bool {
        started(self.pid).is_some_and(|started| started == self.started)
    }

    /// Whether it runs as this user. Always true on systems without `/proc`, which forbid signals to other users'
    /// processes anyway.
    pub fn is_mine(&self) -> bool {
        let own = rustix::process::geteuid().as_raw();
        !cfg!(target_os = "linux") || table::row(self.pid).is_some_and(|row| row.uid == own)
    }

    /// Waits until it has ended. It need not be a child of this process.
    pub fn wait(&self) {
        #[cfg(target_os = "linux")]
        {
            use rustix::event::{PollFd, PollFlags, poll};
            use rustix::process::{PidfdFlags, pidfd_open};
            let open = table::pid(self.pid).map(|pid| pidfd_open(pid, PidfdFlags::empty()));
            // The descriptor always refers to the same process, so checking after it is opened is enough.
            if let Some(Ok(descriptor)) = open {
                while self.is_alive() && poll(&mut [PollFd::new(&descriptor, PollFlags::IN)], None).is_err() {}
                return;
            }
        }
        while self.is_alive() {
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// Sends it a signal, and never another process that reused its process ID.
    pub fn signal(&self, signal: Signal) {
        let Some(pid) = table::pid(self.pid) else { return };
        #[cfg(target_os = "linux")]
        {
            use rustix::process::{PidfdFlags, pidfd_open, pidfd_send_signal};
            // The descriptor always refers to the same process, so checking after it is opened is enough.
            if let Ok(descriptor) = pidfd_open(pid, PidfdFlags::empty()) {
                if self.is_alive() {
                    let _ = pidfd_send_signal(descriptor, signal);
                }
                return;
            }
        }
        if self.is_alive() {
            let _ = kill_process(pid, signal);
        }
    }

    /// Whether its process ID is still its own. A zombie keeps its ID until its parent reaps it.
    pub fn holds_its_number(&self) -> bool {
        match cfg!(target_os = "linux") {
            true => table::row(self.pid).is_some_and(|row| row.started.to_string() == self.started),
            false => self.is_alive(),
        }
    }
}

/// The start time of a process: in ticks since boot on Linux, as a date elsewhere.
fn started(pid: u32) -> Option<String> {
    if cfg!(target_os = "linux") {
        let row = table::row(pid)?;
        return (!row.is_zombie).then(|| row.started.to_string());
    }
    test_kill_process(table::pid(pid)?).ok()?;
    let said = Command::new("ps").args(["-o", "lstart=", "-p", &pid.to_string()]).output().ok()?;
    let said = String::from_utf8_lossy(&said.stdout).trim().to_owned();
    (!said.is_empty()).then_some(said)
}

/// A machine and its current boot, as its processes see it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machine {
    /// Its host name.
    pub host: String,
    /// The ID of this boot; empty if the system has none.
    pub boot: String,
    /// The PID namespace: containers have their own.
    pub numbers: String,
}

impl Machine {
    /// This machine.
    pub fn own() -> Self {
        let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
        let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default().trim().to_owned();
        let numbers = fs::read_link("/proc/self/ns/pid").unwrap_or_default().to_string_lossy().into_owned();
        Self { host, boot, numbers }
    }

    /// Whether it is an earlier boot of `now`, so that none of its processes run.
    pub fn is_before(&self, now: &Self) -> bool {
        self.host == now.host && self.boot != now.boot
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reused_process_id_is_another_process() {
        let own = Process::own();
        assert!(own.is_alive() && own.holds_its_number() && Process::of(own.pid) == Some(own.clone()));
        let earlier = Process { started: "1".to_owned(), ..own };
        assert!(!earlier.is_alive() && !earlier.holds_its_number());
    }

    #[test]
    fn a_zombie_is_not_alive_but_keeps_its_process_id_until_it_is_reaped() {
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
