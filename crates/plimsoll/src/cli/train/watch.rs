//! What is watched while a run trains: samples of cards and system go to its folder, and what they say decides how fast it may
//! go, as does what the run is asked to do (`orders.rs`). A run doesn't depend on it: what can't be sampled is said, and training
//! goes on.
//! Not here: what is made of a sample (`watched.rs`), what a sample is (`plimsoll-telemetry`).

use super::orders::{Asked, Asking, Listener, Next, Planner};
use super::watched::Watched;
use crate::cli::Failure;
use crate::cli::failure::no_thread;
use crate::cli::heat::checked;
use crate::cli::power::Set;
use crate::cli::samples::KeptSamples;
use crate::streams::talk;
use ::plimsoll_train::{Ending, MicroBatch, Pace};
use clap::Args;
use plimsoll_health::{Facts, Settings as HealthSettings};
use plimsoll_heat::{Order, Settings};
use plimsoll_notify::{Card, NotifySink};
use plimsoll_power::{Meter, Price};
use plimsoll_telemetry::{EnergyUse, Event, Sample, Sampler, SamplerOptions, Sink, for_each_record};
use plimsoll_trackers::MachineTap;
use plimsoll_units::{Bytes, Seconds, format_duration};
use serde_json::{Map, Value, json};
use std::path::Path;
use std::str::FromStr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// While it waits, a run looks this often whether it is to stop.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Who is paused says so this often, so that nobody takes it for one that hangs.
const SAY_EVERY: Duration = Duration::from_secs(60);

/// Events that wait for the next step.
const EVENTS: usize = 256;

#[derive(Debug, Clone, Args)]
pub(crate) struct WatchArgs {
    /// Time between two samples of the card and the system, kept in the run's folder: `1s`, `0.5s`, `1m`; `off`: none, and
    /// nobody watches heat, health and energy
    #[arg(long, value_name = "TIME|off", default_value = "1s")]
    sample_every: SampleEvery,
    /// Degrees Celsius of the card above which the run saves and ends, with exit code 6; the card's own limit if that is lower
    #[arg(long, value_name = "C", default_value = "83")]
    max_temp: f64,
    /// From here on the run is slowed, by pauses between micro-batches, so that the card stays here
    #[arg(long, value_name = "C", default_value = "78")]
    throttle_temp: f64,
    /// Below this a run that was slowed runs freely again
    #[arg(long, value_name = "C", default_value = "70")]
    resume_temp: f64,
    /// As `--max-temp`, of the card's memory, where it tells
    #[arg(long, value_name = "C", default_value = "100")]
    memory_temp: f64,
}

/// `--sample-every`.
#[derive(Debug, Clone, Copy, PartialEq)]
enum SampleEvery {
    Off,
    Time(Seconds),
}

impl FromStr for SampleEvery {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        // Some readers of YAML take the word for a truth value.
        match text {
            "off" | "false" => Ok(Self::Off),
            time => sample_time(time).map(Self::Time),
        }
    }
}

/// From a hundredth of a second to a day.
pub(in crate::cli) fn sample_time(text: &str) -> Result<Seconds, String> {
    let time = text.parse::<Seconds>().map_err(|error| error.to_string())?;
    if (0.01..=86_400.0).contains(&time.0) { Ok(time) } else { Err("from 0.01 seconds to 24h".to_owned()) }
}

impl WatchArgs {
    /// The limits that are asked for. Errors: they are none.
    pub(super) fn limits(&self) -> Result<Settings, Failure> {
        let settings = Settings {
            max_c: self.max_temp,
            throttle_c: self.throttle_temp,
            resume_c: self.resume_temp,
            memory_max_c: self.memory_temp,
        };
        checked(settings)
    }

    /// Whether nothing is sampled.
    pub(super) fn is_off(&self) -> bool {
        self.sample_every == SampleEvery::Off
    }

