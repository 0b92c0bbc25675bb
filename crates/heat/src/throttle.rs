//! How fast one card may go, by how hot it is: freely, for a part of the time that holds it at a temperature, or not
//! until it has cooled.
//!
//! ```text
//!            would be too hot soon              far above what is held
//!      Free ────────────────────────► Slowing ────────────────────────► Paused
//!           ◄────────────────────────         ◄────────────────────────
//!            at full duty, yet cool             cool enough for what work adds at once
//! ```
//! Not here: sensors, and what they say when they fail. Read next: `card.rs`.

use crate::order::Duty;
use crate::sensors::Heat;
use crate::trend::{Peaks, Trend};

/// How long the card takes to answer, s, besides samples and micro-batches: a second or two for the heat to reach the
/// die's sensor, and the smoothing.
const ANSWER_S: f64 = 8.0;

/// The proportional gain times the dead time, s/°C, relative to the duty. SIMC's rule (Skogestad 2003) for a plant of
/// gain k, time constant τ and dead time θ is τ / (k · 2θ). The gain, times the duty, is how far the card is held above
/// the air, 50 °C; τ is at least the 60 s of a light cooler.
const GAIN_S_PER_C: f64 = 60.0 / (50.0 * 2.0);

/// The integral time, s. SIMC's is the plant's own time constant, 100 to 450 s; a longer one only takes longer.
const INTEGRAL_S: f64 = 200.0;

/// Time over which slopes are taken, s, at least.
const SLOPE_S: f64 = 20.0;

/// How long dies take to be as hot as their coolers make them when work begins, s, after which slopes count.
const SETTLES_S: f64 = 12.0;

/// Temperatures this near to what is held are held: half of a sensor's degree, °C.
const DEAD_BAND_C: f64 = 0.5;

/// By how much a duty changes at least, relative to itself: less is noise.
const STEP: f64 = 0.01;

/// How fast a duty may rise, relative to itself, 1/s.
const RISE_PER_S: f64 = 0.1 / 60.0;

/// How far above the duty that holds the temperature a cool card may go, as a factor: it is not cool for long.
const ABOVE_HOLD: f64 = 1.1;

/// The duty with which slowing begins, when none was found before, at least: from below, what is held is not exceeded.
const FIRST: f64 = 0.5;

/// The highest duty with which slowing begins, whatever was found before.
const AGAIN: f64 = 0.8;

/// How fast a cooler of 4 J/°C for each watt heats at full power while it gives nothing to the air, °C/s; lighter ones
/// heat faster.
const HEATS_LEAST_C_PER_S: f64 = 0.25;

/// What is left of a duty that did not hold the card.
const AFTER_PAUSE: f64 = 0.8;

/// The part of the way from the temperature held to the maximum where the card is paused.
const PAUSE_AT: f64 = 0.6;

/// The part of that way where it is paused if it will be there with the next micro-batch, and how far that is looked
/// ahead at most, s.
const PAUSE_SOON_AT: f64 = 0.9;
const LONGEST_REACH_S: f64 = 120.0;

/// How long the die takes to fall to its cooler's temperature when work ends, s: four of the longest time constants.
const FALL_S: f64 = 20.0;

/// How far below the temperature held the card must be at the end of the next micro-batch, after a pause, °C, and how
/// fast its cooler heats until then, °C/s: at full power, with 3 J/°C for each watt.
const COOLED_C: f64 = 1.0;
const HEATS_C_PER_S: f64 = 0.33;

/// How long a pause may last for a card that doesn't cool as far as that, s.
const LONGEST_PAUSE_S: f64 = 900.0;

/// A card that is cooler than the resume temperature and has fallen by less than so much, °C, for so long, s, cools no further:
/// it is as cool as its air lets it be, or others heat it. A pause that goes on would gain nothing, unless the next micro-batch
/// would heat it above its maximum.
const STEADY_C: f64 = 1.0;
const STEADY_S: f64 = 20.0;

/// How warm a card that lowers its own clocks is taken to be at least, above the temperature held, °C.
pub(crate) const THROTTLING_C: f64 = 1.0;

/// How fast one card may go.
#[derive(Debug, Clone)]
pub(crate) struct Throttle {
    phase: Phase,
    /// The duty that holds the temperature, as far as is known: the integral.
    hold: Option<f64>,
    /// The duty that is ordered while slowing.
    duty: f64,
    /// Temperatures above that which is held.
    trend: Trend,
    peaks: Peaks,
    slowed_s: f64,
    /// For how long no sensor was read, s.
    stale_s: f64,
}

#[derive(Debug, Clone, Copy)]
enum Phase {
    Free,
    Slowing,
    Paused(Cooling),
}

