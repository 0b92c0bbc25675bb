//! One card: its sensors, the duty that they allow, and the fallback without sensors.
//! Not here: combining several cards, and time. Read next: `guard.rs`.

use crate::limits::{Band, Limits};
use crate::note::NoteKind;
use crate::order::{Duty, Order};
use crate::pace::Pace;
use crate::reading::{Reading, Sensor};
use crate::sensors::{Heat, Sensors, Summary};
use crate::split::{PowerRange, Split};
use crate::throttle::{Change, THROTTLING_C, Throttle};
use crate::tracker::Context;
use crate::trend::{Peaks, weight};
use plimsoll_units::Seconds;

/// Consecutive samples above the maximum that stop a run. A single one may be a glitch, and only pauses the run.
const TOO_HOT_SAMPLES: u32 = 2;

/// How much cooler than a band's lower edge a card must be, and for how long, s, before it leaves the band: a card held
/// at an edge fluctuates around it.
const BAND_C: f64 = 2.0;
const BAND_S: f64 = 300.0;

/// How long a card must not lower its own clocks, s, before doing so again counts as a new event.
const QUIET_S: f64 = 60.0;

/// How long a sensor may report the same value, s, before a short pause tests whether it follows the load; for cards
/// that are at least warm, and for cool ones. Sensors of working cards rarely stay constant for minutes.
const SAME_WARM_S: f64 = 1800.0;
const SAME_COOL_S: f64 = 3600.0;

/// Longest duration of that pause, s, in addition to two samples and 1.5 micro-batches. Dies cool by several degrees
/// within a second, memory within ten.
const PROBE_S: f64 = 20.0;

/// How long a card takes after that pause to reach its previous temperature, s.
const SETTLE_S: f64 = 15.0;

/// The duty without sensors: this fraction of the mean duty of the last twenty minutes, up to this maximum.
const BLIND_OF_USUAL: f64 = 0.6;
const BLIND_MOST: f64 = 0.5;
const USUAL_S: f64 = 1200.0;

/// Time constant of the recent duty, s.
const RECENT_S: f64 = 60.0;

/// Time constants at which the duty without sensors falls while the card lowers its own clocks, and rises again, s.
const BLIND_FALLS_S: f64 = 20.0;
const BLIND_RISES_S: f64 = 300.0;

/// How long the die temperature may be unknown, in seconds and in samples, before the card uses the duty without
/// sensors.
const UNKNOWN_S: f64 = 5.0;
const UNKNOWN_SAMPLES: f64 = 3.5;

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
    unknown_s: f64,
    /// While no sensor is trusted: the current duty, and the duty that it returns to.
    blind: Option<(f64, f64)>,
    probe: Option<Probe>,
    /// Its power limit, if Plimsoll may lower it.
    split: Option<Split>,
    /// Whether this slowdown has already noted that pauses are needed in addition to the power limit.
    pauses_noted: bool,
}

