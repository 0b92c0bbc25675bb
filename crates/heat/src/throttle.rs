//! How fast one card may compute, given its temperature: at full speed, at the duty that holds a temperature, or not
//! until it has cooled.
//!
//! ```text
//!            too hot soon                     far above the held temperature
//!      Free ──────────────────────► Slowing ────────────────────────► Paused
//!           ◄──────────────────────         ◄────────────────────────
//!            cool at full duty                cool enough for the next micro-batch
//! ```
//! Not here: sensors and their failures. Read next: `card.rs`.

use crate::order::Duty;
use crate::pace::Pace;
use crate::sensors::Heat;
use crate::trend::{Peaks, Trend};

/// How long a card takes to react, s, in addition to samples and micro-batches: a second or two until the heat reaches
/// the die's sensor, and the smoothing.
const ANSWER_S: f64 = 8.0;

/// Proportional gain times dead time, s/°C, relative to the duty. SIMC's rule (Skogestad 2003) for a plant of gain k,
/// time constant τ and dead time θ is τ / (k · 2θ). The gain times the duty is the distance between the held
/// temperature and the air, 50 °C; τ is at least the 60 s of a light cooler.
const GAIN_S_PER_C: f64 = 60.0 / (50.0 * 2.0);

/// Integral time, s. SIMC sets it to the plant's time constant, 100 to 450 s; a longer one only converges more slowly.
const INTEGRAL_S: f64 = 200.0;

/// Minimum time over which slopes are measured, s.
const SLOPE_S: f64 = 20.0;

/// How long a die takes to reach its working temperature above the cooler when work begins, s. Slopes count after that.
const SETTLES_S: f64 = 12.0;

/// Temperatures this close to the held one count as held: half of a sensor's degree, °C.
const DEAD_BAND_C: f64 = 0.5;

/// Smallest change of the duty, relative to itself. Smaller changes are noise.
const STEP: f64 = 0.01;

/// Fastest rise of the duty, relative to itself, 1/s.
const RISE_PER_S: f64 = 0.1 / 60.0;

/// Largest factor above the holding duty for a cool card, which is cool only for a short time.
const ABOVE_HOLD: f64 = 1.1;

/// Lowest initial duty of the first slowdown. Approaching the held temperature from below does not exceed it.
const FIRST: f64 = 0.5;

/// Highest initial duty of a slowdown, whatever an earlier one found.
const AGAIN: f64 = 0.8;

/// Heating rate of a cooler of 4 J/°C per watt at full power that gives no heat to the air, °C/s. Lighter coolers heat
/// faster.
const HEATS_LEAST_C_PER_S: f64 = 0.25;

/// Factor applied to a duty that did not hold the temperature.
const AFTER_PAUSE: f64 = 0.8;

/// The card is paused at this fraction of the distance between the held temperature and the maximum.
const PAUSE_AT: f64 = 0.6;

/// The card is also paused if the prediction for the end of the next micro-batch reaches this fraction of that
/// distance. The second constant caps how far ahead the prediction looks, s.
const PAUSE_SOON_AT: f64 = 0.9;
const LONGEST_REACH_S: f64 = 120.0;

/// How long the die takes to fall to its cooler's temperature when work ends, s: four of the longest time constants.
const FALL_S: f64 = 20.0;

/// How far below the held temperature the card must be at the end of the first micro-batch after a pause, °C, and how
/// fast its cooler heats during it: at full power, with 3 J/°C per watt.
const COOLED_C: f64 = 1.0;
const HEATS_C_PER_S: f64 = 0.33;

/// Longest pause of a card that does not cool that far, s.
const LONGEST_PAUSE_S: f64 = 900.0;

/// A card below the resume temperature whose temperature fell by less than this, °C, for this long, s, cools no
/// further: it has reached what its air allows, or other cards heat it. A longer pause gains nothing, unless the next
/// micro-batch would heat the card above its maximum.
const STEADY_C: f64 = 1.0;
const STEADY_S: f64 = 20.0;

/// Minimum assumed temperature of a card that lowers its own clocks, °C above the held temperature.
pub(crate) const THROTTLING_C: f64 = 1.0;

/// How fast one card may compute.
#[derive(Debug, Clone)]
pub(crate) struct Throttle {
    phase: Phase,
    /// The duty that holds the temperature, as currently estimated: the controller's integral.
    hold: Option<f64>,
    /// The duty ordered while slowing.
    duty: f64,
    /// Temperatures relative to the held one.
    trend: Trend,
    peaks: Peaks,
    slowed_s: f64,
    /// How long no sensor was read, s.
    stale_s: f64,
}

