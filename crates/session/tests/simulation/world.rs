//! Everything around a run, in simulated time and on one thread: the clock, the work at intervals, the card's temperature, the
//! free memory, and what the schedule says goes wrong. Time passes while the card computes and while the run waits.

use crate::facts::{Facts, Seen};
use crate::rng::Rng;
use crate::schedule::{Action, FreeMemory, Level, Schedule, SensorFault, at};
use plimsoll_orders::Order;
use plimsoll_session::{Control, Repeated, Surroundings};
use plimsoll_telemetry::{CardSample, Sample, SamplerOptions, SystemSample};
use plimsoll_units::Bytes;
use std::collections::BTreeMap;
use std::io::{self, Write};
use std::panic::resume_unwind;
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

pub const UUID: &str = "GPU-8932f937-d72c-4106-c12f-20bd9faed9f6";

/// Seconds since 1970 at the start.
const START_S: f64 = 1.8e9;

/// Time constant of the card's temperature, s.
const WARMS_S: f64 = 60.0;

/// Temperature of the air, °C, unless the schedule has another one.
const AIR_C: f64 = 25.0;

/// A run must end this long after nothing is wrong any more, s. A refused or pressed budget may take two hours to recover.
const PATIENCE_S: f64 = 6.0 * 3600.0;

/// A broken invariant: unwinds to the simulator.
pub struct Violation(pub String);

/// The bytes of each level.
pub type Levels = BTreeMap<Level, Bytes>;

struct Task {
    number: u64,
    due: Duration,
    every: Duration,
    task: Option<Box<dyn FnMut() + Send>>,
}

pub struct State {
    pub schedule: Schedule,
    pub now: Duration,
    pub facts: Facts,
    pub levels: Levels,
    pub trace: Vec<String>,
    pub rng: Rng,
    /// The run's folder, while a session is in it.
    pub run: Option<PathBuf>,
    pub control: Option<Control>,
    /// Number of file operations, programs of the card and loads so far.
    pub operations: u64,
    /// Number of checkpoints that got their name, and whether the last operation was such a rename.
    pub renames: u64,
    pub is_renamed: bool,
    pub programs: u64,
    pub loads: u64,
    /// When a fault of the disk began.
    pub disk_since: Vec<Option<Duration>>,
    /// Set when the process ends without warning.
    pub is_crashed: bool,
    wall_offset_s: f64,
    /// How long the machine slept.
    slept_s: f64,
    core_c: f64,
    tasks: Vec<Task>,
    next_task: u64,
    next_action: usize,
}

/// The surroundings of a run.
#[derive(Clone)]
pub struct World(pub Arc<Mutex<State>>);

impl std::fmt::Debug for World {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("World")
    }
}

impl World {
    pub fn new(schedule: Schedule, levels: Levels, rng: Rng) -> Self {
        Self(Arc::new(Mutex::new(State {
            disk_since: vec![None; schedule.disk.len()],
            schedule,
            now: Duration::ZERO,
            facts: Facts::default(),
            levels,
            trace: vec![],
            rng,
            run: None,
            control: None,
            operations: 0,
            renames: 0,
            is_renamed: false,
            programs: 0,
            loads: 0,
            is_crashed: false,
            wall_offset_s: 0.0,
            slept_s: 0.0,
            core_c: AIR_C,
            tasks: vec![],
            next_task: 0,
            next_action: 0,
        })))
    }

    pub fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn note(&self, what: impl Into<String>) {
        let mut state = self.lock();
        let line = format!("{:>10.1} s  {}", state.now.as_secs_f64(), what.into());
        state.trace.push(line);
    }

    /// Ends the simulated process if there is a problem.
    pub fn check(&self, problem: Option<String>) {
        if let Some(problem) = problem {
            self.fail(problem);
        }
    }

    /// Ends the simulated process with a violation.
    pub fn fail(&self, what: impl Into<String>) -> ! {
        self.lock().is_crashed = true;
        resume_unwind(Box::new(Violation(what.into())))
    }

    /// Lets this time pass, with all that is due meanwhile. `computes`: whether the card heats.
    pub fn pass(&self, time: Duration, computes: bool) {
        let end = self.lock().now + time;
        loop {
            let mut state = self.lock();
            if state.now.as_secs_f64() > state.schedule.calm_s + state.slept_s + PATIENCE_S + 30.0 * state.nominal_s() {
                drop(state);
                self.fail("no end although nothing is wrong any more");
            }
            let action = state.schedule.actions.get(state.next_action).copied();
            let action = action.map(|(time_s, action)| (Duration::from_secs_f64(time_s), action));
            let task = state.tasks.iter().map(|task| (task.due, task.number)).min();
            match (task, action) {
                (task, Some((due, action))) if due <= end && task.is_none_or(|(other, _)| due <= other) => {
                    state.next_action += 1;
                    state.advance(due, computes);
                    drop(state);
                    self.act(action);
                }
                (Some((due, number)), _) if due <= end => {
                    state.advance(due, computes);
                    drop(state);
                    self.work(number);
                }
                _ => return state.advance(end, computes),
            }
        }
    }

    fn work(&self, number: u64) {
        let find = |state: &mut State| state.tasks.iter().position(|task| task.number == number);
        let mut state = self.lock();
        let Some(index) = find(&mut state) else { return };
        let mut task = state.tasks[index].task.take().expect("a task does not let time pass");
        drop(state);
        task();
        let mut state = self.lock();
        let now = state.now;
        if let Some(index) = find(&mut state) {
            let kept = &mut state.tasks[index];
            kept.task = Some(task);
            // A late task does not catch up.
            kept.due = (kept.due + kept.every).max(now);
        }
    }