    /// What a resumed run watches as this one did.
    pub(super) fn resolved(&self) -> Map<String, Value> {
        let settings = json!({
            "sample_every": match self.sample_every {
                SampleEvery::Off => "off".to_owned(),
                SampleEvery::Time(time) => format!("{}s", time.0),
            },
            "max_temp": self.max_temp.to_string(),
            "throttle_temp": self.throttle_temp.to_string(),
            "resume_temp": self.resume_temp.to_string(),
            "memory_temp": self.memory_temp.to_string(),
        });
        settings.as_object().cloned().unwrap_or_default()
    }
}

/// What a run is, as far as it matters to whoever watches it.
pub(super) struct Subject {
    /// The UUID of its card, if it is on one.
    pub(super) card: Option<String>,
    /// Whether it leaves work to the host.
    pub(super) offloads: bool,
    /// What a checkpoint of it takes.
    pub(super) checkpoint: Bytes,
    /// What a kilowatt-hour costs.
    pub(super) price: Option<Price>,
}

/// A run that is watched, as long as this is there.
pub(super) struct Watch {
    // Ended before what is set of the card is put back.
    /// From when on it is watched.
    sampler: OnceLock<Sampler>,
    shared: Arc<Shared>,
    subject: Subject,
    settings: Settings,
    every: Option<Duration>,
    stale: Duration,
    /// What is set of the card.
    power: Option<Arc<Set>>,
    asking: Asking,
    /// From when on it takes orders.
    listener: OnceLock<Listener>,
}

#[derive(Default)]
pub(super) struct Shared {
    state: Mutex<State>,
    pub(super) changed: Condvar,
}

#[derive(Default)]
pub(super) struct State {
    /// The newest order, and when it was given.
    pub(super) order: Option<(Order, Instant)>,
    /// How long the last micro-batch took, since the last sample.
    pub(super) batch: Option<Duration>,
    /// What the run says of itself.
    pub(super) facts: Facts,
    /// What its cards used so far.
    pub(super) energy: Option<EnergyUse>,
    events: Vec<Event>,
    /// Where samples are logged, too.
    tap: Option<MachineTap>,
    /// The step of the last micro-batch.
    pub(super) step: u64,
    /// What the run is asked to do.
    pub(super) asked: Asked,
    /// Whether it was said that orders are stale.
    is_stale: bool,
}

impl Shared {
    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// There is another order.
    pub(super) fn ordered(&self) {
        self.changed.notify_all();
    }
}

impl State {
    /// Keeps an event until the run takes it.
    pub(super) fn tell(&mut self, event: Event) {
        if self.events.len() < EVENTS {
            self.events.push(event);
        }
    }

    /// An order is not obeyed.
    pub(super) fn refuse(&mut self, order: u64, reason: &str) {
        self.tell(Event::OrderRefused { step: self.step, order: Some(order), reason: reason.to_owned() });
    }

    pub(super) fn is_too_hot(&self) -> bool {
        matches!(self.order, Some((Order::Stop { .. }, _)))
    }

    /// How long the run is still to wait for heat before its next micro-batch; none if it may go on. `took`: what the last
    /// one did; `waited`: for how long the run has waited since.
    fn left(&mut self, took: Duration, waited: Duration, stale: Duration) -> Option<Duration> {
        let (order, given) = self.order?;
        let is_stale = given.elapsed() > stale;
        if is_stale && !self.is_stale {
            let what = "sensors no longer answer: half of the time is waited".to_owned();
            self.tell(Event::Heat { card: "the card".to_owned(), what });
        }
        self.is_stale = is_stale;
        let share = match order {
            // The step is finished, and the run ends.
            Order::Stop { .. } => return None,
            order if is_stale => order.stale().share(),
            order => order.share(),
        };
        // At no share there is no end but another order.
        let pause = if share > 0.0 { took.mul_f64((1.0 - share) / share) } else { Duration::MAX };
        Some(pause.saturating_sub(waited)).filter(|left| !left.is_zero())
    }
}

