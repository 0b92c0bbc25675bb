//! Rules that hold for any sequence of readings, and examples of each kind of reading.

use plimsoll_heat::{Band, Guard, Limits, NoteKind, Order, PowerRange, Reading, Sensor, Settings, Thresholds};
use plimsoll_units::Seconds;
use proptest::prelude::*;

fn limits() -> Limits {
    Limits::new(&Settings::default(), &Thresholds::default()).expect("the defaults are valid")
}

fn core(celsius: f64) -> Reading {
    Reading { core_c: Some(celsius), throttling: Some(false), ..Reading::default() }
}

/// Runs a guard of one card on these temperatures, one per second. Returns the guard, its last order and all notes.
fn run(temperatures: impl IntoIterator<Item = f64>) -> (Guard, Order, Vec<NoteKind>) {
    run_readings(temperatures.into_iter().map(core))
}

fn run_readings(readings: impl IntoIterator<Item = Reading>) -> (Guard, Order, Vec<NoteKind>) {
    let mut guard = Guard::new(&[limits()]);
    let mut order = Order::Run;
    for (second, reading) in readings.into_iter().enumerate() {
        order = guard.observe(Seconds(second as f64), &[reading]);
    }
    let notes = guard.take_notes().into_iter().map(|note| note.what).collect();
    (guard, order, notes)
}

/// A nearly constant temperature for this many seconds: working sensors always fluctuate a little.
fn about(celsius: f64, seconds: usize) -> impl Iterator<Item = f64> {
    (0..seconds).map(move |second| celsius + 0.1 * (second % 3) as f64)
}

fn count(notes: &[NoteKind], kind: impl Fn(&NoteKind) -> bool) -> usize {
    notes.iter().filter(|what| kind(what)).count()
}

#[test]
fn a_cool_card_runs_at_full_speed_without_notes() {
    let (_, order, notes) = run(about(60.0, 1000));
    assert_eq!(order, Order::Run);
    assert_eq!(notes, []);
}

#[test]
fn a_card_at_its_throttle_temperature_is_slowed_once() {
    let (_, order, notes) = run(about(60.0, 100).chain(about(78.0, 300)));
    assert!(matches!(order, Order::Slow(_)), "{order:?}");
    assert_eq!(count(&notes, |w| matches!(w, NoteKind::Slows { sensor: Sensor::Core, throttle_c: 78.0, .. })), 1);
    assert_eq!(count(&notes, |w| matches!(w, NoteKind::Band { to: Band::Hot, .. })), 1);
}

#[test]
fn hysteresis_keeps_a_card_slowed_until_it_is_below_the_resume_temperature() {
    let between = about(60.0, 100).chain(about(79.0, 60)).chain(about(72.0, 20_000));
    let (mut guard, order, notes) = run(between);
    assert!(matches!(order, Order::Slow(duty) if duty.share() > 0.98), "{order:?}");
    assert_eq!(count(&notes, |w| matches!(w, NoteKind::Resumes { .. })), 0);
    let resumed = about(65.0, 100)
        .enumerate()
        .any(|(second, celsius)| guard.observe(Seconds(30_000.0 + second as f64), &[core(celsius)]) == Order::Run);
    assert!(resumed, "below the resume temperature at full duty");
    let notes = guard.take_notes();
    assert_eq!(notes.iter().filter(|n| matches!(n.what, NoteKind::Resumes { .. })).count(), 1);
}

#[test]
fn hours_below_the_held_temperature_do_not_wind_up_the_duty() {
    let (_, order, _) = run(about(79.0, 60).chain(about(74.0, 20_000)).chain(about(79.5, 120)));
    assert!(matches!(order, Order::Slow(duty) if duty.share() < 0.95), "{order:?}");
}

#[test]
fn one_sample_above_the_maximum_pauses_and_two_stop() {
    let (mut guard, order, _) = run(about(77.0, 60).chain([84.0]));
    assert_eq!(order, Order::Pause);
    let stopped = guard.clone().observe(Seconds(61.0), &[core(85.0)]);
    assert!(matches!(stopped, Order::Stop { why } if why.celsius == 85.0 && why.max_c == 83.0), "{stopped:?}");
    assert!(!matches!(guard.observe(Seconds(61.0), &[core(76.0)]), Order::Stop { .. }));
    assert!(!matches!(guard.observe(Seconds(62.0), &[core(84.0)]), Order::Stop { .. }), "not in a row");
}