/// A card that cools.
#[derive(Debug, Clone, Copy)]
struct Cooling {
    /// The highest temperature since the pause was ordered, above that which is held, and how long ago it was.
    peak_c: f64,
    since_peak_s: f64,
    /// How far the temperature fell at once, which is how far it will rise at once.
    fall_c: Option<f64>,
    /// The lowest temperature so far, above that which is held, and for how long none was lower by a degree.
    lowest_c: f64,
    steady_s: f64,
    for_s: f64,
}

/// What changed with a sample.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Change {
    Slows,
    Pauses,
    /// After so many seconds.
    Resumes(f64),
}

/// Time, as it matters to a sample, s.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Pace {
    /// Since the last sample.
    pub dt_s: f64,
    /// Of a micro-batch, before whose end no order has an effect.
    pub batch_s: f64,
    /// The part of its heat that the card was allowed to make since the last sample: without a lower power limit, the part of the
    /// time that it was allowed to compute.
    pub share: f64,
    /// That was a short pause, or followed one, which shows whether a sensor follows: it says nothing of the duty.
    pub probing: bool,
    /// The part of its heat that the card makes while it computes, under its power limit.
    pub cap: f64,
}

impl Pace {
    /// The part of the time in which a card computes that may make this part of its heat.
    pub fn duty_of(&self, share: f64) -> f64 {
        (share / self.cap).min(1.0)
    }
}

impl Throttle {
    pub(crate) fn new() -> Self {
        let (trend, peaks) = (Trend::default(), Peaks::default());
        Self { phase: Phase::Free, hold: None, duty: 1.0, trend, peaks, slowed_s: 0.0, stale_s: 0.0 }
    }

    /// The part of the time that the card may compute: 1 freely, 0 not at all.
    pub(crate) fn share(&self) -> f64 {
        match self.phase {
            Phase::Free => 1.0,
            Phase::Slowing => self.duty,
            Phase::Paused(_) => 0.0,
        }
    }

    /// Whether the card waits until it has cooled.
    pub(crate) fn is_paused(&self) -> bool {
        matches!(self.phase, Phase::Paused(_))
    }

    /// Whether a temperature asks for a pause at once, or will before the next pause begins to have an effect.
    pub(crate) fn is_urgent(&self, heat: &Heat, pace: &Pace) -> bool {
        let cycle_s = pace.batch_s / pace.duty_of(self.share()).max(Duty::LEAST);
        let reach_s = cycle_s.min(LONGEST_REACH_S) + pace.dt_s;
        let soon_c = self.trend.value_or(heat.excess_c) + reach_s * self.trend.slope().max(0.0);
        heat.excess_c >= PAUSE_AT * heat.room_c || soon_c >= PAUSE_SOON_AT * heat.room_c
    }

    /// Forgets what temperatures did, as after a gap in time.
    pub(crate) fn forget(&mut self) {
        self.trend.clear();
        self.peaks.clear();
    }

    /// A sample.
    pub(crate) fn step(&mut self, heat: &Heat, pace: &Pace) -> Option<Change> {
        let cycle_s = pace.batch_s / pace.duty_of(self.share()).max(Duty::LEAST);
        let window_s = if cycle_s > 1.0 { cycle_s + 2.0 * pace.dt_s } else { 0.0 };
        let delay_s = ANSWER_S + pace.dt_s + window_s;
        let excess_c = heat.excess_c;
        self.follow(heat, pace, window_s, delay_s);
        if !matches!(self.phase, Phase::Free) {
            self.slowed_s += pace.dt_s;
        }
        if !self.is_paused() && self.is_urgent(heat, pace) {
            let hold = self.hold.unwrap_or(1.0).min(pace.share.max(Duty::LEAST));
            self.hold = Some((hold * AFTER_PAUSE).max(Duty::LEAST));
            self.phase = Phase::Paused(Cooling::from(excess_c, 0.0));
            return Some(Change::Pauses);
        }
        match self.phase {
            Phase::Free => {
                let reach_s = ANSWER_S + pace.dt_s + pace.batch_s + self.stale_s;
                let soon_c = self.trend.value_or(excess_c) + reach_s * self.trend.slope().max(0.0);
                (soon_c.max(excess_c) >= 0.0).then(|| {
                    self.hold = Some(self.hold.unwrap_or_else(|| self.first()).min(AGAIN));
                    self.begin_slowing(delay_s);
                    Change::Slows
                })
            }
            Phase::Slowing => {
                self.control(pace, delay_s);
                let cool = self.trend.value_or(excess_c).max(excess_c) <= -heat.depth_c;
                (cool && self.hold.is_some_and(|hold| hold >= Duty::MOST)).then(|| {
                    self.phase = Phase::Free;
                    Change::Resumes(std::mem::take(&mut self.slowed_s))
                })
            }
            Phase::Paused(cooling) => {
                let cooling = cooling.with(excess_c, pace.dt_s);
                self.phase = Phase::Paused(cooling);
                if cooling.is_over(heat, pace.batch_s) {
                    self.forget();
                    self.begin_slowing(delay_s);
                }
                None
            }
        }
    }

