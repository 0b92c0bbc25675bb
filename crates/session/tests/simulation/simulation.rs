//! A run from its start to its end, restarted as a user would after each end, with the checks of `checks.rs` meanwhile.

use crate::card::FaultyCard;
use crate::checks;
use crate::disk::{Crashed, FaultyDisk};
use crate::facts::Facts;
use crate::files::Files;
use crate::rng::Rng;
use crate::schedule::{Crash, Level, MAX_C, Schedule, Subject};
use crate::training::{Computed, config, dataset, first_plan, levels, planned, request};
use crate::world::{UUID, Violation, World};
use plimsoll_exec::{CpuDevice, Device};
use plimsoll_files::Disk;
use plimsoll_heat::Settings as HeatSettings;
use plimsoll_orders::Order;
use plimsoll_plan::{BudgetRange, Found};
use plimsoll_session::{
    Backend, MemorySettings, Observer, OnDevice, Session, SessionError, SessionSettings, Surroundings, UsableMemory,
    WatchSettings,
};
use plimsoll_telemetry::{Event, Sink};
use plimsoll_train::checkpoint::{list, newest_whole};
use plimsoll_train::{Ending, Engine, Outcome, RunFolder, Start, TrainError};
use plimsoll_units::{Bytes, Seconds};
use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::{Arc, LazyLock, Mutex};
use std::time::Duration;

/// Sessions of a run, at most.
const SESSIONS: u32 = 200;

/// Sessions after which a user gives up a disk that stays broken.
const HOPELESS_SESSIONS: u32 = 12;

/// A seed whose run broke an invariant.
#[derive(Debug)]
pub struct Failure {
    pub what: String,
    pub trace: Vec<String>,
}

/// What a seed's run went through.
#[derive(Debug, Default, Clone, PartialEq)]
pub struct Survived {
    pub sessions: u32,
    pub simulated_s: f64,
    pub is_finished: bool,
    /// Everything that happened, in order.
    pub trace: Vec<String>,
}

/// Runs the schedule of a seed to its end, in a new folder.
pub fn simulate(seed: u64, parent: &Path) -> Result<Survived, Failure> {
    let mut rng = Rng(seed);
    let schedule = Schedule::draw(&mut rng);
    let expected = undisturbed(schedule.subject, parent)?;
    let (survived, computed) = run(schedule, rng, Some(&expected), parent)?;
    assert_eq!(survived.is_finished, computed.is_some());
    Ok(survived)
}

/// What an undisturbed run of a subject computes. Errors: it breaks an invariant itself.
fn undisturbed(subject: Subject, parent: &Path) -> Result<Arc<Computed>, Failure> {
    static KNOWN: LazyLock<Mutex<HashMap<Subject, Arc<Computed>>>> = LazyLock::new(Mutex::default);
    if let Some(known) = KNOWN.lock().expect("no panic").get(&subject) {
        return Ok(known.clone());
    }
    let (_, computed) = run(Schedule::undisturbed(subject), Rng(0), None, parent)?;
    let computed = Arc::new(computed.expect("nothing keeps it from its end"));
    KNOWN.lock().expect("no panic").insert(subject, computed.clone());
    Ok(computed)
}

fn run(
    schedule: Schedule,
    rng: Rng,
    expected: Option<&Computed>,
    parent: &Path,
) -> Result<(Survived, Option<Computed>), Failure> {
    let folder = tempfile::tempdir_in(parent).expect("a temporary folder");
    let levels = levels(schedule.subject);
    let world = World::new(schedule, levels, rng);
    let files = Arc::new(Mutex::new(Files::new(folder.path())));
    let mut user = User { world: world.clone(), files, has_lost: false, sessions: 0 };
    let ended = catch_unwind(AssertUnwindSafe(|| user.train(expected)));
    // The folder has another name at each run of a seed.
    let place = folder.path().to_string_lossy().into_owned();
    let trace = std::mem::take(&mut world.lock().trace).into_iter().map(|line| line.replace(&place, "")).collect();
    let what = match ended {
        Ok((is_finished, computed)) => {
            let simulated_s = world.lock().now.as_secs_f64();
            return Ok((Survived { sessions: user.sessions, simulated_s, is_finished, trace }, computed));
        }
        Err(panic) => match panic.downcast::<Violation>() {
            Ok(violation) => violation.0,
            Err(panic) => format!("a panic: {}", message_of(&*panic)),
        },
    };
    Err(Failure { what, trace })
}

