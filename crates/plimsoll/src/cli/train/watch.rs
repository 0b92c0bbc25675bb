//! What is watched while a run trains: samples of cards and system go to its folder, and the temperatures of its card decide
//! how fast it may go, as does what the run is asked to do (`orders.rs`). A run doesn't depend on it: what can't be sampled is
//! said, and training goes on.
//! Not here: how temperatures become orders (`plimsoll-heat`), what a sample is (`plimsoll-telemetry`).

use super::orders::{Asked, Listener, Next, Planner};
use crate::cli::Failure;
use crate::cli::failure::io_failure;
use crate::streams::talk;
use ::plimsoll_train::{Ending, MicroBatch, Pace};
use clap::Args;
use plimsoll_files::Disk;
use plimsoll_heat::{Guard, Limits, Order, Reading, Sensor, Settings, Thresholds, What};
use plimsoll_notify::{Card, Teller};
use plimsoll_telemetry::{CardSample, Event, History, Sample, Sampler, SamplerOptions, Sink};
use plimsoll_trackers::MachineTap;
use plimsoll_units::{Seconds, format_duration};
use serde_json::{Map, Value, json};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// While it waits, a run looks this often whether it is to stop.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// An order that is older than so many samples, and than this, is nobody's any more.
const STALE: (u32, Duration) = (10, Duration::from_secs(30));

/// A run whose orders are stale waits as long as it computes.
const STALE_SHARE: f64 = 0.5;

/// Who is paused says so this often, so that nobody takes it for one that hangs.
const SAY_EVERY: Duration = Duration::from_secs(60);

/// Events that wait for the next step.
const EVENTS: usize = 256;

#[derive(Debug, Clone, Args)]
pub(crate) struct WatchArgs {
    /// Time between two samples of the card and the system, kept in the run's folder: `1s`, `0.5`, `1m`
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = sample_time)]
    sample_every: Seconds,
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
        let hint = "`--resume-temp`, `--throttle-temp` and `--max-temp` rise in this order; usual are 70, 78 and 83";
        match Limits::new(&settings, &Thresholds::default()) {
            Ok(_) => Ok(settings),
            Err(error) => Err(Failure::bad_flag(error.to_string()).hint(hint)),
        }
    }

    /// What a resumed run watches as this one did.
    pub(super) fn resolved(&self) -> Map<String, Value> {
        let settings = json!({
            "sample_every": format!("{}s", self.sample_every.0),
            "max_temp": self.max_temp.to_string(),
            "throttle_temp": self.throttle_temp.to_string(),
            "resume_temp": self.resume_temp.to_string(),
            "memory_temp": self.memory_temp.to_string(),
        });
        settings.as_object().cloned().unwrap_or_default()
    }
}

/// A run that is watched, as long as this is there.
pub(super) struct Watch {
    shared: Arc<Shared>,
    /// The run's card, if it is on one.
    card: Option<String>,
    settings: Settings,
    every: Duration,
    stale: Duration,
    /// From when on it is watched.
    sampler: OnceLock<Sampler>,
    /// Set by an order to stop.
    stop: Arc<AtomicBool>,
    planner: Planner,
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
    order: Option<(Order, Instant)>,
    /// How long the last micro-batch took, since the last sample.
    batch: Option<Duration>,
    pub(super) events: Vec<Event>,
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
}

impl State {
    fn tell(&mut self, card: String, what: String) {
        self.push(Event::Heat { card, what });
    }

    pub(super) fn push(&mut self, event: Event) {
        if self.events.len() < EVENTS {
            self.events.push(event);
        }
    }

    /// An order is not obeyed.
    pub(super) fn refuse(&mut self, order: u64, reason: &str) {
        self.push(Event::OrderRefused { step: self.step, order: Some(order), reason: reason.to_owned() });
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
            self.tell("the card".to_owned(), what);
        }
        self.is_stale = is_stale;
        let share = match order {
            // The step is finished, and the run ends.
            Order::Stop { .. } => return None,
            order if is_stale => order.share().clamp(STALE_SHARE, 1.0),
            order => order.share(),
        };
        // At no share there is no end but another order.
        let pause = if share > 0.0 { took.mul_f64((1.0 - share) / share) } else { Duration::MAX };
        Some(pause.saturating_sub(waited)).filter(|left| !left.is_zero())
    }
}