/// A pause that tests whether a sensor follows the load, and the time after it.
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
            unknown_s: 0.0,
            blind: None,
            probe: None,
            split: None,
            pauses_noted: false,
        }
    }

    /// Allows lowering the power limit within `range`; `None` withdraws the permission.
    pub(crate) fn set_power(&mut self, range: Option<PowerRange>) {
        self.split = range.map(Split::new);
    }

    /// Its power limit, W, if Plimsoll may lower it.
    pub(crate) fn limit_w(&self) -> Option<f64> {
        self.split.as_ref().map(Split::limit_w)
    }

    /// The fraction of its full heat output that the card produces while it computes.
    pub(crate) fn cap(&self) -> f64 {
        self.split.as_ref().map_or(1.0, Split::cap)
    }

    /// Whether the card is in, or has just left, a pause that tests a sensor.
    pub(crate) fn is_probing(&self) -> bool {
        self.probe.is_some()
    }

    /// Discards the temperature history, for example after a gap in time.
    pub(crate) fn forget(&mut self) {
        self.throttle.forget();
        self.band_peaks.clear();
    }

    /// Processes a sample: adjusts the card's power limit, and returns the remaining order for the run's pace.
    pub(crate) fn observe(&mut self, reading: &Reading, pace: &Pace, emit: &mut impl FnMut(NoteKind)) -> Order {
        if let Some(split) = &mut self.split {
            split.observe_power(reading.power_w, pace.duty_of(pace.share), pace.dt_s);
        }
        let order = self.order_by_sensors(reading, pace, emit);
        let Some(split) = &mut self.split else { return order };
        split.carry_out(order, pace.dt_s)
    }

    /// The order for a sample, as a fraction of the card's heat output.
    fn order_by_sensors(&mut self, reading: &Reading, pace: &Pace, emit: &mut impl FnMut(NoteKind)) -> Order {
        let Pace { dt_s, share, .. } = *pace;
        self.usual_share += weight(dt_s, USUAL_S) * (share - self.usual_share);
        if !pace.probing {
            self.recent_share += weight(dt_s, RECENT_S) * (share - self.recent_share);
        }
        let context = Context::new(pace, self.recent_share, self.sensors.means());
        let summary = self.sensors.observe(self.index, reading, &self.limits, &context, emit);
        self.note_throttling(reading, summary.heat.map(|h| h.celsius), dt_s, emit);
        if let Some((why, times)) = summary.too_hot {
            if times >= TOO_HOT_SAMPLES {
                emit(NoteKind::Stops(why));
                return Order::Stop { why };
            }
            return Order::Pause;
        }
        let blind = self.fall_back(&summary, reading, dt_s, emit);
        let seen = summary.heat.map(|heat| self.order_by_heat(heat, reading, pace, emit));
        match (seen, blind) {
            (Some(seen), Some(blind)) => seen.stricter(blind),
            (Some(order), None) | (None, Some(order)) => order,
            // Unknown for a moment only: the previous order stays.
            (None, None) => order_of(self.throttle.share()),
        }
    }

    /// The order that follows from the sensor closest to its limit.
    fn order_by_heat(&mut self, heat: Heat, reading: &Reading, pace: &Pace, emit: &mut impl FnMut(NoteKind)) -> Order {
        self.note_band(&heat, pace, emit);
        let mut felt = heat;
        if reading.throttling == Some(true) {
            felt.excess_c = felt.excess_c.max(THROTTLING_C.min(felt.room_c));
        }
        if let Some(order) = self.probe(&felt, pace, emit) {
            return order;
        }
        let span = self.limits.of(heat.sensor);
        let (sensor, celsius) = (heat.sensor, heat.celsius);
        let by_card = felt.excess_c > heat.excess_c;
        match self.throttle.step(&felt, pace) {
            Some(Change::Slows) => self.note_slowing(&heat, by_card, emit),
            Some(Change::Pauses) => emit(NoteKind::Pauses { sensor, celsius, max_c: span.max_c, by_card }),
            None => self.note_pauses(&heat, by_card, emit),
            Some(Change::Resumes(after_s)) => emit(NoteKind::Resumes { sensor, celsius, slowed: Seconds(after_s) }),
        }
        order_of(self.throttle.share())
    }

    /// Notes that the card is slowed by its power limit or by pauses.
    fn note_slowing(&mut self, heat: &Heat, by_card: bool, emit: &mut impl FnMut(NoteKind)) {
        let Heat { sensor, celsius, .. } = *heat;
        let (throttle_c, share) = (self.limits.of(sensor).throttle_c, self.throttle.share());
        self.pauses_noted = self.split.is_none();
        match &self.split {
            None => emit(NoteKind::Slows { sensor, celsius, throttle_c, by_card, duty: Duty::new(share) }),
            Some(split) => {
                let mut split = split.clone();
                split.carry_out(order_of(share), 0.0);
                emit(NoteKind::LimitsPower { sensor, celsius, throttle_c, by_card, limit_w: split.limit_w() });
            }
        }
    }

    /// Notes once per slowdown that the lowest power limit is not enough.
    fn note_pauses(&mut self, heat: &Heat, by_card: bool, emit: &mut impl FnMut(NoteKind)) {
        let Heat { sensor, celsius, .. } = *heat;
        let Some(split) = self.split.as_ref().filter(|split| split.is_lowest() && !self.pauses_noted) else { return };
        let share = self.throttle.share();
        if share > 0.0 && share < Duty::MOST * split.cap() {
            let (throttle_c, duty) = (self.limits.of(sensor).throttle_c, Duty::new(share / split.cap()));
            emit(NoteKind::Slows { sensor, celsius, throttle_c, by_card, duty });
            self.pauses_noted = true;
        }
    }

    /// Pauses briefly if a sensor has reported the same value for too long, and stops trusting the sensor if its value
    /// stays the same during the pause.
    fn probe(&mut self, heat: &Heat, pace: &Pace, emit: &mut impl FnMut(NoteKind)) -> Option<Order> {
        if self.throttle.is_urgent(heat, pace) || self.throttle.is_paused() {
            self.probe = None;
            return None;
        }
        let same_s = self.sensors.same_s(heat.sensor);
        match self.probe {
            // Another card is being tested. The pause cools this card too, so it says nothing about the duty that holds
            // its temperature.
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
                    emit(self.sensors.suspect(sensor));
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

    /// The order without a trusted die sensor, once the die temperature has been unknown for more than a moment.
    fn fall_back(
        &mut self,
        summary: &Summary,
        reading: &Reading,
        dt_s: f64,
        emit: &mut impl FnMut(NoteKind),
    ) -> Option<Order> {
        if !summary.die_unknown {
            self.unknown_s = 0.0;
            self.blind = None;
            return None;
        }
        self.unknown_s += dt_s;
        if self.unknown_s <= UNKNOWN_S.max(UNKNOWN_SAMPLES * dt_s) && self.blind.is_none() {
            return None;
        }
        let (duty, usual) = self.blind.unwrap_or_else(|| {
            let usual = (BLIND_OF_USUAL * self.usual_share).clamp(Duty::LEAST, BLIND_MOST);
            emit(NoteKind::Blind { duty: Duty::new(usual) });
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

    /// Notes when the card begins to lower its own clocks; again only after a minute without.
    fn note_throttling(&mut self, reading: &Reading, celsius: Option<f64>, dt_s: f64, emit: &mut impl FnMut(NoteKind)) {
        if reading.throttling == Some(true) {
            if !self.throttling {
                emit(NoteKind::ThrottlesItself { celsius });
            }
            self.throttling = true;
            self.quiet_s = 0.0;
        } else {
            self.quiet_s += dt_s;
            self.throttling &= self.quiet_s < QUIET_S;
        }
    }

    /// Notes when the card enters another band.
    fn note_band(&mut self, heat: &Heat, pace: &Pace, emit: &mut impl FnMut(NoteKind)) {
        let (sensor, celsius) = (heat.sensor, heat.celsius);
        let span = self.limits.of(sensor);
        let cycle_s = pace.batch_s / pace.duty_of(pace.share).max(Duty::LEAST);
        let peak_c = span.throttle_c + self.band_peaks.add(celsius - span.throttle_c, pace.dt_s, BAND_S + cycle_s);
        let from = self.band.unwrap_or(Band::Normal);
        let rising = span.band(celsius);
        let falling = span.band(peak_c + BAND_C);
        let to = if rising > from { rising } else { falling.min(from) };
        if to != from {
            emit(NoteKind::Band { from, to, sensor, celsius });
        }
        self.band = Some(to);
    }
}

/// The order for a fraction of the time.
fn order_of(share: f64) -> Order {
    if share >= 1.0 {
        Order::Run
    } else if share <= 0.0 {
        Order::Pause
    } else {
        Order::Slow(Duty::new(share))
    }
}
