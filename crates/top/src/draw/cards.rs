//! The card pane: two lines per card, and a third with the last minutes if there is room.
//!
//! ```text
//!   0 RTX 4090     63 °C ▕█████████ ┊  │  ┃ ▏ 312/450 W  2520 MHz  fan 64 %  use 98 %     ┊ slows from here  │ stops above
//!     VRAM ▕████████░░░░│▒▒▒▒      ▓▏ 12.3/24.0 GiB  planned 14.0 GiB  power limit     ┃ the card throttles
//! ```

use super::Pen;
use super::bar::{Mark, Segment, bar, sparkline};
use super::text::{NONE, product, put, put_parts, reading, size_of};
use crate::palette::Role;
use crate::state::Pane;
use plimsoll_heat::{Band, Limits, Settings, Span, Thresholds};
use plimsoll_telemetry::{CardSample, Throttling};
use plimsoll_watch::{CardView, MemoryMap, RunView, Share, Standing};
use ratatui::layout::Rect;
use ratatui::style::Style;

/// Temperatures at the ends of a bar, unless the card reports a higher limit.
const BAR_C: [f64; 2] = [20.0, 100.0];

/// The third line needs this many rows per card, and this many rows left for the other panes.
const TALL: u16 = 3;
const SPARED: u16 = 6;

/// Number of the `most` rows that the pane uses.
pub(super) fn rows(pen: &Pen, most: u16) -> u16 {
    let cards = pen.state.snapshot().machine.cards.len().min(64) as u16;
    let tall = 1 + cards * TALL;
    let wanted = if tall + SPARED <= most { tall } else { 1 + cards * 2 };
    // One line says that there is no card.
    wanted.max(1).min(most)
}

pub(super) fn draw(pen: &mut Pen, area: Rect) {
    if area.height == 0 {
        return;
    }
    let state = pen.state;
    let machine = &state.snapshot().machine;
    let has_keys = state.focus == Pane::Cards;
    let title = match (machine.latest.is_some(), machine.cards.len()) {
        (false, _) => "GPUs: no sample yet".to_owned(),
        (true, 0) => "no NVIDIA GPU".to_owned(),
        (true, _) => "GPUs".to_owned(),
    };
    pen.title(area, &title, has_keys);
    let body = Rect { y: area.y + 1, height: area.height - 1, ..area };
    let count = machine.cards.len() as u16;
    let each = if count > 0 && body.height >= count * TALL { TALL } else { 2 };
    let shown = usize::from(body.height / each);
    let keys = machine.cards.iter().map(|card| card.sample.uuid.clone()).collect::<Vec<_>>();
    let selected = state.cards.index(keys.iter()).unwrap_or(0);
    let first = (selected + 1).saturating_sub(shown);
    let runs = state.snapshot().runs.iter().map(|run| &**run).collect::<Vec<_>>();
    for (place, (number, card)) in machine.cards.iter().enumerate().skip(first).take(shown).enumerate() {
        let y = body.y + place as u16 * each;
        let line = |row: u16| Rect { y: y + row, height: 1, ..body };
        top_line(pen, line(0), card, &runs, has_keys && number == selected);
        memory_line(pen, line(1), card, &runs);
        if each == TALL {
            traces(pen, line(2), card);
        }
    }
    let hidden = machine.cards.len().saturating_sub(shown);
    if hidden > 0 {
        let quiet = pen.style(Role::Quiet);
        super::text::put_right(pen.buffer, Rect { height: 1, ..area }, &format!(" {hidden} more "), quiet);
    }
}

/// The limits of a card: its own, and those of the run on it.
fn limits(card: &CardSample, runs: &[&RunView]) -> Option<Span> {
    let thresholds = Thresholds {
        slowdown_c: card.limits.slowdown_c,
        shutdown_c: card.limits.shutdown_c,
        memory_slowdown_c: card.limits.memory_slowdown_c,
    };
    let run = runs.iter().find(|run| {
        run.standing == Standing::Running && card.processes.iter().any(|process| run.processes.contains(&process.pid))
    });
    let asked = |name: &str, usual: f64| run.and_then(|run| run.setting(name)?.parse().ok()).unwrap_or(usual);
    let usual = Settings::default();
    let settings = Settings {
        max_c: asked("max_temp", usual.max_c),
        throttle_c: asked("throttle_temp", usual.throttle_c),
        resume_c: asked("resume_temp", usual.resume_c),
        ..usual
    };
    let limits = Limits::new(&settings, &thresholds).or_else(|_| Limits::new(&usual, &thresholds));
    limits.ok().map(|limits| limits.core)
}

