//! A worker: one of the programs that a supervisor runs in parallel, over all of its attempts. Not here: what the
//! workers share (`supervisor/`).

use crate::child::Running;
use crate::hang::Watch;
use crate::memory::FreeMemory;
use crate::output::Output;
use crate::pace::{Held, continue_all, stop_all};
use crate::repair::{Ending, Repair};
use crate::restarts::Restarts;
use crate::shares::Share;
use plimsoll_registry::{Attempt, ExitStatus, WorkerOutcome};
use plimsoll_telemetry::oom_kills;
use rustix::process::Signal;
use std::collections::VecDeque;
use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

/// How long leftover processes may take to end after SIGTERM.
const SWEEP: Duration = Duration::from_secs(5);

/// A worker.
pub(crate) struct Worker {
    pub(crate) share: Share,
    pub(crate) repair: Box<dyn Repair>,
    pub(crate) restarts: Restarts,
    pub(crate) output: Output,
    /// The number of the current or last attempt, from 1.
    pub(crate) attempt_number: u32,
    pub(crate) attempt: Attempt,
    pub(crate) phase: Phase,
    /// When its first attempt was started.
    pub(crate) first_started: Option<Instant>,
    /// Whether the loss of output was reported.
    pub(crate) has_reported_loss: bool,
    /// Set while its program has its smallest settings and may return from them.
    pub(crate) reduced: Option<Reduced>,
    /// Whether its program was asked to end so that it returns from its smallest settings.
    pub(crate) is_returning: bool,
}

/// A program with its smallest settings.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Reduced {
    /// The free memory when larger settings did not fit.
    pub(crate) free: FreeMemory,
    /// When to check the free memory next.
    pub(crate) check: Instant,
}

/// The state of a worker.
pub(crate) enum Phase {
    /// It waits for the previous worker.
    Waiting,
    /// Its program runs, or has ended and its leftover processes are being cleaned up.
    Live(Box<Live>),
    /// It restarts at this time.
    Pausing(Instant),
    /// It restarts at this time if more memory is free than when it ran out of it.
    WaitingForMemory { until: Instant, free: FreeMemory },
    /// It does not restart.
    Done(WorkerOutcome),
}

/// A started program.
pub(crate) struct Live {
    pub(crate) running: Running,
    started: Instant,
    oom_before: u64,
    watch: Option<Watch>,
    /// Signals to send, with their reasons.
    schedule: VecDeque<(Instant, Signal, &'static str)>,
    hung: bool,
    status: Option<ExitStatus>,
    sweep: Option<Sweep>,
    /// The processes that are stopped for heat.
    held: Option<Held>,
    /// Whether the user paused it. Then it is not stopped for heat as well, so that the user's resume continues all of
    /// it.
    is_paused: bool,
    /// For how long it was stopped for heat so far.
    held_for: Duration,
}

/// The cleanup of processes that outlived the first one.
struct Sweep {
    until: Instant,
    is_forced: bool,
}

/// The result of checking a program.
pub(crate) enum Observation {
    /// Nothing new.
    Nothing,
    /// A signal was sent, with the reason.
    Signaled(Signal, String),
    /// It has neither printed nor computed for this long.
    Hangs(Duration),
    /// It ended, no process is left, and all output was carried.
    Over,
}

impl Live {
    pub(crate) fn new(running: Running, watch: Option<Watch>) -> Self {
        let oom_before = oom_kills().unwrap_or(0);
        let schedule = VecDeque::new();
        Self {
            running,
            started: Instant::now(),
            oom_before,
            watch,
            schedule,
            hung: false,
            status: None,
            sweep: None,
            held: None,
            is_paused: false,
            held_for: Duration::ZERO,
        }
    }

    /// Records that the first process has ended.
    pub(crate) fn ended(&mut self, status: ExitStatus) {
        self.status = Some(status);
        self.schedule.clear();
    }