#[test]
fn a_silent_sample_between_two_above_the_maximum_does_not_hide_them() {
    let readings = about(77.0, 60).map(core).chain([core(84.0), Reading::default(), core(84.0)]);
    let (_, order, _) = run_readings(readings);
    assert!(matches!(order, Order::Stop { .. }), "{order:?}");
}

#[test]
fn each_sensor_has_its_own_maximum() {
    let hot_memory = |celsius| Reading { memory_c: Some(celsius), ..core(60.0) };
    let (_, order, _) = run_readings([hot_memory(90.0), hot_memory(90.0), hot_memory(91.0)]);
    assert_eq!(order, Order::Run, "memory may be hotter than the die");
    let (_, order, _) = run_readings([hot_memory(90.0), hot_memory(101.0), hot_memory(101.0)]);
    assert!(matches!(order, Order::Stop { why } if why.sensor == Sensor::Memory && why.max_c == 100.0), "{order:?}");
    let hot_spot = |celsius| Reading { hotspot_c: Some(celsius), ..core(70.0) };
    let (_, order, _) = run_readings([hot_spot(90.0), hot_spot(104.0), hot_spot(104.0)]);
    assert!(matches!(order, Order::Stop { why } if why.sensor == Sensor::Hotspot && why.max_c == 103.0), "{order:?}");
}

#[test]
fn the_hottest_card_determines_the_order() {
    let mut guard = Guard::new(&[limits(), limits()]);
    let mut order = Order::Run;
    for second in 0..60 {
        order = guard.observe(Seconds(f64::from(second)), &[core(50.0), core(78.5 + 0.1 * f64::from(second % 3))]);
    }
    assert!(matches!(order, Order::Slow(_)), "{order:?}");
    let slows = guard.take_notes().into_iter().filter(|n| matches!(n.what, NoteKind::Slows { .. })).map(|n| n.card);
    assert_eq!(slows.collect::<Vec<_>>(), [1]);
    guard.observe(Seconds(60.0), &[core(50.0), core(84.0)]);
    let order = guard.observe(Seconds(61.0), &[core(50.0), core(84.0)]);
    assert!(matches!(order, Order::Stop { why } if why.card == 1), "{order:?}");
}

#[test]
fn a_lost_sensor_is_noted_once_and_the_run_continues_at_a_safe_duty() {
    let silent = std::iter::repeat_n(Reading { throttling: Some(false), ..Reading::default() }, 300);
    let (mut guard, order, notes) = run_readings(about(70.0, 600).map(core).chain(silent));
    assert!(matches!(order, Order::Slow(duty) if duty.share() <= 0.5), "{order:?}");
    assert_eq!(count(&notes, |w| matches!(w, NoteKind::SensorLost { sensor: Sensor::Core, .. })), 1);
    assert_eq!(count(&notes, |w| matches!(w, NoteKind::Blind { .. })), 1);
    let back = about(66.0, 60).enumerate().map(|(n, c)| guard.observe(Seconds(900.0 + n as f64), &[core(c)])).last();
    assert_eq!(back, Some(Order::Run));
    assert_eq!(guard.take_notes().iter().filter(|n| matches!(n.what, NoteKind::SensorBack { .. })).count(), 1);
}

#[test]
fn a_rising_temperature_is_extrapolated_while_its_sensor_is_briefly_silent() {
    let rising = |seconds: usize| (0..seconds).map(|s| core(60.0 + 0.3 * s as f64));
    let slowed = (0..80).find(|s| run_readings(rising(*s)).1 != Order::Run).expect("78 °C are hot");
    let (mut guard, order, _) = run_readings(rising(slowed - 3));
    assert_eq!(order, Order::Run);
    let silent = (0..4).map(|s| guard.observe(Seconds((slowed - 3 + s) as f64), &[Reading::default()])).last();
    assert!(matches!(silent, Some(Order::Slow(_))), "{silent:?}");
    assert!(!guard.take_notes().iter().any(|n| matches!(n.what, NoteKind::SensorLost { .. })));
}

#[test]
fn a_card_limited_by_another_does_not_wind_up() {
    let mut guard = Guard::new(&[limits(), limits()]);
    let parts = [(100, 79.0, 79.0), (1800, 79.5, 76.0), (600, 60.0, 77.9)];
    let mut time = 0.0;
    let mut order = Order::Run;
    for (seconds, first, second) in parts {
        for (first, second) in about(first, seconds).zip(about(second, seconds)) {
            time += 1.0;
            order = guard.observe(Seconds(time), &[core(first), core(second)]);
        }
    }
    assert!(matches!(order, Order::Slow(duty) if duty.share() < 0.85), "{order:?}");
}

