//! What each lever buys and costs in a plan: the plan, beside the same with that one lever off.

use crate::candidates::{Settings, built, plan_candidate, pulled};
use crate::levers::{Level, Levers, Recompute, update_in_backward_excluded};
use crate::request::{PlanError, Request};
use crate::search::Found;
use graph::Place;
use graph::ops::StateFormat;
use rayon::prelude::*;
use serde::Serialize;

/// The difference that a lever makes.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct LeverEffect {
    /// The lever.
    pub name: &'static str,
    /// Where it stands.
    pub setting: String,
    /// Whether it is pulled.
    pub on: bool,
    /// Bytes of the device's arena that it saves; below zero where it takes some.
    pub saved_bytes: i64,
    /// Bytes of the host's arena that it takes.
    pub host_bytes: i64,
    /// Predicted time that it adds to a step, as a part of the step without it; below zero where it saves some.
    pub added_time: f64,
    /// Why it is off, where something excludes it.
    pub note: Option<&'static str>,
}

/// One for each lever. Each takes a plan of its own.
pub fn lever_effects(request: &Request, found: &Found) -> Result<Vec<LeverEffect>, PlanError> {
    let now = &found.settings;
    let (levers, off) = (now.levers, Levers::default());
    let rows = now.micro_batch * request.seq_len;
    let without = |levers: Levers| Settings { levers, ..*now };
    let average = levers.average.map_or("off".to_owned(), |average| {
        let place = if average.place == Place::Host { "host" } else { "device" };
        format!("decay {}, on the {place}", average.decay)
    });
    let all = [
        (
            "recompute",
            describe_recompute(levers.recompute, request.model.blocks()),
            levers.recompute != off.recompute,
            without(Levers { recompute: off.recompute, ..levers }),
        ),
        (
            "optimizer offload",
            format!("{:.0} %", 100.0 * levers.optimizer_offload),
            levers.optimizer_offload > 0.0,
            without(Levers { optimizer_offload: 0.0, ..levers }),
        ),
        (
            "precision",
            levers.precision.name().to_owned(),
            levers.precision != off.precision,
            without(Levers { precision: off.precision, ..levers }),
        ),
        (
            "optimizer state",
            describe_state(levers.optimizer_state).to_owned(),
            levers.optimizer_state != off.optimizer_state,
            without(Levers { optimizer_state: off.optimizer_state, ..levers }),
        ),
        (
            UPDATE_IN_BACKWARD,
            if levers.update_in_backward { "on" } else { "off" }.to_owned(),
            levers.update_in_backward,
            without(Levers { update_in_backward: false, ..levers }),
        ),
        (
            "head chunk",
            format!("{} of {rows} rows", now.head_chunk.min(rows)),
            now.head_chunk < rows,
            Settings { head_chunk: rows, ..*now },
        ),
        (
            "attention rows",
            format!("{} of {}", levers.attention_rows.min(request.seq_len), request.seq_len),
            levers.attention_rows < request.seq_len,
            without(Levers { attention_rows: request.seq_len, ..levers }),
        ),
        ("moving average", average, levers.average.is_some(), without(Levers { average: None, ..levers })),
    ];
    let effect =
        |(name, setting, on, without): (&'static str, String, bool, Settings)| -> Result<LeverEffect, PlanError> {
            let mut effect =
                LeverEffect { name, setting, on, saved_bytes: 0, host_bytes: 0, added_time: 0.0, note: None };
            let graph = built(request, &without)?;
            if on {
                let other = pulled(request, without, graph)?;
                let plan = plan_candidate(request, &other);
                effect.saved_bytes = plan.peak_bytes as i64 - found.plan.peak_bytes as i64;
                effect.host_bytes = found.plan.host_bytes as i64 - plan.host_bytes as i64;
                effect.added_time = found.step.0 / other.step.0 - 1.0;
            } else if name == UPDATE_IN_BACKWARD {
                effect.note = update_in_backward_excluded(&graph, levers.precision).map(|excluded| excluded.reason);
            }
            Ok(effect)
        };
    all.into_par_iter().map(effect).collect()
}

const UPDATE_IN_BACKWARD: &str = "update in backward";

fn describe_level(level: Level) -> &'static str {
    match level {
        Level::None => "none",
        Level::Cheap => "cheap",
        Level::Attention => "attention",
        Level::Block => "blocks",
    }
}

fn describe_recompute(recompute: Recompute, blocks: usize) -> String {
    let Recompute { blocks: first, first: level, rest } = recompute;
    match first {
        0 => describe_level(rest).to_owned(),
        _ if first >= blocks => describe_level(level).to_owned(),
        _ => format!("{} in {first} of {blocks}, {} in the rest", describe_level(level), describe_level(rest)),
    }
}

fn describe_state(format: StateFormat) -> &'static str {
    match format {
        StateFormat::F32 => "fp32",
        StateFormat::Bf16 => "bf16",
        StateFormat::Blockwise8 => "8-bit",
    }
}
