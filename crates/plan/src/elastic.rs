//! When a run changes its memory budget because other programs need or free memory. Pure: no clock, no I/O, no threads.
//! Not here: how memory is measured, and how a run follows (`plimsoll-session`).

use plimsoll_units::{Bytes, Seconds};

/// Readings in a row after which a small shortage counts.
const SHORT_READINGS: u32 = 3;

/// A shortage of more than this part of what the plan holds counts at once, and a growth adds at least this part.
const LARGE: u64 = 8;

/// The part of the usable memory that a budget below the most leaves free, so that small changes cause no shortage.
const SLACK: u64 = 16;

/// How long memory must be free before a run grows into it, at first and at most.
const PATIENCE: [Seconds; 2] = [Seconds(30.0), Seconds(3600.0)];

/// A growth that held for this long, or for the current patience if that is longer, halves the patience.
const HOLDS: Seconds = Seconds(1800.0);

/// A rising budget grows by this part of the most, after this many steps by the plan before.
const RISE: (u64, u64) = (5, 3);

/// A refused rise is tried again with this part less.
const LESS: u64 = 10;

/// Share of time in which tasks wait for memory: no growth from the first on, a shortage from the second on. Percent.
const PRESSURE: [f64; 2] = [5.0, 20.0];

/// What a run does when other programs need its memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnPressure {
    /// It continues with a smaller plan; without room for the smallest one, it waits.
    Shrink,
    /// It saves, returns its memory, and continues when its memory is free again.
    Wait,
    /// It saves a checkpoint and continues.
    Checkpoint,
    /// It saves and ends.
    Stop,
}

/// The sizes between which a budget changes. `least` is at most `most`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BudgetRange {
    /// The smallest budget.
    pub least: Bytes,
    /// The largest budget.
    pub most: Bytes,
}

impl BudgetRange {
    /// The budget to choose if a run can have this much memory; `None` if that is below the least.
    pub fn fitting(&self, usable: Bytes) -> Option<Bytes> {
        if usable < self.least {
            return None;
        }
        let with_slack = Bytes(usable.0 - usable.0 / SLACK);
        Some(if usable >= self.most { self.most } else { with_slack.max(self.least) })
    }
}

/// The memory of the plan that is loaded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HeldMemory {
    /// The budget that it was made for.
    pub budget: Bytes,
    /// The part of the budget that it holds.
    pub held: Bytes,
}

/// Why an action was not followed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// No plan needs so little memory.
    NoPlan,
    /// The device had no room for the plan.
    NoRoom,
    /// The action itself was not the reason, as when the state could not be saved or a user's order replaced it.
    Other,
}

/// The state of the memory at a time.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct MemoryReading {
    /// Time since any start; never decreases.
    pub time: Seconds,
    /// The bytes that the run could have: what it holds and what is free, less what is reserved for other programs.
    pub usable: Bytes,
    /// Share of time in which tasks wait for memory, in percent; `None` if it is not known.
    pub pressure_percent: Option<f64>,
    /// The plan's memory; `None` while the run waits without memory.
    pub plan: Option<HeldMemory>,
    /// Why the last action could not be followed, if so.
    pub refused: Option<Refusal>,
    /// Optimizer steps that were made by the plan.
    pub steps: u64,
}

/// What the run is to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MemoryAction {
    /// Continue unchanged.
    Keep,
    /// Continue with this smaller budget.
    Shrink(Bytes),
    /// Continue with this larger budget.
    Grow(Bytes),
    /// Save, return the memory and wait.
    Wait,
    /// End the wait, with this budget.
    GoOn(Bytes),
    /// Save a checkpoint.
    Checkpoint,
    /// Save and end.
    Stop,
}