#[test]
fn an_implausible_temperature_counts_as_missing() {
    for absurd in [f64::NAN, f64::INFINITY, -40.0, 0.0, 127.0, 255.0] {
        let readings = about(70.0, 600).chain(std::iter::repeat_n(absurd, 60)).map(core);
        let (_, order, notes) = run_readings(readings);
        assert!(matches!(order, Order::Slow(_)), "{absurd}: {order:?}");
        assert_eq!(count(&notes, |w| matches!(w, NoteKind::SensorLost { .. })), 1, "{absurd}");
    }
}

#[test]
fn a_sensor_that_suddenly_reads_low_is_not_trusted() {
    let (_, order, notes) = run(about(77.0, 600).chain(std::iter::repeat_n(20.0, 2000)));
    assert!(matches!(order, Order::Slow(duty) if duty.share() <= 0.5), "{order:?}");
    assert_eq!(count(&notes, |w| matches!(w, NoteKind::SensorBack { .. })), 0);
}

#[test]
fn without_a_die_sensor_the_other_sensors_give_an_estimate() {
    let both = |celsius: f64| Reading { memory_c: Some(celsius + 6.0), ..core(celsius) };
    let memory = |celsius: f64| Reading { core_c: None, ..both(celsius) };
    let (_, order, notes) = run_readings(about(65.0, 300).map(both).chain(about(65.0, 100).map(memory)));
    assert_eq!(order, Order::Run, "cool by the estimate");
    assert_eq!(count(&notes, |w| matches!(w, NoteKind::Estimated { by: Sensor::Memory, .. })), 1);
    let hot = about(65.0, 300).map(both).chain(about(75.0, 100).map(memory));
    let (_, order, _) = run_readings(hot);
    assert!(matches!(order, Order::Slow(_)), "75 °C plus the margin: {order:?}");
}

#[test]
fn a_sensor_that_stays_constant_through_a_pause_is_stuck() {
    let (_, order, notes) = run(std::iter::repeat_n(75.0, 2000));
    assert_eq!(count(&notes, |w| matches!(w, NoteKind::SensorStuck { sensor: Sensor::Core, .. })), 1);
    assert!(matches!(order, Order::Slow(_)), "blind: {order:?}");
}

#[test]
fn a_sensor_that_stays_constant_while_another_moves_is_stuck() {
    let readings = (0..600).map(|s| Reading { hotspot_c: Some(70.0 + 0.05 * f64::from(s)), ..core(60.0) });
    let (_, _, notes) = run_readings(readings);
    assert_eq!(count(&notes, |w| matches!(w, NoteKind::SensorStuck { sensor: Sensor::Core, .. })), 1);
}

#[test]
fn a_card_that_lowers_its_own_clocks_is_slowed_whatever_its_sensors_say() {
    let throttling = |celsius| Reading { throttling: Some(true), ..core(celsius) };
    let (_, order, notes) = run_readings(about(60.0, 60).map(core).chain(about(60.0, 60).map(throttling)));
    assert!(matches!(order, Order::Slow(_)), "{order:?}");
    assert_eq!(count(&notes, |w| matches!(w, NoteKind::ThrottlesItself { .. })), 1);
    assert_eq!(
        count(&notes, |w| matches!(w, NoteKind::Slows { by_card: true, .. })),
        1,
        "the reason is the GPU's clocks, not its temperature"
    );
    let blind = std::iter::repeat_n(Reading { throttling: Some(true), ..Reading::default() }, 300);
    let (_, order, _) = run_readings(blind);
    assert_eq!(order, Order::Pause, "no sensor, and the GPU lowers its own clocks");
}

