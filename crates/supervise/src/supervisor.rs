//! The supervisor: starts programs, waits for what happens to them, and does what follows. One thread decides; others
//! carry output, wait for ends and hear signals, and send it messages.

use crate::child::{Running, Setting, Status as Exit, code_of};
use crate::event::{Event, Record, SCHEMA_VERSION};
use crate::folder::Folder;
use crate::hang::Watch;
use crate::input::{Input, Keyboard};
use crate::output::{Output, Screen, Stream};
use crate::processes::Group;
use crate::registry::{Ended, Entry, Registry, WorkerEntry};
use crate::repair::{Attempt, Decision, Ending, Repair};
use crate::report::{AttemptReport, Report, Status};
use crate::restarts::{Limits, Next, Restarts};
use crate::shares::{Share, keep_on};
use crate::worker::{Live, Outcome, Phase, Seen, Worker};
use crate::{STOPPED, SUCCESS, UNKNOWN, signals, stacks};
use plimsoll_telemetry::{Journal, now_s};
use plimsoll_units::Bytes;
use rustix::process::{Signal, getpid, kill_process};
use std::io;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

/// How often what depends on time is looked at.
const TICK: Duration = Duration::from_millis(50);

/// The same where something is about to end.
const SHORT_TICK: Duration = Duration::from_millis(5);

/// How a run is supervised.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    /// Limits on restarts of each worker.
    pub limits: Limits,
    /// How long a program may take to end once it was asked to.
    pub grace: Duration,
    /// A program that neither prints nor computes for so long hangs; `None`: nobody looks.
    pub hang_timeout: Option<Duration>,
    /// The run ends after so long.
    pub duration: Option<Duration>,
    /// The next worker starts once the one before has made so much of its progress, 0 to 1,
    pub stagger_fraction: f64,
    /// or once it has run for so long.
    pub stagger_time: Duration,
    /// How much of each worker's output is kept.
    pub log_bytes: Bytes,
    /// Variables that all programs get.
    pub variables: Vec<(String, String)>,
}

/// A run.
pub struct Job {
    /// Its folder.
    pub folder: Folder,
    /// Where it is entered.
    pub registry: Registry,
    /// How it is supervised.
    pub settings: Settings,
    /// The command as it was given, for people.
    pub command: Vec<String>,
    /// What each worker gets, and what it runs.
    pub workers: Vec<(Share, Box<dyn Repair>)>,
    /// What programs read.
    pub input: Input,
    /// Where their stdout and stderr are passed on to.
    pub streams: [Stream; 2],
}

/// Why a run can't be supervised.
#[derive(Debug, thiserror::Error)]
pub enum SuperviseError {
    /// The journal can't be opened.
    #[error(transparent)]
    Journal(#[from] plimsoll_telemetry::JournalError),
    /// The system refused.
    #[error("{what}: {source}")]
    System {
        /// What was attempted.
        what: &'static str,
        /// What the system said.
        #[source]
        source: io::Error,
    },
}

/// What came of a run.
#[derive(Debug)]
pub struct Supervised {
    /// What came of it.
    pub report: Report,
    /// Why not even the first program could be started; then the run's folder is gone.
    pub refusal: Option<Refusal>,
}

/// Why a program could not be started.
#[derive(Debug)]
pub struct Refusal {
    /// The program.
    pub program: String,
    /// What the system said.
    pub reason: io::Error,
    /// The exit code that shells give it.
    pub code: i32,
}

enum Message {
    Signal(Signal),
    Ended {
        worker: usize,
        attempt: u32,
        exit: Exit,
    },
    /// Stacks of a program that hangs were written, or can't be had.
    Stacks {
        worker: usize,
        attempt: u32,
        idle: Duration,
        found: bool,
    },
}

/// Supervises a run to its end. `tell` is told of every event as it happens.
/// Errors: the journal can't be opened, or the system starts no threads; nothing was started then.
pub fn supervise(job: Job, tell: &mut dyn FnMut(&Event)) -> Result<Supervised, SuperviseError> {
    let mut supervisor = Supervisor::new(job, tell)?;
    supervisor.enter();
    let started = Event::RunStarted {
        name: supervisor.folder.name(),
        command: supervisor.report.command.clone(),
        workers: supervisor.workers.len(),
    };
    supervisor.emit(started);
    supervisor.run();
    Ok(supervisor.end())
}

/// Goes on with the programs of a run whose supervisor is gone. How they will end can't be known.
/// Errors: as [`supervise`].
pub fn adopt(job: Job, entry: &Entry, tell: &mut dyn FnMut(&Event)) -> Result<Supervised, SuperviseError> {
    let mut supervisor = Supervisor::new(job, tell)?;
    supervisor.entry = Entry { process: crate::processes::Process::own(), ..entry.clone() };
    supervisor.enter();
    for worker in &entry.workers {
        supervisor.adopt(worker, entry.group(worker));
    }
    for worker in supervisor.workers.iter_mut().filter(|worker| matches!(worker.phase, Phase::Waiting)) {
        worker.phase = Phase::Done(Outcome { code: None, is_success: false });
    }
    supervisor.run();
    Ok(supervisor.end())
}

struct Supervisor<'t> {
    folder: Folder,
    registry: Registry,
    settings: Settings,
    workers: Vec<Worker>,
    keyboard: Keyboard,
    screens: [Screen; 2],
    /// Threads that end once all has been passed on.
    writers: Vec<std::thread::JoinHandle<()>>,
    journal: Journal,
    has_told_loss: bool,
    entry: Entry,
    report: Report,
    tell: &'t mut dyn FnMut(&Event),
    sender: Sender<Message>,
    messages: Receiver<Message>,
    began: Instant,
    /// What ended the run before its time.
    asked: Option<Status>,
    interrupts: u32,
    /// The exit code where somebody asked before a program had one.
    asked_code: i32,
    has_started: bool,
    refusal: Option<Refusal>,
}

