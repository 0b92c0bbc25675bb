//! The output of `estimate`.

use super::words::{range_words, run_lines};
use super::{EstimateCard, EstimateReport, Part, changed_words, parts};
use crate::figures::figures_table;
use crate::plan_table::grouped;
use plimsoll_eager::Verdict;
use plimsoll_trainers::Sharding;
use plimsoll_units::Bytes;

/// The largest storages that are shown.
const LIVE_MAX: usize = 5;

/// A smaller part of what is allocated has no row of its own.
const SHOWN_PART: f64 = 0.001;

/// The run, its peaks, the parts of the peak, whether it fits, and settings that fit. `columns`: of the terminal, if any.
pub fn estimate_text(report: &EstimateReport, columns: Option<usize>) -> String {
    let mut lines = vec![report.model.to_owned()];
    lines.extend(run_lines(report.run).into_iter().map(|line| format!("  {line}")));
    if !report.run.alloc_conf.is_empty() {
        lines.push(format!("  PYTORCH_CUDA_ALLOC_CONF={}", report.run.alloc_conf));
    }
    lines.push(peaks(report));
    lines.extend(range_words(&report.run.unsure).map(|words| format!("range           {words}")));
    lines.push(figures_table(&["at the peak", "bytes", "part", "storages"], part_rows(report), columns));
    lines.push(largest(report));
    lines.extend(verdict(report));
    lines.extend(ways(report, columns));
    lines.extend(report.estimate.caveats.iter().map(|caveat| format!("note: {caveat}")));
    lines.join("\n")
}

fn peaks(report: &EstimateReport) -> String {
    let estimate = report.estimate;
    let [low, high] = estimate.range.map(|footprint| footprint.process());
    let context = estimate.likely.context;
    let between = if low == high { String::new() } else { format!("; {low} to {high}") };
    let is_alone = report.run.cards == 1 || report.run.sharding == Sharding::None;
    let whose = if is_alone { "CUDA's context" } else { "CUDA's context and NCCL's buffers" };
    format!(
        "peak allocated  {:>9}  in the {}\npeak reserved   {:>9}  {} more than is allocated then\nnvidia-smi      {:>9}  with {context} \
         of {whose}{between}",
        estimate.likely.allocated.to_string(),
        estimate.phase,
        estimate.likely.reserved.to_string(),
        estimate.likely.reserved.saturating_sub(estimate.likely.allocated),
        estimate.likely.process().to_string(),
    )
}

/// The parts of what is allocated, the small ones in one row, and their sum.
fn part_rows(report: &EstimateReport) -> Vec<Vec<String>> {
    let all = report.estimate.likely.allocated;
    let part = |bytes: Bytes| bytes.as_f64() / all.as_f64().max(1.0);
    let row = |Part { name, bytes, storages }: Part| {
        let count = storages.map_or("-".to_owned(), grouped);
        vec![name, bytes.to_string(), format!("{:.1} %", 100.0 * part(bytes)), count]
    };
    let is_shown = |found: &Part| part(found.bytes) >= SHOWN_PART || found.storages.is_none();
    let (shown, small): (Vec<_>, Vec<_>) = parts(report.estimate).into_iter().partition(is_shown);
    let storages = |parts: &[Part]| parts.iter().filter_map(|part| part.storages).sum::<u64>();
    let sum = Part { name: "allocated".to_owned(), bytes: all, storages: Some(storages(&shown) + storages(&small)) };
    let others = Part {
        name: "others".to_owned(),
        bytes: Bytes(small.iter().map(|part| part.bytes.0).sum()),
        storages: Some(storages(&small)),
    };
    let others = (!small.is_empty()).then_some(others);
    let (rests, kinds): (Vec<_>, Vec<_>) = shown.into_iter().partition(|part| part.storages.is_none());
    kinds.into_iter().chain(others).chain(rests).chain([sum]).map(row).collect()
}

/// The largest storages, with the ops that made them.
fn largest(report: &EstimateReport) -> String {
    let named = report.estimate.live.iter().take(LIVE_MAX).map(|live| {
        let times = if live.count > 1 { format!("{} x ", live.count) } else { String::new() };
        let module = if live.module.is_empty() { String::new() } else { format!(" in {}", live.module) };
        format!("  {times}{}  {}, {} of `{}`{module}", live.bytes, live.shape, live.kind, live.op)
    });
    format!("the largest of them:\n{}", named.collect::<Vec<_>>().join("\n"))
}

fn verdict(report: &EstimateReport) -> Vec<String> {
    let [least, most] = report.estimate.range.map(|footprint| footprint.process());
    let Some(EstimateCard { name, memory, margin, verdict }) = report.card else {
        let smallest = report.smallest.map_or("no known GPU has enough memory".to_owned(), |(name, memory)| {
            format!("the smallest GPU for it: {name} ({memory})")
        });
        return vec![format!("{smallest}; check a GPU with `--gpu NAME` or `--vram SIZE`")];
    };
    let whose = if name.contains(&memory.to_string()) { name.to_owned() } else { format!("{name} ({memory})") };
    let process = report.estimate.likely.process();
    let left = memory.saturating_sub(margin);
    match verdict {
        Verdict::Fits => return vec![format!("fits {whose}: {} left", memory.saturating_sub(process))],
        Verdict::MayFit => {
            return vec![format!("may fit {whose}, less {margin} kept free: it needs {least} to {most}")];
        }
        Verdict::DoesNotFit => {}
    }
    let lacking = match process.saturating_sub(left) {
        Bytes::ZERO => "the memory that its allocator can release is not enough".to_owned(),
        short => format!("{short} short"),
    };
    let mut lines = vec![format!("does not fit {whose}, less {margin} kept free: {lacking}")];
    lines.extend(report.estimate.shortfall.as_ref().map(|shortfall| {
        let module = if shortfall.module.is_empty() { String::new() } else { format!(", in {}", shortfall.module) };
        format!(
            "it would run out of memory in the {} where `{}` asks for {}{module}",
            shortfall.phase, shortfall.op, shortfall.request
        )
    }));
    lines
}

fn ways(report: &EstimateReport, columns: Option<usize>) -> Vec<String> {
    if report.card.as_ref().is_none_or(|card| card.verdict == Verdict::Fits) {
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
                format!("; unchanged, it needs a GPU such as {name} ({memory})")
            });
            lines.push(format!("no known settings make it fit{smallest}"));
        }
        false => lines.push(figures_table(&["fits with the same effective batch", "nvidia-smi"], rows(whole), columns)),
    }
    if !less.is_empty() {
        lines.push(figures_table(&["fits with LoRA or QLoRA", "nvidia-smi"], rows(less), columns));
    }
    lines
}