    fn act(&self, action: Action) {
        self.note(format!("{action:?}"));
        let order = match action {
            Action::Sleep(seconds) => {
                let mut state = self.lock();
                state.now += Duration::from_secs_f64(seconds);
                return state.slept_s += seconds;
            }
            Action::SetClock(seconds) => return self.lock().wall_offset_s += seconds,
            Action::Garbage => return self.append_garbage(),
            Action::Signal => {
                let mut state = self.lock();
                let Some(control) = state.control.clone() else { return };
                state.facts.stop_asked = true;
                return control.stop_flag().store(true, Ordering::Relaxed);
            }
            Action::Pause => Order::Pause,
            Action::Resume => Order::Resume,
            Action::Stop => Order::Stop,
            Action::Budget(level) => {
                let mut state = self.lock();
                state.facts.is_refused = true;
                Order::Budget { bytes: state.levels[&level].0 }
            }
        };
        self.give(order);
    }

    /// Gives the run an order by its folder, if it takes orders.
    pub fn give(&self, order: Order) {
        let Some(run) = self.lock().run.clone() else { return };
        match plimsoll_orders::give(&run, order) {
            Ok(_) => self.lock().facts.stop_asked |= order == Order::Stop,
            Err(error) => self.note(format!("{order:?} is not given: {error}")),
        }
    }

    fn append_garbage(&self) {
        let Some(run) = self.lock().run.clone() else { return };
        let file = std::fs::File::options().append(true).open(run.join(plimsoll_orders::FILE));
        if let Ok(mut file) = file {
            file.write_all(b"{\"order\":\"budget\"}\n\xff\xfe{\"order\":\"sto").expect("a file in memory");
        }
    }

    fn take_sample(&self, each: &mut dyn FnMut(&Arc<Sample>)) {
        let (sample, now) = {
            let mut state = self.lock();
            let now_s = state.now.as_secs_f64();
            let fault = at(&state.schedule.sensors, now_s);
            if fault == Some(SensorFault::Hangs) {
                return;
            }
            let noise_c = state.rng.between(-0.8, 0.8);
            let shown = (state.core_c + noise_c).round();
            let core_c = (fault.is_none()).then_some(shown);
            let card = CardSample {
                uuid: UUID.to_owned(),
                name: "simulated".to_owned(),
                temperature_c: core_c,
                power_w: fault.is_none().then_some(100.0),
                ..CardSample::default()
            };
            let cards = if fault == Some(SensorFault::NoCard) { vec![] } else { vec![card] };
            let (now, usable) = (state.now, state.usable());
            state.facts.samples.push(Seen { time: now, core_c, usable });
            let time_s = START_S + now_s + state.wall_offset_s;
            (Sample { time_s, cards, system: SystemSample::default() }, now)
        };
        each(&Arc::new(sample));
        debug_assert_eq!(self.lock().now, now, "a sample takes no time");
    }
}

impl State {
    /// The time that the run needs without any disturbance, s.
    pub fn nominal_s(&self) -> f64 {
        let subject = self.schedule.subject;
        subject.steps as f64 * (4.0 / subject.micro_batch as f64 + 1.0) * self.schedule.micro_batch_s
    }

    fn advance(&mut self, to: Duration, computes: bool) {
        let Some(passed) = to.checked_sub(self.now) else { return };
        let air_c = at(&self.schedule.air, self.now.as_secs_f64()).unwrap_or(AIR_C);
        let aim_c = air_c + if computes { self.schedule.load_c } else { 0.0 };
        self.core_c = aim_c + (self.core_c - aim_c) * (-passed.as_secs_f64() / WARMS_S).exp();
        self.now = to;
    }

    /// The memory that the run could have.
    pub fn usable(&self) -> Bytes {
        let now_s = self.now.as_secs_f64();
        let level = match at(&self.schedule.memory, now_s) {
            None => Level::Most,
            Some(FreeMemory::Steady(level)) => level,
            Some(FreeMemory::Flickers(half_s, low, high)) => {
                if ((now_s / half_s) as u64).is_multiple_of(2) {
                    low
                } else {
                    high
                }
            }
        };
        self.levels[&level]
    }

    pub fn is_calm(&self) -> bool {
        self.now.as_secs_f64() >= self.schedule.calm_s
    }
}

/// Removes a task.
struct Removes(World, u64);

impl Drop for Removes {
    fn drop(&mut self) {
        let number = self.1;
        let mut state = self.0.lock();
        let removed = state.tasks.extract_if(.., |task| task.number == number).collect::<Vec<_>>();
        drop(state);
        drop(removed);
    }
}

impl Surroundings for World {
    fn now(&self) -> Duration {
        self.lock().now
    }

    /// A busy machine wakes a thread late, for example with the next sample.
    fn wait(&self, most: Duration) {
        let (now, next) = {
            let state = self.lock();
            (state.now, state.tasks.iter().map(|task| task.due).min())
        };
        let next = next.map_or(Duration::ZERO, |next| next.saturating_sub(now)).min(Duration::from_secs(1));
        self.pass(most.max(next), false);
    }

    fn repeat(&self, _: &str, every: Duration, task: Box<dyn FnMut() + Send>) -> io::Result<Repeated> {
        let mut state = self.lock();
        let (number, due) = (state.next_task, state.now);
        state.next_task += 1;
        state.tasks.push(Task { number, due, every, task: Some(task) });
        Ok(Box::new(Removes(self.clone(), number)))
    }

    fn sample(&self, options: SamplerOptions, mut each: Box<dyn FnMut(&Arc<Sample>) + Send>) -> io::Result<Repeated> {
        let world = self.clone();
        self.repeat("sampler", options.every, Box::new(move || world.take_sample(&mut *each)))
    }
}
