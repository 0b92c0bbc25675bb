//! Limits of cards: what is asked for, what cards bear, and what is refused.

use plimsoll_heat::{Band, Limits, LimitsError, Settings, Span, Taken, Thresholds};

fn limits(card: Thresholds) -> Limits {
    Limits::new(&Settings::default(), &card).expect("the defaults are limits")
}

#[test]
fn a_card_that_tells_nothing_has_the_settings() {
    let limits = limits(Thresholds::default());
    assert_eq!(limits.core, Span { resume_c: 70.0, throttle_c: 78.0, max_c: 83.0 });
    assert_eq!(limits.memory, Span { resume_c: 87.0, throttle_c: 95.0, max_c: 100.0 });
    assert_eq!(limits.hotspot, Span { resume_c: 90.0, throttle_c: 98.0, max_c: 103.0 });
    assert_eq!((limits.core_from, limits.memory_from), (Taken::Setting, Taken::Setting));
}

#[test]
fn the_maximum_is_never_above_what_the_card_bears() {
    let slow = limits(Thresholds { slowdown_c: Some(80.0), shutdown_c: Some(95.0), ..Thresholds::default() });
    assert_eq!(slow.core, Span { resume_c: 65.0, throttle_c: 73.0, max_c: 78.0 });
    assert_eq!(slow.core_from, Taken::Slowdown(80.0));
    let shut = limits(Thresholds { shutdown_c: Some(85.0), ..Thresholds::default() });
    assert_eq!((shut.core.max_c, shut.core_from), (78.0, Taken::Shutdown(85.0)));
    let memory = limits(Thresholds { memory_slowdown_c: Some(95.0), ..Thresholds::default() });
    assert_eq!((memory.memory.max_c, memory.memory_from), (93.0, Taken::Slowdown(95.0)));
    let bears_more = limits(Thresholds { slowdown_c: Some(97.0), shutdown_c: Some(102.0), ..Thresholds::default() });
    assert_eq!((bears_more.core.max_c, bears_more.core_from), (83.0, Taken::Setting));
}

#[test]
fn thresholds_that_can_be_no_temperatures_are_ignored() {
    for absurd in [f64::NAN, f64::NEG_INFINITY, -1.0, 0.0, 255.0] {
        let card = Thresholds { slowdown_c: Some(absurd), shutdown_c: Some(absurd), memory_slowdown_c: Some(absurd) };
        assert_eq!(limits(card), limits(Thresholds::default()), "{absurd}");
    }
}

#[test]
fn settings_out_of_range_or_order_are_refused_with_their_figures() {
    let refused = |settings: Settings| Limits::new(&settings, &Thresholds::default()).expect_err("refused").to_string();
    let settings = Settings::default();
    assert_eq!(
        refused(Settings { max_c: 200.0, ..settings }),
        "the maximum temperature of 200 °C is not between 30 and 120 °C"
    );
    assert_eq!(
        refused(Settings { throttle_c: 83.0, ..settings }),
        "the throttle temperature of 83 °C must be at least 1 °C below the maximum temperature of 83 °C"
    );
    assert_eq!(
        refused(Settings { resume_c: 79.0, ..settings }),
        "the resume temperature of 79 °C must be at least 1 °C below the throttle temperature of 78 °C"
    );
    for absurd in [f64::NAN, f64::INFINITY, 0.0] {
        let settings = Settings { memory_max_c: absurd, ..settings };
        assert!(matches!(
            Limits::new(&settings, &Thresholds::default()),
            Err(LimitsError::OutOfRange { what: "maximum temperature of the memory", .. })
        ));
    }
}

#[test]
fn bands_begin_at_their_limits() {
    let core = limits(Thresholds::default()).core;
    for (celsius, band) in [(69.9, Band::Normal), (70.0, Band::Warm), (77.9, Band::Warm), (78.0, Band::Hot)] {
        assert_eq!(core.band(celsius), band, "{celsius}");
    }
}