/// Style of a temperature between a card's limits, and a word for it.
pub(super) fn band(card: &CardSample, runs: &[&RunView]) -> Option<(Role, &'static str)> {
    let (span, celsius) = (limits(card, runs)?, card.temperature_c?);
    Some(match span.band(celsius) {
        _ if celsius > span.max_c => (Role::Bad, "too hot"),
        Band::Hot => (Role::Bad, "hot"),
        Band::Warm => (Role::Warn, "warm"),
        Band::Normal => (Role::Good, "normal"),
    })
}

fn top_line(pen: &mut Pen, area: Rect, card: &CardView, runs: &[&RunView], is_selected: bool) {
    let CardView { sample, is_there, .. } = card;
    let name_style = pen.style(if is_selected { Role::Selected } else { Role::Strong });
    let name = format!("{} {}", sample.index, product(&sample.name));
    let name_columns = (area.width / 5).clamp(14, 34);
    put(pen.buffer, area.x + 1, area.y, area.x + name_columns, &name, name_style);
    let mut x = area.x + name_columns + 1;
    let trouble = match (&sample.lost, is_there) {
        (_, false) => Some("gone: fell off the bus, or its driver does not respond".to_owned()),
        (Some(reason), true) => Some(format!("lost: {}", plimsoll_watch::clean(reason, 200))),
        (None, true) => None,
    };
    if let Some(trouble) = trouble {
        let bad = pen.style(Role::Bad);
        put(pen.buffer, x, area.y, area.right(), &trouble, bad);
        return;
    }
    let (role, word) = band(sample, runs).unwrap_or((Role::Quiet, ""));
    put(pen.buffer, x, area.y, area.right(), &format!("{:>6}", reading(sample.temperature_c, "°C")), pen.style(role));
    x += 7;
    let width = (area.width / 5).clamp(12, 50);
    temperature_bar(pen, Rect { x, width, ..area }, sample, runs, role);
    x += width + 1;
    let power = match (sample.power_w, sample.power_limit_w) {
        (Some(power), Some(limit)) => format!("{power:.0}/{limit:.0} W"),
        (power, _) => reading(power, "W"),
    };
    let percent = |name: &str, value: Option<u32>| format!("{name} {}", reading(value.map(f64::from), "%"));
    let plain = Style::new();
    let memory_c = sample.memory_temperature_c.map_or(String::new(), |celsius| format!("memory {celsius:.0} °C"));
    let pcie = sample.pcie_generation.zip(sample.pcie_lanes);
    let parts = [
        (format!("{power:>9}"), plain),
        (format!("{:>8}", reading(sample.sm_clock_mhz.map(f64::from), "MHz")), plain),
        (format!("{:>8}", percent("fan", sample.fan_percent)), plain),
        (percent("use", sample.busy_percent), pen.style(Role::Strong)),
        (if role == Role::Good { String::new() } else { word.to_owned() }, pen.style(role)),
        (memory_c, plain),
        (sample.performance_state.map_or(String::new(), |state| format!("P{state}")), plain),
        (pcie.map_or(String::new(), |(generation, lanes)| format!("PCIe {generation} x{lanes}")), plain),
    ];
    put_parts(pen.buffer, Rect { x, width: area.right() - x, ..area }, &parts);
}

/// Temperature scale up to the card's shutdown limit, with the other limits marked.
fn temperature_bar(pen: &mut Pen, area: Rect, card: &CardSample, runs: &[&RunView], role: Role) {
    let [low, high] = BAR_C;
    let high = card.limits.shutdown_c.filter(|celsius| (50.0..150.0).contains(celsius)).unwrap_or(high);
    let place = |celsius: f64| (celsius - low) / (high - low);
    let (quiet, warn, bad) = (pen.style(Role::Quiet), pen.style(Role::Warn), pen.style(Role::Bad));
    let mut marks: Vec<Mark> = vec![];
    if let Some(span) = limits(card, runs) {
        marks.extend([('┊', warn, place(span.throttle_c)), ('│', bad, place(span.max_c))]);
    }
    marks.extend(card.limits.slowdown_c.map(|celsius| ('┃', bad, place(celsius))));
    let filled = card.temperature_c.map_or(0.0, place);
    bar(pen.buffer, area, &[('█', pen.style(role), filled)], &marks, quiet);
}