/// A budget that follows the free memory. Feed it a reading each second or so, except while an action is being followed.
///
/// ```text
///          roomy for the patience: Grow                   roomy for the patience: GoOn
///            ┌────────────────┐                    ┌───────────────────────────────────────┐
///            │                ▼                    ▼                                       │
///            └───────────── running ── shortage ──► policy ── wait, or less than least ─► waiting
///                             ▲  ▲                 │  │  │
///                             │  └──── shrink ─────┘  │  └── stop ─► ended
///                             └────── checkpoint ─────┘
///
///   rising     the budget begins small and grows by a fifth of the most after every third step, without patience; a size
///              that is refused is tried again with a tenth less
///   shortage   the plan holds more than the run can have: three readings in a row, or one if it is more than an eighth
///   roomy      an eighth more than the budget fits, or the most of the range
///   patience   30 s; doubled, up to 1 h, by each growth that a shortage ended or that was refused;
///              halved by each half hour (or patience, if longer) that a growth holds
/// ```
///
/// A square wave of free memory, of any period, changes the plan at most fourteen times an hour.
#[derive(Debug, Clone)]
pub struct ElasticBudget {
    range: BudgetRange,
    policy: OnPressure,
    /// Readings of a shortage in a row.
    short_readings: u32,
    /// Whether the checkpoint of this shortage was asked for.
    is_saved: bool,
    /// Since when there is more room, and the least that fitted since then.
    roomy: Option<(Seconds, Bytes)>,
    patience: Seconds,
    /// The time of the last growth, or of the last time that it halved the patience; `None` after a shortage.
    grown: Option<Seconds>,
    /// The size to which growing was refused.
    too_large: Option<RefusedSize>,
    /// The size to which shrinking was refused.
    too_small: Option<RefusedSize>,
    /// The next size of a budget that rises.
    rise: Option<Bytes>,
    /// The last action that was not `Keep`.
    asked: MemoryAction,
    /// Until then nothing is asked, since returning the memory was refused.
    quiet_until: Seconds,
    /// Until then a high pressure is not a shortage, since it is an average over the time before the last change.
    calm_until: Seconds,
}

/// A size that failed in this run.
#[derive(Debug, Clone, Copy)]
struct RefusedSize {
    bytes: Bytes,
    lasts: Seconds,
    until: Seconds,
}

impl RefusedSize {
    /// A new refusal lasts twice as long as the one before.
    fn after(before: Option<Self>, bytes: Bytes, now: Seconds) -> Self {
        let lasts = doubled(before.map_or(PATIENCE[0], |before| before.lasts));
        Self { bytes, lasts, until: Seconds(now.0 + lasts.0) }
    }
}

fn doubled(time: Seconds) -> Seconds {
    Seconds((2.0 * time.0).min(PATIENCE[1].0))
}

impl ElasticBudget {
    /// A budget in this range. Panics if its least is more than its most.
    pub fn new(range: BudgetRange, policy: OnPressure) -> Self {
        assert!(range.least <= range.most, "{range:?}");
        Self {
            range,
            policy,
            short_readings: 0,
            is_saved: false,
            roomy: None,
            patience: PATIENCE[0],
            grown: None,
            too_large: None,
            too_small: None,
            rise: None,
            asked: MemoryAction::Keep,
            quiet_until: Seconds(0.0),
            calm_until: Seconds(0.0),
        }
    }

    /// The first size of a budget that rises to its most: a fifth of that.
    pub fn first_rise(most: Bytes) -> Bytes {
        Bytes(most.0 / RISE.0)
    }

    /// Makes the budget rise from `first` on.
    pub fn rise_from(&mut self, first: Bytes) {
        self.rise = Some(self.risen(first));
    }

    fn risen(&self, from: Bytes) -> Bytes {
        Bytes(from.0.saturating_add((self.range.most.0 / RISE.0).max(1))).min(self.range.most)
    }

    /// Makes this size the most, as a user orders; the least falls to it if it is larger.
    pub fn limit(&mut self, most: Bytes) {
        self.range = BudgetRange { least: self.range.least.min(most), most };
        self.roomy = None;
    }