/// An idle card keeps its temperature, exactly or within noise: the pause ends, and the sensor stays trusted.
#[test]
fn a_pause_ends_at_a_steady_temperature_below_the_resume_temperature() {
    let hot = || about(70.0, 60).chain(about(82.0, 20));
    for steady in [vec![63.0; 120], about(66.0, 120).collect(), (0..120).map(|s| 60.0 + f64::from(s * 7 % 6)).collect()]
    {
        assert_eq!(run(hot()).1, Order::Pause);
        let (_, order, notes) = run(hot().chain(steady.iter().copied().take(60)));
        assert!(matches!(order, Order::Slow(_)), "{order:?} at {:?}", &steady[..6]);
        let (_, order, notes_later) = run(hot().chain(steady.iter().copied()));
        assert!(matches!(order, Order::Slow(_) | Order::Run), "{order:?} at {:?}", &steady[..6]);
        for notes in [notes, notes_later] {
            assert_eq!(
                count(&notes, |w| matches!(w, NoteKind::SensorStuck { .. } | NoteKind::Blind { .. })),
                0,
                "{notes:?}"
            );
        }
    }
    // A card that the next micro-batch would heat above the maximum waits, and its sensor stays trusted.
    let (_, order, notes) = run(about(70.0, 60).chain(about(82.8, 20)).chain([63.0; 200]));
    assert_eq!((order, count(&notes, |w| matches!(w, NoteKind::SensorStuck { .. }))), (Order::Pause, 0), "{notes:?}");
    // Above the resume temperature the card waits.
    let (_, order, _) = run(hot().chain(about(74.0, 60)));
    assert_eq!(order, Order::Pause);
}

#[test]
fn a_clock_jump_is_noted_and_changes_no_order() {
    let mut guard = Guard::new(&[limits()]);
    let times =
        (0..100).map(f64::from).chain((0..100).map(|s| f64::from(s) - 5000.0)).chain([1e9, f64::NAN, 1e9 + 1.0]);
    for (n, time) in times.enumerate() {
        assert_eq!(guard.observe(Seconds(time), &[core(60.0 + 0.1 * (n % 3) as f64)]), Order::Run, "{time}");
    }
    let jumps = guard.take_notes().into_iter().filter(|n| matches!(n.what, NoteKind::ClockJumped { .. })).count();
    assert_eq!(jumps, 2);
    guard.observe(Seconds(1e9 + 1.0), &[core(84.0)]);
    let order = guard.observe(Seconds(1e9 + 1.0), &[core(84.0)]);
    assert!(matches!(order, Order::Stop { .. }), "the guard detects heat although the clock stands still");
}

#[test]
fn a_long_micro_batch_is_slowed_earlier() {
    let rising = || (0..300).map(|s| 60.0 + 0.1 * f64::from(s));
    let slowed_at = |batch_s: f64| {
        let mut guard = Guard::new(&[limits()]);
        guard.micro_batch(Seconds(batch_s));
        rising().enumerate().find(|(s, c)| guard.observe(Seconds(*s as f64), &[core(*c)]) != Order::Run).map(|x| x.1)
    };
    let (short, long) = (slowed_at(0.1).expect("hot"), slowed_at(30.0).expect("hot"));
    assert!(long < short - 2.0, "{long} and {short} °C");
}

#[test]
fn a_duty_gives_the_pause_after_a_micro_batch() {
    let (_, order, _) = run(about(79.0, 60));
    let Order::Slow(duty) = order else { panic!("{order:?}") };
    let wait = duty.pause_after(Seconds(2.0)).0;
    assert!((2.0 / (2.0 + wait) - duty.share()).abs() < 1e-12);
}

/// A card with a power limit: the limit falls first, pauses follow at the lowest limit, and both are undone when the
/// card has cooled.
#[test]
fn the_power_limit_is_lowered_before_pauses_are_used() {
    let range = PowerRange { least_w: 100.0, most_w: 200.0 };
    let mut guard = Guard::new(&[limits()]).with_power(&[Some(range)]);
    let mut orders = vec![];
    for (second, celsius) in about(60.0, 100).chain(about(79.0, 1200)).chain(about(60.0, 4000)).enumerate() {
        let reading = Reading { power_w: Some(190.0), ..core(celsius) };
        orders.push((guard.observe(Seconds(second as f64), &[reading]), guard.power_limit_w(0).expect("a limit")));
    }
    assert_eq!(orders[99], (Order::Run, 200.0));
    let lowered = orders.iter().position(|(_, limit)| *limit < 200.0).expect("a lowered limit");
    assert_eq!(orders[lowered].0, Order::Run, "pauses come later");
    assert!(matches!(orders[1299], (Order::Slow(_), 100.0)), "{:?}", orders[1299]);
    assert_eq!(orders.last(), Some(&(Order::Run, 200.0)));
    let notes = guard.take_notes().into_iter().map(|note| note.what).collect::<Vec<_>>();
    assert_eq!(count(&notes, |w| matches!(w, NoteKind::LimitsPower { .. })), 1);
    assert_eq!(count(&notes, |w| matches!(w, NoteKind::Slows { .. })), 1);
    guard.lose_power(0);
    assert_eq!(guard.power_limit_w(0), None);
}

