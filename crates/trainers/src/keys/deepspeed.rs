//! DeepSpeed's JSON file. Values of `auto` come from the trainer. Source: DeepSpeed's documentation of its
//! configuration, and transformers 5.23, `integrations/deepspeed.py`.

use super::{ACTIVATIONS, ALL, DIVISION, GRADIENTS, NoKey, OPTIMIZER_STATE};
use crate::change::SettingChange;
use crate::document::Document;
use crate::rewrite::edit::{Edit, Literal};
use crate::run::{Buffers, Elements, Offload, Optimizer, Precision, Run, Sharding};
use crate::unsure::Effect;
use crate::view::View;

/// The value for settings of the trainer.
const AUTO: &str = "auto";

pub(super) fn edits(change: &SettingChange, document: &Document) -> Result<Vec<Edit>, NoKey> {
    let own = |key: &str, value: u64| match document.plain(key) {
        Some(AUTO) | None => vec![],
        Some(_) => vec![Edit::set(key, value)],
    };
    Ok(match change {
        // `train_batch_size` is the effective batch, which does not change.
        SettingChange::MicroBatch(samples) => own("train_micro_batch_size_per_gpu", *samples),
        SettingChange::Accumulation(times) => own("gradient_accumulation_steps", *times),
        SettingChange::Sharding(Sharding::Zero { stage }) => {
            vec![Edit::set("zero_optimization.stage", u64::from(*stage))]
        }
        SettingChange::Offload(offload) => self::offload("", *offload),
        SettingChange::Precision(precision) => {
            let (bf16, fp16) = match precision {
                Precision::Fp32 => (false, false),
                Precision::PureBf16 | Precision::AmpBf16 => (true, false),
                Precision::PureFp16 | Precision::AmpFp16 => (false, true),
            };
            let edit = |key: &str, wanted: bool| match wanted {
                true => Edit::set(key, true),
                false => Edit::replace(key, false),
            };
            vec![edit("bf16.enabled", bf16), edit("fp16.enabled", fp16)]
        }
        _ => return Err(Some("it belongs in the trainer's file")),
    })
}

/// The edits for offload. `within`: a prefix of outer keys, each followed by a dot.
pub(super) fn offload(within: &str, offload: Offload) -> Vec<Edit> {
    let device = |part: &str, wanted: bool| {
        let key = format!("{within}zero_optimization.{part}.device");
        match wanted {
            true => Edit::Set(key, Literal::from("cpu")),
            false => Edit::Replace(key, Literal::from("none")),
        }
    };
    vec![device("offload_optimizer", offload.optimizer), device("offload_param", offload.weights)]
}

/// Keys that do not affect GPU memory.
pub(super) const IGNORED: &[&str] = &[
    "steps_per_print",
    "wall_clock_breakdown",
    "scheduler.*",
    "optimizer.params.*",
    "prescale_gradients",
    "gradient_predivide_factor",
    "communication_data_type",
    "zero_allow_untested_optimizer",
    "zero_force_ds_cpu_optimizer",
    "dump_state",
    "checkpoint.*",
    "flops_profiler.*",
    "comms_logger.*",
    "tensorboard.*",
    "wandb.*",
    "csv_monitor.*",
    "monitor_config.*",
    "data_types.*",
    "aio.*",
    "bf16.*",
    "fp16.*",
    "bfloat16.*",
    "amp.*",
    "zero_optimization.offload_optimizer.*",
    "zero_optimization.offload_param.*",
    "zero_optimization.round_robin_gradients",
    "zero_optimization.gather_16bit_weights_on_model_save",
    "zero_optimization.stage3_gather_16bit_weights_on_model_save",
    "zero_optimization.stage3_gather_fp16_weights_on_model_save",
    "zero_optimization.ignore_unused_parameters",
    "zero_optimization.cpu_offload_use_pin_memory",
    "zero_optimization.load_from_fp32_weights",
    "zero_optimization.contiguous_gradients",
    "zero_optimization.reduce_scatter",
    "zero_optimization.allgather_partitions",
    "seed",
];

/// Keys that are not modeled exactly, their possible effect on memory, and how they are counted.
type UnmodeledKeys = (&'static [&'static str], Effect, &'static str);

/// Keys that affect memory but are not modeled exactly.
const UNMODELED: &[UnmodeledKeys] = &[
    (
        &["activation_checkpointing.*"],
        Effect::Less(ACTIVATIONS),
        "not counted, since only scripts that call DeepSpeed's checkpointing use it",
    ),
    (
        &["pipeline.*", "tensor_parallel.*", "sequence_parallel_size", "autotuning.*", "elasticity.*"],
        Effect::Either(ALL),
        "not modeled",
    ),
    (
        &["compression_training.*", "quantize_training.*", "sparse_attention.*", "progressive_layer_drop.*"],
        Effect::Either(ALL),
        "not modeled",
    ),
    (
        &[
            "zero_optimization.zero_hpz_partition_size",
            "zero_optimization.zero_quantized_*",
            "zero_optimization.mics_*",
            "zero_optimization.zenflow*",
        ],
        Effect::More(DIVISION),
        "not modeled",
    ),
];

