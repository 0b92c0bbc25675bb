//! Stops a run from outside: SIGINT as from Ctrl-C, then SIGTERM, then SIGKILL.

use crate::entry::{Entry, RunState};
use crate::pause::is_paused;
use crate::processes::{Process, ignored_signals, pid};
use rustix::process::{Signal, kill_process_group};
use std::io;
use std::time::{Duration, Instant};

/// How often to check whether the run has ended.
const TICK: Duration = Duration::from_millis(20);

/// How long a supervisor may take to write its report after its programs.
const REPORT: Duration = Duration::from_secs(5);

/// How a run was stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stopped {
    /// It had already ended.
    HadEnded,
    /// It ended after SIGINT.
    ByInterrupt,
    /// It ended after SIGTERM.
    ByRequest,
    /// It ended after SIGKILL.
    Killed,
    /// Some of its processes still run after SIGKILL.
    Survives,
    /// It runs on another machine.
    Elsewhere,
    /// The process that its folder names is not proved to be the run's, so it got no signal.
    Unproved,
}

/// Stops a run. `grace`: how long to wait after SIGINT, and again after SIGTERM; `None` to send SIGKILL at once. Calls
/// `on_signal` with the name of each signal before sending it. Signals only processes that are proved to be the run's.
/// Errors: those of [`Entry::trusted`].
pub fn stop(entry: &Entry, grace: Option<Duration>, on_signal: &mut dyn FnMut(&str)) -> io::Result<Stopped> {
    let entry = &entry.trusted()?;
    match entry.state() {
        RunState::Running | RunState::Orphaned => {}
        RunState::Ended | RunState::Gone => return Ok(Stopped::HadEnded),
        RunState::Elsewhere => return Ok(Stopped::Elsewhere),
    }
    if entry.process.is_alive() && entry.proved().is_none() {
        return Ok(Stopped::Unproved);
    }
    // A supervisor first waits for its own programs.
    let own_grace = Duration::from_secs_f64(entry.grace_s.clamp(0.0, 1e6)) + REPORT;
    let steps = [
        (Signal::INT, "SIGINT", grace, Stopped::ByInterrupt),
        (Signal::TERM, "SIGTERM", grace.map(|grace| grace.max(own_grace)), Stopped::ByRequest),
    ];
    for (signal, name, patience, outcome) in steps {
        // Shells start `nohup … &` in a script with SIGINT ignored. Do not wait for such a run.
        let is_in_vain = signal == Signal::INT && is_ignored(entry, signal);
        let Some(patience) = patience.filter(|_| !is_in_vain) else { continue };
        on_signal(name);
        send(entry, signal);
        // A paused process does not receive signals.
        if is_paused(entry) {
            send(entry, Signal::CONT);
        }
        if ends_within(entry, patience) {
            return Ok(outcome);
        }
    }
    on_signal("SIGKILL");
    // Kill the supervisor first, since it would restart the programs.
    if let Some(process) = entry.proved() {
        process.signal(Signal::KILL);
    }
    for pid in entry.survivors() {
        if let Some(process) = Process::of(pid) {
            process.signal(Signal::KILL);
        }
    }
    for leader in entry
        .workers
        .iter()
        .filter_map(|worker| worker.leader.as_ref())
        .filter(|leader| leader.holds_its_number() && leader.is_mine())
    {
        let _ = pid(leader.pid).map(|pid| kill_process_group(pid, Signal::KILL));
    }
    Ok(if ends_within(entry, REPORT) { Stopped::Killed } else { Stopped::Survives })
}

/// Sends a signal to the responsible processes.
fn send(entry: &Entry, signal: Signal) {
    responsible(entry).iter().for_each(|process| process.signal(signal));
}

/// The supervisor or, if it is gone, the programs.
fn responsible(entry: &Entry) -> Vec<Process> {
    match entry.process.is_alive() {
        true => entry.proved().into_iter().cloned().collect(),
        false => entry.survivors().into_iter().filter_map(Process::of).collect(),
    }
}

/// Whether all responsible processes ignore a signal.
fn is_ignored(entry: &Entry, signal: Signal) -> bool {
    let ignores = |process: &Process| ignored_signals(process.pid) & (1 << (signal.as_raw() - 1)) != 0;
    let processes = responsible(entry);
    !processes.is_empty() && processes.iter().all(ignores)
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
