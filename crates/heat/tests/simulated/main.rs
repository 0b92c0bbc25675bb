//! A thousand simulated days of runs under a guard: cards of 50 to 600 W, hot summers, dust, failing fans and failing
//! sensors. `cargo test -p plimsoll-heat --test simulated -- --nocapture` prints the results.
//!
//! The test checks:
//! - Temperature: on all days, including those on which sensors and fans fail, no card is above its maximum for more
//!   than two samples, not counting the micro-batch in which it got there, because a micro-batch cannot be interrupted.
//!   Days are drawn so that some duty holds the cards; `reference.rs` finds that duty, and days without one are skipped
//!   and counted.
//! - Stops: a run stops only if a card got above the maximum during a micro-batch in flight.
//! - Speed: on days on which nothing changes, at least 0.97 of the best constant duty that never exceeds the throttle
//!   temperature. If the weather changes, the same relative to the best duty that is constant in each two hours.
//! - Power limits: the same with power limits, and at least 0.995 of the work done with pauses alone on each day
//!   without failing sensors, and more in the mean.
//! - Stability: on days on which nothing changes, after two hours, the duty turns by 0.05 or more at most once per
//!   hour, and stays within a range of 0.1.

mod day;
mod plant;
mod reference;
mod rng;
mod scenario;
mod sensor;
mod weather;
mod work;

use day::Outcome;
use plimsoll_heat::{Digest, NoteKind};
use plimsoll_units::Seconds;
use scenario::{Kind, Scenario};
use std::collections::BTreeMap;

const SEEDS: u64 = 1000;

/// Number of parts of a day, each with its own best duty.
const PARTS: u32 = 12;

/// A simulated day and its references.
struct DayResult {
    scenario: Scenario,
    outcome: Outcome,
    /// The same day with lowered power limits.
    limited: Outcome,
    /// The best constant share; 0 if there is none.
    best: f64,
    /// The best throughput with power limits on days on which nothing changes; else 0.
    with_power: f64,
}

fn simulate_day(seed: u64) -> DayResult {
    let scenario = Scenario::new(seed);
    let best = match scenario.kind {
        Kind::Changing => reference::best_share_by_parts(&scenario, PARTS),
        Kind::Fan => reference::best_share(&scenario, weather::DAY_S),
        _ => reference::best_share(&scenario, 0.0),
    };
    let with_power = match scenario.kind {
        Kind::Constant | Kind::Cards => reference::best_with_power(&scenario),
        _ => 0.0,
    };
    let (outcome, limited) = (day::simulate(&scenario, false), day::simulate(&scenario, true));
    DayResult { outcome, limited, scenario, best, with_power }
}

/// Simulates all days, on all cores.
fn all() -> Vec<DayResult> {
    let workers = std::thread::available_parallelism().map_or(1, |n| n.get() as u64);
    let mut days = std::thread::scope(|scope| {
        let live =
            |worker: u64| move || (worker..SEEDS).step_by(workers as usize).map(simulate_day).collect::<Vec<_>>();
        let workers = (0..workers).map(|worker| scope.spawn(live(worker))).collect::<Vec<_>>();
        workers.into_iter().flat_map(|w| w.join().expect("a simulation panicked")).collect::<Vec<_>>()
    });
    days.sort_by_key(|d| d.scenario.seed);
    days
}

