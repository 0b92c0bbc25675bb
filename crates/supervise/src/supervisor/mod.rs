//! The supervisor: starts programs, waits for events, and reacts to them. One thread decides. Other threads carry
//! output, wait for programs to end, and receive signals, and send messages to it.

mod adoption;
mod attempts;
mod ending;
mod heat;
mod job;
mod memory;
mod requests;

pub use adoption::adopt;
pub use job::{Job, Refusal, SuperviseError, SuperviseSettings, Supervised};

use crate::card_peaks::CardPeaks;
use crate::folder::Folder;
use crate::input::Keyboard;
use crate::output::{Output, Screen};
use crate::pace::Pacing;
use crate::repair::Repair;
use crate::restarts::Restarts;
use crate::shares::Share;
use crate::signals;
use crate::worker::{Live, Phase, Worker};
use plimsoll_registry::{
    Attempt, Entry, ExitStatus, Record, Registry, Report, RunKind, SCHEMA_VERSION, Status, SupervisorEvent,
};
use plimsoll_telemetry::{Journal, now_s};
use rustix::process::Signal;
use std::ffi::OsString;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

/// How often the supervisor checks timers.
const TICK: Duration = Duration::from_millis(50);

/// The same while a program is ending.
const SHORT_TICK: Duration = Duration::from_millis(5);

enum Message {
    Signal(Signal),
    Ended {
        worker: usize,
        attempt: u32,
        exit: ExitStatus,
    },
    /// The stacks of a hung program were written, or could not be read.
    Stacks {
        worker: usize,
        attempt: u32,
        idle: Duration,
        found: bool,
    },
}

/// Supervises a run until it ends. Calls `on_event` for every event as it happens.
/// Errors: the journal can't be opened or a thread can't be started. No program was started in that case.
pub fn supervise(job: Job, on_event: &mut dyn FnMut(&SupervisorEvent)) -> Result<Supervised, SuperviseError> {
    let mut supervisor = Supervisor::new(job, on_event)?;
    for worker in &mut supervisor.workers {
        worker.attempt = worker.repair.start();
    }
    supervisor.enter();
    let started = SupervisorEvent::RunStarted {
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
    settings: SuperviseSettings,
    keeper: Vec<OsString>,
    workers: Vec<Worker>,
    keyboard: Keyboard,
    screens: [Screen; 2],
    /// Whether the supervisor has reported that a stream takes no more output.
    has_reported_gone: [bool; 2],
    journal: Journal,
    has_reported_loss: bool,
    entry: Entry,
    report: Report,
    on_event: &'t mut dyn FnMut(&SupervisorEvent),
    sender: Sender<Message>,
    messages: Receiver<Message>,
    began: Instant,
    /// Why the run ends early: a signal, the time limit, heat.
    early_end: Option<Status>,
    interrupts: u32,
    /// The exit code of a worker that was stopped before its program started.
    early_end_code: i32,
    /// Limits the speed of the programs, if the run has a pacer.
    pacing: Option<Pacing>,
    peaks: CardPeaks,
    has_started: bool,
    refusal: Option<Refusal>,
}

impl<'t> Supervisor<'t> {
    fn new(job: Job, on_event: &'t mut dyn FnMut(&SupervisorEvent)) -> Result<Self, SuperviseError> {
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
            has_reported_loss: false,
            reduced: None,
            is_returning: false,
        };
        let workers = workers.into_iter().map(worker).collect::<Vec<_>>();
        let mut entry = Entry::new(RunKind::Supervised, folder.path(), command.clone());
        entry.worker_count = count;
        entry.shares = workers.iter().filter_map(|worker| worker.share.of_gpu()).collect();
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
            has_reported_gone: [false; 2],
            has_reported_loss: false,
            began: Instant::now(),
            early_end: None,
            interrupts: 0,
            early_end_code: 130,
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
            on_event,
            sender,
            messages,
        })
    }

    /// Adds the run to the registry so that other commands find it. If the disk is full, only that is lost.
    fn enter(&mut self) {
        if let Err(error) = self.registry.add(&self.entry) {
            self.report_loss(&error.to_string());
        }
    }

    fn emit(&mut self, event: SupervisorEvent) {
        (self.on_event)(&event);
        self.journal.append(&Record { v: SCHEMA_VERSION, time_s: now_s(), branch: 0, event });
        if self.journal.lost() > 0 {
            let reason = self.journal.reason().to_owned();
            self.report_loss(&reason);
        }
    }

    /// Reports a loss of records, once.
    fn report_loss(&mut self, reason: &str) {
        if !std::mem::replace(&mut self.has_reported_loss, true) {
            (self.on_event)(&SupervisorEvent::RecordsLost { reason: reason.to_owned() });
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
            self.check_reduced();
            for worker in 0..self.workers.len() {
                self.advance(worker);
            }
            self.report_losses();
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
                // Python's fault handler prints the stack on SIGABRT.
                let abort = (Duration::ZERO, Signal::ABORT, "it hangs; Python may print its stack");
                let ask = |after| (after, Signal::TERM, "it hangs");
                let kill = |after| (after, Signal::KILL, "it hangs and ignored SIGTERM");
                match found {
                    true => live.schedule(&[ask(Duration::ZERO), kill(grace)]),
                    false => live.schedule(&[abort, ask(grace / 2), kill(grace)]),
                }
                self.emit(SupervisorEvent::Hung { worker, idle_s: idle.as_secs_f64(), stacks });
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

    /// Reports, once each, output that could not be saved or forwarded.
    fn report_losses(&mut self) {
        for (index, stream) in ["stdout", "stderr"].into_iter().enumerate() {
            let screen = &self.screens[index];
            let (reason, dropped) = (screen.take_reason(), screen.take_dropped());
            let stream = stream.to_owned();
            if let Some(reason) = reason
                && !std::mem::replace(&mut self.has_reported_gone[index], true)
            {
                self.emit(SupervisorEvent::ScreenGone { stream: stream.clone(), reason });
            }
            if let Some(bytes) = dropped {
                self.emit(SupervisorEvent::NotShown { stream, bytes });
            }
        }
        for index in 0..self.workers.len() {
            let worker = &mut self.workers[index];
            let reason = worker.output.lost();
            if let Some(reason) = reason.filter(|_| !worker.has_reported_loss) {
                worker.has_reported_loss = true;
                self.emit(SupervisorEvent::OutputLost { worker: index, reason });
            }
        }
    }
}