impl Watch {
    /// For a run, with what is set of its card, and what it needs to do as it is asked. Nothing is watched yet.
    pub(super) fn new(
        args: &WatchArgs,
        settings: Settings,
        subject: Subject,
        power: Option<Set>,
        asking: Asking,
    ) -> Self {
        let every = match args.sample_every {
            SampleEvery::Off => None,
            SampleEvery::Time(time) => Some(Duration::from_secs_f64(time.0)),
        };
        let stale = Order::lasts(Seconds(every.unwrap_or_default().as_secs_f64()));
        let stale = Duration::from_secs_f64(stale.0);
        let shared = Arc::<Shared>::default();
        shared.lock().facts.checkpoint = Some(subject.checkpoint);
        let (sampler, listener, power) = (OnceLock::new(), OnceLock::new(), power.map(Arc::new));
        Self { sampler, shared, subject, settings, every, stale, power, asking, listener }
    }

    /// Logs samples there, too, from now on.
    pub(super) fn log_to(&self, tap: Option<MachineTap>) {
        self.shared.lock().tap = tap;
    }

    /// Tells something at the next step.
    pub(super) fn tell(&self, event: Event) {
        self.shared.lock().tell(event);
    }

    /// Watches the run in this folder from now on. Errors: the system starts no thread.
    pub(super) fn begin(&self, run: &Path) -> Result<(), Failure> {
        match Listener::start(run, &self.shared, &self.asking.stop, &self.asking.clock) {
            Ok(listener) => drop(self.listener.set(listener)),
            Err(error) => talk(format_args!("note: the run takes no orders (`plimsoll pause`): {error}")),
        }
        let Some(every) = self.every else { return Ok(()) };
        let mut history = KeptSamples::open(run);
        let Subject { card, offloads, price, .. } = &self.subject;
        let cards = card.iter().cloned().collect::<Vec<_>>();
        let health = HealthSettings {
            cards: Some(cards.clone()),
            is_guarded: true,
            own_pid: Some(std::process::id()),
            offloads: *offloads,
            takes_memory: card.is_none(),
        };
        let meter = Meter::new(&cards, energy_before(run));
        let mut watched = Watched::new(card.clone(), self.settings, health, meter, price.clone(), self.power.clone());
        let (theirs, began) = (self.shared.clone(), Instant::now());
        theirs.lock().energy = watched.energy();
        let each = move |sample: &Arc<Sample>| {
            history.append(sample);
            let tap = theirs.lock().tap.clone();
            tap.iter().for_each(|tap| tap.take(sample));
            watched.observe(sample, began.elapsed(), &theirs);
        };
        let options = SamplerOptions { every, folder: Some(run.to_owned()) };
        let sampler = Sampler::start(options, each).map_err(no_thread("samples can't be taken"))?;
        drop(self.sampler.set(sampler));
        Ok(())
    }

    /// The plan by which the run is to go on.
    pub(super) fn take_next(&self) -> Option<Next> {
        self.shared.lock().asked.next.take()
    }

    /// The run goes on by this plan.
    pub(super) fn set_planner(&mut self, planner: Planner) {
        self.asking.planner = planner;
    }

    /// What an order asked for was not done.
    pub(super) fn refuse(&self, step: u64, order: u64, reason: String) {
        self.shared.lock().tell(Event::OrderRefused { step, order: Some(order), reason });
    }

    /// Waits while the run is paused by an order; the telling of events is not waited for by who gives orders.
    fn wait_paused(&self, step: u64, stop: &AtomicBool, tell: &mut dyn FnMut(Event)) {
        let since = Instant::now();
        let mut said = since;
        let Some(order) = self.shared.lock().asked.begin_pause() else { return };
        tell(Event::Paused { step, order });
        let mut state = self.shared.lock();
        while state.asked.is_paused() && !state.is_too_hot() && !stop.load(Ordering::Relaxed) {
            let events = std::mem::take(&mut state.events);
            if !events.is_empty() {
                drop(state);
                events.into_iter().for_each(&mut *tell);
                state = self.shared.lock();
                continue;
            }
            if said.elapsed() > SAY_EVERY {
                said = Instant::now();
                talk(format_args!("paused for {}", format_duration(Seconds(since.elapsed().as_secs_f64()))));
            }
            state = self.shared.changed.wait_timeout(state, LOOK_EVERY).unwrap_or_else(PoisonError::into_inner).0;
        }
        let order = state.asked.end_pause();
        state.facts.held_back_s += since.elapsed().as_secs_f64();
        drop(state);
        tell(Event::Unpaused { step, order, seconds: since.elapsed().as_secs_f64() });
    }

