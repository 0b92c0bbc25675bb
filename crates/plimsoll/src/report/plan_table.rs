//! The plan as a table, and what is said when none fits.

use comfy_table::{CellAlignment, Table, presets};
use plimsoll_graph::{DeviceKind, Products};
use plimsoll_plan::{Bound, Breakdown, Change, Found, LeverEffect, Moment, Plan};
use plimsoll_units::Bytes;

/// The plan's table, some lines under 100 columns. `device`: the card's name.
pub fn plan_table(model: &str, device: &str, found: &Found, budget: &str, times: &str) -> String {
    let plan = &found.plan;
    let device = device_named(device, plan);
    let precision = found.settings.levers.precision.name();
    let mut lines = vec![headline(model, plan), format!("in {precision} on {device}; {times}")];
    lines.push(format!("budget:{budget}"));
    lines.push(table(plan).to_string());
    lines.push(match found.next_larger {
        Some((next, needed)) => {
            let lacking = needed.saturating_sub(Bytes(plan.budget_bytes));
            let short = if lacking > Bytes::ZERO { format!(", {lacking} more than the budget") } else { String::new() };
            format!("a micro-batch of {next} would need {needed}{short}")
        }
        None => "the whole global batch fits at once".to_owned(),
    });
    lines.push(bound_words(found.bound).to_owned());
    lines.extend(plan.targets.device.products().map(|by| format!("matrix products by {}", products_named(by))));
    lines.push(format!(
        "predicted: {:.0} ms per step, {} tokens/s",
        found.step.0 * 1e3,
        grouped(found.tokens_per_s() as u64)
    ));
    lines.join("\n")
}

/// What a plan is for, in a sentence: the processor, or a card of this name.
pub(super) fn device_named<'a>(name: &'a str, plan: &Plan) -> &'a str {
    match plan.targets.device.kind() {
        DeviceKind::Cpu => "the CPU",
        DeviceKind::Cuda => name,
    }
}

/// A few words for what multiplies on a card.
pub fn products_named(products: Products) -> &'static str {
    match products {
        Products::Kernels => "the built-in kernels",
        Products::CublasLt => "cuBLASLt",
    }
}

fn headline(model: &str, plan: &Plan) -> String {
    format!("{model}: {}", shape_line(plan))
}

/// What to have more of for a faster plan.
pub(super) fn bound_words(bound: Bound) -> &'static str {
    match bound {
        Bound::Nothing => "not limited by memory: these are the fastest settings",
        Bound::Device => "limited by device memory: faster settings need more",
        Bound::Host => "limited by host memory: faster settings need more",
        Bound::DeviceAndHost => "limited by device and host memory: faster settings need more",
    }
}

/// What is planned for.
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
    let percent = |bytes: u64| format!("{:.1} %", bytes as f64 * 100.0 / plan.peak_bytes as f64);
    table.set_header(vec!["at the peak", "size", "bytes", "of the peak"]);
    for (what, bytes) in parts(&plan.breakdown) {
        table.add_row(vec![what.to_owned(), Bytes(bytes).to_string(), grouped(bytes), percent(bytes)]);
    }
    let bound = plan.lower_bound_bytes;
    table.add_row(vec!["peak".to_owned(), plan.peak().to_string(), grouped(plan.peak_bytes), percent(plan.peak_bytes)]);
    table.add_row(vec!["lower bound".to_owned(), Bytes(bound).to_string(), grouped(bound), percent(bound)]);
    let budget = plan.budget_bytes;
    table.add_row(vec!["budget".to_owned(), Bytes(budget).to_string(), grouped(budget), "-".to_owned()]);
    if plan.host_bytes > 0 {
        let host = plan.host_bytes;
        table.add_row(vec!["host memory".to_owned(), Bytes(host).to_string(), grouped(host), "-".to_owned()]);
    }
    for column in 1..=3 {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table
}

/// The parts of the peak by name.
pub(super) fn parts(b: &Breakdown) -> [(&'static str, u64); 7] {
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

/// A number with its thousands set apart: `12,345,678`.
pub(super) fn grouped(n: u64) -> String {
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

/// A line for each lever: where it stands, what it buys, what it costs.
pub fn levers_table(effects: &[LeverEffect]) -> String {
    let mut table = Table::new();
    table.load_style(presets::UTF8_BORDERS_ONLY);
    table.set_header(vec!["lever", "", "setting", "saves", "host", "time"]);
    for effect in effects {
        let sized = |bytes: i64| match bytes {
            0 => "-".to_owned(),
            bytes if bytes < 0 => format!("-{}", Bytes(bytes.unsigned_abs())),
            bytes => Bytes(bytes.unsigned_abs()).to_string(),
        };
        let time = if effect.on { format!("{:+.1} %", 100.0 * effect.added_time) } else { "-".to_owned() };
        let setting = if effect.on { effect.setting.clone() } else { "-".to_owned() };
        table.add_row(vec![
            effect.name.replace('-', " "),
            if effect.on { "on" } else { "off" }.to_owned(),
            setting,
            sized(effect.saved_bytes),
            sized(effect.host_bytes),
            time,
        ]);
    }
    for column in 3..=5 {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    let notes =
        effects.iter().filter_map(|effect| Some(format!("{} is off: {}", effect.name.replace('-', " "), effect.note?)));
    [table.to_string()].into_iter().chain(notes).collect::<Vec<_>>().join("\n")
}

/// The moment of the peak, and the largest tensors alive at it.
pub fn moment_text(moment: &Moment) -> String {
    let mut table = Table::new();
    table.load_style(presets::UTF8_BORDERS_ONLY);
    table.set_header(vec!["alive at the peak", "for", "size"]);
    for alive in &moment.alive {
        let role = format!("{:?}", alive.role).to_ascii_lowercase();
        let name = if alive.count > 1 { format!("{} × {}", alive.count, alive.name) } else { alive.name.clone() };
        table.add_row(vec![name, role, Bytes(alive.bytes).to_string()]);
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
