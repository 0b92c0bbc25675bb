//! One sensor over time: whether it reports values, whether these are plausible temperatures, and whether they follow
//! the card's load.
//! Not here: combining the sensors of a card. Read next: `sensors.rs`.

use crate::note::NoteKind;
use crate::pace::Pace;
use crate::reading::Sensor;
use crate::trend::weight;
use plimsoll_units::Seconds;

/// Plausible temperatures of a running card, °C. Broken sensors report -40, 127 or more, or 255.
const PLAUSIBLE_C: (f64, f64) = (-20.0, 126.0);

/// Largest plausible drop at once, °C (a die cools this far within a second or two when work ends), and per further
/// second, °C/s (the cooler). Faster drops are not trusted.
const FALL_C: f64 = 30.0;
const FALL_C_PER_S: f64 = 0.2;

/// How long a sensor may report nothing before it counts as lost: this many seconds, or this many samples, whichever is
/// longer.
const SILENCE_S: f64 = 5.0;
const SILENCE_SAMPLES: f64 = 3.5;

/// How long a distrusted sensor must report values before it is trusted again, s, and how many times its value must
/// change: a single change also occurs when a sensor starts to fail or sticks at another value.
const BACK_S: f64 = 10.0;
const CHANGES: u32 = 2;

/// A sensor is stuck if its value does not change while the duty of the last minute differs from the earlier duty for
/// long enough. The measure is the integral of the relative change over time, s, which decays with `FORGETS_S`. A card
/// held at 78 °C in air of 30 °C is 48 °C above it, and its cooler follows within 100 to 450 s, so 35 s mean 4 to 16
/// °C. For cooler sensors the threshold grows as they get closer to the air temperature. Slow changes prove nothing,
/// since they may be what keeps the temperature constant while the air changes: the earlier duty follows them with the
/// time constant `FOLLOWS_S`.
const STUCK_S: f64 = 35.0;
const FORGETS_S: f64 = 1200.0;
const FOLLOWS_S: f64 = 1200.0;
const AIR_C: f64 = 30.0;
const ABOVE_AIR_C: f64 = 48.0;

/// A die sensor is also stuck if its value does not change for two cycles of work and pause, and this many samples:
/// within the shortest work and pause that count, a die covers a tenth of the distance between its temperature and the
/// air's.
const CYCLES: f64 = 2.0;
const CYCLES_SAMPLES: f64 = 10.0;
const SHORTEST_S: f64 = 3.0;

/// A sensor is also stuck if its value does not change while the mean of another sensor of the card moves this far, °C,
/// counted from when the means have settled, s.
const SIBLING_C: f64 = 10.0;
const SIBLING_S: f64 = 180.0;

/// Time constant of a sensor's mean, s.
const MEAN_S: f64 = 60.0;

/// Whether a sensor is trusted.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Trust {
    /// It never reported a value. Most cards lack some sensors.
    Never,
    /// Trusted.
    Good,
    /// It reported nothing, implausible values, or the same value despite changes of load. Counts how many times its
    /// value has changed since then.
    Distrusted(u32),
}

/// The value of a sensor at this moment, °C.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum SensorValue {
    /// Read in this sample.
    Fresh(f64),
    /// Read shortly before this sample.
    Recent(f64),
    /// The sensor is not trusted.
    Untrusted,
}

/// The state of the run and of the other sensors, against which a sensor is checked.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Context {
    /// Time since the last sample, s.
    dt_s: f64,
    /// Duration of a micro-batch, s, before whose end no order has an effect.
    batch_s: f64,
    /// Duration of a micro-batch and the pause after it together, s, and of the pause alone. While the run is paused,
    /// the pause counts as 0.
    cycle_s: f64,
    rest_s: f64,
    /// Fraction of the last minute during which the cards were allowed to compute.
    recent_share: f64,
    /// Mean temperature of each trusted sensor of the card, °C.
    means: [Option<f64>; 3],
    /// Weights of a sample in the means of a minute, and in `share_then`.
    mean_weight: f64,
    follows_weight: f64,
}

impl Context {
    pub(crate) fn new(pace: &Pace, recent_share: f64, means: [Option<f64>; 3]) -> Self {
        let Pace { dt_s, batch_s, share, .. } = *pace;
        let cycle_s = if share > 0.0 { batch_s / pace.duty_of(share) } else { batch_s };
        Self {
            dt_s,
            batch_s,
            cycle_s,
            rest_s: cycle_s - batch_s,
            recent_share,
            means,
            mean_weight: weight(dt_s, MEAN_S),
            follows_weight: weight(dt_s, FOLLOWS_S),
        }
    }
}

/// One sensor over time.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Tracker {
    sensor: Sensor,
    trust: Trust,
    last_c: f64,
    silent_s: f64,
    reporting_s: f64,
    same_s: f64,
    mean_c: f64,
    /// The share of the time that the cards computed when the value last changed; it slowly follows the current one.
    share_then: f64,
    /// How long the value has not changed although work and pauses must make it rise and fall, s.
    still_s: f64,
    /// Means of the other sensors soon after the value last changed, °C.
    means_then: [Option<f64>; 3],
    /// Integral of the relative change of the duty since then, s.
    unanswered_s: f64,
}

impl Tracker {
    pub(crate) fn new(sensor: Sensor) -> Self {
        Self {
            sensor,
            trust: Trust::Never,
            last_c: 0.0,
            silent_s: 0.0,
            reporting_s: 0.0,
            same_s: 0.0,
            mean_c: 0.0,
            share_then: 1.0,
            still_s: 0.0,
            means_then: [None; 3],
            unanswered_s: 0.0,
        }
    }

