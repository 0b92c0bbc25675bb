//! Explains what a plan recomputes or offloads, and how more or less memory would change it.

use super::Failure;
use super::answer::Answer;
use ::plimsoll_plan::{CurvePoint, Found, Recomputed, Request, recomputed, saved_with_more};
use plimsoll_render::{curve_json, curve_table};
use plimsoll_units::Bytes;
use serde_json::json;

/// The amount of additional memory whose effect is computed.
const MORE: Bytes = Bytes::mib(100);

/// What is recomputed and what is offloaded, per op, with the time that its bytes cost; and the time that [`MORE`] memory
/// would save.
pub(super) fn choice(request: &Request, found: &Found) -> Result<Answer, Failure> {
    let ops = recomputed(request, found);
    let saved = saved_with_more(request, found, MORE)?;
    let part = saved.0 / found.step.0;
    let mut lines = ops.iter().filter(|op| op.recomputed > 0).map(in_words).collect::<Vec<_>>();
    if lines.is_empty() {
        lines.push("nothing is recomputed".to_owned());
    }
    lines.extend(ops.iter().filter(|op| op.sent > 0).map(
        |Recomputed { op, nodes, sent, sent_bytes, sent_seconds, .. }| {
            format!("offloaded: {op} {sent} of {nodes}, {sent_bytes}, {:.2} ms of transfers", 1e3 * sent_seconds.0)
        },
    ));
    lines.push(format!("{MORE} more memory would save {:.1} % of the step", 100.0 * part));
    let value = json!({ "ops": ops, "margin": { "more_bytes": MORE.0, "saved_part": part } });
    Ok(Answer { key: "recomputed", value, words: lines.join("\n") })
}

/// `recomputed: gelu 24 of 24, 768 MiB for 3.1 ms, 0.40 ms for 100 MiB`
fn in_words(op: &Recomputed) -> String {
    let Recomputed { op, nodes, recomputed, bytes, seconds, .. } = op;
    let ms = seconds.0 * 1e3;
    let price = ms * MORE.0 as f64 / (bytes.0 as f64).max(1.0);
    format!("recomputed: {op} {recomputed} of {nodes}, {bytes} for {ms:.2} ms, {price:.2} ms for {MORE}")
}

/// The fastest plans by budget, from the smallest that fits to the smallest that allows the fastest plan.
pub(super) fn along_the_curve(points: &[CurvePoint], found: &Found) -> Answer {
    Answer { key: "curve", value: curve_json(points), words: curve_table(points, found) }
}