impl Watch {
    /// For a run on the card of this UUID, if it is on one, that is asked to stop by `stop` and plans again by `planner`.
    /// Nothing is watched yet.
    pub(super) fn new(
        args: &WatchArgs,
        settings: Settings,
        card: Option<String>,
        stop: Arc<AtomicBool>,
        planner: Planner,
    ) -> Self {
        let every = Duration::from_secs_f64(args.sample_every.0);
        let stale = (every * STALE.0).max(STALE.1);
        let (sampler, listener) = (OnceLock::new(), OnceLock::new());
        Self { shared: Arc::default(), card, settings, every, stale, sampler, stop, planner, listener }
    }

    /// Logs samples there, too, from now on.
    pub(super) fn log_to(&self, tap: Option<MachineTap>) {
        self.shared.lock().tap = tap;
    }

    /// Watches the run in this folder from now on. Errors: the system starts no thread.
    pub(super) fn begin(&self, run: &Path) -> Result<(), Failure> {
        let mut history = Kept::open(run);
        let settings = self.settings;
        let mut watched = self.card.clone().map(|uuid| Watched { uuid, settings, guard: None, is_said: false });
        let (theirs, began) = (self.shared.clone(), Instant::now());
        let each = move |sample: &Arc<Sample>| {
            history.append(sample);
            let tap = theirs.lock().tap.clone();
            tap.iter().for_each(|tap| tap.take(sample));
            if let Some(watched) = &mut watched {
                watched.observe(sample, began.elapsed(), &theirs);
            }
        };
        let options = SamplerOptions { every: self.every, folder: Some(run.to_owned()) };
        let sampler = Sampler::start(options, each).map_err(io_failure("samples can't be taken"))?;
        drop(self.sampler.set(sampler));
        match Listener::start(run, &self.shared, &self.stop) {
            Ok(listener) => drop(self.listener.set(listener)),
            Err(error) => talk(format_args!("note: the run takes no orders (`plimsoll pause`): {error}")),
        }
        Ok(())
    }

    /// The plan by which the run is to go on.
    pub(super) fn take_next(&self) -> Option<Next> {
        self.shared.lock().asked.next.take()
    }

    /// The run goes on by this plan.
    pub(super) fn set_planner(&mut self, planner: Planner) {
        self.planner = planner;
    }

    /// What an order asked for was not done.
    pub(super) fn refuse(&self, step: u64, order: u64, reason: String) {
        self.shared.lock().push(Event::OrderRefused { step, order: Some(order), reason });
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
        drop(state);
        tell(Event::Unpaused { step, order, seconds: since.elapsed().as_secs_f64() });
    }
}

/// Tells what happens, with what the cards say then.
pub(super) struct Told<'a, 'n> {
    pub(super) teller: &'a mut Teller<'n>,
    pub(super) watch: &'a Watch,
}

impl Sink for Told<'_, '_> {
    fn take(&mut self, event: &Event) {
        if let Some(sample) = self.watch.sampler.get().and_then(Sampler::latest) {
            self.teller.narrator.set_cards(Card::of_sample(&sample));
        }
        self.teller.take(event);
    }
}

/// The samples on disk, as long as the disk takes them.
struct Kept(Option<History>);

impl Kept {
    fn open(run: &Path) -> Self {
        let opened = History::open(run, Disk::default());
        Self(opened.map_err(|error| talk(format_args!("note: samples are not kept: {error}"))).ok())
    }

    fn append(&mut self, sample: &Sample) {
        let Some(error) = self.0.as_mut().and_then(|history| history.append(sample).err()) else { return };
        talk(format_args!("warning: samples of the card and the system are no longer kept: {error}"));
        self.0 = None;
    }
}

/// The run's card, whose temperatures are watched once it has told some.
struct Watched {
    uuid: String,
    settings: Settings,
    guard: Option<Guard>,
    /// Whether it was said that nothing is watched.
    is_said: bool,
}

