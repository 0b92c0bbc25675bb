//! One of the programs that a supervisor runs side by side: its attempts, one after the other. Not here: what all of them
//! share (`supervisor.rs`).

use crate::child::Running;
use crate::hang::Watch;
use crate::keeper::Status;
use crate::output::Output;
use crate::pace::{Held, continue_all, stop_all};
use crate::repair::{Attempt, Ending, Repair};
use crate::restarts::Restarts;
use crate::shares::Share;
use plimsoll_telemetry::oom_kills;
use rustix::process::Signal;
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

/// How long processes that were left behind may take to end once they were asked to.
const SWEEP: Duration = Duration::from_secs(5);

/// A worker.
pub(crate) struct Worker {
    pub(crate) share: Share,
    pub(crate) repair: Box<dyn Repair>,
    pub(crate) restarts: Restarts,
    pub(crate) output: Output,
    /// Which attempt is on, or was the last; from 1.
    pub(crate) attempt_number: u32,
    pub(crate) attempt: Attempt,
    pub(crate) phase: Phase,
    /// When its first attempt was started.
    pub(crate) first_started: Option<Instant>,
    /// Whether it was told that output is lost.
    pub(crate) has_told_loss: bool,
}

/// Where a worker stands.
pub(crate) enum Phase {
    /// Its turn has not come.
    Waiting,
    /// A program of it runs, or has ended and is being cleared away.
    Live(Box<Live>),
    /// It is started again then.
    Pausing(Instant),
    /// It is not started again.
    Done(Outcome),
}

/// What came of a worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Outcome {
    pub(crate) code: Option<i32>,
    pub(crate) is_success: bool,
}

impl Outcome {
    /// Of an end, with the exit code that shells give it.
    pub(crate) fn of(code: Option<i32>, signal: Option<i32>) -> Self {
        Self { code: code.or_else(|| signal.map(|signal| 128 + signal)), is_success: code == Some(0) }
    }
}

/// A program that was started.
pub(crate) struct Live {
    pub(crate) running: Running,
    started: Instant,
    oom_before: u64,
    watch: Option<Watch>,
    /// Signals that it will get, with the reasons for them.
    schedule: VecDeque<(Instant, Signal, &'static str)>,
    hung: bool,
    status: Option<Status>,
    sweep: Option<Sweep>,
    /// What of it is stopped for heat.
    held: Option<Held>,
    /// Whether a person stopped it. Heat takes nothing from a person: who lets it go on lets all of it go on.
    is_paused: bool,
    /// For how long it was, until now.
    held_for: Duration,
}

/// The clearing away of processes that outlived the first.
struct Sweep {
    until: Instant,
    is_forced: bool,
}

/// What a look at a program showed.
pub(crate) enum Seen {
    /// Nothing new.
    Nothing,
    /// It was sent a signal.
    Signaled(Signal, String),
    /// For so long it has neither printed nor computed.
    Hangs(Duration),
    /// It ended, nothing of it is left, and all that it printed is kept.
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

    /// The first process has ended.
    pub(crate) fn ended(&mut self, status: Status) {
        self.status = Some(status);
        self.schedule.clear();
    }

