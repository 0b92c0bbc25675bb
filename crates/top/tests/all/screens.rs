//! Snapshots of screens at three sizes, and properties: every size and every reading is drawn.

use crate::support::{NOW_S, busy, card, cells, give, nano, press, sample, text};
use expect_test::expect_file;
use plimsoll_telemetry::{CardProcess, CardSample, Level};
use plimsoll_top::{Input, Key, Palette, Replay, State};
use plimsoll_units::Bytes;
use plimsoll_watch::{EventLine, MachineView};
use proptest::prelude::*;
use ratatui::style::Color;

#[test]
fn the_screen_at_three_sizes() {
    let state = busy(Palette::Mono);
    expect_file!["screens/80x24.txt"].assert_eq(&text(&state, 80, 24));
    expect_file!["screens/120x40.txt"].assert_eq(&text(&state, 120, 40));
    expect_file!["screens/300x60.txt"].assert_eq(&text(&state, 300, 60));
}

#[test]
fn details_help_and_questions() {
    let state = busy(Palette::Mono);
    let (run, _) = press(state.clone(), &[Key::Enter]);
    expect_file!["screens/run.txt"].assert_eq(&text(&run, 100, 30));
    let (of_card, _) = press(state.clone(), &[Key::Tab, Key::Enter]);
    expect_file!["screens/card.txt"].assert_eq(&text(&of_card, 120, 32));
    let (help, _) = press(state, &[Key::F(1)]);
    expect_file!["screens/help.txt"].assert_eq(&text(&help, 80, 24));
}

#[test]
fn a_replay_has_a_slider_and_shows_its_time() {
    let mut run = nano();
    run.last_s = Some(NOW_S);
    let state = State::replaying(Palette::Mono, Replay::new(run));
    let (state, _) = press(state, &[Key::Home]);
    let (state, actions) = press(state, &[Key::Right; 50]);
    let at_s = NOW_S - 103.0;
    assert_eq!(actions.len(), 1);
    let machine = MachineView::of([sample(at_s - 1.0, vec![card(0)]), sample(at_s, vec![card(0)])]);
    let state = give(state, Input::Machine(Box::new(machine)));
    let shown = text(&state, 80, 24);
    expect_file!["screens/replay.txt"].assert_eq(&shown);
    assert!(shown.contains("1 min 43 s of 3 min 26 s"), "{shown}");
}

/// A machine without cards shows its system and its runs.
#[test]
fn a_machine_without_cards_and_without_runs() {
    let state = State::new(Palette::Mono, 1.0, 1, false);
    let shown = text(&state, 80, 24);
    assert!(shown.contains("GPUs: no sample yet") && shown.contains("no runs found"), "{shown}");
    let state = give(state, Input::Sample(Box::new(sample(NOW_S, vec![]))));
    let mut run = nano();
    run.device = Some("cpu".to_owned());
    (run.process_uid, run.is_paused) = (Some(1_000), true);
    let state = give(state, Input::Users([(1_000, "ada".to_owned())].into()));
    let state = give(state, Input::Runs(vec![run.into()], 0));
    let shown = text(&state, 80, 24);
    assert!(shown.lines().any(|line| line.contains("4711") && line.contains("ada") && line.contains("CPU")), "{shown}");
    assert!(shown.lines().any(|line| line.contains("nano-1") && line.contains("paused")), "{shown}");
    for words in ["no NVIDIA GPU", "CPU  ", "runs 12.2 GiB", "planned 14.0 GiB", "4711", "loss 2.0342"] {
        assert!(shown.contains(words), "{words}: {shown}");
    }
}

#[test]
fn a_card_that_vanishes_is_shown_as_gone() {
    let state = give(busy(Palette::Mono), Input::Sample(Box::new(sample(NOW_S + 1.0, vec![card(1)]))));
    let shown = text(&state, 120, 40);
    assert!(shown.contains("0 RTX 4090") && shown.contains("gone: fell off"), "{shown}");
    assert!(!shown.contains("blaise"), "its processes are gone too: {shown}");
    let lost = CardSample { lost: Some("GPU is lost".to_owned()), ..card(0) };
    let state = give(state, Input::Sample(Box::new(sample(NOW_S + 2.0, vec![lost, card(1)]))));
    assert!(text(&state, 120, 40).contains("lost: GPU is lost"));
    let state = give(state, Input::Sample(Box::new(sample(NOW_S + 3.0, vec![card(0), card(1)]))));
    assert!(text(&state, 120, 40).contains("312/450 W"));
}

/// An unknown reading is a dash, never a zero.
#[test]
fn unknown_readings_are_not_zero() {
    let blank = CardSample { name: "NVIDIA Quiet".to_owned(), ..CardSample::default() };
    let state = State::new(Palette::Mono, 1.0, 1, false);
    let state = give(state, Input::Sample(Box::new(sample(NOW_S, vec![blank]))));
    let shown = text(&state, 100, 24);
    let line = shown.lines().find(|line| line.contains("Quiet")).expect("its line");
    assert!(!line.replace("0 Quiet", "").contains('0') && line.contains("fan -") && line.contains("use -"), "{line}");
    assert!(shown.lines().any(|line| line.contains("VRAM -")), "{shown}");
}