#[derive(Debug, Clone, Copy)]
enum Phase {
    Free,
    Slowing,
    Paused(Cooling),
}

/// A paused card that is cooling.
#[derive(Debug, Clone, Copy)]
struct Cooling {
    /// The highest temperature since the pause was ordered, relative to the held one, and the time since then.
    peak_c: f64,
    since_peak_s: f64,
    /// How far the temperature fell right after the pause began; it will rise by as much when work resumes.
    fall_c: Option<f64>,
    /// The lowest temperature so far, relative to the held one, and the time since it last fell by a degree.
    lowest_c: f64,
    steady_s: f64,
    for_s: f64,
}

/// A transition caused by a sample.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Change {
    Slows,
    Pauses,
    /// With the duration of the slowdown, s.
    Resumes(f64),
}

impl Throttle {
    pub(crate) fn new() -> Self {
        let (trend, peaks) = (Trend::default(), Peaks::default());
        Self { phase: Phase::Free, hold: None, duty: 1.0, trend, peaks, slowed_s: 0.0, stale_s: 0.0 }
    }

    /// The fraction of the time that the card may compute: 1 at full speed, 0 while paused.
    pub(crate) fn share(&self) -> f64 {
        match self.phase {
            Phase::Free => 1.0,
            Phase::Slowing => self.duty,
            Phase::Paused(_) => 0.0,
        }
    }

    /// Whether the card is paused until it has cooled.
    pub(crate) fn is_paused(&self) -> bool {
        matches!(self.phase, Phase::Paused(_))
    }

    /// Whether the temperature requires a pause now, or will before the next pause can take effect.
    pub(crate) fn is_urgent(&self, heat: &Heat, pace: &Pace) -> bool {
        let cycle_s = pace.batch_s / pace.duty_of(self.share()).max(Duty::LEAST);
        let reach_s = cycle_s.min(LONGEST_REACH_S) + pace.dt_s;
        let soon_c = self.trend.value_or(heat.excess_c) + reach_s * self.trend.slope().max(0.0);
        heat.excess_c >= PAUSE_AT * heat.room_c || soon_c >= PAUSE_SOON_AT * heat.room_c
    }

    /// Discards the temperature history, for example after a gap in time.
    pub(crate) fn forget(&mut self) {
        self.trend.clear();
        self.peaks.clear();
    }

    /// Processes a sample.
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

    /// Adds a sample to the trend, unless the sensor reported nothing.
    fn follow(&mut self, heat: &Heat, pace: &Pace, window_s: f64, delay_s: f64) {
        if !heat.fresh {
            self.stale_s += pace.dt_s;
            return;
        }
        self.stale_s = 0.0;
        let peak_c = self.peaks.add(heat.excess_c, pace.dt_s, window_s);
        self.trend.add(peak_c, pace.dt_s, SLOPE_S.max(delay_s), SETTLES_S + window_s);
    }

    /// The initial duty of the first slowdown. A card that heats at a fraction of the rate at which its cooler would
    /// without air already gives the rest of its power to the air, and that rest is the duty that holds its
    /// temperature.
    fn first(&self) -> f64 {
        FIRST.max(1.0 - self.trend.slope().max(0.0) / HEATS_LEAST_C_PER_S)
    }

    fn begin_slowing(&mut self, delay_s: f64) {
        self.phase = Phase::Slowing;
        self.duty = self.wanted(delay_s);
    }

    /// The duty for the current hold and temperature.
    fn wanted(&self, delay_s: f64) -> f64 {
        let gain = GAIN_S_PER_C / delay_s;
        let excess_c = beyond(self.trend.value_or(0.0));
        (self.hold.unwrap_or(FIRST) * (1.0 - gain * excess_c).min(ABOVE_HOLD)).clamp(Duty::LEAST, Duty::MOST)
    }

    /// Adjusts the hold, and the duty if the change is large enough.
    fn control(&mut self, pace: &Pace, delay_s: f64) {
        let excess_c = beyond(self.trend.value_or(0.0));
        let rate = (-excess_c * GAIN_S_PER_C / delay_s / INTEGRAL_S).min(RISE_PER_S);
        let hold = self.hold.unwrap_or(FIRST);
        // Do not raise the hold while another card limits the run: this card has not shown that it bears a higher duty.
        // Its own power limit, which rises in steps, does not count as another card.
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
    /// A card at its highest temperature, `for_s` after the pause was ordered.
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