fn message_of(panic: &(dyn std::any::Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("without a message")
}

/// Starts the run, and starts it again after each end.
struct User {
    world: World,
    files: Arc<Mutex<Files>>,
    /// Whether the journal may lack events.
    has_lost: bool,
    sessions: u32,
}

impl User {
    /// Trains until the run is finished, or can't be. Unwinds if an invariant is broken.
    fn train(&mut self, expected: Option<&Computed>) -> (bool, Option<Computed>) {
        let mut patience_s = 5.0;
        loop {
            self.sessions += 1;
            let is_hopeless = self.world.lock().schedule.is_hopeless();
            if is_hopeless && self.sessions > HOPELESS_SESSIONS {
                return (false, None);
            }
            if self.sessions > SESSIONS {
                self.world.fail(format!("{SESSIONS} sessions did not finish the run"));
            }
            {
                let mut state = self.world.lock();
                state.facts = Facts::default();
                (state.run, state.is_crashed) = (Some(self.files().run()), false);
            }
            let ended = catch_unwind(AssertUnwindSafe(|| self.session()));
            let facts = {
                let mut state = self.world.lock();
                (state.run, state.control) = (None, None);
                state.facts.clone()
            };
            self.has_lost |= facts.journal_errors > 0;
            match ended {
                Ok(Ok(outcome)) => {
                    self.world.note(format!(
                        "{:?} after step {:?}, unsaved: {:?}",
                        outcome.ending, facts.step, outcome.unsaved
                    ));
                    let problem = checks::outcome(&self.world.lock().schedule, &facts, &outcome);
                    self.world.check(problem);
                    if let Some((step, checkpoint)) = &outcome.saved {
                        self.files().keep_promise(&self.world, *step, checkpoint);
                    }
                    if outcome.ending == Ending::Finished && outcome.unsaved.is_none() {
                        return (true, Some(self.finish(&outcome, expected)));
                    }
                    patience_s = if outcome.unsaved.is_some() { f64::min(2.0 * patience_s, 900.0) } else { 5.0 };
                }
                Ok(Err(error)) => {
                    self.world.note(format!("error: {error}"));
                    let problem = checks::error(&facts, &error);
                    self.world.check(problem);
                    patience_s = f64::min(2.0 * patience_s, 900.0);
                }
                Err(panic) => match panic.downcast::<Crashed>() {
                    Ok(crashed) => self.look_after(&crashed),
                    Err(panic) => std::panic::resume_unwind(panic),
                },
            }
            self.world.lock().is_crashed = false;
            let wait_s = self.world.lock().rng.between(1.0, patience_s);
            self.world.pass(Duration::from_secs_f64(wait_s), false);
        }
    }

    fn files(&self) -> std::sync::MutexGuard<'_, Files> {
        self.files.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Looks at what a crash left: every checkpoint that was reported as saved.
    fn look_after(&mut self, crashed: &Crashed) {
        let mut files = self.files();
        if crashed.0 == Crash::Power {
            let mut rng = self.world.lock().rng.clone();
            files.cut(&mut rng);
            self.world.lock().rng = rng;
        }
        let newest = newest_whole(&files.run().join("checkpoints"));
        let problem = match newest {
            Ok(newest) => {
                let step = newest.found.map(|(_, state)| state.step);
                let is_lost = step < files.promised;
                let lost = is_lost.then(|| format!("step {:?} was saved, {step:?} is there", files.promised));
                let damaged = newest.skipped.first().map(|skipped| format!("a damaged checkpoint: {skipped:?}"));
                lost.or(damaged)
            }
            Err(error) => Some(format!("the checkpoints can't be read: {error}")),
        };
        drop(files);
        self.world.check(problem);
    }

    /// Checks a finished run.
    fn finish(&self, outcome: &Outcome, expected: Option<&Computed>) -> Computed {
        let (_, checkpoint) = outcome.saved.as_ref().expect("a checkpoint of the last step");
        let computed = Computed::of(outcome, checkpoint);
        let found = expected.and_then(|expected| checks::finished(&computed, expected, self.has_lost));
        let found = found.or_else(|| checks::counts(&computed, self.world.lock().schedule.subject));
        let journal = self.files().run().join("journal.jsonl");
        let problem = found.or_else(|| if self.has_lost { None } else { checks::journal(&journal) });
        self.world.check(problem);
        computed
    }

    /// A session, as `plimsoll train --resume auto` runs it.
    fn session(&self) -> Result<Outcome, SessionError> {
        let schedule = self.world.lock().schedule.clone();
        let (run, recorder) = {
            let files = self.files();
            (files.run(), files.recorder.clone())
        };
        let disk = Disk::watched(Arc::new(FaultyDisk { world: self.world.clone(), recorder }));
        let folder = RunFolder::open_on(disk, &run, true)?;
        let checkpoints = folder.checkpoints();
        let newest = newest_whole(&checkpoints).map_err(TrainError::from)?;
        let start = match newest.found {
            Some((path, _)) => Start::Resume(path),
            None if list(&checkpoints).map_err(TrainError::from)?.is_empty() => Start::Fresh,
            None => self.world.fail("all checkpoints are damaged"),
        };
        let promised = self.files().promised;
        self.world.note(format!("session {} begins with {}, promised: {promised:?}", self.sessions, name_of(&start)));
        let (world, subject) = (self.world.clone(), schedule.subject);
        let open = move || {
            let card = FaultyCard { world: world.clone(), inner: CpuDevice::new(), is_lost: false };
            Ok(Box::new(card) as Box<dyn Device>)
        };
        let inner = OnDevice::new(request(subject), open);
        let backend = KnownPlans { world: self.world.clone(), micro_batch: subject.micro_batch, inner };
        let settings = SessionSettings {
            folder,
            start,
            trainer: config(subject),
            dataset: dataset(),
            found: first_plan(subject),
            card: schedule.sample_every.map(|_| UUID.to_owned()),
            watch: self.watch(&schedule),
            notices: Arc::new(|_| {}),
            surroundings: Arc::new(self.world.clone()),
        };
        let mut session = Session::new(settings, backend)?;
        self.world.lock().control = Some(session.control());
        let world = self.world.clone();
        // At the end a user ends a forgotten pause.
        let resume = move || {
            let is_forgotten = {
                let state = world.lock();
                state.is_calm() && state.facts.is_paused
            };
            if is_forgotten {
                world.give(Order::Resume);
            }
        };
        let _resumes = self.world.repeat("user", Duration::from_secs(60), Box::new(resume));
        session.run(&mut Observed { world: self.world.clone(), files: self.files.clone() })
    }

    fn watch(&self, schedule: &Schedule) -> Option<WatchSettings> {
        let every = schedule.sample_every?;
        let world = self.world.clone();
        let levels = world.lock().levels.clone();
        let memory = schedule.on_pressure.map(|on_pressure| MemorySettings {
            rises: false,
            range: BudgetRange { least: levels[&schedule.least], most: levels[&Level::Most] },
            on_pressure,
            outside: Bytes::ZERO,
            read: Arc::new(move |time: Seconds, _, _| {
                Some(UsableMemory { time, bytes: world.lock().usable(), pressure_percent: None })
            }),
        });
        Some(WatchSettings {
            every,
            heat: HeatSettings { max_c: MAX_C, throttle_c: 78.0, resume_c: 70.0, memory_max_c: 100.0 },
            price: None,
            health_event: |episode| Event::Heat { card: "machine".to_owned(), what: format!("{episode:?}") },
            memory,
        })
    }
}

fn name_of(start: &Start) -> String {
    match start {
        Start::Resume(path) | Start::Weights(path) => {
            path.file_name().unwrap_or_default().to_string_lossy().into_owned()
        }
        Start::Fresh => "nothing".to_owned(),
    }
}

/// Plans that are searched once for all seeds.
struct KnownPlans<B> {
    world: World,
    micro_batch: usize,
    inner: B,
}

impl<B: Backend<Error = SessionError>> Backend for KnownPlans<B> {
    type Error = SessionError;

    fn plan(&self, current: &Found, budget: Bytes) -> Result<Found, String> {
        self.world.pass(Duration::from_secs(2), false);
        planned(self.micro_batch, budget, || self.inner.plan(current, budget))
    }

    fn load(&mut self, folder: &RunFolder, found: &mut Found, budget: Option<Bytes>) -> Result<Engine, SessionError> {
        self.world.pass(Duration::from_secs(1), false);
        self.inner.load(folder, found, budget)
    }
}

/// Checks each event.
struct Observed {
    world: World,
    files: Arc<Mutex<Files>>,
}

impl Sink for Observed {
    fn take(&mut self, event: &Event) {
        let text = format!("{event:?}");
        self.world.note(text);
        let problem = checks::event(&mut self.world.lock(), event);
        self.world.check(problem);
        if let Event::CheckpointSaved { step, checkpoint, .. } = event {
            self.files.lock().expect("no panic").keep_promise(&self.world, *step, checkpoint);
        }
    }
}

impl<B: Backend> Observer<B> for Observed {}
