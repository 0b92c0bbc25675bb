//! One card: its sensors, how fast it may go by them, and what it falls back to without.
//! Not here: several cards, and time. Read next: `guard.rs`.

use crate::limits::{Band, Limits};
use crate::note::What;
use crate::order::{Duty, Order};
use crate::reading::{Reading, Sensor};
use crate::sensors::{Heat, Look, Sensors};
use crate::split::{PowerRange, Split};
use crate::throttle::{Change, Pace, THROTTLING_C, Throttle};
use crate::tracker::Around;
use crate::trend::{Peaks, weight};
use plimsoll_units::Seconds;

/// Samples in a row above the maximum that stop a run. One can be a glitch, and pauses it.
const TOO_HOT_SAMPLES: u32 = 2;

/// How much cooler than a band's edge a card must be, and for how long, s, to have left it: what is held at an edge
/// is now above and now below.
const BAND_C: f64 = 2.0;
const BAND_S: f64 = 300.0;

/// How long a card that lowered its own clocks must not do so, s, until it begins to again.
const QUIET_S: f64 = 60.0;

/// How long a sensor may say exactly the same, s, until a short pause shows whether it still follows, while its
/// card is at least warm, or cool. Sensors of working cards seldom stay the same for minutes.
const SAME_WARM_S: f64 = 1800.0;
const SAME_COOL_S: f64 = 3600.0;

/// How long that pause lasts at most, s, besides two samples and a micro-batch and a half. Dies cool by degrees in a
/// second, memory in ten.
const PROBE_S: f64 = 20.0;

/// How long a card takes after it to be as warm as before, s.
const SETTLE_S: f64 = 15.0;

/// The duty without sensors: this part of the duty of the last twenty minutes, at most so much.
const BLIND_OF_USUAL: f64 = 0.6;
const BLIND_MOST: f64 = 0.5;
const USUAL_S: f64 = 1200.0;

/// Time over which the recent duty is taken, s.
const RECENT_S: f64 = 60.0;

/// How fast a duty without sensors falls while the card lowers its own clocks, and how slowly it comes back, s.
const BLIND_FALLS_S: f64 = 20.0;
const BLIND_RISES_S: f64 = 300.0;

/// How long the die may be unseen, s or samples, before the card falls back.
const UNSEEN_S: f64 = 5.0;
const UNSEEN_SAMPLES: f64 = 3.5;

/// One card.
#[derive(Debug, Clone)]
pub(crate) struct Card {
    index: usize,
    limits: Limits,
    sensors: Sensors,
    throttle: Throttle,
    band: Option<Band>,
    band_peaks: Peaks,
    throttling: bool,
    quiet_s: f64,
    recent_share: f64,
    usual_share: f64,
    unseen_s: f64,
    /// The duty without sensors, while there are none: what it is, and what it returns to.
    blind: Option<(f64, f64)>,
    probe: Option<Probe>,
    /// Its power limit, if it may be lowered.
    split: Option<Split>,
    /// Whether it was told in this time of slowing that pauses are needed besides.
    pauses_told: bool,
}

/// A pause that shows whether a sensor still follows, and the time after it.
#[derive(Debug, Clone, Copy)]
enum Probe {
    Pausing { sensor: Sensor, left_s: f64 },
    Settling { left_s: f64 },
}

impl Card {
    pub(crate) fn new(index: usize, limits: Limits) -> Self {
        Self {
            index,
            limits,
            sensors: Sensors::new(),
            throttle: Throttle::new(),
            band: None,
            band_peaks: Peaks::default(),
            throttling: false,
            quiet_s: 0.0,
            recent_share: 1.0,
            usual_share: 1.0,
            unseen_s: 0.0,
            blind: None,
            probe: None,
            split: None,
            pauses_told: false,
        }
    }

    /// Lets its power limit be lowered; none: no longer.
    pub(crate) fn set_power(&mut self, range: Option<PowerRange>) {
        self.split = range.map(Split::new);
    }

    /// Its power limit, W, if it may be lowered.
    pub(crate) fn limit_w(&self) -> Option<f64> {
        self.split.as_ref().map(Split::limit_w)
    }

    /// The part of its heat that it makes while it computes.
    pub(crate) fn cap(&self) -> f64 {
        self.split.as_ref().map_or(1.0, Split::cap)
    }

    /// Whether it pauses for a moment, or has just paused, to see whether a sensor follows.
    pub(crate) fn is_probing(&self) -> bool {
        self.probe.is_some()
    }

    /// Forgets what temperatures did, as after a gap in time.
    pub(crate) fn forget(&mut self) {
        self.throttle.forget();
        self.band_peaks.clear();
    }