    /// What the run is to do after a reading.
    pub fn observe(&mut self, reading: &MemoryReading) -> MemoryAction {
        let now = reading.time;
        if let Some(refusal) = reading.refused {
            self.learn_refusal(refusal, now);
        }
        if self.asked == MemoryAction::Stop || now.0 < self.quiet_until.0 {
            return MemoryAction::Keep;
        }
        self.relax(now);
        let action = match &reading.plan {
            None => self.while_waiting(reading),
            Some(plan) => self.while_running(reading, plan),
        };
        match action {
            MemoryAction::Keep => return action,
            MemoryAction::Grow(_) | MemoryAction::GoOn(_) => self.grown = Some(now),
            MemoryAction::Shrink(_) | MemoryAction::Wait => {
                // Memory is short: what is left is taken with patience.
                self.rise = None;
                if self.grown.take().is_some() {
                    self.patience = doubled(self.patience);
                }
            }
            MemoryAction::Checkpoint | MemoryAction::Stop => {}
        }
        (self.short_readings, self.roomy) = (0, None);
        self.calm_until = Seconds(now.0 + PATIENCE[0].0);
        self.asked = action;
        action
    }

    fn learn_refusal(&mut self, refusal: Refusal, now: Seconds) {
        match std::mem::replace(&mut self.asked, MemoryAction::Keep) {
            MemoryAction::Grow(bytes) if self.rise.is_some() => {
                self.rise = Some(Bytes(bytes.0 - bytes.0 / LESS));
            }
            // A smaller size would be refused as well.
            MemoryAction::GoOn(bytes) if refusal == Refusal::NoPlan => {
                self.too_small = Some(RefusedSize::after(self.too_small, bytes, now));
                self.grown = None;
            }
            MemoryAction::Grow(bytes) | MemoryAction::GoOn(bytes) => {
                self.too_large = Some(RefusedSize::after(self.too_large, bytes, now));
                (self.grown, self.patience) = (None, doubled(self.patience));
            }
            MemoryAction::Shrink(bytes) => self.too_small = Some(RefusedSize::after(self.too_small, bytes, now)),
            MemoryAction::Wait => {
                self.patience = doubled(self.patience);
                self.quiet_until = Seconds(now.0 + self.patience.0);
            }
            MemoryAction::Keep | MemoryAction::Checkpoint | MemoryAction::Stop => {}
        }
    }

    /// Halves the patience for a growth that holds.
    fn relax(&mut self, now: Seconds) {
        let held = HOLDS.0.max(self.patience.0);
        if let Some(since) = self.grown.filter(|since| now.0 - since.0 >= held) {
            self.grown = Some(Seconds(since.0 + held));
            self.patience = Seconds((self.patience.0 / 2.0).max(PATIENCE[0].0));
        }
    }

    fn while_running(&mut self, reading: &MemoryReading, plan: &HeldMemory) -> MemoryAction {
        let lacks = plan.held.saturating_sub(reading.usable);
        let is_pressed = reading.time.0 >= self.calm_until.0 && reading.pressure_percent >= Some(PRESSURE[1]);
        if lacks == Bytes::ZERO && !is_pressed {
            (self.short_readings, self.is_saved) = (0, false);
            return self.growth(reading, plan);
        }
        self.roomy = None;
        self.short_readings += 1;
        if self.short_readings < SHORT_READINGS && lacks.0 <= plan.held.0 / LARGE {
            return MemoryAction::Keep;
        }
        match self.policy {
            OnPressure::Stop => MemoryAction::Stop,
            OnPressure::Wait => MemoryAction::Wait,
            OnPressure::Checkpoint if std::mem::replace(&mut self.is_saved, true) => MemoryAction::Keep,
            OnPressure::Checkpoint => MemoryAction::Checkpoint,
            OnPressure::Shrink => self.shrunk(reading, plan, lacks == Bytes::ZERO),
        }
    }

    /// A smaller budget, or the wait if none fits. `is_pressed_only`: everything that the plan holds is there, but tasks wait
    /// for memory.
    fn shrunk(&self, reading: &MemoryReading, plan: &HeldMemory, is_pressed_only: bool) -> MemoryAction {
        let most = if is_pressed_only { Bytes(plan.held.0 - plan.held.0 / LARGE) } else { plan.held };
        let fitting = self.range.fitting(reading.usable).map(|bytes| bytes.min(most).max(self.range.least));
        let too_small = self.too_small.filter(|refused| reading.time.0 < refused.until.0).map(|refused| refused.bytes);
        match fitting.filter(|bytes| *bytes < plan.held && Some(*bytes) > too_small) {
            Some(bytes) => MemoryAction::Shrink(bytes),
            None if is_pressed_only => MemoryAction::Keep,
            None => MemoryAction::Wait,
        }
    }

