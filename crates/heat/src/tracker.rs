//! One sensor over time: whether it speaks, whether what it says can be a temperature, and whether it follows the work
//! that the card does.
//! Not here: what sensors of a card say together. Read next: `sensors.rs`.

use crate::note::What;
use crate::reading::Sensor;
use crate::throttle::Pace;
use crate::trend::weight;
use plimsoll_units::Seconds;

/// What can be a temperature of a card that runs, °C. Sensors that are broken say -40, 127 and more, or 255.
const PLAUSIBLE_C: (f64, f64) = (-20.0, 126.0);

/// How much a sensor may fall at once, °C, as the die does within a second or two when work ends, and how much more
/// each second, °C/s, as coolers do. What falls faster is not believed.
const FALL_C: f64 = 30.0;
const FALL_C_PER_S: f64 = 0.2;

/// How long a sensor may be silent before it is lost: this many seconds, or so many samples.
const SILENCE_S: f64 = 5.0;
const SILENCE_SAMPLES: f64 = 3.5;

/// How long a sensor that was doubted must speak before it is believed again, s, and how often it must change: once is
/// how a sensor comes to lie, or sticks elsewhere.
const BACK_S: f64 = 10.0;
const LIVES: u32 = 2;

/// A sensor is stuck if it says exactly the same while the duty of the last minute is so far from what it was, for so
/// long: the integral of the relative change over time, s, which forgets with the first time constant below. What is held at
/// 78 °C in air of 30 °C is 48 °C above it, and a cooler takes 100 to 450 s to follow: 35 s are 4 to 16 °C. Of cooler
/// sensors, so much more is asked as they are nearer to the air. Slow changes are no proof, since they may be what
/// keeps the temperature the same while the air changes: what the duty was follows it with the second time constant.
const STUCK_S: f64 = 35.0;
const FORGETS_S: f64 = 1200.0;
const FOLLOWS_S: f64 = 1200.0;
const AIR_C: f64 = 30.0;
const ABOVE_AIR_C: f64 = 48.0;

/// A die's sensor is stuck, too, if it says exactly the same for two cycles of work and pause, and so many samples:
/// a die rises and falls by a tenth of its way to the air within the shortest work and pause that count.
const CYCLES: f64 = 2.0;
const CYCLES_SAMPLES: f64 = 10.0;
const SHORTEST_S: f64 = 3.0;

/// A sensor is stuck, too, if it says exactly the same while another of the card moved so far in the mean, °C, counted
/// from when the means had time to follow, s.
const SIBLING_C: f64 = 10.0;
const SIBLING_S: f64 = 180.0;

/// Time over which a sensor's mean is taken, s.
const MEAN_S: f64 = 60.0;

/// Whether a sensor is believed.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Trust {
    /// It never said anything; most cards lack some.
    Never,
    /// Yes.
    Good,
    /// It fell silent, speaks nonsense, or says the same whatever happens. Since then, it spoke so many times of another
    /// temperature than before.
    Doubted(u32),
}

/// What there is to a sensor at this moment, °C.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Said {
    /// It was read now.
    Now(f64),
    /// It was read a moment ago.
    Before(f64),
    /// It is not believed.
    Nothing,
}

/// What a sensor is judged by besides itself.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Around {
    /// Time since the last sample, s.
    dt_s: f64,
    /// Time that a micro-batch takes, s, before which no order has an effect.
    batch_s: f64,
    /// How long a micro-batch and the pause after it take together, s, and the pause alone; none while all waits.
    cycle_s: f64,
    rest_s: f64,
    /// The part of the time that the cards were allowed to compute in the last minute.
    recent_share: f64,
    /// Means of all believed sensors of the card, °C.
    means: [Option<f64>; 3],
    /// Weights of a sample in means of a minute, and of what the duty was.
    mean_weight: f64,
    follows_weight: f64,
}

impl Around {
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
    speaking_s: f64,
    same_s: f64,
    mean_c: f64,
    /// The share of the time that was computed when the value last changed; it follows slowly.
    share_then: f64,
    /// For how long it says the same while work and pauses must make it rise and fall, s.
    still_s: f64,
    /// What the other sensors' means were soon after the value last changed, °C.
    means_then: [Option<f64>; 3],
    /// The integral of the relative change of the duty since then, s.
    unanswered_s: f64,
}

impl Tracker {
    pub(crate) fn new(sensor: Sensor) -> Self {
        Self {
            sensor,
            trust: Trust::Never,
            last_c: 0.0,
            silent_s: 0.0,
            speaking_s: 0.0,
            same_s: 0.0,
            mean_c: 0.0,
            share_then: 1.0,
            still_s: 0.0,
            means_then: [None; 3],
            unanswered_s: 0.0,
        }
    }

    /// Whether it ever said a temperature.
    pub(crate) fn was_seen(&self) -> bool {
        self.trust != Trust::Never
    }

    /// Its mean over the last minute, if it is believed, °C.
    pub(crate) fn mean_c(&self) -> Option<f64> {
        (self.trust == Trust::Good).then_some(self.mean_c)
    }

