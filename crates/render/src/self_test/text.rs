//! The findings for people: tables, and a block to paste into an issue.

use super::{LibraryFindings, Precision, SelfTest, precision};
use crate::printable::printable_line;
use comfy_table::{CellAlignment, Table, presets};
use plimsoll_exec::self_test::{Cause, KernelCheck, Rate, Workload};
use plimsoll_graph::DType;
use plimsoll_plan::Card;
use plimsoll_train::LossCheck;

/// The precisions in which kernels are tested and timed, in the order of columns.
const PRECISIONS: [Precision; 4] = [(DType::F32, false), (DType::F16, false), (DType::Bf16, false), (DType::F32, true)];

/// The findings as tables, and the block under them.
pub fn self_test_text(found: &SelfTest) -> String {
    let mut parts = vec![kernels_table(found)];
    if let Some(Ok(check)) = &found.training {
        parts.push(losses_text(check));
    }
    if !found.speeds.rates.is_empty() {
        parts.push(compute_table(found));
        parts.push(copies_table(found));
    }
    parts.push(format!("To report this GPU, paste this into an issue:\n\n{}", block(found)));
    parts.join("\n\n")
}

fn kernels_table(found: &SelfTest) -> String {
    let checks = &found.kernels;
    let mut table = Table::new();
    table.load_style(presets::UTF8_BORDERS_ONLY);
    table.set_header(["op", "cases"].into_iter().chain(PRECISIONS.map(precision)));
    for op in found.ops() {
        let of = |in_it| checks.iter().find(|check| check.op == op && (check.dtype, check.tf32) == in_it);
        let cases = PRECISIONS.into_iter().filter_map(of).map(|check| check.cases).sum::<usize>();
        let ended = checks.last().is_some_and(|last| last.op == op && last.ended_the_device());
        let tested = !ended && PRECISIONS.into_iter().any(|in_it| of(in_it).is_some());
        let cell = |in_it| of(in_it).map_or(if tested { "-" } else { "not tested" }.to_owned(), outcome);
        table.add_row([op.to_owned(), cases.to_string()].into_iter().chain(PRECISIONS.map(cell)));
    }
    align_right(&mut table, 1..=5);
    format!("{table}\nlargest errors, as parts of what is allowed: up to 1.00 is right")
}

fn outcome(check: &KernelCheck) -> String {
    match check.failure.as_ref().map(|failure| &failure.cause) {
        Some(Cause::Device(_)) => "FAILED".to_owned(),
        Some(Cause::Wrong(_)) => format!("WRONG {}", digits(check.verdict.worst)),
        None if check.verdict.elements == 0 => "ran".to_owned(),
        None => format!("{:.2}", check.verdict.worst),
    }
}

fn losses_text(check: &LossCheck) -> String {
    let shown = |losses: &[f64]| losses.iter().map(|loss| format!("{loss:.6}")).collect::<Vec<_>>().join("  ");
    format!(
        "losses of {}, {} parameters, {} tokens a step\n on the GPU  {}\n on the CPU  {}",
        check.model,
        check.parameters,
        check.tokens_per_step,
        shown(&check.losses),
        shown(&check.expected)
    )
}

/// A workload and its size.
fn name(rate: &Rate) -> String {
    let workload = match rate.workload {
        Workload::Product => "product",
        Workload::Attention => "attention",
        Workload::AttentionGrad => "its gradient",
        Workload::ToDevice => "to the GPU",
        Workload::ToHost => "from the GPU",
        Workload::WithinDevice => "within the GPU",
    };
    format!("{workload}, {}", rate.size)
}

/// Names of products and attention, each with its rates by precision, and products by a library; the data sheet's rates are
/// last.
fn compute_rows(found: &SelfTest) -> Vec<(String, [Option<f64>; 4])> {
    let mut rows = Vec::<(String, [Option<f64>; 4])>::new();
    let ours = found.speeds.rates.iter().filter(|rate| !rate.workload.is_copy()).map(|rate| (name(rate), rate));
    let library = found.library.iter().flat_map(|library| &library.speeds.rates);
    let librarys = library.map(|rate| (format!("cuBLASLt, {}", rate.size), rate));
    for (name, rate) in ours.chain(librarys) {
        let known = rows.iter().position(|row| row.0 == name);
        let row = known.unwrap_or_else(|| {
            rows.push((name, [None; 4]));
            rows.len() - 1
        });
        for (cell, in_it) in rows[row].1.iter_mut().zip(PRECISIONS) {
            if in_it == (rate.dtype, rate.tf32) {
                *cell = Some(rate.tflops());
            }
        }
    }
    let on_paper = PRECISIONS.map(|in_it| found.paper.and_then(|card| tflops_on_paper(card, in_it)));
    rows.push(("on paper".to_owned(), on_paper));
    rows
}

/// The data sheet's rate of products in this precision.
pub(super) fn tflops_on_paper(card: &Card, (dtype, tf32): Precision) -> Option<f64> {
    match dtype {
        DType::F32 if tf32 => card.tf32_tflops,
        DType::F32 => Some(card.fp32_tflops),
        DType::F16 => Some(card.fp16_tflops),
        DType::Bf16 => card.bf16_tflops,
        DType::I32 | DType::I16 | DType::U8 => None,
    }
}

/// The data sheet's rate of this copy.
pub(super) fn gb_per_s_on_paper(card: &Card, workload: Workload) -> Option<f64> {
    match workload {
        Workload::ToDevice | Workload::ToHost => Some(card.pcie_gb_per_s()),
        Workload::WithinDevice => Some(card.bandwidth_gb_per_s),
        Workload::Product | Workload::Attention | Workload::AttentionGrad => None,
    }
}

