//! The output of `replay`.

use super::{ReplayReport, line_of, reasons, wasted};
use crate::figures::figures_table;
use crate::plan_table::grouped;
use plimsoll_torch_memory::examine::Examined;
use plimsoll_torch_memory::replay::{Count, SegmentCount};
use plimsoll_units::Bytes;

/// The maximum number of rows of tables.
const ROWS: usize = 12;

/// The analysis, card by card.
pub fn replay_text(report: &ReplayReport) -> String {
    let cards = report.cards.iter().map(|card| card_text(report, card).join("\n"));
    let conf = match (report.snapshot.settings_recorded, report.snapshot.settings.conf()) {
        (false, _) => "the allocator's settings are not recorded; PyTorch's defaults are assumed".to_owned(),
        (true, conf) if conf.is_empty() => "recorded with PyTorch's default allocator settings".to_owned(),
        (true, conf) => format!("recorded with {conf}"),
    };
    format!("{}: {conf}\n\n{}", report.name, cards.collect::<Vec<_>>().join("\n\n"))
}

fn card_text(report: &ReplayReport, card: &Examined) -> Vec<String> {
    let mut lines = vec![headline(card)];
    lines.extend(reasons(report, card).into_iter().map(|reason| format!("  {reason}")));
    lines.extend(out_of_memory_lines(card));
    let peak = card.at_its_peak();
    lines.push(format!(
        "peak: {} in use after {} events, {} reserved then, {} reserved at most",
        Bytes(peak.in_use),
        grouped(card.peak as u64),
        Bytes(peak.reserved),
        Bytes(card.peak_reserved())
    ));
    lines.push(figures_table(
        &["at the peak, allocated by", "bytes", "part", "blocks"],
        owner_rows(report, card),
        None,
    ));
    if !card.has_history() {
        lines.push(NO_HISTORY.to_owned());
        lines.extend(copies_lines(report, card));
        return lines;
    }
    lines.push("the same program under other settings, each from an empty allocator:".to_owned());
    lines.push(figures_table(&SETTING_HEADS, setting_rows(card), None));
    lines.push(recommendation(card));
    lines.extend(least_line(card));
    lines.extend(growth_lines(report, card));
    lines.extend(copies_lines(report, card));
    lines
}

/// The text in place of a comparison of settings.
pub(super) const NO_HISTORY: &str = "settings can't be compared without a history: call \
    `torch.cuda.memory._record_memory_history()` before the first allocation";

/// The agreement of simulation and recording.
pub(super) fn headline(card: &Examined) -> String {
    if !card.has_history() {
        return format!("GPU {}: no history of allocations, only the memory at the end", card.record.card);
    }
    let agreement = &card.replay.agreement;
    let SegmentCount { recorded, simulated, equal } = agreement.segment_events;
    let Count { events, equal: at_address } = agreement.addresses;
    let agrees = if agreement.is_whole() { "agrees" } else { "agrees only in part" };
    let more = if simulated > recorded { format!(" ({} simulated)", grouped(simulated as u64)) } else { String::new() };
    format!(
        "GPU {}: {} events; the simulated allocator {agrees}: {} of {} segment events{more}, {} of {} addresses",
        card.record.card,
        grouped(card.record.events.len() as u64),
        grouped(equal as u64),
        grouped(recorded as u64),
        grouped(at_address as u64),
        grouped(events as u64)
    )
}

/// A line for each refused request.
pub(super) fn out_of_memory_lines(card: &Examined) -> Vec<String> {
    let lines = card.replay.out_of_memory.iter().take(ROWS).map(|(event, free)| {
        let memory = card.replay.memory[event + 1];
        format!(
            "out of memory at event {}: {} asked for, {} of the GPU free, {} cached",
            grouped(*event as u64),
            Bytes(card.record.events[*event].bytes),
            Bytes(*free),
            Bytes(memory.reserved - memory.in_use)
        )
    });
    lines.collect()
}

