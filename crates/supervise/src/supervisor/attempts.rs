//! Attempts: how a worker's programs are started, watched and judged.

use super::asked::name_of;
use super::{Message, Refusal, Settings, Supervisor};
use crate::child::{Running, Setting, code_of, is_transient};
use crate::event::Event;
use crate::hang::Watch;
use crate::keeper::End;
use crate::processes::Process;
use crate::registry::WorkerEntry;
use crate::repair::{Attempt, Decision, Ending};
use crate::report::{AttemptReport, Status};
use crate::restarts::Next;
use crate::shares::keep_on;
use crate::worker::{Live, Outcome, Phase, Seen};
use crate::{STOPPED, SUCCESS, TOO_HOT, stacks};
use std::ffi::OsString;
use std::io;
use std::time::{Duration, Instant};

impl Supervisor<'_> {
    /// Does for a worker what is due.
    pub(super) fn advance(&mut self, index: usize) {
        let Settings { grace, stagger_fraction, stagger_time, .. } = self.settings;
        let asked = self.asked.is_some();
        let makes_room = index == 0 || self.workers[index - 1].makes_room(stagger_fraction, stagger_time);
        let worker = &mut self.workers[index];
        match &mut worker.phase {
            Phase::Done(_) => {}
            Phase::Waiting | Phase::Pausing(_) if asked => {
                worker.phase = Phase::Done(Outcome { code: Some(self.asked_code), is_success: false });
            }
            Phase::Waiting if makes_room => self.start(index),
            Phase::Pausing(until) if *until <= Instant::now() => self.start(index),
            Phase::Waiting | Phase::Pausing(_) => {}
            Phase::Live(live) => match live.look(&worker.output, grace) {
                Seen::Nothing => {}
                Seen::Signaled(signal, why) => {
                    self.emit(Event::Signaled { worker: index, signal: name_of(signal).to_owned(), why });
                }
                Seen::Hangs(idle) => self.dump_stacks(index, idle),
                Seen::Over => self.conclude(index),
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
        // First the intent: a supervisor that is killed in between leaves nothing that its run does not know of.
        self.enter_worker(index, None);
        let count = self.workers.len();
        let setting = self.setting(index);
        let worker = &mut self.workers[index];
        worker.first_started.get_or_insert_with(Instant::now);
        let given = self.settings.variables.iter().map(|(name, value)| (name.into(), value.into()));
        let mut variables = given.collect::<Vec<(OsString, OsString)>>();
        variables.extend(worker.share.variables(count, |name| std::env::var_os(name).is_some()));
        let set = variables.iter().chain(&worker.attempt.env);
        let environment = set.map(|(name, value)| format!("{}={}", name.to_string_lossy(), value.to_string_lossy()));
        let environment = environment.collect();
        let attempt = worker.attempt.clone();
        match Running::start(&attempt, variables, self.keyboard.stdin(), &self.keeper, setting) {
            Err(error) => self.refused(index, error),
            Ok((running, stdin)) => {
                self.has_started = true;
                keep_on(running.group.leader.pid, &self.workers[index].share.cpus);
                self.keyboard.connect(stdin);
                let started = Event::AttemptStarted {
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

    /// What a program of a worker gets, however it is come by.
    pub(super) fn setting(&self, index: usize) -> Setting {
        let worker = &self.workers[index];
        let (attempt, sender) = (worker.attempt_number, self.sender.clone());
        Setting {
            folder: self.folder.path().to_owned(),
            worker: index,
            attempt,
            mark: (self.entry.mark(), index.to_string()),
            output: worker.output.clone(),
            screens: self.screens.clone(),
            label: (self.workers.len() > 1).then(|| format!("[{index}] ")),
            take: Box::new(move |exit| drop(sender.send(Message::Ended { worker: index, attempt, exit }))),
        }
    }

    /// Lets a worker be live.
    pub(super) fn watch(&mut self, index: usize, running: Running) {
        let worker = &mut self.workers[index];
        let watch =
            self.settings.hang_timeout.map(|timeout| Watch::new(timeout, worker.share.card.clone(), &worker.output));
        let (leader, pipes, keeper) = (running.group.leader.clone(), running.pipes.clone(), running.keeper.clone());
        worker.phase = Phase::Live(Box::new(Live::new(running, watch)));
        self.enter_worker(index, Some((leader, pipes, keeper)));
    }

    /// Enters where a worker stands, so that another supervisor can go on from there. `program`: what runs.
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
            past: worker.repair.past(),
            seen: worker.restarts.seen().clone(),
            outcome,
        };
        self.entry.workers.retain(|entry| entry.worker != index);
        self.entry.workers.push(entered);
        self.entry.cards = self.peaks.list();
        self.entry.restarts = self.workers.iter().map(|worker| worker.restarts.made()).sum();
        if let Err(error) = self.entry.write() {
            self.tell_loss(&error.to_string());
        }
    }

    /// A program could not be started.
    pub(super) fn refused(&mut self, index: usize, reason: io::Error) {
        let worker = &self.workers[index];
        let program = words(&worker.attempt).into_iter().next().unwrap_or_default();
        let code = code_of(&reason);
        // A limit of the system that is reached now may not be a little later.
        if !self.has_started && !is_transient(&reason) {
            self.refusal = Some(Refusal { program, reason, code });
            let outcome = Outcome { code: Some(code), is_success: false };
            self.workers.iter_mut().for_each(|worker| worker.phase = Phase::Done(outcome));
            return;
        }
        let ending = Ending { code: Some(code), tail: reason.to_string().into_bytes(), ..Ending::default() };
        let event = Event::NotStarted {
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

    /// What follows from an end.
    pub(super) fn judge(&mut self, index: usize, ending: &Ending) {
        let worker = &mut self.workers[index];
        let verdict = worker.repair.next(ending);
        let (is_success, is_asked) = (ending.is_success(), self.asked.is_some());
        let kind = match () {
            () if is_success => SUCCESS.to_owned(),
            () if self.asked == Some(Status::TooHot) => TOO_HOT.to_owned(),
            () if is_asked => STOPPED.to_owned(),
            () => verdict.kind,
        };
        let (attempt, notes) = (worker.attempt_number, worker.attempt.notes.clone());
        let outcome = outcome_of(ending);
        let mut events = vec![Event::AttemptEnded {
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
        if !is_success && !is_asked {
            let next = match &verdict.decision {
                Decision::Stop { why } => Next::Stop(why.clone()),
                Decision::Again { attempt, .. } => {
                    worker.restarts.after(&verdict.cause, ending.progress, *attempt != worker.attempt)
                }
            };
            match (next, verdict.decision) {
                (Next::After(pause), Decision::Again { attempt, why }) => {
                    let notes = attempt.notes.clone();
                    events.push(Event::Restarting { worker: index, pause_s: pause.as_secs_f64(), why, notes });
                    worker.attempt = attempt;
                    worker.phase = Phase::Pausing(Instant::now() + pause);
                }
                (Next::Stop(why), _) | (_, Decision::Stop { why }) => {
                    events.push(Event::GaveUp { worker: index, why });
                }
            }
        }
        self.enter_worker(index, None);
        // Now that what follows is entered, nobody asks how it ended.
        End::forget(self.folder.path(), index);
        events.into_iter().for_each(|event| self.emit(event));
        self.journal.sync();
    }
}

/// A hang that ended well did not end well.
fn outcome_of(ending: &Ending) -> Outcome {
    match ending.hung && ending.code == Some(0) {
        true => Outcome { code: Some(1), is_success: false },
        false => Outcome::of(ending.code, ending.signal),
    }
}

fn words(attempt: &Attempt) -> Vec<String> {
    attempt.argv.iter().map(|word| word.to_string_lossy().into_owned()).collect()
}
