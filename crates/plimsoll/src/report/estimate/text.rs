//! What `estimate` prints.

use super::words::run_lines;
use super::{EstimateCard, EstimateReport, by_kind, changed_words};
use crate::report::plan_table::grouped;
use comfy_table::{CellAlignment, Table, presets};
use plimsoll_units::Bytes;

/// The largest storages that are shown.
const LIVE_MAX: usize = 5;

/// Rows of the table below which a part is not worth a line.
const SHOWN_PART: f64 = 0.001;

/// The run, its peaks, who has the memory then, whether it fits, and what would.
pub fn estimate_text(report: &EstimateReport) -> String {
    let mut lines = vec![report.model.to_owned()];
    lines.extend(run_lines(report.run).into_iter().map(|line| format!("  {line}")));
    if !report.run.alloc_conf.is_empty() {
        lines.push(format!("  PYTORCH_CUDA_ALLOC_CONF={}", report.run.alloc_conf));
    }
    lines.push(peaks(report));
    lines.push(table(&["at the peak", "bytes", "part", "storages"], kind_rows(report)));
    lines.push(largest(report));
    lines.extend(verdict(report));
    lines.extend(ways(report));
    lines.extend(report.estimate.caveats.iter().map(|caveat| format!("note: {caveat}")));
    lines.join("\n")
}

fn peaks(report: &EstimateReport) -> String {
    let estimate = report.estimate;
    let [low, high] = estimate.range.map(|footprint| footprint.process());
    let context = estimate.likely.context;
    let between = if low == high { String::new() } else { format!("; {low} to {high}") };
    format!(
        "peak allocated  {:>9}  in the {}\npeak reserved   {:>9}  {} more than is allocated then\nnvidia-smi      {:>9}  with {context} \
         of CUDA's context{between}",
        estimate.likely.allocated.to_string(),
        estimate.phase,
        estimate.likely.reserved.to_string(),
        estimate.likely.reserved.saturating_sub(estimate.likely.allocated),
        estimate.likely.process().to_string(),
    )
}

fn kind_rows(report: &EstimateReport) -> Vec<Vec<String>> {
    let kinds = by_kind(report.estimate);
    let all = kinds.iter().map(|(_, bytes, _)| bytes.0).sum::<u64>().max(1);
    let part = |bytes: Bytes| bytes.as_f64() / all as f64;
    let shown = kinds.into_iter().filter(|(_, bytes, _)| part(*bytes) >= SHOWN_PART);
    let row = |(kind, bytes, count): (plimsoll_eager::Kind, Bytes, u64)| {
        vec![kind.to_string(), bytes.to_string(), format!("{:.1} %", 100.0 * part(bytes)), grouped(count)]
    };
    shown.map(row).collect()
}

/// The largest of them, by what made them.
fn largest(report: &EstimateReport) -> String {
    let named = report.estimate.live.iter().take(LIVE_MAX).map(|live| {
        let times = if live.count > 1 { format!("{} x ", live.count) } else { String::new() };
        let module = if live.module.is_empty() { String::new() } else { format!(" in {}", live.module) };
        format!("  {times}{}  {}, {} of `{}`{module}", live.bytes, live.shape, live.kind, live.op)
    });
    format!("the largest of them:\n{}", named.collect::<Vec<_>>().join("\n"))
}

fn verdict(report: &EstimateReport) -> Vec<String> {
    let [_, most] = report.estimate.range.map(|footprint| footprint.process());
    let Some(EstimateCard { name, memory, margin, fits }) = report.card else {
        let smallest =
            report.smallest.map_or("no card that is known has as much memory".to_owned(), |(name, memory)| {
                format!("the smallest card for it: {name} ({memory})")
            });
        return vec![format!("{smallest}; `--gpu NAME` or `--vram SIZE` asks whether it fits one")];
    };
    let whose = if name.contains(&memory.to_string()) { name.to_owned() } else { format!("{name} ({memory})") };
    let process = report.estimate.likely.process();
    let left = memory.saturating_sub(margin);
    if fits {
        return vec![format!("fits {whose}: {} are left of it", memory.saturating_sub(process))];
    }
    let short = process.saturating_sub(left);
    let lacking = match (short, most > memory) {
        (Bytes::ZERO, true) => format!("at the most {} are lacking", most.saturating_sub(memory)),
        (Bytes::ZERO, false) => "what its allocator gives back is not enough".to_owned(),
        (short, _) => format!("{short} are lacking"),
    };
    let mut lines = vec![format!("does not fit {whose}, less {margin} that are kept free: {lacking}")];
    lines.extend(report.estimate.shortfall.as_ref().map(|shortfall| {
        let module = if shortfall.module.is_empty() { String::new() } else { format!(", in {}", shortfall.module) };
        format!(
            "it would end in the {} where `{}` asks for {}{module}",
            shortfall.phase, shortfall.op, shortfall.request
        )
    }));
    lines
}

fn ways(report: &EstimateReport) -> Vec<String> {
    if report.card.as_ref().is_none_or(|card| card.fits) {
        return vec![];
    }
    let (whole, less): (Vec<_>, Vec<_>) = report.ways.iter().partition(|way| !way.trains_less);
    let rows = |ways: Vec<&super::EstimateWay>| -> Vec<Vec<String>> {
        let row = |way: &super::EstimateWay| {
            vec![changed_words(report.run, way.run).join(" "), way.estimate.likely.process().to_string()]
        };
        ways.into_iter().map(row).collect()
    };
    let mut lines = vec![];
    match whole.is_empty() {
        true => {
            let smallest = report.smallest.map_or(String::new(), |(name, memory)| {
                format!("; as it is, it needs a card such as {name} ({memory})")
            });
            lines.push(format!("no settings are known with which all of it fits{smallest}"));
        }
        false => lines.push(table(&["what fits, with the same effective batch", "nvidia-smi"], rows(whole))),
    }
    if !less.is_empty() {
        lines.push(table(&["what fits and trains additions alone", "nvidia-smi"], rows(less)));
    }
    lines
}

fn table(heads: &[&str], rows: Vec<Vec<String>>) -> String {
    let mut table = Table::new();
    table.load_style(presets::UTF8_BORDERS_ONLY);
    table.set_header(heads.to_vec());
    for row in rows {
        table.add_row(row);
    }
    for column in 1..heads.len() {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table.to_string()
}
