//! A session: a run that trains by one plan, and by others for other budgets, in one process. Before a plan changes, the run's
//! state is on disk, so that no failure loses it.

use crate::backend::Backend;
use crate::control::Control;
use crate::error::SessionError;
use crate::notice::Notices;
use crate::observer::{Observer, Setup};
use crate::orders::{Next, Target};
use crate::pace::SessionPace;
use crate::power::CardPower;
use crate::room::DiskRoom;
use crate::surroundings::Surroundings;
use crate::watch::{Subject, Watch};
use crate::watched::WatchSettings;
use plimsoll_data::Dataset;
use plimsoll_plan::{Found, Refusal};
use plimsoll_telemetry::{Event, Sink};
use plimsoll_train::checkpoint::room;
use plimsoll_train::{Ending, Engine, Outcome, Position, RunFolder, Start, TrainError, Trainer, TrainerConfig};
use plimsoll_units::Bytes;
use std::cell::RefCell;
use std::fmt::Display;
use std::path::PathBuf;
use std::sync::Arc;

/// What a session needs to begin.
pub struct SessionSettings {
    /// The run's folder, which stays locked while the session lasts.
    pub folder: RunFolder,
    /// Where the weights come from.
    pub start: Start,
    /// The run's settings.
    pub trainer: TrainerConfig,
    /// The data, tokenized, in sequences as long as the plan's.
    pub dataset: Arc<Dataset>,
    /// The plan.
    pub found: Found,
    /// UUID of the card that the plan runs on; `None` on the processor.
    pub card: Option<String>,
    /// How cards and system are watched; `None` samples nothing, so heat does not slow the run. Orders work in either case.
    pub watch: Option<WatchSettings>,
    /// Receives notices.
    pub notices: Notices,
    /// The session's clock and its work at intervals; [`System`](crate::System) but in tests.
    pub surroundings: Arc<dyn Surroundings>,
}

/// A run with its plan on a device.
pub struct Session<B> {
    // Dropped before the engine and the folder: it samples the run.
    pub(crate) watch: Watch,
    engine: Option<Engine>,
    pub(crate) folder: RunFolder,
    start: Start,
    trainer: TrainerConfig,
    dataset: Arc<Dataset>,
    pub(crate) found: Found,
    pub(crate) backend: B,
}

impl<B: Backend> Session<B> {
    /// Puts the plan on its device. Nothing is written yet. Errors: there is no room for the plan, or the device refuses it.
    pub fn new(settings: SessionSettings, mut backend: B) -> Result<Self, B::Error> {
        let SessionSettings { folder, start, trainer, dataset, mut found, card, watch, notices, surroundings } =
            settings;
        let engine = backend.load(&folder, &mut found, None)?;
        let subject =
            Subject { card, offloads: found.plan.host().0 > 0, checkpoint: room(&engine, &trainer.model_folder) };
        let watch = Watch::new(watch, subject, Control::new(notices, surroundings));
        watch.reside(Some(&found.plan), None);
        Ok(Self { watch, engine: Some(engine), folder, start, trainer, dataset, found, backend })
    }

    /// A handle by which any thread controls the session.
    pub fn control(&self) -> Control {
        self.watch.control.clone()
    }