    /// What a sample asks for: the card's power limit is moved, and what is left to the run's pace is returned.
    pub(crate) fn observe(&mut self, reading: &Reading, pace: &Pace, tell: &mut impl FnMut(What)) -> Order {
        if let Some(split) = &mut self.split {
            split.look(reading.power_w, pace.duty_of(pace.share), pace.dt_s);
        }
        let order = self.by_sensors(reading, pace, tell);
        let Some(split) = &mut self.split else { return order };
        split.carry_out(order, pace.dt_s)
    }

    /// What a sample asks for, as a part of the card's heat.
    fn by_sensors(&mut self, reading: &Reading, pace: &Pace, tell: &mut impl FnMut(What)) -> Order {
        let Pace { dt_s, share, .. } = *pace;
        self.usual_share += weight(dt_s, USUAL_S) * (share - self.usual_share);
        if !pace.probing {
            self.recent_share += weight(dt_s, RECENT_S) * (share - self.recent_share);
        }
        let around = Around::new(pace, self.recent_share, self.sensors.means());
        let look = self.sensors.look(self.index, reading, &self.limits, &around, tell);
        self.tell_throttling(reading, look.heat.map(|h| h.celsius), dt_s, tell);
        if let Some((why, times)) = look.too_hot {
            if times >= TOO_HOT_SAMPLES {
                tell(What::Stops(why));
                return Order::Stop { why };
            }
            return Order::Pause;
        }
        let blind = self.fall_back(&look, reading, dt_s, tell);
        let seen = look.heat.map(|heat| self.by_heat(heat, reading, pace, tell));
        match (seen, blind) {
            (Some(seen), Some(blind)) => seen.stricter(blind),
            (Some(order), None) | (None, Some(order)) => order,
            // Unseen for a moment: as before.
            (None, None) => order_of(self.throttle.share()),
        }
    }

    /// The order by the sensor that is nearest to its limit.
    fn by_heat(&mut self, heat: Heat, reading: &Reading, pace: &Pace, tell: &mut impl FnMut(What)) -> Order {
        self.tell_band(&heat, pace, tell);
        let mut felt = heat;
        if reading.throttling == Some(true) {
            felt.excess_c = felt.excess_c.max(THROTTLING_C.min(felt.room_c));
        }
        if let Some(order) = self.probe(&felt, pace, tell) {
            return order;
        }
        let span = self.limits.of(heat.sensor);
        let (sensor, celsius) = (heat.sensor, heat.celsius);
        let by_card = felt.excess_c > heat.excess_c;
        match self.throttle.step(&felt, pace) {
            Some(Change::Slows) => self.tell_slowing(&heat, by_card, tell),
            Some(Change::Pauses) => tell(What::Pauses { sensor, celsius, max_c: span.max_c, by_card }),
            None => self.tell_pauses(&heat, by_card, tell),
            Some(Change::Resumes(after_s)) => tell(What::Resumes { sensor, celsius, slowed: Seconds(after_s) }),
        }
        order_of(self.throttle.share())
    }

    /// Tells that the card is slowed: by its power limit, or by pauses.
    fn tell_slowing(&mut self, heat: &Heat, by_card: bool, tell: &mut impl FnMut(What)) {
        let Heat { sensor, celsius, .. } = *heat;
        let (throttle_c, share) = (self.limits.of(sensor).throttle_c, self.throttle.share());
        self.pauses_told = self.split.is_none();
        match &self.split {
            None => tell(What::Slows { sensor, celsius, throttle_c, by_card, duty: Duty::new(share) }),
            Some(split) => {
                let mut split = split.clone();
                split.carry_out(order_of(share), 0.0);
                tell(What::LimitsPower { sensor, celsius, throttle_c, by_card, limit_w: split.limit_w() });
            }
        }
    }

    /// Tells once in a time of slowing that its lowest power limit is not enough.
    fn tell_pauses(&mut self, heat: &Heat, by_card: bool, tell: &mut impl FnMut(What)) {
        let Heat { sensor, celsius, .. } = *heat;
        let Some(split) = self.split.as_ref().filter(|split| split.is_least() && !self.pauses_told) else { return };
        let share = self.throttle.share();
        if share > 0.0 && share < Duty::MOST * split.cap() {
            let (throttle_c, duty) = (self.limits.of(sensor).throttle_c, Duty::new(share / split.cap()));
            tell(What::Slows { sensor, celsius, throttle_c, by_card, duty });
            self.pauses_told = true;
        }
    }

