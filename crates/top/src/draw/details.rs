//! Details of a card, a process or a run, on the whole screen.

use super::chart::{Line, chart};
use super::run::{events, figures, loss_chart, steps};
use super::text::{NONE, grouped, product, put, reading, size, time};
use super::{Pen, cards};
use crate::palette::Role;
use crate::state::{Pane, ProcessRow};
use plimsoll_watch::{CardView, RunView, Trace, clean};
use ratatui::layout::Rect;
use ratatui::style::Style;

/// Width of the column of names.
const NAMES: u16 = 25;

pub(super) fn draw(pen: &mut Pen, area: Rect, pane: Pane, line: usize) {
    let state = pen.state;
    match pane {
        Pane::Cards => {
            let cards = &state.snapshot().machine.cards;
            let keys = cards.iter().map(|card| card.sample.uuid.clone()).collect::<Vec<_>>();
            match state.cards.index(keys.iter()).map(|index| &cards[index]) {
                Some(card) => draw_card(pen, area, card, line),
                None => nothing(pen, area, "no GPU is selected"),
            }
        }
        Pane::Processes => {
            let rows = state.shown_processes();
            let keys = rows.iter().map(ProcessRow::key).collect::<Vec<_>>();
            match state.processes.index(keys.iter()).map(|index| &rows[index]) {
                Some(row) => draw_process(pen, area, row),
                None => nothing(pen, area, "no process is selected"),
            }
        }
        Pane::Runs => match state.selected_run() {
            Some(run) => draw_run(pen, area, run, line),
            None => nothing(pen, area, "no run is selected"),
        },
    }
}

fn nothing(pen: &mut Pen, area: Rect, words: &str) {
    put(pen.buffer, area.x + 1, area.y, area.right(), words, Style::new());
}

/// Draws names and values, starting at a line.
fn table(pen: &mut Pen, area: Rect, rows: &[(&str, String)], line: usize) {
    let first = line.min(rows.len().saturating_sub(usize::from(area.height)));
    for (y, (name, value)) in (area.top()..area.bottom()).zip(&rows[first..]) {
        let quiet = pen.style(Role::Quiet);
        put(pen.buffer, area.x + 1, y, (area.x + NAMES).min(area.right()), name, quiet);
        put(pen.buffer, area.x + NAMES, y, area.right(), value, Style::new());
    }
}

fn draw_card(pen: &mut Pen, area: Rect, card: &CardView, line: usize) {
    let CardView { sample, .. } = card;
    pen.title(Rect { height: 1, ..area }, &format!("GPU {}: {}", sample.index, product(&sample.name)), true);
    let runs = pen.state.snapshot().runs.iter().map(|run| &**run).collect::<Vec<_>>();
    let word = cards::band(sample, &runs).map_or(String::new(), |(_, word)| format!(", {word}"));
    let count = |value: Option<u64>| value.map_or(NONE.to_owned(), grouped);
    let percent = |value: Option<u32>| reading(value.map(f64::from), "%");
    let mhz = |value: Option<u32>| reading(value.map(f64::from), "MHz");
    let rate = |value: Option<f64>| {
        value.map_or(NONE.to_owned(), |value| format!("{}/s", size(Some(plimsoll_units::Bytes(value.max(0.0) as u64)))))
    };
    let limits = &sample.limits;
    let reasons = sample.throttling.map_or(NONE.to_owned(), |reasons| match reasons.words().join(", ") {
        none if none.is_empty() => "nothing".to_owned(),
        words => words,
    });
    let pcie = |generation: Option<u32>, lanes: Option<u32>| {
        generation.zip(lanes).map_or(NONE.to_owned(), |(generation, lanes)| format!("{generation} x{lanes}"))
    };
    let rows = [
        ("UUID", clean(&sample.uuid, 100)),
        ("core", format!("{}{word}", reading(sample.temperature_c, "°C"))),
        ("memory", reading(sample.memory_temperature_c, "°C")),
        ("hotspot", reading(sample.hotspot_temperature_c, "°C")),
        ("throttles from", reading(limits.slowdown_c, "°C")),
        ("shuts down at", reading(limits.shutdown_c, "°C")),
        ("power", format!("{} of {}", reading(sample.power_w, "W"), reading(sample.power_limit_w, "W"))),
        (
            "power limits",
            format!(
                "{} to {}, usual {}",
                reading(limits.power_min_w, "W"),
                reading(limits.power_max_w, "W"),
                reading(limits.power_default_w, "W")
            ),
        ),
        ("slowed by", reasons),
        (
            "clocks",
            format!(
                "{} of {}, memory {}",
                mhz(sample.sm_clock_mhz),
                mhz(limits.sm_clock_max_mhz),
                mhz(sample.memory_clock_mhz)
            ),
        ),
        ("fan", percent(sample.fan_percent)),
        ("computes", percent(sample.busy_percent)),
        ("memory bandwidth used", percent(sample.memory_busy_percent)),
        ("video", format!("encoder {}, decoder {}", percent(sample.encoder_percent), percent(sample.decoder_percent))),
        ("memory used", format!("{} of {}, driver {}", size(sample.used), size(sample.total), size(sample.reserved))),
        (
            "PCIe",
            format!(
                "{} of {}",
                pcie(sample.pcie_generation, sample.pcie_lanes),
                pcie(limits.pcie_generation_max, limits.pcie_lanes_max)
            ),
        ),
        (
            "PCIe traffic",
            format!("{} received, {} sent", rate(sample.pcie_received_bytes_per_s), rate(sample.pcie_sent_bytes_per_s)),
        ),
        ("PCIe replays", count(sample.pcie_replays)),
        ("ECC errors", format!("{} corrected, {} not", count(sample.ecc_corrected), count(sample.ecc_uncorrected))),
        ("memory replaced", format!("{} pages, {} rows", count(sample.retired_pages), count(sample.remapped_rows))),
        ("energy", sample.energy_j.map_or(NONE.to_owned(), |joules| format!("{:.2} kWh", joules / 3.6e6))),
        ("performance state", sample.performance_state.map_or(NONE.to_owned(), |state| format!("P{state}"))),
        ("compute mode", sample.compute_mode.as_deref().map_or(NONE.to_owned(), |mode| clean(mode, 60))),
        ("MIG", sample.mig.map_or(NONE.to_owned(), |mig| if mig { "on" } else { "off" }.to_owned())),
    ];
    let body = Rect { y: area.y + 1, height: area.height - 1, ..area };
    if area.width < 110 {
        table(pen, body, &rows, line);
        return;
    }
    let left = Rect { width: area.width / 2, ..body };
    table(pen, left, &rows, line);
    let right = Rect { x: left.right() + 1, width: area.width - left.width - 1, ..body };
    let half = right.height / 2;
    trace(pen, Rect { height: half, ..right }, "core, °C", &card.temperature_c);
    trace(pen, Rect { y: right.y + half, height: right.height - half, ..right }, "power, W", &card.power_w);
}