impl<'t> Supervisor<'t> {
    fn new(job: Job, tell: &'t mut dyn FnMut(&Event)) -> Result<Self, SuperviseError> {
        let system = |what| move |source| SuperviseError::System { what, source };
        let Job { folder, registry, settings, command, workers, input, streams } = job;
        let journal = Journal::open(folder.disk(), &folder.journal())?;
        let (sender, messages) = channel();
        let signals = sender.clone();
        let take = move |signal| drop(signals.send(Message::Signal(signal)));
        signals::listen(take).map_err(system("listening for signals"))?;
        let [out, err] = streams.map(Screen::start);
        let (out, out_writer) = out.map_err(system("starting a thread"))?;
        let (err, err_writer) = err.map_err(system("starting a thread"))?;
        let count = workers.len();
        let worker = |(share, mut repair): (Share, Box<dyn Repair>)| Worker {
            output: Output::new(&folder.output(share.worker, count), settings.log_bytes.0),
            attempt: repair.start(),
            restarts: Restarts::new(settings.limits),
            share,
            repair,
            attempt_number: 0,
            phase: Phase::Waiting,
            first_started: None,
            has_told_loss: false,
        };
        let workers = workers.into_iter().map(worker).collect::<Vec<_>>();
        let mut entry = Entry::new(crate::registry::Kind::Supervised, folder.path(), command.clone());
        entry.worker_count = count;
        entry.grace_s = settings.grace.as_secs_f64();
        let report = Report {
            name: folder.name(),
            command,
            status: Status::Unknown,
            code: None,
            ran_s: 0.0,
            workers_succeeded: 0,
            workers: count,
            success_rate: None,
            restarts: 0,
            failures: [].into(),
            attempts: vec![],
        };
        Ok(Self {
            keyboard: Keyboard::new(input).map_err(system("starting a thread"))?,
            screens: [out, err],
            writers: vec![out_writer, err_writer],
            has_told_loss: false,
            began: Instant::now(),
            asked: None,
            interrupts: 0,
            asked_code: 130,
            has_started: false,
            refusal: None,
            folder,
            registry,
            settings,
            workers,
            journal,
            entry,
            report,
            tell,
            sender,
            messages,
        })
    }

    /// Enters the run, so that others find it. A disk without room costs that and nothing else.
    fn enter(&mut self) {
        if let Err(error) = self.registry.add(&self.entry) {
            self.tell_loss(&error.to_string());
        }
    }

    fn emit(&mut self, event: Event) {
        (self.tell)(&event);
        self.journal.append(&Record { v: SCHEMA_VERSION, time_s: now_s(), event });
        if self.journal.lost() > 0 {
            let reason = self.journal.reason().to_owned();
            self.tell_loss(&reason);
        }
    }

    /// Once.
    fn tell_loss(&mut self, reason: &str) {
        if !std::mem::replace(&mut self.has_told_loss, true) {
            (self.tell)(&Event::RecordsLost { reason: reason.to_owned() });
        }
    }

