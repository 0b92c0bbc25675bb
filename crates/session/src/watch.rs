//! What is watched while a run trains: samples of cards and system are kept in the run's folder and limit its speed, and its
//! inbox is read for orders. A run does not depend on it: what can't be sampled becomes a notice, and training continues.
//! Not here: what a sample is used for (`watched.rs`), how the run waits (`pace.rs`).

use crate::control::Control;
use crate::error::SessionError;
use crate::listener::listen;
use crate::notice::Notice;
use crate::orders::Next;
use crate::power::CardPower;
use crate::samples::KeptSamples;
use crate::shared_memory::Residence;
use crate::surroundings::Repeated;
use crate::watched::{WatchSettings, Watched};
use plimsoll_health::Settings as HealthSettings;
use plimsoll_plan::{OnPressure, Plan, Refusal};
use plimsoll_power::Meter;
use plimsoll_telemetry::{EnergyUse, Event, Sample, SamplerOptions, for_each_record};
use plimsoll_train::RunFolder;
use plimsoll_units::{Bytes, Seconds};
use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// What a watcher must know of a run.
pub(crate) struct Subject {
    /// UUID of its card; `None` on the processor.
    pub(crate) card: Option<String>,
    /// Whether it leaves work to the host.
    pub(crate) offloads: bool,
    /// Size of a checkpoint.
    pub(crate) checkpoint: Bytes,
}

/// Watches a run until it is dropped.
pub(crate) struct Watch {
    // Dropped before what is set of the card is put back.
    sampler: OnceLock<Repeated>,
    listener: OnceLock<Repeated>,
    pub(crate) control: Control,
    subject: Subject,
    settings: Option<WatchSettings>,
    /// Age at which a speed limit is no longer valid.
    pub(crate) stale: Duration,
    power: Option<Arc<CardPower>>,
}

impl Watch {
    /// Watches nothing yet.
    pub(crate) fn new(settings: Option<WatchSettings>, subject: Subject, control: Control) -> Self {
        let every = settings.as_ref().map_or(Duration::ZERO, |settings| settings.every);
        let stale = plimsoll_heat::Order::lasts(Seconds(every.as_secs_f64()));
        let stale = Duration::from_secs_f64(stale.0);
        control.shared.lock().facts.checkpoint = Some(subject.checkpoint);
        Self { sampler: OnceLock::new(), listener: OnceLock::new(), control, subject, settings, stale, power: None }
    }

    /// The card's settings that are held until [`put_back`](Self::put_back).
    pub(crate) fn hold(&mut self, power: CardPower) {
        self.power = Some(Arc::new(power));
    }

    /// Watches the run in this folder from now on. Errors: the system refuses the thread that samples the run's card.
    pub(crate) fn begin(&self, folder: &RunFolder) -> Result<(), SessionError> {
        let run = folder.path();
        let Control { shared, notices, .. } = &self.control;
        match listen(run, shared, notices) {
            Ok(listener) => drop(self.listener.set(listener)),
            Err(error) => notices(Notice::NoOrders(error)),
        }
        let Some(settings) = &self.settings else { return Ok(()) };
        let (mut kept, refused) = KeptSamples::open(run, folder.disk());
        refused.into_iter().for_each(|error| notices(Notice::SamplesNotKept(error)));
        let Subject { card, offloads, .. } = &self.subject;
        let cards = card.iter().cloned().collect::<Vec<_>>();
        let health = HealthSettings {
            cards: Some(cards.clone()),
            is_guarded: true,
            own_pid: Some(std::process::id()),
            offloads: *offloads,
            takes_memory: card.is_none(),
        };
        let meter = Meter::new(&cards, energy_before(run));
        let mut watched = Watched::new(card.clone(), settings.clone(), health, meter, self.power.clone());
        let (control, notices, began) = (self.control.clone(), notices.clone(), self.now());
        shared.lock().energy = watched.energy();
        let each = move |sample: &Arc<Sample>| {
            kept.append(sample).into_iter().for_each(|error| notices(Notice::SamplesLost(error)));
            let tap = {
                let mut state = control.shared.lock();
                state.latest = Some(sample.clone());
                state.tap.clone()
            };
            tap.iter().for_each(|tap| tap(sample));
            let time = control.shared.surroundings.now().saturating_sub(began);
            watched.observe(sample, time, &control);
        };
        let options = SamplerOptions { every: settings.every, folder: Some(run.to_owned()) };
        match shared.surroundings.sample(options, Box::new(each)) {
            Ok(sampler) => drop(self.sampler.set(sampler)),
            Err(error) if self.subject.card.is_some() => return Err(SessionError::NoSampler(error)),
            Err(error) => (self.control.notices)(Notice::NoSamples(error)),
        }
        Ok(())
    }

