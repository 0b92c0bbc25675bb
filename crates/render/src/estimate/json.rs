//! What `estimate --json` prints. Keys stay as they are; sizes are bytes.

use super::words::{
    attention_name, checkpointing_name, loop_words, loss_name, method_name, offload_name, optimizer_name, part_name,
    precision_name, sharding_name, verdict_words,
};
use super::{EstimateReport, Part, changed_words, parts};
use plimsoll_eager::{Estimate, Footprint, Verdict};
use plimsoll_trainers::Run;
use serde_json::{Value, json};

/// The whole report.
pub fn estimate_json(report: &EstimateReport) -> Value {
    let estimate = report.estimate;
    let mut value = footprint(&estimate.likely);
    value["model"] = json!(report.model);
    value["run"] = run_json(report.run);
    let verdict = report.card.as_ref().map(|card| card.verdict);
    value["verdict"] = json!(verdict.map(verdict_words));
    value["fits"] = match verdict {
        Some(Verdict::Fits) => json!(true),
        Some(Verdict::DoesNotFit) => json!(false),
        Some(Verdict::MayFit) | None => Value::Null,
    };
    value["card"] =
        json!(report.card.as_ref().map(|card| {
            json!({ "name": card.name, "memory_bytes": card.memory.0, "margin_bytes": card.margin.0 })
        }));
    value["least"] = footprint(&estimate.range[0]);
    value["most"] = footprint(&estimate.range[1]);
    value["peak_phase"] = json!(estimate.phase.to_string());
    value["breakdown"] = breakdown(estimate);
    value["largest"] = largest(estimate);
    value["shortfall"] = json!(estimate.shortfall.as_ref().map(|short| {
        json!({
            "request_bytes": short.request.0, "op": short.op, "module": short.module,
            "phase": short.phase.to_string(), "needed_bytes": short.needed.0, "available_bytes": short.available.0,
        })
    }));
    value["smallest_card"] =
        json!(report.smallest.map(|(name, memory)| { json!({ "name": name, "memory_bytes": memory.0 }) }));
    value["what_fits"] = json!(
        report
            .ways
            .iter()
            .map(|way| {
                let mut value = footprint(&way.estimate.likely);
                value["changes"] = json!(changed_words(report.run, way.run));
                value["run"] = run_json(way.run);
                value["trains_additions_alone"] = json!(way.trains_less);
                value
            })
            .collect::<Vec<_>>()
    );
    value["caveats"] = json!(estimate.caveats);
    value["settings"] = settings(report);
    value
}

fn footprint(footprint: &Footprint) -> Value {
    json!({
        "peak_allocated_bytes": footprint.allocated.0,
        "peak_reserved_bytes": footprint.reserved.0,
        "context_bytes": footprint.context.0,
        "process_bytes": footprint.process().0,
    })
}

/// Bytes at the peak by purpose, named in words with underscores. They add up to the allocated bytes.
fn breakdown(estimate: &Estimate) -> Value {
    let part = |Part { name, bytes, storages }: Part| {
        (name.replace(' ', "_"), json!({ "bytes": bytes.0, "storages": storages }))
    };
    Value::Object(parts(estimate).into_iter().map(part).collect())
}

fn largest(estimate: &Estimate) -> Value {
    /// The number of storages that are listed.
    const MAX: usize = 50;
    let live = estimate.live.iter().take(MAX).map(|live| {
        json!({
            "bytes": live.bytes.0, "count": live.count, "shape": live.shape, "kind": live.kind.to_string(),
            "op": live.op, "module": live.module,
        })
    });
    live.collect()
}

fn run_json(run: &Run) -> Value {
    json!({
        "method": method_name(&run.method), "precision": precision_name(run.precision),
        "micro_batch": run.micro_batch, "gradient_accumulation_steps": run.accumulation,
        "seq_len": run.seq_len, "target_len": run.target_len, "optimizer": optimizer_name(run.optimizer),
        "gradient_checkpointing": checkpointing_name(run.checkpointing), "attention": attention_name(run.attention),
        "loss": loss_name(run.loss), "clip": run.clips, "sharding": sharding_name(run.sharding),
        "offload": offload_name(run.offload), "cards": run.cards, "compile": run.compiles, "update_in_backward": run.updates_in_backward,
        "alloc_conf": run.alloc_conf, "loop": loop_words(run.custom_loop),
        "transformers": run.libraries.transformers.to_string(), "torch": run.libraries.torch.to_string(),
    })
}

/// Settings read from the trainer's own files; null if none were read.
fn settings(report: &EstimateReport) -> Value {
    let Some(read) = report.read else { return Value::Null };
    let told = read
        .used
        .iter()
        .map(|told| json!({ "trainer": told.kind.name(), "key": told.key, "value": told.value, "line": told.line }));
    let unknown = read.unknown.iter().map(|unknown| {
        json!({ "trainer": unknown.kind.name(), "key": unknown.key, "line": unknown.line, "near": unknown.near })
    });
    let unmodeled = read.unmodeled.iter().map(|key| {
        json!({
            "trainer": key.kind.name(), "key": key.key, "line": key.line, "why": key.why,
            "may_need_less": key.effect.less().iter().map(|part| part_name(*part)).collect::<Vec<_>>(),
            "may_need_more": key.effect.more().iter().map(|part| part_name(*part)).collect::<Vec<_>>(),
        })
    });
    json!({
        "trainer": read.kind.name(), "told": told.collect::<Vec<_>>(), "unknown": unknown.collect::<Vec<_>>(),
        "not_modelled": unmodeled.collect::<Vec<_>>(), "assumed": read.assumed, "missing_files": report.missing,
    })
}