    /// Whether the sensor ever reported a temperature.
    pub(crate) fn was_seen(&self) -> bool {
        self.trust != Trust::Never
    }

    /// Its mean over the last minute, °C, if the sensor is trusted.
    pub(crate) fn mean_c(&self) -> Option<f64> {
        (self.trust == Trust::Good).then_some(self.mean_c)
    }

    /// How long its value has not changed, s.
    pub(crate) fn same_s(&self) -> f64 {
        if self.trust == Trust::Good { self.same_s } else { 0.0 }
    }

    /// Stops trusting the sensor, because its value did not follow a change of load.
    pub(crate) fn suspect(&mut self) -> NoteKind {
        self.trust = Trust::Distrusted(0);
        NoteKind::SensorStuck { sensor: self.sensor, celsius: self.last_c, same: Seconds(self.same_s) }
    }

    /// Processes a sample, or a missing one. Returns the current value, and emits a note when trust is lost or
    /// restored. `resume_c`: the temperature below which the card needs no pause.
    pub(crate) fn observe(
        &mut self,
        read_c: Option<f64>,
        resume_c: f64,
        context: &Context,
        mut emit: impl FnMut(NoteKind),
    ) -> SensorValue {
        let sensor = self.sensor;
        let Some(celsius) = read_c.filter(|c| self.can_be(*c, context.dt_s)) else {
            self.reporting_s = 0.0;
            self.silent_s += context.dt_s;
            if self.trust == Trust::Never {
                return SensorValue::Untrusted;
            }
            if self.silent_s > SILENCE_S.max(SILENCE_SAMPLES * context.dt_s) && self.trust == Trust::Good {
                emit(NoteKind::SensorLost { sensor, last_c: self.last_c });
                self.trust = Trust::Distrusted(0);
            }
            return if self.trust == Trust::Good { SensorValue::Recent(self.last_c) } else { SensorValue::Untrusted };
        };
        self.silent_s = 0.0;
        self.reporting_s += context.dt_s;
        let changed = celsius != self.last_c || self.trust == Trust::Never;
        self.follow(celsius, changed, resume_c, context);
        match self.trust {
            Trust::Never => {
                self.trust = Trust::Good;
                self.mean_c = celsius;
            }
            Trust::Good if self.is_stuck(context) => emit(self.suspect()),
            Trust::Distrusted(changes) => {
                let changes = changes + u32::from(changed);
                self.trust = Trust::Distrusted(changes);
                if changes >= CHANGES && self.reporting_s >= BACK_S {
                    self.trust = Trust::Good;
                    self.mean_c = celsius;
                    emit(NoteKind::SensorBack { sensor, celsius });
                }
            }
            _ => {}
        }
        if self.trust == Trust::Good { SensorValue::Fresh(celsius) } else { SensorValue::Untrusted }
    }

    /// Whether the value is plausible now. Drivers report exactly 0 for an unknown temperature.
    fn can_be(&self, celsius: f64, dt_s: f64) -> bool {
        let (low, high) = PLAUSIBLE_C;
        let is_temperature = (low..=high).contains(&celsius) && celsius != 0.0;
        let falls = self.last_c - celsius > FALL_C + FALL_C_PER_S * (self.silent_s + dt_s);
        is_temperature && (self.trust == Trust::Never || !falls)
    }

    /// Records the value, and the changes of load that it has not followed since it last changed.
    fn follow(&mut self, celsius: f64, changed: bool, resume_c: f64, context: &Context) {
        self.last_c = celsius;
        self.mean_c += context.mean_weight * (celsius - self.mean_c);
        if changed {
            self.same_s = 0.0;
            self.unanswered_s = 0.0;
            self.share_then = context.recent_share;
            self.still_s = 0.0;
        } else {
            self.still_s = if self.swings(context) { self.still_s + context.dt_s } else { 0.0 };
            self.same_s += context.dt_s;
            self.share_then += context.follows_weight * (context.recent_share - self.share_then);
            let most = context.recent_share.max(self.share_then).max(0.05);
            let above_air = ((celsius - AIR_C) / ABOVE_AIR_C).clamp(0.0, 1.0);
            let change = above_air * (context.recent_share - self.share_then) / most;
            self.unanswered_s += context.dt_s * (change - self.unanswered_s / FORGETS_S);
            // An idle card at a steady low temperature cannot get cooler, and this sensor requires no pause.
            if celsius <= resume_c {
                self.unanswered_s = self.unanswered_s.max(0.0);
            }
        }
        if self.same_s <= SIBLING_S {
            self.means_then = context.means;
            self.means_then[self.sensor as usize] = None;
        }
    }

    fn is_stuck(&self, context: &Context) -> bool {
        let moved = |(then, now): (&Option<f64>, &Option<f64>)| match (then, now) {
            (Some(then), Some(now)) => (now - then).abs() >= SIBLING_C,
            _ => false,
        };
        let sibling_moved = self.means_then.iter().zip(&context.means).any(moved);
        let still = self.still_s > CYCLES_SAMPLES * context.dt_s + CYCLES * context.cycle_s;
        self.unanswered_s.abs() > STUCK_S + 2.0 * context.batch_s || sibling_moved || still
    }
    /// Whether work and pauses are long enough that the sensor must follow each of them.
    fn swings(&self, context: &Context) -> bool {
        self.sensor != Sensor::Memory && context.batch_s.min(context.rest_s) >= SHORTEST_S
    }
}