    /// Takes a sample into the trend, unless the sensor was silent.
    fn follow(&mut self, heat: &Heat, pace: &Pace, window_s: f64, delay_s: f64) {
        if !heat.fresh {
            self.stale_s += pace.dt_s;
            return;
        }
        self.stale_s = 0.0;
        let peak_c = self.peaks.add(heat.excess_c, pace.dt_s, window_s);
        self.trend.add(peak_c, pace.dt_s, SLOPE_S.max(delay_s), SETTLES_S + window_s);
    }

    /// The duty with which slowing begins, when none was found before. A card that heats at a part of the speed at which
    /// its cooler would without air gives the rest of its power to the air already, which is the duty that holds it.
    fn first(&self) -> f64 {
        FIRST.max(1.0 - self.trend.slope().max(0.0) / HEATS_LEAST_C_PER_S)
    }

    fn begin_slowing(&mut self, delay_s: f64) {
        self.phase = Phase::Slowing;
        self.duty = self.wanted(delay_s);
    }

    /// The duty that the hold and the temperature ask for.
    fn wanted(&self, delay_s: f64) -> f64 {
        let gain = GAIN_S_PER_C / delay_s;
        let excess_c = beyond(self.trend.value_or(0.0));
        (self.hold.unwrap_or(FIRST) * (1.0 - gain * excess_c).min(ABOVE_HOLD)).clamp(Duty::LEAST, Duty::MOST)
    }

    /// Moves the hold and, if it is worth it, the duty.
    fn control(&mut self, pace: &Pace, delay_s: f64) {
        let excess_c = beyond(self.trend.value_or(0.0));
        let rate = (-excess_c * GAIN_S_PER_C / delay_s / INTEGRAL_S).min(RISE_PER_S);
        let hold = self.hold.unwrap_or(FIRST);
        // What another card holds back is no proof that this one bears more. Its own limit, which rises in steps, is no other.
        let held_back = rate > 0.0 && pace.share < self.duty.min(pace.cap) - STEP;
        if !held_back {
            self.hold = Some((hold * (1.0 + rate * pace.dt_s)).clamp(Duty::LEAST, Duty::MOST));
        }
        let wanted = self.wanted(delay_s);
        if (wanted - self.duty).abs() >= STEP * self.duty || wanted == Duty::MOST {
            self.duty = wanted;
        }
    }
}

/// How far a temperature is outside the dead band, °C.
fn beyond(excess_c: f64) -> f64 {
    excess_c - excess_c.clamp(-DEAD_BAND_C, DEAD_BAND_C)
}

impl Cooling {
    /// At its highest temperature, so long after the pause was ordered.
    fn from(excess_c: f64, for_s: f64) -> Self {
        Self { peak_c: excess_c, since_peak_s: 0.0, fall_c: None, lowest_c: excess_c, steady_s: 0.0, for_s }
    }

    fn with(self, excess_c: f64, dt_s: f64) -> Self {
        let for_s = self.for_s + dt_s;
        if excess_c > self.peak_c {
            return Self::from(excess_c, for_s);
        }
        let (lowest_c, steady_s) = match excess_c <= self.lowest_c - STEADY_C {
            true => (excess_c, 0.0),
            false => (self.lowest_c, self.steady_s + dt_s),
        };
        let since_peak_s = self.since_peak_s + dt_s;
        let fell = since_peak_s >= FALL_S + dt_s;
        let fall_c = self.fall_c.or_else(|| fell.then_some(self.peak_c - excess_c));
        Self { since_peak_s, fall_c, lowest_c, steady_s, for_s, ..self }
    }

    fn is_over(&self, heat: &Heat, batch_s: f64) -> bool {
        let excess_c = heat.excess_c;
        let rise_c = self.fall_c.map(|fall_c| fall_c + HEATS_C_PER_S * batch_s);
        let stays_below = |limit_c: f64| rise_c.is_some_and(|rise_c| excess_c + rise_c <= limit_c);
        let cool = stays_below(-COOLED_C);
        let steady = excess_c <= -heat.depth_c && self.steady_s >= STEADY_S && stays_below(heat.room_c);
        cool || steady || (self.for_s >= LONGEST_PAUSE_S && excess_c < 0.0)
    }
}