    /// What the session trains, by which plan, and where.
    pub fn setup(&self) -> Setup<'_, B> {
        let Self { folder, start, trainer, dataset, found, backend, .. } = self;
        Setup { folder, start, trainer, dataset, found, backend }
    }

    /// The same, with the device and the weights on it. Panics if [`run`](Self::run) returned an error, or ended while it waited
    /// for memory ([`has_engine`](Self::has_engine)).
    pub fn with_engine(&mut self) -> (Setup<'_, B>, &mut Engine) {
        let Self { folder, start, trainer, dataset, found, backend, engine, .. } = self;
        (Setup { folder, start, trainer, dataset, found, backend }, loaded(engine))
    }

    /// Whether the weights are on the device: not after an error, and not if the run ended while it waited for memory.
    pub fn has_engine(&self) -> bool {
        self.engine.is_some()
    }

    /// Holds settings of the card until the session ends.
    pub fn hold(&mut self, power: CardPower) {
        self.watch.hold(power);
    }

    /// Whether the disk has room for the run's checkpoints; `None` if the system does not say how much is free. `others`: bytes
    /// that the caller writes before the first step. Errors: the folder of checkpoints can't be read.
    pub fn disk_room(&mut self, others: Bytes) -> Result<Option<DiskRoom>, B::Error> {
        let (setup, engine) = self.with_engine();
        let own = files_of(&setup, engine).iter().map(|(_, contents)| contents.len() as u64).sum();
        let room = DiskRoom::of(&setup, engine, others + Bytes(own));
        Ok(room.map_err(|error| SessionError::from(TrainError::from(error)))?)
    }

    /// Trains until the run ends, whatever ends it, and puts back what was set of the card. Errors: the start can't be used, the
    /// device or the data fails, a file of the run can't be written before its first step, or `observer` returned one. After
    /// an error the newest checkpoint in the run's folder continues the run.
    pub fn run(&mut self, observer: &mut dyn Observer<B>) -> Result<Outcome, B::Error> {
        let ended = self.through_all_plans(observer);
        self.watch.put_back();
        ended
    }

    fn through_all_plans(&mut self, observer: &mut dyn Observer<B>) -> Result<Outcome, B::Error> {
        let mut outcome = self.by_one_plan(observer, None, true)?;
        while let Some(next) = self.watch.take_next().filter(|_| outcome.ending == Ending::Replanned) {
            if let Some(position) = outcome.position.take() {
                self.exchange_plan(next).map_err(|error| observer.explain(error, &self.setup()))?;
                outcome = self.by_one_plan(observer, Some(position), false)?;
                continue;
            }
            let (step, checkpoint) = outcome.saved.clone().expect("a plan changes after a checkpoint");
            self.start = Start::Resume(checkpoint);
            let changed = self.change_plan(next).map_err(|error| observer.explain(error, &self.setup()))?;
            if let Err(why) = changed {
                let waits = why.map(|what| Event::MemoryPressure { step, what, waits: true });
                if let Some(ending) = self.wait_for_memory(waits, step, &outcome, observer) {
                    let events = self.watch.take_events();
                    return Ok(outcome.end_saved(ending, &events, &self.folder, &mut |event| observer.take(event)));
                }
            }
            outcome = self.by_one_plan(observer, None, false)?;
        }
        Ok(outcome)
    }

    /// Trains by the plan that is loaded, from the position whose state is on the device, else from the current start.
    /// `is_first`: whether the session begins.
    fn by_one_plan(
        &mut self,
        observer: &mut dyn Observer<B>,
        position: Option<Position>,
        is_first: bool,
    ) -> Result<Outcome, B::Error> {
        let (setup, engine) = self.with_engine();
        let mut files = files_of(&setup, engine);
        files.extend(observer.plan_begins(&setup)?);
        let ended = self.steps(observer, position, is_first, &files)?;
        observer.plan_ends(ended.as_ref().ok());
        ended.map_err(|error| observer.explain(error.into(), &self.setup()))
    }

    /// The outer error is of a start that is refused, the inner one of a run that had begun.
    fn steps(
        &mut self,
        observer: &mut dyn Observer<B>,
        position: Option<Position>,
        is_first: bool,
        files: &[(PathBuf, Vec<u8>)],
    ) -> Result<Result<Outcome, SessionError>, B::Error> {
        let Self { watch, engine, folder, start, trainer, dataset, found, backend } = self;
        let stop = watch.control.stop_flag();
        let observer = RefCell::new(observer);
        let mut events = Events(&observer);
        let run = Trainer {
            engine: loaded(engine),
            dataset,
            folder,
            config: trainer,
            sinks: vec![&mut events],
            stop: &stop,
            pace: &SessionPace { watch, backend, found },
        };
        let started = match position {
            Some(position) => run.start_at(position),
            None => run.start(start),
        };
        let started = started.map_err(SessionError::from)?;
        // Only a start that is accepted replaces the settings of an earlier session.
        for (path, contents) in files {
            folder.write(path, contents).map_err(SessionError::from)?;
        }
        if is_first {
            observer.borrow_mut().accepted();
            watch.begin(folder)?;
        }
        Ok(started.run().map_err(SessionError::from))
    }

    /// Frees the old plan's memory and loads the next plan; if there is no room for that, the old plan again, and the order is
    /// refused. The inner error: the run has to wait for memory, and why if its order does not say it.
    /// Errors: there is no room for either any more, and the run may not wait.
    fn change_plan(&mut self, next: Next) -> Result<Result<(), Option<String>>, B::Error> {
        let Next { order, step, target, .. } = next;
        self.watch.begin_change();
        self.engine = None;
        let (budget, found) = match target {
            Target::Plan(budget, found) => (budget, *found),
            Target::Smaller(budget) => {
                let loaded = self.load_budget(order, step, budget);
                return Ok(loaded.map_err(|reason| Some(format!("{reason}; the run waits"))));
            }
            Target::Wait { .. } => {
                self.watch.reside(None, Some(order));
                return Ok(Err(None));
            }
        };
        let Err(error) = self.load(order, budget, found) else { return Ok(Ok(())) };
        self.watch.refuse(step, order, Refusal::NoRoom, no_room(&error));
        match self.backend.load(&self.folder, &mut self.found, None) {
            Ok(engine) => {
                self.engine = Some(engine);
                self.watch.reside(Some(&self.found.plan), None);
                Ok(Ok(()))
            }
            Err(error) if self.watch.may_wait() => {
                self.watch.reside(None, None);
                Ok(Err(Some(format!("{}; the run waits", no_room(&error)))))
            }
            Err(error) => Err(error),
        }
    }

    /// Replaces the plan by the next one, which takes over the state on the device; if there is no room for it, the plan stays,
    /// and the order is refused. Errors: the device fails.
    fn exchange_plan(&mut self, next: Next) -> Result<(), B::Error> {
        let Next { order, step, target, .. } = next;
        let Target::Plan(budget, found) = target else { panic!("only another plan keeps the state") };
        self.watch.begin_change();
        match self.backend.exchange(loaded(&mut self.engine), &found, budget)? {
            Ok(()) => {
                self.found = *found;
                self.watch.reside(Some(&self.found.plan), Some(order));
            }
            Err(refused) => {
                self.watch.refuse(step, order, Refusal::NoRoom, no_room(&refused));
                self.watch.reside(Some(&self.found.plan), None);
            }
        }
        Ok(())
    }

    /// Loads the plan of an order. The device must be empty.
    pub(crate) fn load(&mut self, order: u64, budget: Bytes, mut found: Found) -> Result<(), B::Error> {
        self.engine = Some(self.backend.load(&self.folder, &mut found, Some(budget))?);
        self.found = found;
        self.watch.reside(Some(&self.found.plan), Some(order));
        Ok(())
    }
}

/// Why an order is refused whose plan can't be loaded.
pub(crate) fn no_room(error: &impl Display) -> String {
    format!("there is no room for its plan: {error}")
}

fn loaded(engine: &mut Option<Engine>) -> &mut Engine {
    engine.as_mut().expect("the session has a plan on the device")
}

/// The files of a plan in its run's folder.
fn files_of<B>(setup: &Setup<'_, B>, engine: &Engine) -> Vec<(PathBuf, Vec<u8>)> {
    let plan = serde_json::to_vec(&setup.found.plan).expect("a plan is plain data");
    let model = setup.trainer.model_folder.config_json.clone().into_bytes();
    let mut files = vec![(setup.folder.plan(), plan), (setup.folder.model(), model)];
    let products = engine.product_choices();
    let products = products.map(|choices| serde_json::to_vec_pretty(&choices).expect("plain data"));
    files.extend(products.map(|products| (setup.folder.products(), products)));
    files
}

/// Passes the events of a run to an observer that is also told of the run's seams.
struct Events<'a, 'o, B>(&'a RefCell<&'o mut dyn Observer<B>>);

impl<B: Backend> Sink for Events<'_, '_, B> {
    fn take(&mut self, event: &Event) {
        self.0.borrow_mut().take(event);
    }
}