impl Watched {
    fn observe(&mut self, sample: &Sample, time: Duration, shared: &Shared) {
        let card = sample.cards.iter().find(|card| card.uuid == self.uuid);
        let mut state = shared.lock();
        if self.guard.is_none() {
            self.guard = card.filter(|card| card.temperature_c.is_some()).and_then(|card| self.guard_of(card));
        }
        let name = card.map_or_else(|| "the card".to_owned(), |card| format!("card {} ({})", card.index, card.name));
        let Some(guard) = &mut self.guard else {
            if !std::mem::replace(&mut self.is_said, true) {
                state.tell(name, "tells no temperature: heat is not watched".to_owned());
            }
            return;
        };
        if let Some(took) = state.batch.take() {
            guard.micro_batch(Seconds(took.as_secs_f64()));
        }
        let reading = card.map(reading_of).unwrap_or_default();
        let order = guard.observe(Seconds(time.as_secs_f64()), &[reading]);
        state.order = Some((order, Instant::now()));
        for note in guard.take_notes() {
            if let Some(what) = in_words(&note.what) {
                state.tell(name.clone(), what);
            }
        }
        shared.changed.notify_all();
    }

    fn guard_of(&self, card: &CardSample) -> Option<Guard> {
        let thresholds = Thresholds {
            slowdown_c: card.limits.slowdown_c,
            shutdown_c: card.limits.shutdown_c,
            memory_slowdown_c: card.limits.memory_slowdown_c,
        };
        // The settings were accepted before the run began.
        Some(Guard::new(&[Limits::new(&self.settings, &thresholds).ok()?]))
    }
}

fn reading_of(card: &CardSample) -> Reading {
    Reading {
        core_c: card.temperature_c,
        memory_c: card.memory_temperature_c,
        hotspot_c: card.hotspot_temperature_c,
        throttling: card.throttling.map(plimsoll_telemetry::Throttling::is_thermal),
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
            let waited = self.shared.changed.wait_timeout(state, left.min(LOOK_EVERY));
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
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
        let planned = self.planner.plan(vram);
        let mut state = self.shared.lock();
        match planned {
            Ok(next) => {
                state.asked.next = Some(next.of(step, order));
                Some(Ending::Replanned)
            }
            Err(reason) => {
                state.push(Event::OrderRefused { step, order: Some(order), reason });
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

/// What happened to a card, for people; nothing for what only says how warm it is.
fn in_words(what: &What) -> Option<String> {
    let of = |sensor: Sensor| match sensor {
        Sensor::Core => "core",
        Sensor::Memory => "memory",
        Sensor::Hotspot => "hotspot",
    };
    Some(match *what {
        What::Band { .. } => return None,
        What::Slows { sensor, celsius, throttle_c, duty } => format!(
            "slowed to {:.0} % of the time: its {} is at {celsius:.0} °C of {throttle_c:.0}",
            100.0 * duty.share(),
            of(sensor)
        ),
        What::Pauses { sensor, celsius, max_c } => {
            format!("paused: its {} is at {celsius:.0} °C, the run ends above {max_c:.0}", of(sensor))
        }
        What::Resumes { celsius, slowed, .. } => {
            format!("at {celsius:.0} °C; runs freely again after {}", format_duration(slowed))
        }
        What::Stops(hot) => {
            format!(
                "its {} is at {:.0} °C, above {:.0}: the run saves and ends",
                of(hot.sensor),
                hot.celsius,
                hot.max_c
            )
        }
        What::SensorLost { sensor, last_c } => {
            format!("its {} tells no temperature any more; last {last_c:.0} °C", of(sensor))
        }
        What::SensorStuck { sensor, celsius, same } => {
            format!("its {} has said {celsius:.0} °C for {} and is not believed", of(sensor), format_duration(same))
        }
        What::SensorBack { sensor, celsius } => format!("its {} is believed again, at {celsius:.0} °C", of(sensor)),
        What::Estimated { by, celsius } => format!("its core is taken to be at {celsius:.0} °C, by its {}", of(by)),
        What::Blind { duty } => {
            format!("no sensor is believed: slowed to {:.0} % of the time to be safe", 100.0 * duty.share())
        }
        What::ThrottlesItself { celsius } => {
            let at = celsius.map_or(String::new(), |celsius| format!(" at {celsius:.0} °C"));
            format!("lowers its own clocks for heat{at}")
        }
        What::ClockJumped { by } => format!("the clock jumped by {:.0} s", by.0),
    })
}