/// A card's memory as segments, with the plan as a line.
pub(super) fn memory_parts(pen: &Pen, map: &MemoryMap) -> (Vec<Segment>, Vec<Mark>) {
    let total = map.total.as_f64().max(1.0);
    let parts = map.segments.iter().map(|segment| {
        let (fill, role) = match segment.share {
            Share::Ours => ('█', Role::Ours),
            Share::Planned => ('░', Role::Planned),
            Share::Others => ('▒', Role::Others),
            Share::Free => (' ', Role::Quiet),
            Share::Reserved => ('▓', Role::Quiet),
        };
        (fill, pen.style(role), segment.bytes.as_f64() / total)
    });
    let line = map.planned.map(|planned| ('│', pen.style(Role::Strong), planned.as_f64() / total));
    (parts.collect(), line.into_iter().collect())
}

fn memory_line(pen: &mut Pen, area: Rect, card: &CardView, runs: &[&RunView]) {
    if !card.is_there || card.sample.lost.is_some() {
        return;
    }
    let mut x = put(pen.buffer, area.x + 3, area.y, area.right(), "VRAM ", Style::new());
    let width = (area.width / 3).clamp(16, 120);
    // Order by cost in speed.
    let most = if area.width < 100 { 1 } else { usize::MAX };
    let words = |reasons: Throttling| reasons.words().into_iter().take(most).collect::<Vec<_>>().join(", ");
    let reasons = card.sample.throttling.map(|reasons| (words(reasons), reasons.is_trouble()));
    let (reasons, is_trouble) = reasons.unwrap_or_default();
    let why = (reasons, pen.style(if is_trouble { Role::Bad } else { Role::Quiet }));
    let Some(map) = MemoryMap::of_card(&card.sample, runs) else {
        x = put(pen.buffer, x, area.y, area.right(), NONE, Style::new()) + 2;
        put_parts(pen.buffer, Rect { x, width: area.right().saturating_sub(x), ..area }, &[why]);
        return;
    };
    let (parts, marks) = memory_parts(pen, &map);
    bar(pen.buffer, Rect { x, width, ..area }, &parts, &marks, pen.style(Role::Quiet));
    x += width + 1;
    let named = |what: &str, share: Share| match map.bytes(share) {
        bytes if bytes.0 == 0 => String::new(),
        bytes => format!("{what} {bytes}"),
    };
    let used = card.sample.used.unwrap_or_default();
    let parts = [
        (size_of(used, map.total), pen.style(Role::Strong)),
        why,
        (map.planned.map_or(String::new(), |planned| format!("planned {planned}")), pen.style(Role::Planned)),
        (named("ours", Share::Ours), pen.style(Role::Ours)),
        (named("others", Share::Others), pen.style(Role::Others)),
        (named("free", Share::Free), Style::new()),
    ];
    put_parts(pen.buffer, Rect { x, width: area.right() - x, ..area }, &parts);
}

/// Temperature, power and utilization of the last minutes.
fn traces(pen: &mut Pen, area: Rect, card: &CardView) {
    let third = usize::from((area.width.saturating_sub(8)) / 3).saturating_sub(6);
    let limit = card.sample.power_limit_w.or(card.sample.limits.power_max_w).unwrap_or(400.0);
    let curve = pen.style(Role::Curve);
    let quiet = pen.style(Role::Quiet);
    let mut x = area.x + 3;
    for (name, trace, bounds) in [
        ("°C ", &card.temperature_c, BAR_C),
        ("W ", &card.power_w, [0.0, limit]),
        ("use ", &card.busy_percent, [0.0, 100.0]),
    ] {
        let start = put(pen.buffer, x, area.y, area.right(), name, quiet);
        put(
            pen.buffer,
            start,
            area.y,
            area.right(),
            &sparkline(trace.values().map(|(_, value)| value), bounds, third),
            curve,
        );
        x = start + third as u16 + 2;
    }
}
