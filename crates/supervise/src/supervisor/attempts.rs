//! Attempts: starts a worker's programs, watches them, and decides what to do when one ends.

use super::requests::name_of;
use super::{Message, Refusal, SuperviseSettings, Supervisor};
use crate::child::{AttemptSetup, Running, code_of, is_transient};
use crate::hang::Watch;
use crate::repair::{Decision, Ending, Verdict};
use crate::restarts::Next;
use crate::shares::keep_on;
use crate::stacks;
use crate::worker::{Live, Observation, Phase};
use plimsoll_registry::{
    Attempt, AttemptReport, Process, ProgramEnd, STOPPED, SUCCESS, Status, SupervisorEvent, TOO_HOT, WorkerEntry,
    WorkerOutcome,
};
use std::ffi::OsString;
use std::io;
use std::time::{Duration, Instant};

impl Supervisor<'_> {
    /// Performs the next due action of a worker.
    pub(super) fn advance(&mut self, index: usize) {
        let SuperviseSettings { grace, stagger_fraction, stagger_time, .. } = self.settings;
        let is_ending = self.early_end.is_some();
        let makes_room = index == 0 || self.workers[index - 1].makes_room(stagger_fraction, stagger_time);
        let worker = &mut self.workers[index];
        match &mut worker.phase {
            Phase::Done(_) => {}
            Phase::Waiting | Phase::Pausing(_) | Phase::WaitingForMemory { .. } if is_ending => {
                worker.phase = Phase::Done(WorkerOutcome { code: Some(self.early_end_code), is_success: false });
            }
            Phase::Waiting if makes_room => self.start(index),
            Phase::Pausing(until) if *until <= Instant::now() => self.start(index),
            Phase::WaitingForMemory { until, free } if *until <= Instant::now() => {
                let free = *free;
                let last = self.report.attempts.iter().rev().find(|attempt| attempt.worker == index);
                let outcome = last.map_or((None, None), |attempt| (attempt.code, attempt.signal));
                self.end_wait(index, free, WorkerOutcome::of(outcome.0, outcome.1));
            }
            Phase::Waiting | Phase::Pausing(_) | Phase::WaitingForMemory { .. } => {}
            Phase::Live(live) => match live.look(&worker.output, grace) {
                Observation::Nothing => {}
                Observation::Signaled(signal, why) => {
                    self.emit(SupervisorEvent::Signaled { worker: index, signal: name_of(signal).to_owned(), why });
                }
                Observation::Hangs(idle) => self.dump_stacks(index, idle),
                Observation::Over => self.conclude(index),
            },
        }
    }

    fn dump_stacks(&mut self, worker: usize, idle: Duration) {
        let attempt = self.workers[worker].attempt_number;
        let Some(live) = self.live(worker, attempt) else { return };
        let (group, sender) = (live.running.group.clone(), self.sender.clone());
        let into = self.folder.stacks(worker, attempt);
        let message = move |found| Message::Stacks { worker, attempt, idle, found };
        let dump = move || drop(sender.send(message(stacks::dump(&group, &into))));
        if std::thread::Builder::new().name("stacks".to_owned()).spawn(dump).is_err() {
            self.take(message(false));
        }
    }

    fn start(&mut self, index: usize) {
        self.workers[index].attempt_number += 1;
        // Record the intent first: if the supervisor is killed now, the entry still names the program it was starting.
        self.enter_worker(index, None);
        let count = self.workers.len();
        let setup = self.attempt_setup(index);
        let worker = &mut self.workers[index];
        worker.first_started.get_or_insert_with(Instant::now);
        let given = self.settings.variables.iter().map(|(name, value)| (name.into(), value.into()));
        let mut variables = given.collect::<Vec<(OsString, OsString)>>();
        variables.extend(worker.share.variables(count, |name| std::env::var_os(name).is_some()));
        let set = variables.iter().chain(&worker.attempt.env);
        let environment = set.map(|(name, value)| format!("{}={}", name.to_string_lossy(), value.to_string_lossy()));
        let environment = environment.collect();
        let attempt = worker.attempt.clone();
        match Running::start(&attempt, variables, self.keyboard.stdin(), &self.keeper, setup) {
            Err(error) => self.start_failed(index, error),
            Ok((running, stdin)) => {
                self.has_started = true;
                keep_on(running.group.leader.pid, &self.workers[index].share.cpus);
                self.keyboard.connect(stdin);
                let started = SupervisorEvent::AttemptStarted {
                    worker: index,
                    attempt: self.workers[index].attempt_number,
                    pid: running.group.leader.pid,
                    command: words(&attempt),
                    notes: attempt.notes,
                    environment,
                };
                self.watch(index, running);
                self.emit(started);
            }
        }
    }

    /// What a worker's program needs, whether it is started here or adopted.
    pub(super) fn attempt_setup(&self, index: usize) -> AttemptSetup {
        let worker = &self.workers[index];
        let (attempt, sender) = (worker.attempt_number, self.sender.clone());
        AttemptSetup {
            folder: self.folder.path().to_owned(),
            worker: index,
            attempt,
            mark: (self.entry.mark(), index.to_string()),
            output: worker.output.clone(),
            screens: self.screens.clone(),
            label: (self.workers.len() > 1).then(|| format!("[{index}] ")),
            on_end: Box::new(move |exit| drop(sender.send(Message::Ended { worker: index, attempt, exit }))),
        }
    }

    /// Marks a worker as live and watches its program.
    pub(super) fn watch(&mut self, index: usize, running: Running) {
        let worker = &mut self.workers[index];
        let watch =
            self.settings.hang_timeout.map(|timeout| Watch::new(timeout, worker.share.card.clone(), &worker.output));
        let (leader, pipes, keeper) = (running.group.leader.clone(), running.pipes.clone(), running.keeper.clone());
        worker.phase = Phase::Live(Box::new(Live::new(running, watch)));
        self.enter_worker(index, Some((leader, pipes, keeper)));
    }

    /// Records the state of a worker so that another supervisor can continue from it. `program`: leader, pipes and
    /// keeper of the running program.
    pub(super) fn enter_worker(&mut self, index: usize, program: Option<(Process, Vec<u64>, Option<Process>)>) {
        let worker = &self.workers[index];
        let outcome = match worker.phase {
            Phase::Done(outcome) => Some(outcome),
            _ => None,
        };
        let (leader, pipes, keeper) =
            program.map_or((None, vec![], None), |(leader, pipes, keeper)| (Some(leader), pipes, keeper));
        let entered = WorkerEntry {
            worker: index,
            attempt: worker.attempt_number,
            leader,
            pipes,
            keeper,
            command: worker.attempt.clone(),
            waits_for_memory: matches!(worker.phase, Phase::WaitingForMemory { .. }),
            past: worker.repair.past(),
            seen: worker.restarts.seen().clone(),
            outcome,
        };
        self.entry.workers.retain(|entry| entry.worker != index);
        self.entry.workers.push(entered);
        self.entry.cards = self.peaks.list();
        self.entry.restarts = self.workers.iter().map(|worker| worker.restarts.made()).sum();
        if let Err(error) = self.entry.write() {
            self.report_loss(&error.to_string());
        }
    }

    /// Handles a program that could not be started.
    pub(super) fn start_failed(&mut self, index: usize, reason: io::Error) {
        let worker = &self.workers[index];
        let program = words(&worker.attempt).into_iter().next().unwrap_or_default();
        let code = code_of(&reason);
        // A system limit may no longer be reached a little later.
        if !self.has_started && !is_transient(&reason) {
            self.refusal = Some(Refusal { program, reason, code });
            let outcome = WorkerOutcome { code: Some(code), is_success: false };
            self.workers.iter_mut().for_each(|worker| worker.phase = Phase::Done(outcome));
            return;
        }
        let ending = Ending { code: Some(code), tail: reason.to_string().into_bytes(), ..Ending::default() };
        let event = SupervisorEvent::NotStarted {
            worker: index,
            attempt: worker.attempt_number,
            program: program.clone(),
            reason: reason.to_string(),
        };
        self.emit(event);
        self.judge(index, &ending);
        if !self.has_started && self.workers.iter().all(|worker| matches!(worker.phase, Phase::Done(_))) {
            self.refusal = Some(Refusal { program, reason, code });
        }
    }

    fn conclude(&mut self, index: usize) {
        let worker = &mut self.workers[index];
        let phase = std::mem::replace(&mut worker.phase, Phase::Waiting);
        let Phase::Live(live) = phase else { unreachable!("it was live") };
        self.keyboard.connect(None);
        let ending = live.conclude(&worker.output);
        self.judge(index, &ending);
    }

    /// Decides what to do after a program ended.
    pub(super) fn judge(&mut self, index: usize, ending: &Ending) {
        let worker = &mut self.workers[index];
        let was_asked_to_return = std::mem::take(&mut worker.is_returning) && !ending.is_success();
        let restored = if was_asked_to_return { worker.repair.restored() } else { None };
        let verdict = match restored {
            Some(attempt) => {
                worker.reduced = None;
                let why = "memory is free again".to_owned();
                let decision = Decision::Again { attempt, why };
                Verdict { kind: STOPPED.to_owned(), cause: "returned from the smallest settings".to_owned(), decision }
            }
            None => worker.repair.next(ending),
        };
        let (is_success, is_early_end) = (ending.is_success(), self.early_end.is_some());
        let kind = match () {
            () if is_success => SUCCESS.to_owned(),
            () if self.early_end == Some(Status::TooHot) => TOO_HOT.to_owned(),
            () if is_early_end => STOPPED.to_owned(),
            () => verdict.kind,
        };
        let (attempt, notes) = (worker.attempt_number, worker.attempt.notes.clone());
        let outcome = outcome_of(ending);
        let mut events = vec![SupervisorEvent::AttemptEnded {
            worker: index,
            attempt,
            code: ending.code,
            signal: ending.signal,
            kind: kind.clone(),
            cause: verdict.cause.clone(),
            ran_s: ending.ran_for.as_secs_f64(),
            progress: ending.progress,
            oom_kills: ending.oom_kills,
        }];
        self.report.attempts.push(AttemptReport {
            worker: index,
            attempt,
            code: ending.code,
            signal: ending.signal,
            kind,
            ran_s: ending.ran_for.as_secs_f64(),
            progress: ending.progress,
            notes,
        });
        worker.phase = Phase::Done(outcome);
        if !is_success && !is_early_end {
            events.push(self.decide(index, ending, &verdict.cause, verdict.decision));
        }
        self.enter_worker(index, None);
        // The decision is recorded, so no other supervisor needs the end file.
        ProgramEnd::forget(self.folder.path(), index);
        events.into_iter().for_each(|event| self.emit(event));
        self.journal.sync();
    }

    /// Carries out a decision, within the limits on restarts. Returns the event for it.
    fn decide(&mut self, worker: usize, ending: &Ending, cause: &str, decision: Decision) -> SupervisorEvent {
        let (attempt, reduced, why) = match decision {
            Decision::Stop { why } => return SupervisorEvent::GaveUp { worker, why },
            Decision::WhenFree { attempt, memory, why } => {
                return match self.wait_for_memory(worker, attempt, memory, ending.progress) {
                    Ok(wait) => SupervisorEvent::WaitingForMemory { worker, pause_s: wait.as_secs_f64(), why },
                    Err(reason) => SupervisorEvent::GaveUp { worker, why: format!("{why}; {reason}") },
                };
            }
            Decision::Again { attempt, why } => (attempt, None, why),
            Decision::Reduced { attempt, memory, why } => (attempt, Some(memory), why),
        };
        let own = &mut self.workers[worker];
        let pause = match own.restarts.after(cause, ending.progress, attempt != own.attempt) {
            Next::Stop(why) => return SupervisorEvent::GaveUp { worker, why },
            Next::After(pause) => pause,
        };
        let notes = attempt.notes.clone();
        own.attempt = attempt;
        own.phase = Phase::Pausing(Instant::now() + pause);
        reduced.into_iter().for_each(|memory| self.reduce(worker, memory));
        SupervisorEvent::Restarting { worker, pause_s: pause.as_secs_f64(), why, notes }
    }
}

/// Counts exit code 0 after a hang as a failure.
fn outcome_of(ending: &Ending) -> WorkerOutcome {
    match ending.hung && ending.code == Some(0) {
        true => WorkerOutcome { code: Some(1), is_success: false },
        false => WorkerOutcome::of(ending.code, ending.signal),
    }
}

fn words(attempt: &Attempt) -> Vec<String> {
    attempt.argv.iter().map(|word| word.to_string_lossy().into_owned()).collect()
}
