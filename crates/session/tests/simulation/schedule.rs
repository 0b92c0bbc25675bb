//! What a seed stands for: a run, and everything that disturbs it. Drawn at once, so that the run itself draws nothing that
//! moves a later fault.

use crate::rng::Rng;
use plimsoll_plan::OnPressure;
use std::time::Duration;

/// Limits of heat, °C: a step may begin up to the maximum.
pub const MAX_C: f64 = 83.0;

/// `ENOSPC`, `EIO`, `EROFS` and `EDQUOT`.
const ERRORS: [i32; 4] = [28, 5, 30, 122];

/// What is trained.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Subject {
    pub steps: u64,
    pub micro_batch: usize,
    pub eval_every: Option<u64>,
    pub checkpoint_every: Option<u64>,
    pub keep_checkpoints: usize,
}

/// Something that holds for a time, in seconds since the start.
#[derive(Debug, Clone, Copy)]
pub struct Span<T> {
    pub from_s: f64,
    pub to_s: f64,
    pub what: T,
}

/// What holds at a time: the last one that was drawn.
pub fn at<T: Copy>(spans: &[Span<T>], now_s: f64) -> Option<T> {
    spans.iter().rev().find(|span| (span.from_s..span.to_s).contains(&now_s)).map(|span| span.what)
}

/// A part of the memory that a run may need.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Level {
    Nothing,
    BelowLeast,
    Least,
    Middle,
    Most,
}

pub const LEVELS: [Level; 5] = [Level::Nothing, Level::BelowLeast, Level::Least, Level::Middle, Level::Most];

/// What other programs leave of the memory.
#[derive(Debug, Clone, Copy)]
pub enum FreeMemory {
    Steady(Level),
    /// Two levels in alternation.
    Flickers(f64, Level, Level),
}

/// What is wrong with a card's sensors.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum SensorFault {
    /// The card is not among the cards.
    NoCard,
    /// The card has no temperature.
    Silent,
    /// The driver does not return, so there are no samples.
    Hangs,
}

/// Files whose operations fail.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Files {
    All,
    Journal,
    Checkpoints,
    Samples,
}

/// A file operation of the run.
#[derive(Debug, Clone, Copy)]
pub enum When {
    /// The one with this number.
    Operation(u64),
    /// The one after the checkpoint with this number got its name.
    AfterRename(u64),
}

/// File operations that fail, from one of them on, for a time.
#[derive(Debug, Clone, Copy)]
pub struct DiskFault {
    pub first: When,
    pub lasts_s: f64,
    pub code: i32,
    pub files: Files,
}

/// How a process ends without warning.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Crash {
    /// What was not synced may be lost.
    Power,
    /// The files stay.
    Kill,
}

/// How a card fails when it runs a program.
#[derive(Debug, Clone, Copy)]
pub enum CardFault {
    /// This call fails.
    Launch,
    /// This call fails, and all later ones.
    Lost,
}

/// What a user or a clock does.
#[derive(Debug, Clone, Copy)]
pub enum Action {
    Pause,
    Resume,
    Stop,
    Signal,
    Budget(Level),
    /// Bytes in the orders file that are no order.
    Garbage,
    /// The machine sleeps for some seconds.
    Sleep(f64),
    /// The wall clock is set, by some seconds.
    SetClock(f64),
}

/// A run with all that happens to it.
#[derive(Debug, Clone)]
pub struct Schedule {
    pub subject: Subject,
    /// Duration of a micro-batch, s.
    pub micro_batch_s: f64,
    /// Time between two samples; `None` if nothing is watched.
    pub sample_every: Option<Duration>,
    pub on_pressure: Option<OnPressure>,
    pub least: Level,
    /// Heat that the card's work adds, °C.
    pub load_c: f64,
    /// From then on nothing is wrong any more, s.
    pub calm_s: f64,
    pub air: Vec<Span<f64>>,
    pub sensors: Vec<Span<SensorFault>>,
    pub memory: Vec<Span<FreeMemory>>,
    pub disk: Vec<DiskFault>,
    pub crashes: Vec<(When, Crash)>,
    pub programs: Vec<(u64, CardFault)>,
    /// Numbers of the loads that are refused.
    pub loads: Vec<u64>,
    /// Whether the device exchanges plans in place.
    pub exchanges: bool,
    pub actions: Vec<(f64, Action)>,
}

impl Schedule {
    /// The run of a subject without any disturbance.
    pub fn undisturbed(subject: Subject) -> Self {
        Self {
            subject,
            micro_batch_s: 1.0,
            sample_every: None,
            on_pressure: None,
            least: Level::Least,
            load_c: 0.0,
            calm_s: 0.0,
            air: vec![],
            sensors: vec![],
            memory: vec![],
            disk: vec![],
            crashes: vec![],
            programs: vec![],
            loads: vec![],
            exchanges: false,
            actions: vec![],
        }
    }

