//! Limits of cards: the settings, the cards' thresholds, and rejected values.

use plimsoll_heat::{Band, LimitSource, Limits, LimitsError, Settings, Span, Thresholds};

fn limits(card: Thresholds) -> Limits {
    Limits::new(&Settings::default(), &card).expect("the defaults are valid")
}

#[test]
fn a_card_without_thresholds_uses_the_settings() {
    let limits = limits(Thresholds::default());
    assert_eq!(limits.core, Span { resume_c: 70.0, throttle_c: 78.0, max_c: 83.0 });
    assert_eq!(limits.memory, Span { resume_c: 87.0, throttle_c: 95.0, max_c: 100.0 });
    assert_eq!(limits.hotspot, Span { resume_c: 90.0, throttle_c: 98.0, max_c: 103.0 });
    assert_eq!((limits.core_from, limits.memory_from), (LimitSource::Setting, LimitSource::Setting));
}

#[test]
fn the_maximum_is_never_above_the_cards_thresholds() {
    let slow = limits(Thresholds { slowdown_c: Some(80.0), shutdown_c: Some(95.0), ..Thresholds::default() });
    assert_eq!(slow.core, Span { resume_c: 65.0, throttle_c: 73.0, max_c: 78.0 });
    assert_eq!(slow.core_from, LimitSource::Slowdown(80.0));
    let shut = limits(Thresholds { shutdown_c: Some(85.0), ..Thresholds::default() });
    assert_eq!((shut.core.max_c, shut.core_from), (78.0, LimitSource::Shutdown(85.0)));
    let memory = limits(Thresholds { memory_slowdown_c: Some(95.0), ..Thresholds::default() });
    assert_eq!((memory.memory.max_c, memory.memory_from), (93.0, LimitSource::Slowdown(95.0)));
    let tolerant = limits(Thresholds { slowdown_c: Some(97.0), shutdown_c: Some(102.0), ..Thresholds::default() });
    assert_eq!((tolerant.core.max_c, tolerant.core_from), (83.0, LimitSource::Setting));
}

#[test]
fn implausible_thresholds_are_ignored() {
    for absurd in [f64::NAN, f64::NEG_INFINITY, -1.0, 0.0, 255.0] {
        let card = Thresholds { slowdown_c: Some(absurd), shutdown_c: Some(absurd), memory_slowdown_c: Some(absurd) };
        assert_eq!(limits(card), limits(Thresholds::default()), "{absurd}");
    }
}

#[test]
fn settings_out_of_range_or_order_are_rejected_with_their_values() {
    let rejection =
        |settings: Settings| Limits::new(&settings, &Thresholds::default()).expect_err("rejected").to_string();
    let settings = Settings::default();
    assert_eq!(
        rejection(Settings { max_c: 200.0, ..settings }),
        "the maximum temperature of 200 °C is not between 30 and 120 °C"
    );
    assert_eq!(
        rejection(Settings { throttle_c: 83.0, ..settings }),
        "the throttle temperature of 83 °C must be at least 1 °C below the maximum temperature of 83 °C"
    );
    assert_eq!(
        rejection(Settings { resume_c: 79.0, ..settings }),
        "the resume temperature of 79 °C must be at least 1 °C below the throttle temperature of 78 °C"
    );
    for absurd in [f64::NAN, f64::INFINITY, 0.0] {
        let settings = Settings { memory_max_c: absurd, ..settings };
        assert!(matches!(
            Limits::new(&settings, &Thresholds::default()),
            Err(LimitsError::OutOfRange { what: "maximum memory temperature", .. })
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
