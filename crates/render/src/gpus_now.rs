//! The cards' current readings as a table, for `watch`-like use.

use comfy_table::{CellAlignment, Table, presets};
use plimsoll_telemetry::{CardSample, Sample};
use plimsoll_units::Bytes;

/// The text for a missing reading.
const UNKNOWN: &str = "-";

fn shown(value: Option<String>) -> String {
    value.unwrap_or_else(|| UNKNOWN.to_owned())
}

/// A row for each card, and another with throttle reasons or processes if it has any.
pub fn gpus_now(sample: &Sample) -> String {
    if sample.cards.is_empty() {
        return "no NVIDIA GPU".to_owned();
    }
    let mut table = Table::new();
    table.load_style(presets::UTF8_BORDERS_ONLY);
    table.set_header(vec!["GPU", "name", "C", "mem C", "W", "fan", "busy", "used", "of", "MHz", "slowed by"]);
    for card in &sample.cards {
        table.add_row(row(card));
    }
    for column in [0, 2, 3, 4, 5, 6, 7, 8, 9] {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    let holders = sample.cards.iter().flat_map(|card| {
        card.processes.iter().map(|process| {
            let name = process.name.as_deref().unwrap_or("a process");
            let used = process.used.map_or(String::new(), |used| format!(" has {used}"));
            format!("GPU {}: {name} ({}){used}", card.index, process.pid)
        })
    });
    let mut lines = vec![table.to_string()];
    lines.extend(holders);
    lines.join("\n")
}

fn row(card: &CardSample) -> Vec<String> {
    if let Some(reason) = &card.lost {
        let mut row = vec![card.index.to_string(), card.name.clone()];
        row.extend(vec![UNKNOWN.to_owned(); 8]);
        row.push(format!("does not answer: {reason}"));
        return row;
    }
    let degrees = |value: Option<f64>| shown(value.map(|value| format!("{value:.0}")));
    let watts = match (card.power_w, card.power_limit_w) {
        (Some(power), Some(limit)) => format!("{power:.0}/{limit:.0}"),
        (Some(power), None) => format!("{power:.0}"),
        (None, limit) => shown(limit.map(|limit| format!("-/{limit:.0}"))),
    };
    let percent = |part: Option<u32>| shown(part.map(|part| format!("{part} %")));
    let bytes = |bytes: Option<Bytes>| shown(bytes.map(|bytes| bytes.to_string()));
    let slowed = card.throttling.map(|reasons| reasons.words().join(", "));
    vec![
        card.index.to_string(),
        card.name.clone(),
        degrees(card.temperature_c),
        degrees(card.memory_temperature_c),
        watts,
        percent(card.fan_percent),
        percent(card.busy_percent),
        bytes(card.used),
        bytes(card.total),
        shown(card.sm_clock_mhz.map(|clock| clock.to_string())),
        shown(slowed.map(|words| if words.is_empty() { "nothing".to_owned() } else { words })),
    ]
}