/// Names of processes, models and events are untrusted.
#[test]
fn escape_codes_and_wide_letters_break_nothing() {
    let evil = "\u{1b}]0;owned\u{7}\u{1b}[2J漢字漢字漢字漢字漢字漢字漢字漢字漢字漢字漢字漢字漢字漢字\u{202e}";
    let process = CardProcess { pid: 7, name: Some(evil.to_owned()), uid: None, used: Some(Bytes(1)), computes: true };
    let first = CardSample { processes: vec![process], lost: None, uuid: evil.to_owned(), ..card(0) };
    let state = give(busy(Palette::Color), Input::Sample(Box::new(sample(NOW_S, vec![first]))));
    for columns in [60, 61, 80, 155, 300] {
        let buffer = cells(&state, columns, 40);
        let letters = buffer.content.iter().flat_map(|cell| cell.symbol().chars());
        assert!(letters.clone().all(|letter| !letter.is_control() && letter != '\u{202e}'), "{columns}");
    }
}

#[test]
fn without_colors_every_state_is_still_distinct() {
    for (columns, rows) in [(80, 24), (120, 40), (300, 60)] {
        let buffer = cells(&busy(Palette::Mono), columns, rows);
        assert!(buffer.content.iter().all(|cell| cell.fg == Color::Reset && cell.bg == Color::Reset));
        let same = |palette| text(&busy(palette), columns, rows);
        assert_eq!(same(Palette::Mono), same(Palette::Color));
        assert_eq!(same(Palette::Mono), same(Palette::ColorBlind));
    }
    let colors = |palette| {
        let buffer = cells(&busy(palette), 120, 40);
        buffer.content.iter().map(|cell| cell.fg).collect::<std::collections::HashSet<_>>()
    };
    assert!(colors(Palette::Color).contains(&Color::Red));
    let of_color_blind = colors(Palette::ColorBlind);
    assert!(!of_color_blind.contains(&Color::Red) && !of_color_blind.contains(&Color::Green));
}

#[test]
fn a_terminal_that_is_too_small_shows_the_needed_size() {
    for (columns, rows) in [(59, 24), (80, 15), (20, 10)] {
        let shown = text(&busy(Palette::Color), columns, rows).replace('\n', " ");
        assert!(shown.contains("needs 60 columns and 16 rows"), "{shown}");
    }
}

/// Keys of all kinds, including those that cause actions.
fn keys() -> impl Strategy<Value = Vec<Key>> {
    let key = prop::sample::select(vec![
        Key::Tab,
        Key::BackTab,
        Key::Enter,
        Key::Esc,
        Key::Up,
        Key::Down,
        Key::PageUp,
        Key::PageDown,
        Key::Home,
        Key::End,
        Key::Left,
        Key::Right,
        Key::F(1),
        Key::F(6),
        Key::F(9),
        Key::Char('/'),
        Key::Char('n'),
        Key::Char('k'),
        Key::Char('y'),
        Key::Char(' '),
        Key::Char('+'),
        Key::Char('-'),
        Key::Char('漢'),
        Key::Backspace,
        Key::Char('s'),
    ]);
    prop::collection::vec(key, 0..12)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn every_size_is_drawn(columns in 1_u16..310, rows in 1_u16..70, keys in keys()) {
        let (state, _) = press(busy(Palette::Color), &keys);
        cells(&state, columns, rows);
    }

    #[test]
    fn every_reading_is_drawn(
        columns in 60_u16..200, rows in 16_u16..60, number in any::<f64>(), bytes in any::<u64>(), others in any::<u64>(),
        count in any::<u32>(), cards in 0_usize..12, keys in keys(), time_s in any::<f64>(),
    ) {
        let reading = Some(number);
        let strange = |index: usize| {
            let mut strange = card(0);
            strange.index = index as u32;
            strange.uuid = index.to_string();
            (strange.temperature_c, strange.power_w, strange.power_limit_w) = (reading, reading, reading);
            (strange.limits.slowdown_c, strange.limits.shutdown_c, strange.energy_j) = (reading, reading, reading);
            (strange.busy_percent, strange.fan_percent, strange.sm_clock_mhz) = (Some(count), Some(count), Some(count));
            (strange.total, strange.used, strange.reserved) = (Some(Bytes(bytes)), Some(Bytes(others)), Some(Bytes(bytes)));
            strange.processes[0].used = Some(Bytes(others));
            strange
        };
        let cards = (0..cards).map(strange).collect::<Vec<_>>();
        let mut run = nano();
        (run.step, run.last_step, run.planned_bytes) = (others, Some(bytes), Some(bytes));
        (run.seconds_left, run.first_s, run.last_s, run.seconds) = (reading, reading, Some(time_s), number);
        run.losses.push(count.into(), number);
        run.events.push_back(EventLine { time_s: number, level: Level::Error, text: "x".repeat(400) });
        let state = give(busy(Palette::Color), Input::Sample(Box::new(sample(time_s, cards))));
        let state = give(state, Input::Runs(vec![run.clone().into()], count as usize));
        let state = give(state, Input::Tick(number));
        let (state, _) = press(state, &keys);
        cells(&state, columns, rows);
        let (replay, _) = press(State::replaying(Palette::Color, Replay::new(run)), &keys);
        let (replay, _) = replay.handle(Input::Tick(number));
        cells(&replay, columns, rows);
    }
}