    /// The newest sample; `None` where nothing is sampled.
    pub(super) fn latest(&self) -> Option<Arc<Sample>> {
        self.sampler.get().and_then(Sampler::latest)
    }

    /// The UUID of the card that the run is on; `None` on the processor.
    pub(super) fn card(&self) -> Option<&str> {
        self.subject.card.as_deref()
    }

    /// Puts back what is set of the card, and says so.
    pub(super) fn put_back(&self) {
        self.power.iter().for_each(|set| set.put_back());
    }
}

/// What the run in this folder used in its sessions until now, by its journal.
fn energy_before(run: &Path) -> Option<EnergyUse> {
    let mut last = None;
    // A journal that can't be read is told of where the run's steps are read from it.
    let _ = for_each_record(&run.join("journal.jsonl"), |record| {
        if let Event::Energy(energy) = record.event {
            last = Some(energy).filter(|energy| energy.energy_j.is_finite() && energy.energy_j >= 0.0).or(last.take());
        }
    });
    last
}

/// Tells what happens, with what the cards say then.
pub(super) struct Told<'a, 'n> {
    pub(super) teller: &'a mut NotifySink<'n>,
    pub(super) watch: &'a Watch,
}

impl Sink for Told<'_, '_> {
    fn take(&mut self, event: &Event) {
        if let Some(sample) = self.watch.latest() {
            self.teller.narrator.set_cards(Card::of_sample(&sample));
        }
        self.teller.take(event);
    }
}

impl Pace for Watch {
    fn watches(&self) -> bool {
        true
    }

    fn micro_batch(&self, made: MicroBatch, stop: &AtomicBool, tell: &mut dyn FnMut(Event)) {
        let begun = Instant::now();
        let mut state = self.shared.lock();
        state.step = made.step;
        state.batch = Some(state.batch.map_or(made.took, |longest| longest.max(made.took)));
        while !stop.load(Ordering::Relaxed) {
            if state.asked.is_paused() && !state.is_too_hot() {
                drop(state);
                self.wait_paused(made.step, stop, tell);
                state = self.shared.lock();
                continue;
            }
            let Some(left) = state.left(made.took, begun.elapsed(), self.stale) else { return };
            let asked = Instant::now();
            let waited = self.shared.changed.wait_timeout(state, left.min(LOOK_EVERY));
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
            state.facts.held_back_s += asked.elapsed().as_secs_f64();
        }
    }

    fn waited_for_data(&self, waited: Duration) {
        self.shared.lock().facts.waited_for_data_s += waited.as_secs_f64();
    }

    fn step_made(&self) {
        self.shared.lock().facts.steps += 1;
    }

    fn energy(&self) -> Option<EnergyUse> {
        self.shared.lock().energy.clone()
    }

    fn take_events(&self) -> Vec<Event> {
        let mut state = self.shared.lock();
        let replanned = state.asked.next.as_mut().and_then(Next::tell);
        let mut events = std::mem::take(&mut state.events);
        events.extend(replanned);
        events
    }

    fn ends(&self, step: u64) -> Option<Ending> {
        let mut state = self.shared.lock();
        if state.is_too_hot() {
            return Some(Ending::TooHot);
        }
        // Before the first step there is no state that another plan could go on from.
        let (order, vram) = state.asked.budget.take_if(|_| step > 0)?;
        drop(state);
        let planned = self.asking.planner.plan(vram);
        let mut state = self.shared.lock();
        match planned {
            Ok(next) => {
                state.asked.next = Some(next.of(step, order));
                Some(Ending::Replanned)
            }
            Err(reason) => {
                state.tell(Event::OrderRefused { step, order: Some(order), reason });
                None
            }
        }
    }

    fn keeps_plan(&self, step: u64, reason: &str) {
        let next = self.take_next();
        let reason = format!("the state can't be saved, so the plan stays: {reason}");
        next.into_iter().for_each(|next| self.refuse(step, next.order, reason.clone()));
    }
}
