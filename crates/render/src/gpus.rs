//! Cards as tables: those of the machine, and all known products.

use comfy_table::{CellAlignment, Table, presets};
use plimsoll_plan::Card;
use plimsoll_telemetry::Gpus;
use plimsoll_units::Bytes;

/// A line for each card, and their sum.
pub fn gpus_table(gpus: &Gpus) -> String {
    if gpus.cards.is_empty() {
        return "no NVIDIA GPU".to_owned();
    }
    let mut table = Table::new();
    table.load_style(presets::UTF8_BORDERS_ONLY);
    table.set_header(vec!["NVML", "CUDA", "name", "total", "reserved", "used", "free", "C", "W"]);
    let shown = |value: Option<String>| value.unwrap_or_else(|| "-".to_owned());
    for card in &gpus.cards {
        table.add_row(vec![
            card.index.to_string(),
            shown(card.cuda_index.map(|index| index.to_string())),
            card.name.clone(),
            card.total.to_string(),
            shown(card.reserved.map(|bytes| bytes.to_string())),
            card.used.to_string(),
            card.free.to_string(),
            shown(card.temperature_c.map(|degrees| degrees.to_string())),
            shown(card.power_limit_w.map(|watts| format!("{watts:.0}"))),
        ]);
    }
    for column in [0, 1, 3, 4, 5, 6, 7, 8] {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    let (total, free) = gpus.cards.iter().fold((Bytes::ZERO, Bytes::ZERO), |(t, f), c| (t + c.total, f + c.free));
    let sum = format!("{} GPUs, {total} together, {free} of it free", gpus.cards.len());
    format!("{table}\n{sum}")
}

/// A row for each card with a known data sheet.
pub fn known_cards_table(cards: &[Card]) -> String {
    let mut table = Table::new();
    table.load_style(presets::UTF8_BORDERS_ONLY);
    table.set_header(vec!["GPU", "memory", "GB/s", "half TFLOP/s", "fp32 TFLOP/s", "W"]);
    for card in cards {
        table.add_row(vec![
            card.name.to_owned(),
            card.memory.to_string(),
            format!("{:.0}", card.bandwidth_gb_per_s),
            format!("{:.1}", card.bf16_tflops.unwrap_or(card.fp16_tflops)),
            format!("{:.1}", card.fp32_tflops),
            card.power_w.to_string(),
        ]);
    }
    for column in 1..=5 {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    format!("{table}\n{} GPUs; half: bf16 where a GPU has it, else fp16", cards.len())
}