    fn growth(&mut self, reading: &MemoryReading, plan: &HeldMemory) -> MemoryAction {
        if let Some(next) = self.rise {
            return self.rise(next, reading, plan);
        }
        if self.too_large.is_some_and(|refused| plan.budget >= refused.bytes) {
            self.too_large = None;
        }
        let moves = matches!(self.policy, OnPressure::Shrink | OnPressure::Wait);
        let least = Bytes(plan.budget.0.saturating_add((plan.budget.0 / LARGE).max(1)));
        let fitting = self
            .grown_size(reading)
            .filter(|bytes| moves && (*bytes >= least || (*bytes == self.range.most && *bytes > plan.budget)));
        self.lasting(reading.time, fitting).map_or(MemoryAction::Keep, MemoryAction::Grow)
    }

    fn rise(&mut self, next: Bytes, reading: &MemoryReading, plan: &HeldMemory) -> MemoryAction {
        let next = if next == plan.budget { self.risen(next) } else { next.min(self.range.most) };
        // The most is reached, or no larger size holds.
        self.rise = (next > plan.budget).then_some(next);
        let fits = self.range.fitting(reading.usable).is_some_and(|fitting| fitting >= next);
        let is_due = self.rise.is_some() && fits && reading.steps >= RISE.1;
        if is_due { MemoryAction::Grow(next) } else { MemoryAction::Keep }
    }

    fn while_waiting(&mut self, reading: &MemoryReading) -> MemoryAction {
        let too_small = self.too_small.filter(|refused| reading.time.0 < refused.until.0).map(|refused| refused.bytes);
        let fitting = self.grown_size(reading).filter(|bytes| *bytes >= self.range.least && Some(*bytes) > too_small);
        self.lasting(reading.time, fitting).map_or(MemoryAction::Keep, MemoryAction::GoOn)
    }

    /// The budget that fits, below a size that was refused lately; `None` under pressure.
    fn grown_size(&self, reading: &MemoryReading) -> Option<Bytes> {
        let fitting = self.range.fitting(reading.usable).filter(|_| reading.pressure_percent < Some(PRESSURE[0]))?;
        let refused = self.too_large.filter(|refused| reading.time.0 < refused.until.0 && fitting >= refused.bytes);
        Some(refused.map_or(fitting, |refused| Bytes(refused.bytes.0 - (refused.bytes.0 / SLACK).max(1))))
    }

