//! The plan as a table, and the text if no plan fits.

use comfy_table::{CellAlignment, Table, presets};
use plimsoll_graph::{DeviceKind, MemorySet, Products};
use plimsoll_plan::{Breakdown, Change, Found, LeverEffect, Moment, Plan};
use plimsoll_units::{Bytes, format_duration};

/// The plan's table, some lines under 100 columns. `device`: the card's name.
pub fn plan_table(model: &str, device: &str, found: &Found, budget: &str, times: &str) -> String {
    let plan = &found.plan;
    let mut lines = vec![headline(model, plan), basis(device, found, times), format!("budget:{budget}")];
    lines.push(table(plan).to_string());
    lines.extend(found_words(found));
    lines.join("\n")
}

/// The precision and device of a plan, and the source of times. The device is the CPU or the card of this name.
pub(super) fn basis(device: &str, found: &Found, times: &str) -> String {
    let device = device_named(device, &found.plan);
    format!("in {} on {device}; {times}", found.settings.levers.precision.name())
}

/// The benefit of more memory, and the predicted time of a step, in lines.
pub(super) fn found_words(found: &Found) -> Vec<String> {
    let plan = &found.plan;
    let mut lines = vec![match found.next_larger {
        Some((next, needed)) => {
            let lacking = needed.saturating_sub(plan.budget().device());
            let short = if lacking > Bytes::ZERO { format!(", {lacking} more than the budget") } else { String::new() };
            format!("a micro-batch of {next} would need {needed}{short}")
        }
        None => "the whole global batch fits at once".to_owned(),
    }];
    lines.push(limit_words(found.limited_by));
    lines.extend(plan.targets.device.products().map(|by| format!("matrix products by {}", products_named(by))));
    lines.push(format!(
        "predicted: {} per step, {} tokens/s",
        if found.step.0 < 10.0 { format!("{:.0} ms", found.step.0 * 1e3) } else { format_duration(found.step) },
        grouped(found.tokens_per_s() as u64)
    ));
    lines
}

/// The device of a plan, in a sentence: the CPU, or the card of this name.
pub(super) fn device_named<'a>(name: &'a str, plan: &Plan) -> &'a str {
    match plan.targets.device.kind() {
        DeviceKind::Cpu => "the CPU",
        DeviceKind::Cuda => name,
    }
}

/// The name of the implementation of matrix products on a card.
pub fn products_named(products: Products) -> &'static str {
    match products {
        Products::Kernels => "the built-in kernels",
        Products::CublasLt => "cuBLASLt",
    }
}

fn headline(model: &str, plan: &Plan) -> String {
    format!("{model}: {}", shape_line(plan))
}

/// The memory that limits the plan's speed.
pub(super) fn limit_words(limited_by: MemorySet) -> String {
    match limited_by.is_empty() {
        true => "not limited by memory: these are the fastest settings".to_owned(),
        false => format!("limited by {} memory: faster settings need more", joined(limited_by, " and ")),
    }
}

/// The names of memories.
pub(super) fn joined(memories: MemorySet, separator: &str) -> String {
    memories.ids().map(|id| id.to_string()).collect::<Vec<_>>().join(separator)
}

/// The request of the plan.
pub(super) fn shape_line(plan: &Plan) -> String {
    let passes = match plan.accumulation {
        1 => String::new(),
        n => format!(" in {n} micro-batches of {}", plan.micro_batch),
    };
    let (parameters, samples, tokens) = (grouped(plan.parameters), plan.global_batch, plan.seq_len);
    let answers = plan.target_len.map_or(String::new(), |target| format!(" and {target}"));
    let frozen = match plan.trained_parameters {
        trained if trained == plan.parameters => String::new(),
        trained => format!(", {} of them trained", grouped(trained)),
    };
    format!("{parameters} parameters{frozen}; a step is {samples} samples of {tokens}{answers} tokens{passes}")
}

