//! The sensors of the card under test: samples become an order for the work, and readings for the verdicts.

use crate::findings::Readings;
use crate::verdict::SUSTAINED;
use plimsoll_heat::{Order, Settings};
use plimsoll_session::{Guarded, HeatMessage};
use plimsoll_telemetry::{CardSample, Sample, Sampler, SamplerOptions};
use plimsoll_units::{Bytes, Seconds};
use std::collections::VecDeque;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// A pause looks this often whether the run is to stop.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// How a card is watched.
#[derive(Clone)]
pub struct WatchSettings {
    /// Its UUID.
    pub uuid: String,
    /// Time between two samples.
    pub every: Duration,
    /// Limits that `plimsoll_heat::Limits` accepts.
    pub heat: Settings,
    /// Receives messages about heat.
    pub messages: Arc<dyn Fn(HeatMessage) + Send + Sync>,
}

/// The state that the sampling thread and the workloads share.
#[derive(Default)]
struct State {
    order: Option<(Order, Instant)>,
    /// The longest turn since the last sample.
    busy: Option<Duration>,
    held_back: Duration,
    collected: Collected,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Watches until it is dropped.
pub(crate) struct Watch {
    shared: Arc<Shared>,
    sampler: Option<Sampler>,
    stale: Duration,
}

impl Watch {
    /// Watches a card, or nothing. Errors: the system refuses the thread that samples.
    pub(crate) fn start(settings: Option<&WatchSettings>) -> io::Result<Self> {
        let shared = Arc::<Shared>::default();
        let Some(settings) = settings else { return Ok(Self { shared, sampler: None, stale: Duration::MAX }) };
        let (theirs, settings, began) = (shared.clone(), settings.clone(), Instant::now());
        let mut guarded = Guarded::new([settings.uuid.clone()], settings.heat, "the test ends");
        let every = settings.every;
        let each = move |sample: &Arc<Sample>| {
            let now = Seconds(began.elapsed().as_secs_f64());
            if let Some(busy) = theirs.lock().busy.take() {
                guarded.guard().micro_batch(Seconds(busy.as_secs_f64()));
            }
            let (order, messages) = guarded.observe(sample, now, |_| None);
            messages.into_iter().for_each(|message| (settings.messages)(message));
            let mut state = theirs.lock();
            state.order = order.map(|order| (order, Instant::now()));
            if let Some(card) = sample.cards.iter().find(|card| card.uuid == settings.uuid) {
                state.collected.take(now, card);
            }
            theirs.changed.notify_all();
        };
        let sampler = Sampler::start(SamplerOptions { every, folder: None }, each)?;
        let stale = Duration::from_secs_f64(Order::lasts(Seconds(every.as_secs_f64())).0);
        Ok(Self { shared, sampler: Some(sampler), stale })
    }

    /// Whether the card was above its maximum.
    pub(crate) fn is_too_hot(&self) -> bool {
        matches!(self.shared.lock().order, Some((Order::Stop { .. }, _)))
    }

    /// Waits after a turn that took `busy`, so that the device works for the part `load` of the time, or less if heat requires
    /// it, at most until a time. Ends early if the run is to stop or the card is too hot. Returns whether the card may work.
    pub(crate) fn wait_after(&self, busy: Duration, load: f64, until: Instant, stop: &AtomicBool) -> bool {
        let pause = |share: f64| busy.mul_f64((1.0 - share) / share);
        let begun = Instant::now();
        let mut state = self.shared.lock();
        state.busy = Some(state.busy.map_or(busy, |longest| longest.max(busy)));
        let mut may_work = false;
        while !stop.load(Ordering::Relaxed) {
            let heat = match state.order {
                Some((Order::Stop { .. }, _)) => break,
                Some((order, since)) if since.elapsed() < self.stale => order.share(),
                Some((order, _)) => order.stale().share(),
                None => 1.0,
            };
            let share = heat.min(load);
            may_work = share > 0.0;
            let needed = if may_work { pause(share).saturating_sub(begun.elapsed()) } else { LOOK_EVERY };
            let left = needed.min(until.saturating_duration_since(Instant::now()));
            if left.is_zero() {
                break;
            }
            let waited = self.shared.changed.wait_timeout(state, left.min(LOOK_EVERY));
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        state.held_back += begun.elapsed().saturating_sub(pause(load));
        may_work
    }

    /// Ends sampling. `None` if nothing was watched.
    pub(crate) fn finish(mut self) -> Option<Readings> {
        self.sampler.take()?;
        let state = std::mem::take(&mut *self.shared.lock());
        Some(Readings { held_back: Seconds(state.held_back.as_secs_f64()), ..state.collected.readings() })
    }
}

/// Readings so far.
#[derive(Default)]
struct Collected {
    readings: Readings,
    /// Temperatures of the last seconds, and the lowest of the run.
    recent: VecDeque<(Seconds, f64)>,
    lowest_c: Option<f64>,
    /// Sum of power draws, and their number.
    power: (f64, u64),
    /// The first counts of corrected and uncorrected errors.
    first_ecc: Option<[u64; 2]>,
}

fn higher(most: &mut Option<f64>, value: Option<f64>) {
    *most = value.into_iter().chain(*most).max_by(f64::total_cmp);
}

impl Collected {
    fn take(&mut self, now: Seconds, card: &CardSample) {
        let Self { readings, .. } = self;
        readings.samples += 1;
        higher(&mut readings.hottest_c, card.temperature_c);
        higher(&mut readings.memory_c, card.memory_temperature_c);
        readings.power_limit_w = card.power_limit_w.or(readings.power_limit_w);
        if let Some(watts) = card.power_w {
            self.power = (self.power.0 + watts, self.power.1 + 1);
            let most = readings.power_w.map_or(watts, |[_, most]| most.max(watts));
            readings.power_w = Some([self.power.0 / self.power.1 as f64, most]);
        }
        let is_idle = card.throttling.is_some_and(|reasons| reasons.is_idle());
        if let Some(clock) = card.sm_clock_mhz.filter(|_| !is_idle) {
            let [least, most] = readings.clock_mhz.unwrap_or([clock; 2]);
            readings.clock_mhz = Some([least.min(clock), most.max(clock)]);
        }
        if let Some(reasons) = card.throttling.filter(|reasons| reasons.0 != 0 && !reasons.is_idle()) {
            match readings.throttling.iter_mut().find(|(known, _)| *known == reasons) {
                Some((_, count)) => *count += 1,
                None => readings.throttling.push((reasons, 1)),
            }
        }
        readings.xids.extend(&card.xids);
        if let (Some(used), Some(total)) = (card.used, card.total) {
            let most = readings.used.map_or(used, |[most, _]| most.max(used));
            readings.used = Some([most, total]);
        }
        self.take_ecc(card);
        if let Some(celsius) = card.temperature_c {
            self.take_temperature(now, celsius);
        }
    }