    fn run(&mut self) {
        while !self.workers.iter().all(|worker| matches!(worker.phase, Phase::Done(_))) {
            let is_ending = self.lives().any(|live| live.has_ended());
            match self.messages.recv_timeout(if is_ending { SHORT_TICK } else { TICK }) {
                Ok(message) => self.take(message),
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {}
            }
            while let Ok(message) = self.messages.try_recv() {
                self.take(message);
            }
            self.check_time();
            for worker in 0..self.workers.len() {
                self.advance(worker);
            }
            self.tell_losses();
        }
    }

    fn lives(&mut self) -> impl Iterator<Item = &mut Live> {
        self.workers.iter_mut().filter_map(|worker| match &mut worker.phase {
            Phase::Live(live) => Some(&mut **live),
            _ => None,
        })
    }

    fn take(&mut self, message: Message) {
        match message {
            Message::Signal(signal) => self.take_signal(signal),
            Message::Ended { worker, attempt, exit } => {
                if let Some(live) = self.live(worker, attempt) {
                    live.ended(exit);
                }
            }
            Message::Stacks { worker, attempt, idle, found } => {
                let stacks = found.then(|| self.folder.stacks(worker, attempt));
                let grace = self.settings.grace;
                let Some(live) = self.live(worker, attempt) else { return };
                // Python's fault handler says where it was as it aborts.
                let abort = (Duration::ZERO, Signal::ABORT, "it hangs, and may say where");
                let ask = |after| (after, Signal::TERM, "it hangs");
                let kill = |after| (after, Signal::KILL, "it hangs, and did not end when it was asked to");
                match found {
                    true => live.schedule(&[ask(Duration::ZERO), kill(grace)]),
                    false => live.schedule(&[abort, ask(grace / 2), kill(grace)]),
                }
                self.emit(Event::Hung { worker, idle_s: idle.as_secs_f64(), stacks });
            }
        }
    }

    fn live(&mut self, worker: usize, attempt: u32) -> Option<&mut Live> {
        let worker = &mut self.workers[worker];
        match &mut worker.phase {
            Phase::Live(live) if worker.attempt_number == attempt => Some(live),
            _ => None,
        }
    }

    /// What asks the supervisor asks its programs; what stops it stops them.
    fn take_signal(&mut self, signal: Signal) {
        match signal {
            Signal::TSTP => {
                self.lives().for_each(|live| live.forward(Signal::STOP));
                let _ = kill_process(getpid(), Signal::STOP);
            }
            Signal::CONT => self.lives().for_each(|live| live.forward(Signal::CONT)),
            Signal::INT if self.interrupts > 0 => {
                self.interrupts += 1;
                self.lives().for_each(Live::kill);
                self.emit(Event::Forwarded { signal: name_of(Signal::KILL).to_owned() });
            }
            _ => {
                self.lives().for_each(|live| live.forward(signal));
                self.emit(Event::Forwarded { signal: name_of(signal).to_owned() });
            }
        }
        if [Signal::INT, Signal::TERM, Signal::HUP, Signal::QUIT].contains(&signal) {
            self.interrupts += u32::from(signal == Signal::INT && self.interrupts == 0);
            self.asked.get_or_insert(Status::Stopped);
            self.asked_code = 128 + signal.as_raw();
            if signal != Signal::INT {
                let grace = self.settings.grace;
                let kill = [(grace, Signal::KILL, "it did not end when it was asked to")];
                self.lives().filter(|live| !live.is_asked_to_end()).for_each(|live| live.schedule(&kill));
            }
        }
    }

    fn check_time(&mut self) {
        let Some(duration) = self.settings.duration.filter(|&duration| self.began.elapsed() >= duration) else {
            return;
        };
        if self.asked.is_some() {
            return;
        }
        self.asked = Some(Status::TimeOver);
        self.asked_code = 0;
        self.emit(Event::TimeOver { duration_s: duration.as_secs_f64() });
        let grace = self.settings.grace;
        let signals = [
            (Duration::ZERO, Signal::INT, "the time for the run is over"),
            (grace, Signal::TERM, "it did not end when it was interrupted"),
            (grace * 2, Signal::KILL, "it did not end when it was asked to"),
        ];
        self.lives().for_each(|live| live.schedule(&signals));
    }