/// The owners of memory at the peak: owner, bytes, share, blocks.
pub(super) fn owner_rows(report: &ReplayReport, card: &Examined) -> Vec<Vec<String>> {
    let all = card.at_its_peak().in_use.max(1);
    let row = |owner: String, bytes: u64, blocks: u64| {
        let part = 100.0 * bytes as f64 / all as f64;
        vec![owner, Bytes(bytes).to_string(), format!("{part:.1} %"), grouped(blocks)]
    };
    let (shown, rest) = card.at_peak.split_at(card.at_peak.len().min(ROWS));
    let shown =
        shown.iter().map(|owned| row(report.owners.get(owned.owner).to_string(), owned.bytes, owned.blocks as u64));
    let mut rows = shown.collect::<Vec<_>>();
    if !rest.is_empty() {
        let blocks = rest.iter().map(|owned| owned.blocks as u64).sum();
        let others = format!("{} others", grouped(rest.len() as u64));
        rows.push(row(others, rest.iter().map(|owned| owned.bytes).sum(), blocks));
    }
    rows
}

/// The columns of the comparison of settings.
pub(super) const SETTING_HEADS: [&str; 5] = ["setting", "reserved", "wasted", "driver calls", "refused"];

/// Settings, and the memory that they need.
pub(super) fn setting_rows(card: &Examined) -> Vec<Vec<String>> {
    let rows = card.outcomes.iter().enumerate().map(|(index, outcome)| {
        let conf = outcome.settings.conf();
        let name = if conf.is_empty() { "PyTorch's defaults".to_owned() } else { conf };
        let mark = if index == 0 { " (recorded)" } else { "" };
        vec![
            format!("{name}{mark}"),
            Bytes(outcome.peak_reserved).to_string(),
            Bytes(wasted(card, outcome)).to_string(),
            grouped(outcome.driver_calls as u64),
            grouped(outcome.refused as u64),
        ]
    });
    rows.collect()
}

/// The recommended setting.
pub(super) fn recommendation(card: &Examined) -> String {
    let (recorded, best) = (&card.outcomes[0], &card.outcomes[card.best]);
    if card.best == 0 {
        return "recommended: keep the current setting; no other saves 1 %".to_owned();
    }
    let saved = Bytes(recorded.peak_reserved.saturating_sub(best.peak_reserved));
    let refused = match (recorded.refused, best.refused) {
        (0, _) => String::new(),
        (_, 0) => "; nothing is refused then".to_owned(),
        (before, after) => format!("; {after} requests are refused then, not {before}"),
    };
    format!("recommended: {}  # {saved} less reserved{refused}", line_of(&best.settings))
}

/// The lower bound of the program's memory.
pub(super) fn least_line(card: &Examined) -> Option<String> {
    let least = card.least?;
    let arena = match least.packed {
        Some(packed) => format!("; an arena planned before the run takes {}", Bytes(packed)),
        None => "; the blocks are too many to pack them into an arena".to_owned(),
    };
    Some(format!("lower bound: {} is in use at once{arena}", Bytes(least.bound)))
}

/// Owners whose memory grows.
pub(super) fn growth_lines(report: &ReplayReport, card: &Examined) -> Vec<String> {
    let steps = card.steps.ends.len();
    if !card.steps.are_enough() {
        return vec!["growth from step to step: unknown; the recording has fewer than three ends of steps".to_owned()];
    }
    let from = if card.steps.annotated { "as annotated" } else { "as inferred from an allocation that recurs" };
    if card.growth.is_empty() {
        return vec![format!("nothing grows from step to step, over {steps} steps ({from})")];
    }
    let mut lines = vec![format!("grows from step to step, over {steps} steps ({from}):")];
    lines.extend(card.growth.iter().take(ROWS).map(|growth| {
        let each = Bytes(growth.bytes / growth.steps as u64);
        format!("  {}: {each} a step, {} in all", report.owners.get(growth.owner), Bytes(growth.bytes))
    }));
    lines
}

/// Duplicated models.
pub(super) fn copies_lines(report: &ReplayReport, card: &Examined) -> Vec<String> {
    let mut lines = vec![];
    for copies in &card.copies {
        lines.push(format!(
            "the same {} tensors exist {} times at the peak; {} are wasted unless all copies are intended:",
            grouped(copies.tensors as u64),
            copies.copies.len(),
            Bytes(copies.wasted)
        ));
        let line = |copy: &plimsoll_torch_memory::findings::Copy| {
            format!("  {} made by {}", Bytes(copy.bytes), report.owners.get(copy.owner))
        };
        lines.extend(copies.copies.iter().map(line));
    }
    if card.copies.is_empty() {
        let unknown = card.replay.start.blocks.len();
        let left_out = match unknown {
            0 => String::new(),
            _ => format!(
                " (without {} blocks from before the recording, whose stacks it does not have)",
                grouped(unknown as u64)
            ),
        };
        lines.push(format!("no model is duplicated{left_out}"));
    }
    lines
}