fn table(plan: &Plan) -> Table {
    let mut table = Table::new();
    table.load_style(presets::UTF8_BORDERS_ONLY);
    table.set_header(PEAK_HEADS);
    peak_rows(plan).into_iter().for_each(|row| {
        table.add_row(row);
    });
    for column in 1..=3 {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table
}

/// The columns of the peak's table.
pub(super) const PEAK_HEADS: [&str; 4] = ["at the peak", "size", "bytes", "of the peak"];

/// The parts of the peak, their sum, and the budget.
pub(super) fn peak_rows(plan: &Plan) -> Vec<Vec<String>> {
    let row = |what: &str, bytes: u64, of_peak: bool| {
        let percent = bytes as f64 * 100.0 / plan.peak().0.max(1) as f64;
        let percent = if of_peak { format!("{percent:.1} %") } else { "-".to_owned() };
        vec![what.to_owned(), Bytes(bytes).to_string(), grouped(bytes), percent]
    };
    let mut rows = parts(&plan.breakdown).map(|(what, bytes)| row(what, bytes, true)).to_vec();
    rows.push(row("peak", plan.peak().0, true));
    rows.push(row("lower bound", plan.lower_bound_bytes, true));
    rows.push(row("budget", plan.budget().device().0, false));
    if plan.host().0 > 0 {
        rows.push(row("host memory", plan.host().0, false));
    }
    rows
}

/// The parts of the peak by name.
fn parts(b: &Breakdown) -> [(&'static str, u64); 7] {
    [
        ("weights", b.weights_bytes),
        ("gradients", b.gradients_bytes),
        ("optimizer state", b.optimizer_bytes),
        ("activations", b.activations_bytes),
        ("scratch", b.scratch_bytes),
        ("staging", b.staging_bytes),
        ("unused", b.unused_bytes),
    ]
}

/// A number with separated thousands: `12,345,678`.
pub fn grouped(n: u64) -> String {
    let digits = n.to_string();
    let mut grouped = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped
}

/// The columns of the table of levers.
pub(super) const LEVER_HEADS: [&str; 6] = ["lever", "", "setting", "saves", "host", "time"];

/// A lever's row.
pub(super) fn lever_cells(effect: &LeverEffect) -> Vec<String> {
    let sized = |bytes: i64| match bytes {
        0 => "-".to_owned(),
        bytes if bytes < 0 => format!("-{}", Bytes(bytes.unsigned_abs())),
        bytes => Bytes(bytes.unsigned_abs()).to_string(),
    };
    let time = if effect.on { format!("{:+.1} %", 100.0 * effect.added_time) } else { "-".to_owned() };
    let setting = if effect.on { effect.setting.clone() } else { "-".to_owned() };
    vec![
        effect.name.replace('-', " "),
        if effect.on { "on" } else { "off" }.to_owned(),
        setting,
        sized(effect.saved_bytes),
        sized(effect.host_bytes),
        time,
    ]
}

/// Why excluded levers are off, and notes on the levers that are on.
pub(super) fn lever_notes(effects: &[LeverEffect]) -> impl Iterator<Item = String> {
    effects.iter().filter_map(|LeverEffect { name, on, note, .. }| {
        let is_off = if *on { "" } else { " is off" };
        Some(format!("{}{is_off}: {}", name.replace('-', " "), note.as_ref()?))
    })
}

/// A row for each lever: its setting, its benefit and its cost.
pub fn levers_table(effects: &[LeverEffect]) -> String {
    let mut table = Table::new();
    table.load_style(presets::UTF8_BORDERS_ONLY);
    table.set_header(LEVER_HEADS);
    effects.iter().for_each(|effect| {
        table.add_row(lever_cells(effect));
    });
    for column in 3..=5 {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    [table.to_string()].into_iter().chain(lever_notes(effects)).collect::<Vec<_>>().join("\n")
}

/// The moment of the peak, and the largest tensors alive at it.
pub fn moment_text(moment: &Moment) -> String {
    let mut table = Table::new();
    table.load_style(presets::UTF8_BORDERS_ONLY);
    table.set_header(vec!["alive at the peak", "for", "size"]);
    for alive in &moment.alive {
        let role = format!("{:?}", alive.role).to_ascii_lowercase();
        table.add_row(vec![alive.words(), role, Bytes(alive.bytes).to_string()]);
    }
    if let Some(column) = table.column_mut(2) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    let Moment { program, step, op, makes, .. } = moment;
    format!("the peak is at plan step {step} of `{program}`: {op}, which makes {makes}\n{table}")
}

/// Changes as the flags that ask for them.
pub fn as_flags(changes: &[Change]) -> String {
    changes.iter().map(|Change { setting, value }| format!("--{setting} {value}")).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thousands_are_set_apart() {
        for (n, text) in [(0, "0"), (999, "999"), (1000, "1,000"), (1_234_567, "1,234,567")] {
            assert_eq!(grouped(n), text);
        }
    }
}
