//! `plan --beside pytorch`: the memory that the same run would take in PyTorch, next to the plan's.

use super::Failure;
use super::answer::Answer;
use ::plimsoll_plan::{Plan, Precision, Request};
use plimsoll_eager::{Gpu, estimate};
use plimsoll_graph::{Adapters, MemoryId, WeightCodes};
use plimsoll_trainers::{self as trainers, Checkpointing, Lora, Method, Quantized, Run, Targets};
use plimsoll_units::Bytes;
use serde_json::json;
use std::collections::BTreeSet;

/// Memory that no run exceeds, and the architecture of the most common GPUs, which decides the size of CUDA's context.
const ANY_GPU: Gpu = Gpu { memory: Bytes(1 << 50), compute_capability: (8, 6) };

/// Other programs whose memory is compared with a plan's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum OtherProgram {
    /// PyTorch with transformers, PEFT and bitsandbytes
    Pytorch,
}

impl OtherProgram {
    /// The peaks of the plan and of the other program. `outside`: memory of the plan's process on the GPU in addition to the plan.
    /// Errors: a setting that the estimate does not model.
    pub(super) fn compare(self, request: &Request, plan: &Plan, outside: Bytes) -> Result<Answer, Failure> {
        let run = pytorch_run(request, plan)?;
        let found = estimate(&request.model, &run, ANY_GPU).map_err(|cannot| {
            Failure::bad_flag(format!("`--beside pytorch` can't estimate this run: {cannot}")).hint("omit `--beside`")
        })?;
        let [least, most] = found.range.map(|footprint| footprint.process());
        let (likely, ours) = (found.likely.process(), plan.needed()[MemoryId::DEVICE] + outside);
        let host = plan.needed()[MemoryId::HOST];
        let of_host = if host > Bytes::ZERO { format!(" and {host} of host memory") } else { String::new() };
        let words = format!(
            "in PyTorch, the process would use {likely} ({least} to {most}) with the same micro-batch of {} and activation \
             checkpointing; this plan holds {ours}{of_host}, margin included",
            plan.micro_batch
        );
        let value = json!({
            "likely_bytes": likely.0, "least_bytes": least.0, "most_bytes": most.0, "plan_bytes": ours.0,
            "plan_host_bytes": host.0, "micro_batch": plan.micro_batch,
        });
        Ok(Answer { key: "pytorch", value, words })
    }
}

/// The same run in PyTorch, with activation checkpointing, its usual way to save memory.
fn pytorch_run(request: &Request, plan: &Plan) -> Result<Run, Failure> {
    let method = match (&request.adapters, request.levers.base_weights) {
        (None, _) => Method::Full,
        (Some(adapters), None) => Method::Lora(lora(adapters)),
        (Some(adapters), Some(WeightCodes::Nf4)) => {
            Method::Qlora(lora(adapters), Quantized { block: 64, double: true })
        }
        (Some(_), Some(codes)) => {
            let message = format!("`--beside pytorch` does not know a base in {}", codes.name());
            return Err(Failure::bad_flag(message).hint("compare with `--base-weights nf4`, or omit `--beside`"));
        }
    };
    let precision = match (request.levers.precision, &method) {
        (Precision::Fp32, _) => trainers::Precision::Fp32,
        // Base weights are loaded in the precision of the computation.
        (Precision::Bf16Pure, _) | (Precision::Bf16 | Precision::Fp8, Method::Lora(_)) => trainers::Precision::PureBf16,
        (Precision::Bf16 | Precision::Fp8, _) => trainers::Precision::AmpBf16,
        (Precision::Fp16, Method::Lora(_)) => trainers::Precision::PureFp16,
        (Precision::Fp16, _) => trainers::Precision::AmpFp16,
    };
    Ok(Run {
        method,
        precision,
        micro_batch: plan.micro_batch as u64,
        accumulation: plan.accumulation as u64,
        seq_len: plan.seq_len as u64,
        target_len: plan.target_len.map(|tokens| tokens as u64),
        checkpointing: Checkpointing::NonReentrant,
        ..Run::default()
    })
}

/// Adapters by the ends of the layers' names, with the largest rank.
fn lora(adapters: &Adapters) -> Lora {
    let ends = adapters.layers.keys().filter_map(|module| module.rsplit('.').next()).collect::<BTreeSet<_>>();
    Lora {
        rank: adapters.layers.values().map(|adapter| adapter.rank as u64).max().unwrap_or(1),
        targets: Targets::Named(ends.into_iter().map(str::to_owned).collect()),
        dropout: adapters.dropout > 0.0,
    }
}
