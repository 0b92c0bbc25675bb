//! The supervisor: starts programs, waits for what happens to them, and does what follows. One thread decides; others
//! carry output, wait for ends and hear signals, and send it messages.

mod adoption;
mod asked;
mod attempts;
mod ending;
mod heat;
mod job;

pub use adoption::adopt;
pub use job::{Job, Refusal, Settings, SuperviseError, Supervised};

use crate::card_peaks::CardPeaks;
use crate::event::{Event, Record, SCHEMA_VERSION};
use crate::folder::Folder;
use crate::input::Keyboard;
use crate::keeper::Status as Exit;
use crate::output::{Output, Screen};
use crate::pace::Pacing;
use crate::registry::{Entry, Registry};
use crate::repair::{Attempt, Repair};
use crate::report::{Report, Status};
use crate::restarts::Restarts;
use crate::shares::Share;
use crate::signals;
use crate::worker::{Live, Phase, Worker};
use plimsoll_telemetry::{Journal, now_s};
use rustix::process::Signal;
use std::ffi::OsString;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

/// How often what depends on time is looked at.
const TICK: Duration = Duration::from_millis(50);

/// The same where something is about to end.
const SHORT_TICK: Duration = Duration::from_millis(5);

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
    for worker in &mut supervisor.workers {
        worker.attempt = worker.repair.start();
    }
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

struct Supervisor<'t> {
    folder: Folder,
    registry: Registry,
    settings: Settings,
    keeper: Vec<OsString>,
    workers: Vec<Worker>,
    keyboard: Keyboard,
    screens: [Screen; 2],
    /// Whether it was told that a stream takes nothing.
    has_told_gone: [bool; 2],
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
    /// How fast its programs may go, if somebody says so.
    pacing: Option<Pacing>,
    peaks: CardPeaks,
    has_started: bool,
    refusal: Option<Refusal>,
}

impl<'t> Supervisor<'t> {
    fn new(job: Job, tell: &'t mut dyn FnMut(&Event)) -> Result<Self, SuperviseError> {
        let system = |what| move |source| SuperviseError::System { what, source };
        let Job { folder, registry, settings, command, workers, keeper, arguments, input, streams, pacer, peaks } = job;
        let journal = Journal::open(folder.disk(), &folder.journal())?;
        let (sender, messages) = channel();
        let signals = sender.clone();
        let take = move |signal| drop(signals.send(Message::Signal(signal)));
        signals::listen(take).map_err(system("listening for signals"))?;
        let [out, err] = streams.map(Screen::start);
        let (out, err) = (out.map_err(system("starting a thread"))?, err.map_err(system("starting a thread"))?);
        let count = workers.len();
        let worker = |(share, repair): (Share, Box<dyn Repair>)| Worker {
            output: Output::new(&folder.output(share.worker, count), settings.log_bytes.0),
            attempt: Attempt::default(),
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
        entry.arguments = arguments;
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
            cards: vec![],
            attempts: vec![],
        };
        Ok(Self {
            keyboard: Keyboard::new(input).map_err(system("starting a thread"))?,
            screens: [out, err],
            has_told_gone: [false; 2],
            has_told_loss: false,
            began: Instant::now(),
            asked: None,
            interrupts: 0,
            asked_code: 130,
            pacing: pacer.map(|pacer| Pacing::new(pacer, Instant::now())),
            peaks,
            has_started: false,
            refusal: None,
            folder,
            registry,
            settings,
            keeper,
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
        self.journal.append(&Record { v: SCHEMA_VERSION, time_s: now_s(), branch: 0, event });
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
            self.check_heat();
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

    /// Says once what could not be kept or passed on.
    fn tell_losses(&mut self) {
        for (index, stream) in ["stdout", "stderr"].into_iter().enumerate() {
            let screen = &self.screens[index];
            let (reason, dropped) = (screen.take_reason(), screen.take_dropped());
            let stream = stream.to_owned();
            if let Some(reason) = reason
                && !std::mem::replace(&mut self.has_told_gone[index], true)
            {
                self.emit(Event::ScreenGone { stream: stream.clone(), reason });
            }
            if let Some(bytes) = dropped {
                self.emit(Event::NotShown { stream, bytes });
            }
        }
        for index in 0..self.workers.len() {
            let worker = &mut self.workers[index];
            let reason = worker.output.lost();
            if let Some(reason) = reason.filter(|_| !worker.has_told_loss) {
                worker.has_told_loss = true;
                self.emit(Event::OutputLost { worker: index, reason });
            }
        }
    }
}