    fn take_ecc(&mut self, card: &CardSample) {
        if card.ecc_corrected.is_none() && card.ecc_uncorrected.is_none() {
            return;
        }
        let counts = [card.ecc_corrected, card.ecc_uncorrected].map(|count| count.unwrap_or(0));
        let first = *self.first_ecc.get_or_insert(counts);
        let before = self.readings.ecc.unwrap_or_default();
        // The counters start again at zero if the driver is loaded again.
        self.readings.ecc = Some([0, 1].map(|kind| before[kind].max(counts[kind].saturating_sub(first[kind]))));
    }

    fn take_temperature(&mut self, now: Seconds, celsius: f64) {
        self.lowest_c = Some(self.lowest_c.map_or(celsius, |lowest| lowest.min(celsius)));
        self.recent.push_back((now, celsius));
        // The second one is the first that is still within the time.
        while self.recent.get(1).is_some_and(|(time, _)| now.0 - time.0 >= SUSTAINED.0) {
            self.recent.pop_front();
        }
        if self.recent.front().is_some_and(|(time, _)| now.0 - time.0 >= SUSTAINED.0) {
            let lowest = self.recent.iter().map(|(_, celsius)| *celsius).min_by(f64::total_cmp);
            higher(&mut self.readings.sustained_c, lowest);
        }
    }

    fn readings(self) -> Readings {
        Readings { sustained_c: self.readings.sustained_c.or(self.lowest_c), ..self.readings }
    }
}

/// The used part of a card's memory, from two sources: the larger one.
pub(crate) fn larger_use(used: Bytes, of: Bytes, sampled: Option<[Bytes; 2]>) -> (Bytes, Bytes) {
    match sampled {
        Some([sampled, total]) if total.0 > 0 && sampled > used => (sampled, total),
        _ => (used, of),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(temperature_c: f64, ecc: [u64; 2]) -> CardSample {
        CardSample {
            temperature_c: Some(temperature_c),
            ecc_corrected: Some(ecc[0]),
            ecc_uncorrected: Some(ecc[1]),
            ..CardSample::default()
        }
    }

    #[test]
    fn a_short_peak_is_not_a_sustained_temperature() {
        let mut collected = Collected::default();
        for second in 0..60 {
            let celsius = if second == 30 { 90.0 } else { 60.0 + f64::from(second) / 10.0 };
            collected.take(Seconds(second.into()), &at(celsius, [5, 2]));
        }
        let readings = collected.readings();
        assert_eq!((readings.hottest_c, readings.sustained_c), (Some(90.0), Some(64.9)));
        assert_eq!(readings.ecc, Some([0, 0]), "errors from before the test do not count");
    }

    #[test]
    fn new_memory_errors_are_counted_from_the_first_sample() {
        let mut collected = Collected::default();
        for counts in [[5, 2], [6, 2], [6, 3], [0, 0]] {
            collected.take(Seconds(0.0), &at(50.0, counts));
        }
        assert_eq!(collected.readings().ecc, Some([1, 1]));
    }
}
