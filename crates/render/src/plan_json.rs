//! `plan --json`.

use super::plan_table::{as_flags, joined};
use plimsoll_graph::MemoryId;
use plimsoll_plan::{Found, LeverEffect, Misfit, Moment, Nearest, Plan, saved_activations};
use plimsoll_train::PlanSummary;
use serde_json::{Value, json};

/// The contents of the report.
pub struct PlanReport<'a> {
    /// Preset or path.
    pub model: &'a str,
    /// The request of the plan.
    pub device: &'a str,
    /// The source of predicted times.
    pub times: &'a str,
    /// The plan, or why there is none.
    pub result: &'a Result<Found, Box<Misfit>>,
    /// The benefit and cost of each lever.
    pub levers: &'a [LeverEffect],
    /// The moment of the peak, if it was asked for.
    pub moment: Option<Moment>,
    /// Time of the search.
    pub milliseconds: f64,
}

/// The plan, whether it fits, and its parts. Units are in the keys.
pub fn plan_json(report: &PlanReport) -> Value {
    let PlanReport { model, device, times, result, levers, moment, milliseconds } = report;
    let (plan, fits, short_by_bytes, host_short_by_bytes): (&Plan, bool, u64, u64) = match result {
        Ok(found) => (&found.plan, true, 0, 0),
        Err(misfit) => {
            let [device, host] = [MemoryId::DEVICE, MemoryId::HOST].map(|memory| misfit.short[memory].0);
            (&misfit.plan, false, device, host)
        }
    };
    let nearest = match result {
        Ok(_) => vec![],
        Err(misfit) => misfit.nearest.iter().map(nearest_json).collect(),
    };
    let bound = result.as_ref().ok().map(|found| match found.limited_by.is_empty() {
        true => "nothing".to_owned(),
        false => joined(found.limited_by, "-and-"),
    });
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
    json!({
        "model": { "name": model, "parameters": plan.parameters, "trained_parameters": plan.trained_parameters },
        "plan": PlanSummary::from(plan),
        "fits": fits,
        "short_by_bytes": short_by_bytes,
        "host_short_by_bytes": host_short_by_bytes,
        "bound": bound,
        "breakdown": plan.breakdown,
        "saved_activations_bytes": saved_activations(plan).0,
        "next_larger": next_larger,
        "nearest": nearest,
        "levers": levers,
        "peak_moment": moment,
        "device": {
            "name": device,
            "kind": plan.targets.device.kind(),
            "threads": plan.targets.host.threads(),
            "products": plan.targets.device.products(),
        },
        "predicted": predicted,
        "search": { "candidates": candidates, "milliseconds": milliseconds },
        "milliseconds": milliseconds,
    })
}

fn nearest_json(nearest: &Nearest) -> Value {
    let Nearest { changes, peak, step, added_time } = nearest;
    json!({ "changes": changes, "flags": as_flags(changes), "peak_bytes": peak.0, "step_ms": step.0 * 1e3, "added_time": added_time })
}