    /// Pauses for a moment if a sensor has said exactly the same for long, and suspects it if that changes nothing.
    fn probe(&mut self, heat: &Heat, pace: &Pace, tell: &mut impl FnMut(What)) -> Option<Order> {
        if self.throttle.is_urgent(heat, pace) || self.throttle.is_paused() {
            self.probe = None;
            return None;
        }
        let same_s = self.sensors.same_s(heat.sensor);
        match self.probe {
            // Another card's: this one cools for a moment too, which says nothing of the duty that holds it.
            None if pace.probing => Some(order_of(self.throttle.share())),
            None => {
                let bound_s = if heat.excess_c >= -heat.depth_c { SAME_WARM_S } else { SAME_COOL_S };
                if same_s < bound_s {
                    return None;
                }
                let left_s = PROBE_S + 1.5 * pace.batch_s + 2.0 * pace.dt_s;
                self.probe = Some(Probe::Pausing { sensor: heat.sensor, left_s });
                Some(Order::Pause)
            }
            Some(Probe::Pausing { sensor, left_s }) if sensor == heat.sensor && same_s > 0.0 => {
                let left_s = left_s - pace.dt_s;
                if left_s > 0.0 {
                    self.probe = Some(Probe::Pausing { sensor, left_s });
                } else {
                    tell(self.sensors.suspect(sensor));
                    self.probe = None;
                }
                Some(Order::Pause)
            }
            Some(Probe::Pausing { .. }) => {
                self.probe = Some(Probe::Settling { left_s: SETTLE_S });
                Some(order_of(self.throttle.share()))
            }
            Some(Probe::Settling { left_s }) => {
                let left_s = left_s - pace.dt_s;
                self.probe = (left_s > 0.0).then_some(Probe::Settling { left_s });
                Some(order_of(self.throttle.share()))
            }
        }
    }

    /// The order without a sensor of the die, once it has been unseen for more than a moment.
    fn fall_back(&mut self, look: &Look, reading: &Reading, dt_s: f64, tell: &mut impl FnMut(What)) -> Option<Order> {
        if !look.die_unseen {
            self.unseen_s = 0.0;
            self.blind = None;
            return None;
        }
        self.unseen_s += dt_s;
        if self.unseen_s <= UNSEEN_S.max(UNSEEN_SAMPLES * dt_s) && self.blind.is_none() {
            return None;
        }
        let (duty, usual) = self.blind.unwrap_or_else(|| {
            let usual = (BLIND_OF_USUAL * self.usual_share).clamp(Duty::LEAST, BLIND_MOST);
            tell(What::Blind { duty: Duty::new(usual) });
            (usual, usual)
        });
        let duty = if reading.throttling == Some(true) {
            duty * (1.0 - weight(dt_s, BLIND_FALLS_S))
        } else {
            (duty + usual * dt_s / BLIND_RISES_S).min(usual)
        };
        self.blind = Some((duty, usual));
        Some(if duty < Duty::LEAST { Order::Pause } else { Order::Slow(Duty::new(duty)) })
    }

    /// Tells when the card begins to lower its own clocks; again only after a minute without.
    fn tell_throttling(&mut self, reading: &Reading, celsius: Option<f64>, dt_s: f64, tell: &mut impl FnMut(What)) {
        if reading.throttling == Some(true) {
            if !self.throttling {
                tell(What::ThrottlesItself { celsius });
            }
            self.throttling = true;
            self.quiet_s = 0.0;
        } else {
            self.quiet_s += dt_s;
            self.throttling &= self.quiet_s < QUIET_S;
        }
    }

    /// Tells when the card is in another band than before.
    fn tell_band(&mut self, heat: &Heat, pace: &Pace, tell: &mut impl FnMut(What)) {
        let (sensor, celsius) = (heat.sensor, heat.celsius);
        let span = self.limits.of(sensor);
        let cycle_s = pace.batch_s / pace.duty_of(pace.share).max(Duty::LEAST);
        let peak_c = span.throttle_c + self.band_peaks.add(celsius - span.throttle_c, pace.dt_s, BAND_S + cycle_s);
        let from = self.band.unwrap_or(Band::Normal);
        let rising = span.band(celsius);
        let falling = span.band(peak_c + BAND_C);
        let to = if rising > from { rising } else { falling.min(from) };
        if to != from {
            tell(What::Band { from, to, sensor, celsius });
        }
        self.band = Some(to);
    }
}

/// The order for a part of the time.
fn order_of(share: f64) -> Order {
    if share >= 1.0 {
        Order::Run
    } else if share <= 0.0 {
        Order::Pause
    } else {
        Order::Slow(Duty::new(share))
    }
}