#[test]
fn a_thousand_days() {
    let days = all();
    print(&days);
    let mut failed = Vec::new();
    let mut check = |day: &DayResult, holds: bool, what: &str| {
        if !holds {
            failed.push(format!("seed {}: {what}: {}", day.scenario.seed, describe(day)));
        }
    };
    for day in days.iter().filter(|d| d.best > 0.0) {
        let DayResult { scenario, outcome, best, .. } = day;
        let in_flight = outcome.above > outcome.above_after_batch;
        check(day, outcome.above_after_batch <= 2, "above the maximum");
        check(day, outcome.above <= 2 || scenario.batch_s >= 10.0, "above the maximum with a short micro-batch");
        check(day, outcome.stopped_s.is_none() || in_flight, "stopped");
        if matches!(scenario.kind, Kind::Constant | Kind::Cards | Kind::Changing) {
            check(day, outcome.share >= 0.97 * best, "slower than the best constant duty");
            check(day, outcome.stopped_s.is_none(), "stopped in mild weather");
        }
        if matches!(scenario.kind, Kind::Constant | Kind::Cards) {
            check(day, outcome.turns_per_h <= 1.0, "the duty oscillates");
            check(day, outcome.swing <= 0.1, "the duty swings");
            check(day, outcome.pauses == 0, "paused after the duty was steady");
        }
        if scenario.kind != Kind::Sensors {
            let lost = outcome.count(|w| matches!(w, NoteKind::SensorLost { .. } | NoteKind::Blind { .. }));
            check(day, lost == 0, "a working sensor is lost");
        }
    }
    check_limited(&days, &mut check);
    let suspected = |d: &&DayResult| d.outcome.count(|w| matches!(w, NoteKind::SensorStuck { .. })) > 0;
    let wrongly = days.iter().filter(|d| d.scenario.kind != Kind::Sensors).filter(suspected).count();
    assert!(failed.is_empty(), "{} of {SEEDS} days:\n{}", failed.len(), failed.join("\n"));
    assert!(wrongly <= 5, "working sensors count as stuck on {wrongly} days");
    let most = days.iter().map(|d| reported(&d.outcome).max(reported(&d.limited))).max();
    assert!(most <= Some(25), "{most:?} notes of a day are reported");
    let gain = |d: &DayResult| d.limited.share / d.outcome.share;
    let distrusted = days.iter().filter(|d| d.scenario.kind == Kind::Sensors && d.outcome.share > 0.0).map(gain);
    let distrusted = distrusted.collect::<Vec<_>>();
    let mean = distrusted.iter().sum::<f64>() / distrusted.len() as f64;
    assert!(mean >= 1.0, "slower with power limits where sensors fail: {mean:.3}");
    let gains = days.iter().filter(|d| d.outcome.share > 0.0 && d.outcome.share < 0.95).map(gain).collect::<Vec<_>>();
    let mean = gains.iter().sum::<f64>() / gains.len() as f64;
    println!("on {} slowed days, power limits give {mean:.3} times the throughput of pauses", gains.len());
    assert!(mean >= 1.05, "power limits gain nothing: {mean:.3}");
    let slowed = days.iter().filter(|d| d.outcome.count(|w| matches!(w, NoteKind::Slows { .. })) > 0).count();
    assert!(slowed >= 400, "only {slowed} days were hot");
    let impossible = days.iter().filter(|d| d.best == 0.0).count();
    assert!(impossible <= 20, "no duty holds the temperature on {impossible} days");
}

/// Checks the days with power limits.
fn check_limited(days: &[DayResult], check: &mut impl FnMut(&DayResult, bool, &str)) {
    for day in days.iter().filter(|d| d.best > 0.0) {
        let DayResult { scenario, outcome, limited, best, with_power } = day;
        let in_flight = limited.above > limited.above_after_batch;
        check(day, limited.above_after_batch <= 2, "above the maximum, with power limits");
        check(
            day,
            limited.above <= 2 || scenario.batch_s >= 10.0,
            "above the maximum with a short micro-batch and power limits",
        );
        check(day, limited.stopped_s.is_none() || in_flight, "stopped, with power limits");
        check(day, !limited.beyond_range, "a power limit outside of the GPU's range");
        // How soon a distrusted sensor is trusted again depends on where its card settles, so such days are checked
        // only in the mean.
        let is_compared = scenario.kind != Kind::Sensors;
        if is_compared && outcome.stopped_s.is_none() && limited.stopped_s.is_none() {
            check(day, limited.share >= 0.995 * outcome.share, "slower with power limits than without");
        }
        if matches!(scenario.kind, Kind::Constant | Kind::Cards) {
            check(day, limited.share >= 0.97 * with_power, "slower than the best constant power limit");
            check(day, limited.turns_per_h <= 1.0, "the power limit oscillates");
            check(day, limited.swing <= 0.1, "the power limit swings");
            check(day, limited.pauses == 0, "paused after the duty was steady, with power limits");
        }
        if matches!(scenario.kind, Kind::Constant | Kind::Cards | Kind::Changing) {
            check(day, limited.share >= 0.97 * best, "slower than the best constant duty, with power limits");
        }
    }
}

