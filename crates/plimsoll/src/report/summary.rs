//! What came of a run, in a few lines.

use crate::printable::printable;
use plimsoll_train::{Footprint, Outcome};
use plimsoll_units::{Bytes, Seconds, format_duration};
use std::path::Path;

/// A prompt and what the model wrote after it. Control characters are shown, not obeyed.
pub fn sample_text(text: &[String; 2]) -> String {
    let [prompt, written] = text.each_ref().map(|t| printable(t));
    format!("\na sample, after held-out text:\n┃ {}", format!("{prompt}▶{written}").replace('\n', "\n┃ "))
}

/// Losses, where the checkpoint lies, and planned against measured bytes.
pub fn summary(outcome: &Outcome, folder: &Path) -> String {
    let report = &outcome.report;
    let mut lines = vec![String::new()];
    let steps = report.losses.len();
    let speed = report.measured.tokens_per_s.map_or("-".to_owned(), |t| format!("{t:.0}"));
    let time = format_duration(Seconds(report.seconds));
    lines.push(format!("{}: {steps} steps, {} tokens in {time}, {speed} tokens/s", report.status, report.tokens_seen));
    if report.padding_tokens > 0 {
        let all = report.tokens_seen + report.padding_tokens;
        let percent = 100.0 * report.padding_tokens as f64 / all as f64;
        lines.push(format!("{percent:.1} % of all tokens were padding"));
    }
    if report.truncated_samples > 0 {
        lines.push(format!("{} samples were truncated", report.truncated_samples));
    }
    if let (Some(first), Some(last)) = (report.eval.first(), report.eval.last()) {
        let from = if first.step == last.step {
            String::new()
        } else {
            format!(" (after step {}: {:.4})", first.step, first.loss)
        };
        lines.push(format!("held-out loss {:.4} nats per token{from}", last.loss));
    }
    if report.journal_events_lost > 0 {
        lines.push(format!("journal    {} events of this session may be missing", report.journal_events_lost));
    }
    lines.push(match &outcome.saved {
        Some((_, path)) => format!("checkpoint {}", path.display()),
        None => "no checkpoint was saved".to_owned(),
    });
    lines.push(match &outcome.unreported {
        Some(error) => format!("report     not written: {error}"),
        None => format!("report     {}", folder.join("report.json").display()),
    });
    let (planned, measured) = (report.plan.peak_bytes, &report.measured);
    let shorter = match measured.planned_bytes_of_what_ran {
        all if all >= planned => String::new(),
        part => format!(" for the longest batch, {part} for the batches that ran"),
    };
    lines.push(format!("planned {planned} bytes{shorter}, touched {}", measured.touched_bytes));
    lines.push(memory(&measured.footprint));
    lines.join("\n")
}

/// What the system counted, in a line.
pub fn memory(footprint: &Footprint) -> String {
    let shown = |bytes: Option<u64>| bytes.map_or("-".to_owned(), |bytes| Bytes(bytes).to_string());
    let Footprint { arena_resident_bytes, outside_plan_bytes, peak_rss_bytes, .. } = footprint;
    format!(
        "measured: {} resident for the plan, {} outside it, {} at the peak",
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