    /// Sends signals one after the other, each so long after now, as long as the program runs.
    pub(crate) fn schedule(&mut self, signals: &[(Duration, Signal, &'static str)]) {
        if self.status.is_none() {
            let now = Instant::now();
            self.schedule = signals.iter().map(|&(after, signal, why)| (now + after, signal, why)).collect();
        }
    }

    /// Ends all of its processes at once.
    pub(crate) fn kill(&mut self) {
        self.schedule.clear();
        self.running.group.signal_all(Signal::KILL);
        self.sweep = Some(Sweep { until: Instant::now(), is_forced: true });
    }

    /// Passes a signal on to it, as a terminal would.
    pub(crate) fn forward(&self, signal: Signal) {
        self.running.group.signal(signal);
    }

    /// Stops it for heat, unless it is ending or is stopped already: for a person, who lets it go on. `worker`: its number, for the record in the run's folder.
    /// Errors: that can't be written; it is stopped all the same.
    pub(crate) fn hold(&mut self, folder: &Path, worker: usize) -> io::Result<()> {
        if self.held.is_some() || self.is_paused || self.has_ended() || self.is_asked_to_end() || self.hung {
            return Ok(());
        }
        let (held, written) = Held::new(folder, worker, &self.running.group);
        self.held = Some(held);
        written
    }

    /// Whether it is stopped for heat although it is to end.
    pub(crate) fn is_held_up(&self) -> bool {
        self.held.is_some() && (self.has_ended() || self.is_asked_to_end())
    }

    /// Lets it go on if it is stopped for heat.
    pub(crate) fn let_go(&mut self) {
        if let Some(held) = self.held.take() {
            self.held_for += held.release();
        }
    }

    /// Stops it for a person, whose it is from now on.
    pub(crate) fn pause(&mut self) {
        if let Some(held) = self.held.take() {
            self.held_for += held.leave();
        }
        self.is_paused = true;
        stop_all(&self.running.group);
    }

    /// Lets it go on for a person, unless it is stopped for heat.
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

    /// Whether signals are on their way.
    pub(crate) fn is_asked_to_end(&self) -> bool {
        !self.schedule.is_empty()
    }

    /// Does what is due. To be called again until nothing is new.
    pub(crate) fn look(&mut self, output: &Output, grace: Duration) -> Seen {
        let now = Instant::now();
        if let Some(&(_, signal, why)) = self.schedule.front().filter(|(at, ..)| *at <= now) {
            self.schedule.pop_front();
            self.running.group.signal_all(signal);
            return Seen::Signaled(signal, why.to_owned());
        }
        if self.status.is_some() {
            return self.clear_away(now, grace);
        }
        // Who is stopped for heat can't show that it works.
        let is_watched = self.schedule.is_empty() && !self.hung && self.held.is_none();
        let watch = self.watch.as_mut().filter(|_| is_watched);
        match watch.and_then(|watch| watch.look(output, &self.running.group, self.held_for)) {
            Some(idle) => {
                self.hung = true;
                Seen::Hangs(idle)
            }
            None => Seen::Nothing,
        }
    }

    /// After the first process, all others go; then the rest of the output is carried.
    fn clear_away(&mut self, now: Instant, grace: Duration) -> Seen {
        if !cfg!(target_os = "linux") {
            // Who is left can't be seen, so nobody is asked.
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
                return Seen::Signaled(Signal::TERM, format!("left behind by a program that ended: {names}"));
            }
            Some(sweep) if !sweep.is_forced && now < sweep.until => return Seen::Nothing,
            Some(sweep) if !sweep.is_forced => {
                self.running.group.signal_all(Signal::KILL);
                *sweep = Sweep { until: now + SWEEP, is_forced: true };
                return Seen::Signaled(Signal::KILL, "left behind, and it did not end when it was asked to".to_owned());
            }
            // One that the kernel itself can't end, such as while a disk does not answer, is left to it.
            Some(sweep) if now < sweep.until => return Seen::Nothing,
            Some(_) => {}
        }
        self.running.finish_output();
        if self.running.is_carried() { Seen::Over } else { Seen::Nothing }
    }

    /// What is told of its end, once nothing of it is left.
    pub(crate) fn conclude(self, output: &Output) -> Ending {
        let Status { code, signal } = self.status.unwrap_or_default();
        let ran_for = self.started.elapsed();
        let (tail, progress) = output.finish();
        let oom_kills = oom_kills().unwrap_or(0).saturating_sub(self.oom_before);
        self.running.release();
        Ending { code, signal, tail, oom_kills, hung: self.hung, ran_for, progress }
    }
}

impl Worker {
    /// Whether the next worker need not wait for this one any longer: it has made so much progress, it has run for so
    /// long, or it is done.
    pub(crate) fn makes_room(&self, fraction: f64, time: Duration) -> bool {
        let progressed = || self.output.progress().and_then(|p| p.fraction()).is_some_and(|done| done >= fraction);
        match self.phase {
            Phase::Waiting => false,
            Phase::Done(_) => true,
            _ => self.first_started.is_some_and(|started| started.elapsed() >= time) || progressed(),
        }
    }
}