    /// For how long it has said exactly the same, s.
    pub(crate) fn same_s(&self) -> f64 {
        if self.trust == Trust::Good { self.same_s } else { 0.0 }
    }

    /// It did not answer to what must have changed it.
    pub(crate) fn suspect(&mut self) -> What {
        self.trust = Trust::Doubted(0);
        What::SensorStuck { sensor: self.sensor, celsius: self.last_c, same: Seconds(self.same_s) }
    }

    /// A sample, or none. Returns what is known now, and tells when that begins or ends to be believed.
    /// `resume_c`: the temperature below which the card needs no pause.
    pub(crate) fn look(
        &mut self,
        read_c: Option<f64>,
        resume_c: f64,
        around: &Around,
        mut tell: impl FnMut(What),
    ) -> Said {
        let sensor = self.sensor;
        let Some(celsius) = read_c.filter(|c| self.can_be(*c, around.dt_s)) else {
            self.speaking_s = 0.0;
            self.silent_s += around.dt_s;
            if self.trust == Trust::Never {
                return Said::Nothing;
            }
            if self.silent_s > SILENCE_S.max(SILENCE_SAMPLES * around.dt_s) && self.trust == Trust::Good {
                tell(What::SensorLost { sensor, last_c: self.last_c });
                self.trust = Trust::Doubted(0);
            }
            return if self.trust == Trust::Good { Said::Before(self.last_c) } else { Said::Nothing };
        };
        self.silent_s = 0.0;
        self.speaking_s += around.dt_s;
        let changed = celsius != self.last_c || self.trust == Trust::Never;
        self.follow(celsius, changed, resume_c, around);
        match self.trust {
            Trust::Never => {
                self.trust = Trust::Good;
                self.mean_c = celsius;
            }
            Trust::Good if self.is_stuck(around) => tell(self.suspect()),
            Trust::Doubted(changes) => {
                let changes = changes + u32::from(changed);
                self.trust = Trust::Doubted(changes);
                if changes >= LIVES && self.speaking_s >= BACK_S {
                    self.trust = Trust::Good;
                    self.mean_c = celsius;
                    tell(What::SensorBack { sensor, celsius });
                }
            }
            _ => {}
        }
        if self.trust == Trust::Good { Said::Now(celsius) } else { Said::Nothing }
    }

    /// Whether this can be the temperature now. Exactly 0 is what a driver says that knows nothing.
    fn can_be(&self, celsius: f64, dt_s: f64) -> bool {
        let (low, high) = PLAUSIBLE_C;
        let is_temperature = (low..=high).contains(&celsius) && celsius != 0.0;
        let falls = self.last_c - celsius > FALL_C + FALL_C_PER_S * (self.silent_s + dt_s);
        is_temperature && (self.trust == Trust::Never || !falls)
    }

    /// Keeps what the sensor said, and what it should have answered to since it last changed.
    fn follow(&mut self, celsius: f64, changed: bool, resume_c: f64, around: &Around) {
        self.last_c = celsius;
        self.mean_c += around.mean_weight * (celsius - self.mean_c);
        if changed {
            self.same_s = 0.0;
            self.unanswered_s = 0.0;
            self.share_then = around.recent_share;
            self.still_s = 0.0;
        } else {
            self.still_s = if self.swings(around) { self.still_s + around.dt_s } else { 0.0 };
            self.same_s += around.dt_s;
            self.share_then += around.follows_weight * (around.recent_share - self.share_then);
            let most = around.recent_share.max(self.share_then).max(0.05);
            let above_air = ((celsius - AIR_C) / ABOVE_AIR_C).clamp(0.0, 1.0);
            let change = above_air * (around.recent_share - self.share_then) / most;
            self.unanswered_s += around.dt_s * (change - self.unanswered_s / FORGETS_S);
            // A card that idles at a steady low temperature is as cool as it gets, and it needs no pause by this sensor.
            if celsius <= resume_c {
                self.unanswered_s = self.unanswered_s.max(0.0);
            }
        }
        if self.same_s <= SIBLING_S {
            self.means_then = around.means;
            self.means_then[self.sensor as usize] = None;
        }
    }

    fn is_stuck(&self, around: &Around) -> bool {
        let moved = |(then, now): (&Option<f64>, &Option<f64>)| match (then, now) {
            (Some(then), Some(now)) => (now - then).abs() >= SIBLING_C,
            _ => false,
        };
        let sibling_moved = self.means_then.iter().zip(&around.means).any(moved);
        let still = self.still_s > CYCLES_SAMPLES * around.dt_s + CYCLES * around.cycle_s;
        self.unanswered_s.abs() > STUCK_S + 2.0 * around.batch_s || sibling_moved || still
    }
    /// Whether work and pauses are so long that the sensor must follow each.
    fn swings(&self, around: &Around) -> bool {
        self.sensor != Sensor::Memory && around.batch_s.min(around.rest_s) >= SHORTEST_S
    }
}