fn any_celsius() -> impl Strategy<Value = Option<f64>> {
    prop_oneof![
        1 => Just(None),
        8 => (40.0..86.0f64).prop_map(Some),
        4 => (70.0..82.0f64).prop_map(|c| Some(c.round())),
        1 => prop_oneof![Just(f64::NAN), Just(f64::NEG_INFINITY), Just(-40.0), Just(0.0), Just(255.0), Just(f64::MAX)]
            .prop_map(Some),
    ]
}

fn any_reading() -> impl Strategy<Value = Reading> {
    (any_celsius(), any_celsius(), any_celsius(), any::<Option<bool>>(), any::<Option<f64>>()).prop_map(
        |(core_c, memory_c, hotspot_c, throttling, power_w)| Reading {
            core_c,
            memory_c,
            hotspot_c,
            throttling,
            power_w,
        },
    )
}

fn any_step() -> impl Strategy<Value = f64> {
    prop_oneof![8 => 0.2..10.0f64, 1 => Just(0.0), 1 => -1e6..1e6f64, 1 => Just(f64::NAN)]
}

proptest! {
    #[test]
    fn nothing_panics_and_stop_is_final(
        samples in prop::collection::vec((any_step(), prop::collection::vec(any_reading(), 0..4)), 0..200),
        batch_s in prop_oneof![0.05..30.0f64, Just(f64::NAN), Just(-1.0), Just(1e300)],
    ) {
        let range = PowerRange { least_w: 100.0, most_w: 170.0 };
        let mut guard = Guard::new(&[limits(), limits()]).with_power(&[None, Some(range)]);
        guard.micro_batch(Seconds(batch_s));
        let mut time = 0.0;
        let mut stopped = None;
        for (step, readings) in samples {
            time += step;
            let order = guard.observe(Seconds(time), &readings);
            prop_assert_eq!(guard.power_limit_w(0), None);
            let limit_w = guard.power_limit_w(1).expect("a limit");
            prop_assert!((100.0..=170.0).contains(&limit_w), "{}", limit_w);
            if let Some(stopped) = stopped {
                prop_assert_eq!(order, stopped);
            }
            if let Order::Slow(duty) = order {
                prop_assert!(duty.share() > 0.0 && duty.share() < 1.0);
            }
            if matches!(order, Order::Stop { .. }) {
                stopped = Some(order);
            }
        }
    }

    /// From the same state, a hotter sample never gives a faster order. Both samples are within the range of a die's
    /// change in a second, and neither repeats the last one: silent, wrong and stuck sensors follow other rules.
    #[test]
    fn a_hotter_sample_never_gives_a_faster_order(
        start in 50.0..76.0f64,
        walk in prop::collection::vec(-1.5..1.7f64, 0..150),
        lower in -9.0..9.0f64,
        hotter in 0.01..12.0f64,
        batch_s in 0.05..30.0f64,
    ) {
        let mut guard = Guard::new(&[limits()]);
        guard.micro_batch(Seconds(batch_s));
        let mut celsius = start;
        let mut time = 0.0;
        for step in walk {
            celsius = (celsius + step).min(82.0);
            time += 1.0;
            guard.observe(Seconds(time), &[core(celsius)]);
        }
        let low = guard.clone().observe(Seconds(time + 1.0), &[core(celsius + lower)]);
        let high = guard.observe(Seconds(time + 1.0), &[core(celsius + lower + hotter)]);
        let stops = |order: &Order| matches!(order, Order::Stop { .. });
        prop_assert!(high.share() <= low.share() && (stops(&high) || !stops(&low)), "{:?} {:?}", low, high);
    }

    /// Between the resume and the throttle temperature, slowing neither begins nor ends.
    #[test]
    fn between_resume_and_throttle_slowing_neither_begins_nor_ends(
        walk in prop::collection::vec(71.0..75.0f64, 100..2000),
        was_hot in any::<bool>(),
    ) {
        let before = about(if was_hot { 79.0 } else { 72.0 }, 60);
        // As slow as real coolers: the guard predicts that a faster walk crosses a limit.
        let mut smooth = 73.0;
        let walk = walk.into_iter().map(move |c| { smooth += 0.02 * (c - smooth); smooth });
        let (_, order, notes) = run(before.chain(walk));
        prop_assert_eq!(count(&notes, |w| matches!(w, NoteKind::Slows { .. })), usize::from(was_hot));
        prop_assert_eq!(count(&notes, |w| matches!(w, NoteKind::Resumes { .. })), 0);
        prop_assert_eq!(order == Order::Run, !was_hot);
    }
}