    /// Does for a worker what is due.
    fn advance(&mut self, index: usize) {
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
        let count = self.workers.len();
        let mark = (self.entry.mark(), index.to_string());
        let mut variables =
            self.settings.variables.iter().map(|(name, value)| (name.into(), value.into())).collect::<Vec<_>>();
        let worker = &mut self.workers[index];
        worker.attempt_number += 1;
        worker.first_started.get_or_insert_with(Instant::now);
        variables.extend(worker.share.variables(count, |name| std::env::var_os(name).is_some()));
        let set = variables.iter().chain(&worker.attempt.env);
        let environment = set.map(|(name, value)| format!("{}={}", name.to_string_lossy(), value.to_string_lossy()));
        let environment = environment.collect();
        let setting = Setting {
            variables,
            mark,
            stdin: self.keyboard.stdin(),
            output: &worker.output,
            screens: self.screens.clone().map(Some),
            label: (count > 1).then(|| format!("[{index}] ")),
        };
        let attempt = worker.attempt_number;
        match Running::start(&worker.attempt, setting) {
            Err(error) => self.refused(index, error),
            Ok(mut running) => {
                self.has_started = true;
                keep_on(running.group.leader.pid, &worker.share.cpus);
                self.keyboard.connect(running.take_stdin());
                let started = Event::AttemptStarted {
                    worker: index,
                    attempt,
                    pid: running.group.leader.pid,
                    command: words(&worker.attempt),
                    notes: worker.attempt.notes.clone(),
                    environment,
                };
                self.watch(index, running);
                self.emit(started);
            }
        }
    }

    /// Lets a worker be live.
    fn watch(&mut self, index: usize, running: Running) {
        let worker = &mut self.workers[index];
        let (attempt, sender) = (worker.attempt_number, self.sender.clone());
        let leader = running.group.leader.clone();
        let pipes = running.pipes.clone();
        let ended = move |exit| drop(sender.send(Message::Ended { worker: index, attempt, exit }));
        let is_watched = running.watch(ended).is_ok();
        let (card, output) = (worker.share.card.clone(), &worker.output);
        let watch = self.settings.hang_timeout.map(|timeout| Watch::new(timeout, card, output));
        let mut live = Live::new(running, watch);
        if !is_watched {
            // Without a thread nobody would notice its end.
            live.kill();
            live.ended(Exit::default());
        }
        worker.phase = Phase::Live(Box::new(live));
        self.entry.workers.retain(|entry| entry.worker != index);
        self.entry.workers.push(WorkerEntry { worker: index, attempt, leader, pipes });
        self.entry.restarts = self.workers.iter().map(|worker| worker.restarts.made()).sum();
        if let Err(error) = self.entry.write() {
            self.tell_loss(&error.to_string());
        }
    }

    /// Takes over what somebody else started.
    fn adopt(&mut self, entry: &WorkerEntry, group: Group) {
        let (index, count) = (entry.worker, self.workers.len());
        let Some(worker) = self.workers.get_mut(index) else { return };
        worker.attempt_number = entry.attempt;
        worker.first_started = Some(self.began);
        let label = (count > 1).then(|| format!("[{index}] "));
        let screens = self.screens.clone().map(Some);
        let pid = group.leader.pid;
        match Running::adopt(group, entry.pipes.clone(), &worker.output, screens, label) {
            Ok(running) => {
                self.has_started = true;
                let is_mute = running.is_mute();
                self.watch(index, running);
                self.emit(Event::Adopted { worker: index, pid, is_mute });
            }
            Err(error) => self.refused(index, error),
        }
    }