fn trace(pen: &mut Pen, area: Rect, name: &str, trace: &Trace) {
    put(pen.buffer, area.x + 1, area.y, area.right(), name, pen.style(Role::Strong));
    let points = trace.values().collect::<Vec<_>>();
    let seconds = points.first().zip(points.last()).map(|((first, _), (last, _))| last - first);
    let ends = [format!("{} ago", time(seconds)), "now".to_owned()];
    let chart_area = Rect { y: area.y + 1, height: area.height.saturating_sub(1), ..area };
    chart(pen, chart_area, &[Line { role: Role::Curve, points, is_line: true }], ends, |value| format!("{value:.0}"));
}

fn draw_process(pen: &mut Pen, area: Rect, row: &ProcessRow) {
    pen.title(Rect { height: 1, ..area }, &format!("process {}", row.pid), true);
    let text = |text: &Option<String>| text.clone().unwrap_or_else(|| NONE.to_owned());
    let rows = [
        ("program", text(&row.name)),
        ("owner", text(&row.owner)),
        ("GPU", row.card.map_or("none; runs on the CPU".to_owned(), |card| card.to_string())),
        ("memory", size(row.memory)),
        ("run", text(&row.run)),
    ];
    table(pen, Rect { y: area.y + 1, height: area.height - 1, ..area }, &rows, 0);
    let y = area.y + 2 + rows.len() as u16;
    if y < area.bottom() {
        let quiet = pen.style(Role::Quiet);
        put(pen.buffer, area.x + 1, y, area.right(), "F9 ends it after confirmation", quiet);
    }
}

fn draw_run(pen: &mut Pen, area: Rect, run: &RunView, line: usize) {
    let title = format!("{}: {} in {}", run.name, run.standing_words(), clean(&run.folder.to_string_lossy(), 200));
    pen.title(Rect { height: 1, ..area }, &title, true);
    figures(pen, Rect { x: area.x + 1, y: area.y + 1, width: area.width - 1, height: 1 }, run);
    let facts = [
        run.model.clone(),
        run.parameters.map(|count| format!("{} parameters", grouped(count))),
        run.device.as_ref().map(|device| format!("on {device}")),
        run.process.map(|pid| format!("process {pid}")),
        (run.sessions > 1).then(|| format!("{} sessions", run.sessions)),
        (run.skipped_updates > 0).then(|| format!("{} updates skipped", run.skipped_updates)),
        run.checkpoints.iter().find(|saved| saved.is_there).map(|saved| format!("saved at step {}", saved.step)),
        run.heat.back().map(|action| format!("heat: {}", action.what)),
        run.problems.first().map(|problem| format!("! {problem}")),
    ];
    let facts = facts.into_iter().flatten().map(|fact| (fact, Style::new())).collect::<Vec<_>>();
    super::text::put_parts(pen.buffer, Rect { x: area.x + 1, y: area.y + 2, width: area.width - 1, height: 1 }, &facts);
    let rest = Rect { y: area.y + 3, height: area.height - 3, ..area };
    let charts = Rect { height: rest.height / 2, ..rest };
    let half = charts.width / 2;
    loss_chart(pen, Rect { width: half, ..charts }, run);
    let right = Rect { x: charts.x + half + 1, width: charts.width - half - 1, ..charts };
    let upper = Rect { height: right.height / 2, ..right };
    let lower = Rect { y: upper.bottom(), height: right.height - upper.height, ..right };
    for (area, name, curve, label) in [
        (upper, "learning rate", &run.learning_rate, (|value| format!("{value:.0e}")) as fn(f64) -> String),
        (lower, "tokens/s", &run.tokens_per_s, |value| grouped(value.max(0.0) as u64)),
    ] {
        put(pen.buffer, area.x + 1, area.y, area.right(), name, pen.style(Role::Strong));
        let area = Rect { y: area.y + 1, height: area.height.saturating_sub(1), ..area };
        chart(pen, area, &[Line::of(curve, Role::Curve, true)], steps(run), label);
    }
    let below = Rect { y: charts.bottom(), height: rest.height - charts.height, ..rest };
    pen.title(Rect { height: 1, ..below }, "what happened", false);
    let list = Rect { y: below.y + 1, height: below.height - 1, ..below };
    let most = run.events.len().saturating_sub(usize::from(list.height));
    events(pen, list, run, line.min(most));
}