    /// The time of the session's clock.
    pub(crate) fn now(&self) -> Duration {
        self.control.shared.surroundings.now()
    }

    /// Events that wait for the run's next step.
    pub(crate) fn take_events(&self) -> Vec<Event> {
        std::mem::take(&mut self.control.shared.lock().events)
    }

    /// The plan by which the run is to continue.
    pub(crate) fn take_next(&self) -> Option<Next> {
        self.control.shared.lock().asked.next.take()
    }

    /// Records that an order was not followed after this step.
    pub(crate) fn refuse(&self, step: u64, order: u64, refusal: Refusal, reason: String) {
        self.control.shared.lock().refuse(step, order, refusal, reason);
    }

    /// Records where the run's plan is, after an order if there was one.
    pub(crate) fn reside(&self, plan: Option<&Plan>, order: Option<u64>) {
        let Some(settings) = self.settings.as_ref().and_then(|settings| settings.memory.as_ref()) else { return };
        let memory = &mut self.control.shared.lock().memory;
        memory.residence = plan.map_or(Residence::Waiting, |plan| Residence::Loaded(settings.held_by(plan)));
        order.into_iter().for_each(|order| memory.settle(order, None));
    }

    /// Whether an order of the memory watcher leaves the plan as it is, and only the budget changes: then that is recorded.
    pub(crate) fn adopts(&self, order: u64, budget: Bytes, found: &Plan, loaded: &Plan) -> bool {
        let memory = &mut self.control.shared.lock().memory;
        let is_same = memory.order == Some(order) && found.clone().within(&loaded.budget()) == *loaded;
        if let (true, Residence::Loaded(plan)) = (is_same, &mut memory.residence) {
            plan.budget = budget;
            memory.settle(order, None);
        }
        is_same
    }

    /// Records that the run's plan leaves the device.
    pub(crate) fn begin_change(&self) {
        self.control.shared.lock().memory.residence = Residence::Changing;
    }

    /// Whether the run may wait for memory.
    pub(crate) fn may_wait(&self) -> bool {
        let memory = self.settings.as_ref().and_then(|settings| settings.memory.as_ref());
        memory.is_some_and(|memory| matches!(memory.on_pressure, OnPressure::Shrink | OnPressure::Wait))
    }

    /// Puts back what is set of the card.
    pub(crate) fn put_back(&self) {
        let back = self.power.iter().flat_map(|power| power.put_back());
        back.for_each(|back| (self.control.notices)(Notice::PutBack(back)));
    }
}

/// Energy that the earlier sessions of the run in this folder used, by its journal.
fn energy_before(run: &Path) -> Option<EnergyUse> {
    let mut last = None;
    // A journal that can't be read is reported where the run's steps are read from it.
    let _ = for_each_record(&run.join("journal.jsonl"), |record| {
        if let Event::Energy(energy) = record.event {
            last = Some(energy).filter(|energy| energy.energy_j.is_finite() && energy.energy_j >= 0.0).or(last.take());
        }
    });
    last
}