    /// The least of the sizes that fitted since there is room, once that is as long as the patience.
    fn lasting(&mut self, now: Seconds, fitting: Option<Bytes>) -> Option<Bytes> {
        let fitting = fitting.or_else(|| {
            self.roomy = None;
            None
        })?;
        let (since, least) = self.roomy.map_or((now, fitting), |(since, least)| (since, least.min(fitting)));
        self.roomy = Some((since, least));
        (now.0 - since.0 >= self.patience.0).then_some(least)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const RANGE: BudgetRange = BudgetRange { least: Bytes::gib(4), most: Bytes::gib(10) };

    /// The promise of the documentation.
    const SWITCHES_PER_HOUR: usize = 14;

    /// A run that follows every action, of which it refuses those that `refuses` says.
    struct Run {
        machine: ElasticBudget,
        plan: Option<HeldMemory>,
        time: f64,
        refused: Option<Refusal>,
        /// Times of changes of the plan.
        switches: Vec<f64>,
    }

    fn plan(bytes: Bytes) -> Option<HeldMemory> {
        Some(HeldMemory { budget: bytes, held: bytes })
    }

    impl Run {
        fn new(policy: OnPressure, budget: Bytes) -> Self {
            let machine = ElasticBudget::new(RANGE, policy);
            Self { machine, plan: plan(budget), time: 0.0, refused: None, switches: vec![] }
        }

        fn second(&mut self, usable: Bytes, pressure: f64, refuses: bool) -> MemoryAction {
            self.time += 1.0;
            let reading = MemoryReading {
                time: Seconds(self.time),
                usable,
                pressure_percent: Some(pressure),
                plan: self.plan,
                refused: std::mem::take(&mut self.refused),
                steps: 3,
            };
            let action = self.machine.observe(&reading);
            let next = match action {
                MemoryAction::Keep | MemoryAction::Checkpoint | MemoryAction::Stop => return action,
                MemoryAction::Shrink(bytes) => {
                    assert!(bytes < self.plan.expect("a plan").held, "{action:?} of {reading:?}");
                    plan(bytes)
                }
                MemoryAction::Grow(bytes) => {
                    assert!(bytes > self.plan.expect("a plan").budget, "{action:?} of {reading:?}");
                    plan(bytes)
                }
                MemoryAction::GoOn(bytes) => {
                    assert_eq!(self.plan, None, "{action:?}");
                    plan(bytes)
                }
                MemoryAction::Wait => None,
            };
            if let Some(next) = next {
                assert!(next.budget <= usable, "{action:?} of {reading:?}");
                assert!(next.budget >= RANGE.least && next.budget <= RANGE.most, "{action:?}");
            }
            if refuses {
                self.refused = Some(Refusal::NoRoom);
            } else {
                self.plan = next;
                self.switches.push(self.time);
            }
            action
        }

        fn seconds(&mut self, count: u32, usable: Bytes) -> Vec<MemoryAction> {
            let all = (0..count).map(|_| self.second(usable, 0.0, false)).collect::<Vec<_>>();
            all.into_iter().filter(|action| *action != MemoryAction::Keep).collect()
        }

        /// The most changes within an hour.
        fn most_per_hour(&self) -> usize {
            let within =
                |from: &f64| self.switches.iter().filter(|time| (0.0..3600.0).contains(&(*time - from))).count();
            self.switches.iter().map(within).max().unwrap_or(0)
        }
    }

    fn gib(x: f64) -> Bytes {
        Bytes((x * Bytes::gib(1).as_f64()) as u64)
    }

    #[test]
    fn a_small_shortage_has_to_last_and_a_large_one_counts_at_once() {
        let mut run = Run::new(OnPressure::Shrink, RANGE.most);
        assert_eq!(run.seconds(2, gib(9.5)), []);
        assert_eq!(run.seconds(5, gib(10.0)), []);
        assert_eq!(run.seconds(2, gib(9.5)), [], "readings in a row");
        assert_eq!(run.seconds(1, gib(9.5)), [MemoryAction::Shrink(gib(9.5 - 9.5 / 16.0))]);
        assert_eq!(run.seconds(1, gib(6.4)), [MemoryAction::Shrink(gib(6.0))]);
        assert_eq!(run.seconds(1, gib(4.1)), [MemoryAction::Shrink(RANGE.least)]);
        assert_eq!(run.seconds(1, gib(3.0)), [MemoryAction::Wait], "less than the least");
        assert_eq!(run.seconds(100, gib(3.9)), []);
        assert_eq!(run.seconds(100, gib(6.4)), [MemoryAction::GoOn(gib(6.0))]);
    }

    #[test]
    fn each_policy_has_its_action() {
        for (policy, expected) in [
            (OnPressure::Shrink, vec![MemoryAction::Shrink(gib(7.5))]),
            (OnPressure::Wait, vec![MemoryAction::Wait, MemoryAction::GoOn(gib(7.5))]),
            (OnPressure::Checkpoint, vec![MemoryAction::Checkpoint]),
            (OnPressure::Stop, vec![MemoryAction::Stop]),
        ] {
            let mut run = Run::new(policy, RANGE.most);
            assert_eq!(run.seconds(50, gib(8.0)), expected, "{policy:?}");
        }
    }

    #[test]
    fn growth_waits_longer_after_each_failure_and_less_after_it_held() {
        let mut run = Run::new(OnPressure::Shrink, RANGE.least);
        for patience in [30, 60, 120, 240, 480, 960, 1920, 3600, 3600] {
            assert_eq!(run.seconds(patience, RANGE.most), [], "{patience}");
            assert_eq!(run.seconds(1, RANGE.most), [MemoryAction::Grow(RANGE.most)], "{patience}");
            assert_eq!(run.seconds(1, RANGE.least), [MemoryAction::Shrink(RANGE.least)]);
        }
        assert_eq!(run.seconds(3601, RANGE.most), [MemoryAction::Grow(RANGE.most)]);
        assert_eq!(run.seconds(4000, RANGE.most), []);
        run.seconds(1, RANGE.least);
        assert_eq!(run.seconds(3601, RANGE.most), [MemoryAction::Grow(RANGE.most)], "halved and doubled");
        assert_eq!(run.seconds(20_000, RANGE.most), []);
        run.seconds(1, RANGE.least);
        assert_eq!(run.seconds(61, RANGE.most), [MemoryAction::Grow(RANGE.most)]);
    }

    #[test]
    fn a_refused_size_is_avoided_until_its_time_has_passed() {
        let mut run = Run::new(OnPressure::Shrink, RANGE.least);
        run.seconds(30, RANGE.most);
        assert_eq!(run.second(RANGE.most, 0.0, true), MemoryAction::Grow(RANGE.most));
        let below = Bytes(RANGE.most.0 - RANGE.most.0 / 16);
        // The refusal lasts 60 s, and so does the patience; the least that fitted meanwhile is asked for.
        assert_eq!(run.seconds(61, RANGE.most), [MemoryAction::Grow(below)]);
        assert_eq!(run.seconds(61, RANGE.most), [MemoryAction::Grow(RANGE.most)]);
        // A plan that can't be smaller waits at once instead.
        assert_eq!(run.second(gib(5.0), 0.0, true), MemoryAction::Shrink(gib(5.0 - 5.0 / 16.0)));
        assert_eq!(run.second(gib(5.0), 0.0, false), MemoryAction::Wait);
    }

    #[test]
    fn a_refused_wait_is_not_repeated_with_each_reading() {
        let mut run = Run::new(OnPressure::Wait, RANGE.most);
        assert_eq!(run.second(gib(5.0), 0.0, true), MemoryAction::Wait);
        assert_eq!(run.seconds(60, gib(5.0)), []);
        assert_eq!(run.seconds(1, gib(5.0)), [MemoryAction::Wait]);
    }

    #[test]
    fn a_wait_ends_after_sizes_below_the_smallest_plan_were_refused() {
        let range = BudgetRange { least: Bytes(1), most: RANGE.most };
        let mut machine = ElasticBudget::new(range, OnPressure::Shrink);
        let mut refused = None;
        for second in 0..3 * 3600 {
            let usable = if second < 1000 { gib(1.0) } else { RANGE.most };
            let time = Seconds(f64::from(second));
            let reading =
                MemoryReading { time, usable, pressure_percent: None, plan: None, refused: refused.take(), steps: 0 };
            match machine.observe(&reading) {
                MemoryAction::GoOn(bytes) if bytes < RANGE.least => refused = Some(Refusal::NoPlan),
                MemoryAction::GoOn(bytes) => return assert_eq!(bytes, RANGE.most),
                action => assert_eq!(action, MemoryAction::Keep),
            }
        }
        panic!("it waits for ever");
    }

    #[test]
    fn pressure_shrinks_by_an_eighth_and_prevents_growth() {
        let mut run = Run::new(OnPressure::Shrink, gib(8.0));
        let actions = (0..60).map(|_| run.second(gib(8.0), 30.0, false)).filter(|action| *action != MemoryAction::Keep);
        assert_eq!(actions.collect::<Vec<_>>(), [MemoryAction::Shrink(gib(7.0)), MemoryAction::Shrink(gib(6.125))]);
        assert!((0..200).all(|_| run.second(RANGE.most, 6.0, false) == MemoryAction::Keep));
        let mut least = Run::new(OnPressure::Shrink, RANGE.least);
        assert!(
            (0..200).all(|_| least.second(RANGE.most, 90.0, false) == MemoryAction::Keep),
            "it never waits for that"
        );
    }

    #[test]
    fn a_plan_that_needs_less_than_its_budget_is_not_short_of_the_rest() {
        let mut machine = ElasticBudget::new(RANGE, OnPressure::Shrink);
        for second in 0..100 {
            let plan = Some(HeldMemory { budget: RANGE.most, held: gib(3.0) });
            let (time, usable) = (Seconds(f64::from(second)), gib(3.5));
            let reading = MemoryReading { time, usable, pressure_percent: None, plan, refused: None, steps: 0 };
            assert_eq!(machine.observe(&reading), MemoryAction::Keep);
        }
    }

    #[test]
    fn a_square_wave_of_any_period_changes_the_plan_a_few_times_an_hour() {
        let mut worst = 0;
        for policy in [OnPressure::Shrink, OnPressure::Wait] {
            for half in (1..60).step_by(6).chain((60..1000).step_by(39)).chain((1000..4000).step_by(500)) {
                for (high, low) in [(10.0, 4.5), (9.0, 2.0), (10.0, 9.3), (7.0, 6.0)] {
                    let mut run = Run::new(policy, RANGE.most);
                    for second in 0..4 * 3600_u32 {
                        let usable = if (second / half).is_multiple_of(2) { high } else { low };
                        run.second(gib(usable), 0.0, false);
                    }
                    worst = worst.max(run.most_per_hour());
                    assert!(worst <= SWITCHES_PER_HOUR, "{policy:?}, {half} s, {high} and {low}: {worst}");
                }
            }
        }
        assert!(worst > SWITCHES_PER_HOUR / 2, "the promise is far too weak: {worst}");
    }

    proptest! {
        /// `Run::second` asserts that nothing is asked for that is not there.
        #[test]
        fn random_readings_ask_for_no_more_than_there_is_and_end_with_the_most(
            policy in prop::sample::select(vec![OnPressure::Shrink, OnPressure::Wait]),
            readings in prop::collection::vec((0_u64..16 << 30, 1_u32..300, 0.0..40.0, any::<bool>()), 1..40),
        ) {
            let mut run = Run::new(policy, RANGE.most);
            for (usable, seconds, pressure, refuses) in readings {
                for _ in 0..seconds {
                    run.second(Bytes(usable), pressure, refuses);
                }
            }
            run.seconds(4 * 3600, RANGE.most);
            prop_assert_eq!(run.plan.map(|plan| plan.budget), Some(RANGE.most));
        }
    }

    /// A budget of 1 GiB rises to 10 in a quiet machine, in which sizes above 7 GiB are refused in the second case.
    #[test]
    fn a_rising_budget_grows_as_steps_succeed_and_goes_down_by_a_tenth_if_refused() {
        for (refused_above, expected) in [
            (Bytes::gib(100), vec![2, 4, 6, 8, 10].into_iter().map(Bytes::gib).collect::<Vec<_>>()),
            // 8 GiB, 7.2 and 6.48 are tried; then 8.48, 7.63, 6.87.
            (
                Bytes::gib(7),
                vec![Bytes::gib(2), Bytes::gib(4), Bytes::gib(6), Bytes(6_957_847_020), Bytes(7_375_317_842)],
            ),
        ] {
            let range = BudgetRange { least: Bytes(1), most: Bytes::gib(10) };
            let first = ElasticBudget::first_rise(range.most);
            let mut machine = ElasticBudget::new(range, OnPressure::Shrink);
            machine.rise_from(first);
            let (mut budget, mut sizes, mut refused) = (first, vec![first], None);
            let mut steps = 0;
            for second in 0..60 {
                let reading = MemoryReading {
                    time: Seconds(f64::from(second)),
                    usable: Bytes::gib(12),
                    pressure_percent: None,
                    plan: plan(budget),
                    refused: refused.take(),
                    steps,
                };
                steps += 1;
                match machine.observe(&reading) {
                    MemoryAction::Keep => {}
                    MemoryAction::Grow(bytes) if bytes > refused_above => refused = Some(Refusal::NoRoom),
                    MemoryAction::Grow(bytes) => {
                        assert!(steps > RISE.1, "after {steps} steps");
                        (budget, steps) = (bytes, 0);
                        sizes.push(bytes);
                    }
                    other => panic!("{other:?}"),
                }
            }
            assert_eq!(sizes, expected);
        }
    }
}