/// Sizes that are counted with DeepSpeed's defaults.
const OTHER_SIZES: &[&str] = &[
    "zero_optimization.allgather_bucket_size",
    "zero_optimization.sub_group_size",
    "zero_optimization.stage3_max_live_parameters",
    "zero_optimization.model_persistence_threshold",
];

/// Reads a size in elements. `default`: DeepSpeed's default.
fn elements(view: &mut View, key: &str, default: u64) -> Elements {
    match view.word(&[key]) {
        None => Elements::Of(default),
        Some(text) if text == AUTO => Elements::Auto,
        // Sizes are often written as `5e8`.
        Some(text) => match text.parse::<f64>().ok().filter(|size| (0.0..1e15).contains(size)) {
            Some(size) => Elements::Of(size as u64),
            None => {
                view.reject_last("it is not a number of elements");
                Elements::Unknown
            }
        },
    }
}

/// Reads the sizes of buffers. Source: DeepSpeed 0.19, `runtime/zero/config.py`.
fn buffers(view: &mut View, key: impl Fn(&str) -> String) -> Buffers {
    Buffers {
        reduce: elements(view, &key("zero_optimization.reduce_bucket_size"), 500_000_000),
        prefetch: elements(view, &key("zero_optimization.stage3_prefetch_bucket_size"), 50_000_000),
        persistent: elements(view, &key("zero_optimization.stage3_param_persistence_threshold"), 100_000),
        reuse: elements(view, &key("zero_optimization.stage3_max_reuse_distance"), 1_000_000_000),
        overlaps: Some(view.flag(&[&key("zero_optimization.overlap_comm")]) == Some(true)),
    }
}

/// Applies DeepSpeed's settings to a run. `within`: a prefix of outer keys, each followed by a dot.
pub(super) fn layer(within: &str, view: &mut View, run: &mut Run) {
    let key = |key: &str| format!("{within}{key}");
    if let Some(samples) = view.count(&[&key("train_micro_batch_size_per_gpu")]) {
        run.micro_batch = samples;
    }
    let accumulation = view.count(&[&key("gradient_accumulation_steps")]);
    run.accumulation = accumulation.unwrap_or(run.accumulation);
    let whole = view.count(&[&key("train_batch_size")]);
    if let (Some(whole), None) = (whole, accumulation) {
        run.accumulation = (whole / (run.micro_batch.saturating_mul(run.cards)).max(1)).max(1);
    }
    let stage = view.number(&[&key("zero_optimization.stage")]);
    match stage {
        Some(stage @ 1..=3) => run.sharding = Sharding::Zero { stage: stage as u8 },
        Some(0) | None => {}
        Some(_) => view.reject_last("the stages are 0 to 3"),
    }
    let mut is_host = |part: &str| {
        let place = view.word(&[&key(&format!("zero_optimization.{part}.device"))]);
        if place.as_deref() == Some("nvme") {
            view.note_last(Effect::Same, "counted in host memory");
        }
        place.is_some_and(|place| place == "cpu" || place == "nvme")
    };
    let (optimizer, weights) = (is_host("offload_optimizer"), is_host("offload_param"));
    let older = view.flag(&[&key("zero_optimization.cpu_offload")]) == Some(true);
    run.offload.optimizer |= optimizer || older;
    run.offload.weights |= weights;
    if view.flag(&[&key("bf16.enabled"), &key("bfloat16.enabled")]) == Some(true) {
        run.precision = Precision::AmpBf16;
    } else if view.flag(&[&key("fp16.enabled")]) == Some(true) {
        run.precision = Precision::AmpFp16;
    }
    if let Some(norm) = view.real(&[&key("gradient_clipping")]) {
        run.clips = norm > 0.0;
    }
    if let Some(name) = view.word(&[&key("optimizer.type")]).filter(|name| name != AUTO) {
        match super::optimizer_called(&name.to_ascii_lowercase()) {
            // Source: `runtime/engine.py`: it uses its own fused kernel.
            Some((Optimizer::AdamWForeach, _)) => run.optimizer = Optimizer::AdamWFused,
            Some((other, None)) => run.optimizer = other,
            _ => view.note_last(Effect::Either(OPTIMIZER_STATE), "counted as the trainer's optimizer"),
        }
    }
    let buffers = buffers(view, key);
    if stage.is_some() {
        run.buffers = buffers;
    }
    let keys = |list: &[&str]| list.iter().map(|name| key(name)).collect::<Vec<_>>();
    for name in keys(OTHER_SIZES) {
        if view.word(&[&name]).is_some_and(|value| value != AUTO) {
            view.note_last(Effect::Either(GRADIENTS), "buffers are counted with their default sizes");
        }
    }
    for (names, effect, why) in UNMODELED {
        let names = keys(names);
        view.note_unmodeled(&names.iter().map(String::as_str).collect::<Vec<_>>(), *effect, why);
    }
    let names = keys(IGNORED);
    view.ignore(&names.iter().map(String::as_str).collect::<Vec<_>>());
}