fn compute_table(found: &SelfTest) -> String {
    let mut table = Table::new();
    table.load_style(presets::UTF8_BORDERS_ONLY);
    table.set_header(["TFLOP/s"].into_iter().chain(PRECISIONS.map(precision)));
    for (name, rates) in compute_rows(found) {
        table.add_row([name].into_iter().chain(rates.map(or_dash)));
    }
    align_right(&mut table, 1..=4);
    format!("{table}\nattention is causal: heads x head size, tokens; medians, launches included")
}

fn copies_table(found: &SelfTest) -> String {
    let mut table = Table::new();
    table.load_style(presets::UTF8_BORDERS_ONLY);
    table.set_header(["GB/s", "measured", "on paper"]);
    for rate in found.speeds.rates.iter().filter(|rate| rate.workload.is_copy()) {
        let on_paper = found.paper.and_then(|card| gb_per_s_on_paper(card, rate.workload));
        table.add_row([name(rate), digits(rate.gb_per_s()), or_dash(on_paper)]);
    }
    align_right(&mut table, 1..=2);
    let mut text = format!("{table}\nwithin the GPU: what is read and what is written, together");
    for note in &found.speeds.notes {
        text += &format!("\nnote: {}", printable_line(note));
    }
    text
}

fn align_right(table: &mut Table, columns: std::ops::RangeInclusive<usize>) {
    for column in columns {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
}

/// A number with about three digits.
fn digits(value: f64) -> String {
    match value.abs() {
        100_000.0.. => format!("{value:.1e}"),
        100.0.. => format!("{value:.0}"),
        10.0.. => format!("{value:.1}"),
        0.01.. => format!("{value:.2}"),
        _ => format!("{value:.1e}"),
    }
}

fn or_dash(value: Option<f64>) -> String {
    value.map_or("-".to_owned(), digits)
}

/// The data of a bug report, in a Markdown code block.
fn block(found: &SelfTest) -> String {
    let problems = found.problems();
    let outcome = match problems.len() {
        0 => "passed".to_owned(),
        1 => "1 problem".to_owned(),
        count => format!("{count} problems"),
    };
    let version = env!("CARGO_PKG_VERSION");
    let (major, minor) = found.card.capability;
    let stand_in = if found.stand_in { ", a stand-in for one" } else { "" };
    let mut lines = vec![
        format!("plimsoll {version} self-test: {outcome} in {:.0} s", found.seconds),
        format!(
            "GPU       {}, compute capability {major}.{minor}, {}",
            printable_line(&found.card.name),
            found.card.memory
        ),
        format!("driver    {}, CUDA {}{stand_in}", printable_line(&found.driver.path), found.driver.cuda),
        format!("system    {}", printable_line(&found.system)),
        kernels_line(found),
    ];
    lines.extend(found.library.as_ref().map(library_line));
    if let Some(Ok(check)) = &found.training {
        let ms = 1e3 * check.step_s;
        let apart = match check.largest_difference() {
            0.0 => "equal to the CPU's".to_owned(),
            apart => format!("{apart:.1e} apart from the CPU's"),
        };
        lines.push(format!("losses    {}: {apart}; {} ms a step", check.model, digits(ms)));
    }
    if !found.speeds.rates.is_empty() {
        lines.push(format!(
            "TFLOP/s   {:34} {}",
            "",
            PRECISIONS.map(|in_it| format!("{:>8}", precision(in_it))).concat()
        ));
        for (name, rates) in compute_rows(found) {
            lines.push(format!("          {name:34} {}", rates.map(|rate| format!("{:>8}", or_dash(rate))).concat()));
        }
        lines.push(format!("GB/s      {:34} {:>8}{:>10}", "", "measured", "on paper"));
        for rate in found.speeds.rates.iter().filter(|rate| rate.workload.is_copy()) {
            let on_paper = or_dash(found.paper.and_then(|card| gb_per_s_on_paper(card, rate.workload)));
            lines.push(format!("          {:34} {:>8}{on_paper:>10}", name(rate), digits(rate.gb_per_s())));
        }
    }
    let shown = |bytes: Option<plimsoll_units::Bytes>| bytes.map_or("-".to_owned(), |bytes| bytes.to_string());
    lines.push(format!(
        "memory    {} free before, {} after, {} lost",
        shown(found.memory.before),
        shown(found.memory.after),
        shown(found.memory.lost())
    ));
    lines.extend(problems.iter().map(|problem| format!("problem   {problem}")));
    format!("```text\n{}\n```", lines.join("\n"))
}

/// Products by a library.
fn library_line(found: &LibraryFindings) -> String {
    let (major, minor, patch) = found.version;
    let right = found.kernels.iter().filter(|check| check.failure.is_none()).count();
    let worst = found.kernels.iter().map(|check| check.verdict.worst).fold(0.0, f64::max);
    format!(
        "cuBLASLt  {major}.{minor}.{patch}, {}\n          {right} of {} products are right, largest error {} of what is allowed",
        printable_line(&found.path.display().to_string()),
        found.kernels.len(),
        digits(worst)
    )
}

fn kernels_line(found: &SelfTest) -> String {
    let (right, all) = found.right_ops();
    let worst = found.kernels.iter().max_by(|a, b| a.verdict.worst.total_cmp(&b.verdict.worst));
    let worst = worst.map_or(String::new(), |check| {
        let (op, part) = (check.op, digits(check.verdict.worst));
        let precision = precision((check.dtype, check.tf32));
        format!("\n          largest error {part} of what is allowed, {op} in {precision}")
    });
    format!("kernels   {right} of {all} ops are right{worst}")
}