fn describe(day: &DayResult) -> String {
    let DayResult { scenario: s, outcome: o, best, limited: l, with_power } = day;
    format!(
        "{:?}, {} GPUs of {:.0} W, batches of {:.2} s, samples of {} s, air {:.0} °C, fault {:?}: with limits \
         {:.3}, best {with_power:.3}, {} set, {:.2} turns/h, swing {:.3}; above {} ({}), stopped {:?}; share {:.3}, best {best:.3}, above {} ({} after the batch), stopped {:?}, {:.2} turns/h, swing {:.3}, {} pauses",
        s.kind,
        s.cards.len(),
        s.cards[0].build.power_w,
        s.batch_s,
        s.sample_s,
        s.cards[0].weather.air_c,
        s.cards[0].fault,
        l.share,
        l.limits_set,
        l.turns_per_h,
        l.swing,
        l.above,
        l.above_after_batch,
        l.stopped_s,
        o.share,
        o.above,
        o.above_after_batch,
        o.stopped_s,
        o.turns_per_h,
        o.swing,
        o.pauses,
    )
}

/// Number of notes of a day that the digest reports.
fn reported(outcome: &Outcome) -> usize {
    let mut digest = Digest::default();
    outcome.timed.iter().filter(|(time_s, note)| digest.take(Seconds(*time_s), *note).is_some()).count()
}

/// Prints the distributions of the results.
fn print(days: &[DayResult]) {
    let mut by_kind: BTreeMap<Kind, Vec<&DayResult>> = BTreeMap::new();
    for day in days {
        by_kind.entry(day.scenario.kind).or_default().push(day);
    }
    println!("{:38} {:>8} {:>8} {:>8} {:>8} {:>8}", "", "least", "5 %", "median", "95 %", "most");
    for (kind, days) in by_kind {
        let hot = days.iter().filter(|d| d.outcome.share < 0.995).count();
        let held = days.iter().filter(|d| d.best > 0.0).count();
        println!("{kind:?}: {} days, {held} have a holding duty, {hot} were slowed", days.len());
        let line = |what: &str, figure: fn(&DayResult) -> f64| {
            let mut figures = days.iter().filter(|d| d.best > 0.0).map(|d| figure(d)).collect::<Vec<_>>();
            figures.sort_by(f64::total_cmp);
            let at = |part: f64| figures[((figures.len() - 1) as f64 * part).round() as usize];
            let [a, b, c, d, e] = [0.0, 0.05, 0.5, 0.95, 1.0].map(at);
            println!("  {what:36} {a:8.3} {b:8.3} {c:8.3} {d:8.3} {e:8.3}");
        };
        if kind != Kind::Fan {
            line("share / best constant share", |d| d.outcome.share / d.best);
        }
        line("samples in a row above the maximum", |d| f64::from(d.outcome.above));
        line("  after the batch in flight", |d| f64::from(d.outcome.above_after_batch));
        line("days stopped", |d| f64::from(u8::from(d.outcome.stopped_s.is_some())));
        line("turns of the duty an hour", |d| d.outcome.turns_per_h);
        line("range of the duty", |d| d.outcome.swing);
        line("pauses by heat, once steady", |d| d.outcome.pauses as f64);
        line("notes a day", |d| d.outcome.notes.len() as f64);
        line("reported notes a day", |d| reported(&d.outcome) as f64);
        line("share with power limits / without", |d| d.limited.share / d.outcome.share);
        if matches!(kind, Kind::Constant | Kind::Cards) {
            line("share / best with power limits", |d| d.limited.share / d.with_power);
        }
        line("power limits set a day", |d| f64::from(d.limited.limits_set));
        line("turns an hour with power limits", |d| d.limited.turns_per_h);
    }
}