    /// Schedules signals, each after its delay from now, as long as the program runs.
    pub(crate) fn schedule(&mut self, signals: &[(Duration, Signal, &'static str)]) {
        if self.status.is_none() {
            let now = Instant::now();
            self.schedule = signals.iter().map(|&(after, signal, why)| (now + after, signal, why)).collect();
        }
    }

    /// Kills all of its processes.
    pub(crate) fn kill(&mut self) {
        self.schedule.clear();
        self.running.group.signal_all(Signal::KILL);
        self.sweep = Some(Sweep { until: Instant::now(), is_forced: true });
    }

    /// Forwards a signal to its process group, as a terminal does.
    pub(crate) fn forward(&self, signal: Signal) {
        self.running.group.signal(signal);
    }

    /// Stops it for heat, and keeps it stopped, unless it is ending or paused by the user. `worker`: its index, for the
    /// record in the run's folder. Errors: the record can't be written; the program is stopped anyway.
    pub(crate) fn hold(&mut self, folder: &Path, worker: usize) -> io::Result<()> {
        if let Some(held) = &mut self.held {
            return held.keep(&self.running.group);
        }
        if self.is_paused || self.has_ended() || self.has_pending_signals() || self.hung {
            return Ok(());
        }
        let (held, written) = Held::new(folder, worker, &self.running.group);
        self.held = Some(held);
        written
    }

    /// Whether it is stopped for heat although it must end.
    pub(crate) fn is_held_up(&self) -> bool {
        self.held.is_some() && (self.has_ended() || self.has_pending_signals())
    }

    /// Continues it if it is stopped for heat.
    pub(crate) fn let_go(&mut self) {
        if let Some(held) = self.held.take() {
            self.held_for += held.release();
        }
    }

    /// Pauses it for the user. Takes over from a stop for heat.
    pub(crate) fn pause(&mut self) {
        if let Some(held) = self.held.take() {
            self.held_for += held.leave();
        }
        self.is_paused = true;
        stop_all(&self.running.group);
    }

    /// Resumes it for the user, unless it is stopped for heat.
    pub(crate) fn resume(&mut self) {
        self.is_paused = false;
        if self.held.is_none() {
            continue_all(&self.running.group);
        }
    }

    /// Whether its first process has ended.
    pub(crate) fn has_ended(&self) -> bool {
        self.status.is_some()
    }

    /// Whether signals are scheduled.
    pub(crate) fn has_pending_signals(&self) -> bool {
        !self.schedule.is_empty()
    }

    /// Performs the next due action. Call again until it returns [`Observation::Nothing`].
    pub(crate) fn look(&mut self, output: &Output, grace: Duration) -> Observation {
        let now = Instant::now();
        if let Some(&(_, signal, why)) = self.schedule.front().filter(|(at, ..)| *at <= now) {
            self.schedule.pop_front();
            self.running.group.signal_all(signal);
            return Observation::Signaled(signal, why.to_owned());
        }
        if self.status.is_some() {
            return self.clear_away(now, grace);
        }
        // A program that is stopped for heat can't show activity.
        let is_watched = self.schedule.is_empty() && !self.hung && self.held.is_none();
        let watch = self.watch.as_mut().filter(|_| is_watched);
        match watch.and_then(|watch| watch.look(output, &self.running.group, self.held_for)) {
            Some(idle) => {
                self.hung = true;
                Observation::Hangs(idle)
            }
            None => Observation::Nothing,
        }
    }

    /// Ends the leftover processes after the first one, then carries the rest of the output.
    fn clear_away(&mut self, now: Instant, grace: Duration) -> Observation {
        if !cfg!(target_os = "linux") {
            // Leftover processes are unknown here, so kill the group.
            self.running.group.signal(Signal::KILL);
        }
        let left = self.running.group.members();
        match &mut self.sweep {
            _ if left.is_empty() => {}
            None => {
                self.running.group.signal_all(Signal::TERM);
                self.sweep = Some(Sweep { until: now + grace.min(SWEEP), is_forced: false });
                let names = left.iter().map(|member| format!("{} ({})", member.row.name, member.row.pid));
                let names = names.collect::<Vec<_>>().join(", ");
                return Observation::Signaled(Signal::TERM, format!("left running by a program that ended: {names}"));
            }
            Some(sweep) if !sweep.is_forced && now < sweep.until => return Observation::Nothing,
            Some(sweep) if !sweep.is_forced => {
                self.running.group.signal_all(Signal::KILL);
                *sweep = Sweep { until: now + SWEEP, is_forced: true };
                return Observation::Signaled(Signal::KILL, "left running, and it ignored SIGTERM".to_owned());
            }
            // Give up on a process that even the kernel can't end, for example while a disk does not answer.
            Some(sweep) if now < sweep.until => return Observation::Nothing,
            Some(_) => {}
        }
        self.running.finish_output();
        if self.running.is_carried() { Observation::Over } else { Observation::Nothing }
    }

    /// The ending, once no process is left.
    pub(crate) fn conclude(self, output: &Output) -> Ending {
        let ExitStatus { code, signal } = self.status.unwrap_or_default();
        let ran_for = self.started.elapsed();
        let (tail, progress) = output.finish();
        let oom_kills = oom_kills().unwrap_or(0).saturating_sub(self.oom_before);
        self.running.release();
        Ending { code, signal, tail, oom_kills, hung: self.hung, ran_for, progress }
    }
}

impl Worker {
    /// Whether the next worker may start: this one has reached `fraction` of its progress, has run for `time`, or is
    /// done.
    pub(crate) fn makes_room(&self, fraction: f64, time: Duration) -> bool {
        let progressed = || self.output.progress().and_then(|p| p.fraction()).is_some_and(|done| done >= fraction);
        match self.phase {
            Phase::Waiting => false,
            Phase::Done(_) => true,
            _ => self.first_started.is_some_and(|started| started.elapsed() >= time) || progressed(),
        }
    }
}
