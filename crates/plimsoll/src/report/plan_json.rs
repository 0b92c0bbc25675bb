//! `plan --json`.

use plan::{Found, LeverEffect, Misfit, Moment, Plan};
use serde_json::json;
use train::PlanSummary;

/// The plan, whether it fits, and what it is made of. Units are in the keys.
pub fn plan_json(
    model: &str,
    result: &Result<Found, Box<Misfit>>,
    levers: &[LeverEffect],
    moment: Option<&Moment>,
    times: &str,
    milliseconds: f64,
) -> String {
    let (plan, fits, short_by_bytes, host_short_by_bytes): (&Plan, bool, u64, u64) = match result {
        Ok(found) => (&found.plan, true, 0, 0),
        Err(misfit) => (&misfit.plan, false, misfit.short.0, misfit.host_short.0),
    };
    let nearest = match result {
        Ok(_) => vec![],
        Err(misfit) => misfit.nearest.iter().map(|n| json!({ "flags": n.flags, "peak_bytes": n.peak.0 })).collect(),
    };
    let next_larger = match result {
        Ok(found) => found.next_larger.map(|(n, bytes)| json!({ "micro_batch": n, "peak_bytes": bytes.0 })),
        Err(_) => None,
    };
    let (predicted, candidates) = match result {
        Ok(found) => {
            let (step_ms, tokens_per_s) = (found.step.0 * 1e3, found.tokens_per_s());
            (Some(json!({ "step_ms": step_ms, "tokens_per_s": tokens_per_s, "times": times })), found.candidates)
        }
        Err(misfit) => (None, misfit.candidates),
    };
    let value = json!({
        "model": { "name": model, "parameters": plan.parameters },
        "plan": PlanSummary::from(plan),
        "fits": fits,
        "short_by_bytes": short_by_bytes,
        "host_short_by_bytes": host_short_by_bytes,
        "breakdown": plan.breakdown,
        "next_larger": next_larger,
        "nearest": nearest,
        "levers": levers,
        "peak_moment": moment,
        "device": { "kind": plan.target.device, "threads": plan.target.threads },
        "predicted": predicted,
        "search": { "candidates": candidates, "milliseconds": milliseconds },
        "milliseconds": milliseconds,
    });
    serde_json::to_string_pretty(&value).expect("plain data")
}