    /// A program could not be started.
    fn refused(&mut self, index: usize, reason: io::Error) {
        let worker = &self.workers[index];
        let program = words(&worker.attempt).into_iter().next().unwrap_or_default();
        let code = code_of(&reason);
        if !self.has_started {
            self.refusal = Some(Refusal { program, reason, code });
            let outcome = Outcome { code: Some(code), is_success: false };
            self.workers.iter_mut().for_each(|worker| worker.phase = Phase::Done(outcome));
            return;
        }
        let ending = Ending { code: Some(code), tail: reason.to_string().into_bytes(), ..Ending::default() };
        let reason = reason.to_string();
        self.emit(Event::NotStarted { worker: index, attempt: worker.attempt_number, program, reason });
        self.judge(index, &ending);
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
    fn judge(&mut self, index: usize, ending: &Ending) {
        let worker = &mut self.workers[index];
        let verdict = worker.repair.next(ending);
        let (is_success, is_asked) = (ending.is_success(), self.asked.is_some());
        let kind = match () {
            () if is_success => SUCCESS.to_owned(),
            () if is_asked => STOPPED.to_owned(),
            () => verdict.kind,
        };
        let (attempt, notes) = (worker.attempt_number, worker.attempt.notes.clone());
        let outcome = Outcome { code: code_after(ending), is_success };
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
        self.entry.workers.retain(|entry| entry.worker != index);
        events.into_iter().for_each(|event| self.emit(event));
        self.journal.sync();
    }

    /// Says once what could not be kept or passed on.
    fn tell_losses(&mut self) {
        for (screen, stream) in self.screens.clone().iter().zip(["stdout", "stderr"]) {
            if let Some(reason) = screen.take_reason() {
                self.emit(Event::ScreenGone { stream: stream.to_owned(), reason });
            }
        }
        for index in 0..self.workers.len() {
            let worker = &mut self.workers[index];
            let reason = worker.output.kept().log.reason().map(str::to_owned);
            if let Some(reason) = reason.filter(|_| !worker.has_told_loss) {
                worker.has_told_loss = true;
                self.emit(Event::OutputLost { worker: index, reason });
            }
        }
    }

    fn end(mut self) -> Supervised {
        let outcomes = self.workers.iter().map(|worker| match worker.phase {
            Phase::Done(outcome) => outcome,
            _ => Outcome { code: None, is_success: false },
        });
        let outcomes = outcomes.collect::<Vec<_>>();
        let all_succeeded = outcomes.iter().all(|outcome| outcome.is_success);
        let is_unknown = outcomes.iter().all(|outcome| outcome.is_success || outcome.code.is_none());
        self.report.status = match self.asked {
            Some(asked) => asked,
            None if all_succeeded => Status::Finished,
            None if is_unknown => Status::Unknown,
            None => Status::Failed,
        };
        let failed = outcomes.iter().find(|outcome| !outcome.is_success);
        self.report.code = match self.interrupts {
            2.. => Some(130),
            _ => failed.map_or(Some(0), |outcome| outcome.code),
        };
        self.report.ran_s = self.began.elapsed().as_secs_f64();
        self.report.workers_succeeded = outcomes.iter().filter(|outcome| outcome.is_success).count();
        self.report.restarts = self.workers.iter().map(|worker| worker.restarts.made()).sum();
        self.report.count();
        self.tell_losses();
        if self.refusal.is_none() {
            self.emit(Event::RunEnded { status: self.report.status, code: self.report.code });
            self.journal.sync();
            let text = serde_json::to_vec_pretty(&self.report).expect("plain data");
            let ended = Ended { status: self.report.status, code: self.report.code, time_s: now_s() };
            self.entry.ended = Some(ended);
            let written = self.folder.disk().replace(&self.folder.report(), &text).and_then(|()| self.entry.write());
            if let Err(error) = written {
                self.tell_loss(&error.to_string());
            }
        } else {
            self.folder.discard();
        }
        drop((self.workers, self.screens));
        // Whoever leaves at once does not wait until somebody has read all.
        if self.interrupts < 2 {
            self.writers.into_iter().for_each(|writer| drop(writer.join()));
        }
        Supervised { report: self.report, refusal: self.refusal }
    }
}

/// The exit code that shells give an end; a hang that ended well did not end well.
fn code_after(ending: &Ending) -> Option<i32> {
    match (ending.code, ending.signal) {
        (Some(0), _) if ending.hung => Some(1),
        (Some(code), _) => Some(code),
        (None, signal) => signal.map(|signal| 128 + signal),
    }
}

fn words(attempt: &Attempt) -> Vec<String> {
    attempt.argv.iter().map(|word| word.to_string_lossy().into_owned()).collect()
}

fn name_of(signal: Signal) -> &'static str {
    match signal {
        Signal::INT => "SIGINT",
        Signal::TERM => "SIGTERM",
        Signal::HUP => "SIGHUP",
        Signal::QUIT => "SIGQUIT",
        Signal::USR1 => "SIGUSR1",
        Signal::USR2 => "SIGUSR2",
        Signal::WINCH => "SIGWINCH",
        Signal::ABORT => "SIGABRT",
        Signal::KILL => "SIGKILL",
        _ => "a signal",
    }
}

/// The repair of what was adopted: none, since nobody knows how it ended.
#[derive(Debug, Clone, Copy)]
pub struct Adopted;

impl Repair for Adopted {
    fn start(&mut self) -> Attempt {
        Attempt::default()
    }

    fn next(&mut self, _: &Ending) -> crate::repair::Verdict {
        let why = "only its first supervisor could have learned how it ended".to_owned();
        let decision = Decision::Stop { why };
        crate::repair::Verdict { kind: UNKNOWN.to_owned(), cause: UNKNOWN.to_owned(), decision }
    }
}