    pub fn draw(rng: &mut Rng) -> Self {
        let subject = subject(rng);
        let micro_batch_s = rng.log_between(0.2, 60.0);
        let nominal_s = subject.steps as f64 * (4.0 / subject.micro_batch as f64 + 1.0) * micro_batch_s;
        let calm_s = nominal_s * rng.between(0.5, 2.0) + rng.between(0.0, 900.0);
        let mut schedule = Self { micro_batch_s, calm_s, ..Self::undisturbed(subject) };
        if rng.chance(0.85) {
            schedule.sample_every = Some(Duration::from_secs_f64(rng.pick(&[1.0, 2.0, 5.0, 10.0, 30.0])));
        }
        let policies =
            [OnPressure::Shrink, OnPressure::Shrink, OnPressure::Wait, OnPressure::Checkpoint, OnPressure::Stop];
        schedule.on_pressure = rng.chance(0.8).then(|| rng.pick(&policies));
        schedule.least = rng.pick(&[Level::Nothing, Level::Least, Level::Least, Level::Middle]);
        schedule.draw_heat(rng);
        schedule.draw_memory(rng);
        schedule.draw_disk(rng);
        schedule.draw_card(rng);
        schedule.draw_actions(rng, nominal_s);
        schedule.exchanges = rng.chance(0.6);
        schedule
    }

    /// Whether the disk stays broken, so that the run can't finish.
    pub fn is_hopeless(&self) -> bool {
        self.disk.iter().any(|fault| fault.lasts_s.is_infinite())
    }

    fn spans<T>(&self, rng: &mut Rng, most: u32, mut what: impl FnMut(&mut Rng) -> T) -> Vec<Span<T>> {
        let count = (rng.between(0.0, f64::from(most) + 1.0)) as u32;
        let span = |_| {
            let from_s = rng.between(0.0, self.calm_s);
            let to_s = (from_s + rng.log_between(1.0, self.calm_s.max(2.0))).min(self.calm_s);
            Span { from_s, to_s, what: what(rng) }
        };
        (0..count).map(span).collect()
    }

    fn draw_heat(&mut self, rng: &mut Rng) {
        self.load_c = rng.between(20.0, 60.0);
        if rng.chance(0.6) {
            self.air = self.spans(rng, 3, |rng| rng.between(20.0, 85.0));
            let faults = [SensorFault::NoCard, SensorFault::Silent, SensorFault::Hangs];
            self.sensors = self.spans(rng, 2, |rng| rng.pick(&faults));
        }
    }

    fn draw_memory(&mut self, rng: &mut Rng) {
        if rng.chance(0.75) {
            self.memory = self.spans(rng, 8, |rng| match rng.chance(0.3) {
                true => FreeMemory::Flickers(rng.log_between(1.0, 2000.0), rng.pick(&LEVELS), Level::Most),
                false => FreeMemory::Steady(rng.pick(&LEVELS)),
            });
        }
    }

    fn draw_disk(&mut self, rng: &mut Rng) {
        let operation = |rng: &mut Rng| match rng.chance(0.25) {
            true => When::AfterRename(rng.between(1.0, 8.0) as u64),
            false => When::Operation(rng.log_between(1.0, 1200.0) as u64),
        };
        if rng.chance(0.5) {
            let count = rng.pick(&[1, 1, 2, 3]);
            let files = [Files::All, Files::All, Files::Journal, Files::Checkpoints, Files::Samples];
            let fault = |_| DiskFault {
                first: operation(rng),
                lasts_s: if rng.chance(0.03) { f64::INFINITY } else { rng.log_between(0.01, self.calm_s.max(1.0)) },
                code: rng.pick(&ERRORS),
                files: rng.pick(&files),
            };
            self.disk = (0..count).map(fault).collect();
        }
        if rng.chance(0.6) {
            let count = rng.pick(&[1, 1, 2, 3, 4]);
            let crash = |_| (operation(rng), rng.pick(&[Crash::Power, Crash::Power, Crash::Kill]));
            self.crashes = (0..count).map(crash).collect();
        }
    }

    fn draw_card(&mut self, rng: &mut Rng) {
        if rng.chance(0.3) {
            let count = rng.pick(&[1, 1, 2]);
            let fault = |_| (rng.log_between(1.0, 200.0) as u64, rng.pick(&[CardFault::Launch, CardFault::Lost]));
            self.programs = (0..count).map(fault).collect();
        }
        if rng.chance(0.2) {
            let count = rng.pick(&[1, 2]);
            self.loads = (0..count).map(|_| rng.between(1.0, 6.0) as u64).collect();
        }
    }

    fn draw_actions(&mut self, rng: &mut Rng, nominal_s: f64) {
        let count = if rng.chance(0.7) { rng.between(0.0, 7.0) as u32 } else { 0 };
        let action = |_| {
            let time_s = rng.between(0.0, self.calm_s.min(2.0 * nominal_s));
            let action = match rng.between(0.0, 11.0) as u32 {
                0 | 1 => Action::Pause,
                2 | 3 | 10 => Action::Resume,
                4 => Action::Stop,
                5 => Action::Signal,
                6 | 7 => Action::Budget(rng.pick(&LEVELS)),
                8 => Action::Garbage,
                _ if rng.chance(0.5) => Action::Sleep(rng.log_between(1.0, 20_000.0)),
                _ => Action::SetClock(rng.between(-1e6, 1e6)),
            };
            (time_s, action)
        };
        self.actions = (0..count).map(action).collect();
        self.actions.sort_by(|a, b| a.0.total_cmp(&b.0));
    }
}

fn subject(rng: &mut Rng) -> Subject {
    Subject {
        steps: rng.pick(&[6, 9, 13, 20]),
        micro_batch: rng.pick(&[1, 2, 4]),
        eval_every: rng.pick(&[None, Some(4)]),
        checkpoint_every: rng.pick(&[None, Some(1), Some(2), Some(5)]),
        keep_checkpoints: rng.pick(&[1, 2, 3]),
    }
}
