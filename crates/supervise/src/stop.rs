//! Stops a run from outside: an interrupt, as by Ctrl-C, then a request to end, then the end.

use crate::pause::is_paused;
use crate::processes::{self, Process};
use crate::registry::{Entry, State};
use crate::signals::ignored_by;
use rustix::process::{Signal, kill_process, kill_process_group};
use std::io;
use std::time::{Duration, Instant};

/// How often it is looked whether it has ended.
const TICK: Duration = Duration::from_millis(20);

/// How long a supervisor may take to write its report after its programs.
const REPORT: Duration = Duration::from_secs(5);

/// How far it had to be gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stopped {
    /// Nothing of it ran.
    HadEnded,
    /// It ended when it was interrupted.
    ByInterrupt,
    /// It ended when it was asked to end.
    ByRequest,
    /// It was ended.
    Killed,
    /// Something of it still runs, whatever was sent.
    Survives,
    /// It belongs to another machine.
    Elsewhere,
    /// The process that its folder names is not proved to be the run's, so it was not signaled.
    Unproved,
}

/// Stops a run. `grace`: how long it may take after the interrupt, and again after the request; `None`: it is ended at once.
/// `tell` gets the name of each signal before it is sent. Only processes that are proved to be the run's are signaled.
/// Errors: those of [`Entry::trusted`].
pub fn stop(entry: &Entry, grace: Option<Duration>, tell: &mut dyn FnMut(&str)) -> io::Result<Stopped> {
    let entry = &entry.trusted()?;
    match entry.state() {
        State::Running | State::Orphaned => {}
        State::Ended | State::Gone => return Ok(Stopped::HadEnded),
        State::Elsewhere => return Ok(Stopped::Elsewhere),
    }
    if entry.process.is_alive() && entry.proved().is_none() {
        return Ok(Stopped::Unproved);
    }
    // A supervisor gives its programs their own time before it ends them.
    let own_grace = Duration::from_secs_f64(entry.grace_s.clamp(0.0, 1e6)) + REPORT;
    let steps = [
        (Signal::INT, "SIGINT", grace, Stopped::ByInterrupt),
        (Signal::TERM, "SIGTERM", grace.map(|grace| grace.max(own_grace)), Stopped::ByRequest),
    ];
    for (signal, name, patience, outcome) in steps {
        // Shells start `nohup … &` of a script with SIGINT ignored: it would be waited for in vain.
        let is_in_vain = signal == Signal::INT && is_ignored(entry, signal);
        let Some(patience) = patience.filter(|_| !is_in_vain) else { continue };
        tell(name);
        ask(entry, signal);
        // Who is paused hears nothing.
        if is_paused(entry) {
            ask(entry, Signal::CONT);
        }
        if ends_within(entry, patience) {
            return Ok(outcome);
        }
    }
    tell("SIGKILL");
    // The supervisor first, which would start the programs again.
    if let Some(process) = entry.proved() {
        signal_process(process, Signal::KILL);
    }
    for pid in entry.survivors() {
        if let Some(process) = Process::of(pid) {
            signal_process(&process, Signal::KILL);
        }
    }
    for leader in entry
        .workers
        .iter()
        .filter_map(|worker| worker.leader.as_ref())
        .filter(|leader| leader.holds_its_number() && leader.is_mine())
    {
        let _ = processes::pid(leader.pid).map(|pid| kill_process_group(pid, Signal::KILL));
    }
    Ok(if ends_within(entry, REPORT) { Stopped::Killed } else { Stopped::Survives })
}

/// Asks whoever is responsible.
fn ask(entry: &Entry, signal: Signal) {
    responsible(entry).iter().for_each(|process| signal_process(process, signal));
}

/// The supervisor, or the programs themselves where it is gone.
fn responsible(entry: &Entry) -> Vec<Process> {
    match entry.process.is_alive() {
        true => entry.proved().into_iter().cloned().collect(),
        false => entry.survivors().into_iter().filter_map(Process::of).collect(),
    }
}

/// Whether all that would be asked ignore a signal.
fn is_ignored(entry: &Entry, signal: Signal) -> bool {
    let ignores = |process: &Process| ignored_by(process.pid) & (1 << (signal.as_raw() - 1)) != 0;
    let asked = responsible(entry);
    !asked.is_empty() && asked.iter().all(ignores)
}

fn ends_within(entry: &Entry, patience: Duration) -> bool {
    let start = Instant::now();
    loop {
        let survives = entry.process.is_alive() || !entry.survivors().is_empty();
        if !survives {
            return true;
        }
        if start.elapsed() >= patience {
            return false;
        }
        std::thread::sleep(TICK);
    }
}

/// Sends a signal to this process and to no other that has its number by then.
pub(crate) fn signal_process(process: &Process, signal: Signal) {
    let Some(pid) = processes::pid(process.pid) else { return };
    #[cfg(target_os = "linux")]
    {
        use rustix::process::{PidfdFlags, pidfd_open, pidfd_send_signal};
        // What the descriptor means does not change, so looking behind its opening is enough.
        if let Ok(descriptor) = pidfd_open(pid, PidfdFlags::empty()) {
            if process.is_alive() {
                let _ = pidfd_send_signal(descriptor, signal);
            }
            return;
        }
    }
    if process.is_alive() {
        let _ = kill_process(pid, signal);
    }
}
