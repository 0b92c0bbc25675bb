//! The result of a run, in a few lines.

use super::plan_table::{device_named, grouped};
use crate::printable::printable;
use plimsoll_graph::DeviceKind;
use plimsoll_plan::Plan;
use plimsoll_telemetry::EnergySource;
use plimsoll_train::{Footprint, Outcome, Report};
use plimsoll_units::{Bytes, Seconds, format_duration};
use std::path::Path;

/// More than one skipped update in this many gives a warning.
const SKIPPED_PART: u64 = 10;

/// A prompt and what the model wrote after it. Control characters are escaped.
pub fn sample_text(text: &[String; 2]) -> String {
    let [prompt, written] = text.each_ref().map(|t| printable(t));
    let text = format!("{}▶{}", prompt.trim_start(), written.trim_end());
    format!("\na sample, after held-out text:\n┃ {}", text.replace('\n', "\n┃ "))
}

/// Files on disk, and planned and measured bytes. `page`: the path of the run's page, or why there is none.
pub fn summary(outcome: &Outcome, folder: &Path, page: &str, device: DeviceKind) -> String {
    let report = &outcome.report;
    let mut lines = vec![String::new()];
    if report.padding_tokens > 0 {
        let all = report.tokens_seen + report.padding_tokens;
        let percent = 100.0 * report.padding_tokens as f64 / all as f64;
        lines.push(format!("{percent:.1} % of all tokens were padding"));
    }
    if report.truncated_samples > 0 {
        lines.push(format!("{} samples were truncated", report.truncated_samples));
    }
    let steps = report.losses.len() as u64;
    if report.updates_skipped > steps / SKIPPED_PART {
        lines.push(format!(
            "warning: {} of {} updates were skipped, since gradients overflowed in fp16; `--precision bf16` does not overflow",
            grouped(report.updates_skipped),
            grouped(steps)
        ));
    }
    if report.journal_events_lost > 0 {
        lines.push(format!("journal    {} events of this session may be missing", report.journal_events_lost));
    }
    lines.extend(report.attempts.in_words().map(|words| format!("attempts   {words}")));
    lines.push(match &outcome.saved {
        Some((_, path)) => format!("checkpoint {}", path.display()),
        None => "no checkpoint was saved".to_owned(),
    });
    lines.push(match &outcome.unreported {
        Some(error) => format!("report     not written: {error}"),
        None => format!("report     {}", folder.join("report.json").display()),
    });
    lines.push(format!("page       {page}"));
    let (planned, measured) = (report.plan.peak_bytes, &report.measured);
    let shorter = match measured.planned_bytes_of_what_ran {
        all if all >= planned => String::new(),
        part => format!(" for the longest batch, {part} for the batches that ran"),
    };
    lines.push(format!("planned {planned} bytes{shorter}, touched {}", measured.touched_bytes));
    lines.push(memory(&measured.footprint, device));
    lines.extend(energy(report));
    lines.join("\n")
}

/// The energy of the cards, in total and per token, and its source; empty if no card reported it.
fn energy(report: &Report) -> Option<String> {
    let energy = report.energy.as_ref()?;
    let by = match energy.by {
        EnergySource::Counter => "by the GPU's counter",
        EnergySource::Power => "from its power at each sample",
        EnergySource::Both => "by the GPU's counter, and from its power when the counter was missing",
    };
    let token = report.energy_j_per_token.map_or(String::new(), |joules| format!(", {joules:.3} J a token"));
    let missed = match energy.missed_s {
        missed if missed < 1.0 => String::new(),
        missed => format!("; {} of it were not measured", format_duration(Seconds(missed))),
    };
    Some(format!("energy     {energy}{token}, {by}{missed}"))
}

/// The result in a form to share.
pub fn closing(report: &Report, model: &str, device: &str, plan: &Plan) -> String {
    let steps = grouped(report.losses.len() as u64);
    let speed = report.measured.tokens_per_s.map_or("-".to_owned(), |speed| grouped(speed as u64));
    let (time, tokens) = (format_duration(Seconds(report.seconds)), grouped(report.tokens_seen));
    let (device, memory) = (device_named(device, plan), memory_name(plan.targets.device.kind()));
    let unit = if plan.compares() { "" } else { " nats per token" };
    let held_out = match (report.eval.first(), report.eval.last()) {
        (Some(first), Some(last)) if first.step != last.step => {
            format!("held-out loss {:.4}{unit} (after step {}: {:.4}), ", last.loss, first.step, first.loss)
        }
        (_, Some(last)) => format!("held-out loss {:.4}{unit}, ", last.loss),
        _ => String::new(),
    };
    let (planned, touched) = (report.measured.planned_bytes_of_what_ran, report.measured.touched_bytes);
    let on_host = match report.measured.host_touched_bytes {
        0 => String::new(),
        bytes => format!(", and {} of host memory", Bytes(bytes)),
    };
    let used = match touched == planned {
        true => format!("{} of {memory} touched, exactly as planned{on_host}", Bytes(touched)),
        false => format!("{} of {memory} touched, of {} planned{on_host}", Bytes(touched), Bytes(planned)),
    };
    format!(
        "\n{}: {steps} steps, {tokens} tokens in {time}, {speed} tokens/s\n{model}, {} parameters, on {device}\n{held_out}{used}",
        report.status,
        grouped(plan.parameters)
    )
}

/// The name of a device's memory.
pub fn memory_name(device: DeviceKind) -> &'static str {
    match device {
        DeviceKind::Cpu => "RAM",
        DeviceKind::Cuda => "VRAM",
    }
}

/// The system's counts for this process, in a line, and why the plan's memory on a card was not counted.
pub fn memory(footprint: &Footprint, device: DeviceKind) -> String {
    let shown = |bytes: Option<u64>| bytes.map_or("-".to_owned(), |bytes| Bytes(bytes).to_string());
    let Footprint { arena_resident_bytes, outside_plan_bytes, peak_rss_bytes, .. } = footprint;
    let mixed = match (arena_resident_bytes, device) {
        (None, DeviceKind::Cuda) => {
            " (another process's use of the GPU changed as the plan's memory was reserved, and the driver does not count each)"
        }
        _ => "",
    };
    format!(
        "measured of this process: {} resident for the plan{mixed}, {} outside it, {} at the peak",
        shown(*arena_resident_bytes),
        shown(*outside_plan_bytes),
        shown(*peak_rss_bytes)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_of_a_sample_do_not_reach_the_terminal() {
        let text = sample_text(&["a\u{1b}[31m".to_owned(), "b\0\nc".to_owned()]);
        assert!(!text.contains('\u{1b}') && !text.contains('\0') && text.ends_with("\n┃ c"), "{text:?}");
    }
}
