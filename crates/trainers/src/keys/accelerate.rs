//! The file that `accelerate config` writes. Source: accelerate 1.12, `commands/config/config_args.py`,
//! `utils/dataclasses.py`.

use super::{ALL, DIVISION, NoKey, half_called};
use crate::change::SettingChange;
use crate::document::Document;
use crate::kind::TrainerKind;
use crate::rewrite::edit::Edit;
use crate::run::{Checkpointing, Offload, Precision, Run, Sharding};
use crate::unsure::Effect;
use crate::view::View;

pub(super) fn edits(change: &SettingChange, document: &Document) -> Result<Vec<Edit>, NoKey> {
    let has_deepspeed = document.plain("distributed_type") == Some("DEEPSPEED");
    let has_fsdp = document.plain("distributed_type") == Some("FSDP");
    Ok(match change {
        SettingChange::MicroBatch(_) => vec![],
        SettingChange::Accumulation(times) => {
            let key = "deepspeed_config.gradient_accumulation_steps";
            match document.plain(key) {
                Some("auto") | None => vec![],
                Some(_) => vec![Edit::set(key, *times)],
            }
        }
        SettingChange::Precision(precision) => vec![Edit::set(
            "mixed_precision",
            match precision {
                // Weights that are loaded in half precision need no autocast.
                Precision::Fp32 | Precision::PureBf16 | Precision::PureFp16 => "no",
                Precision::AmpBf16 => "bf16",
                Precision::AmpFp16 => "fp16",
            },
        )],
        SettingChange::Sharding(Sharding::Zero { stage }) => vec![
            Edit::set("distributed_type", "DEEPSPEED"),
            Edit::set("deepspeed_config.zero_stage", u64::from(*stage)),
        ],
        SettingChange::Sharding(Sharding::Fsdp) => vec![
            Edit::set("distributed_type", "FSDP"),
            Edit::set("fsdp_config.fsdp_sharding_strategy", "FULL_SHARD"),
            Edit::set("fsdp_config.fsdp_auto_wrap_policy", "TRANSFORMER_BASED_WRAP"),
        ],
        SettingChange::Sharding(Sharding::Ddp { .. }) => vec![Edit::set("distributed_type", "MULTI_GPU")],
        SettingChange::Sharding(Sharding::None) => vec![Edit::set("distributed_type", "NO")],
        SettingChange::Offload(offload) if has_deepspeed => {
            let place = |wanted: bool| if wanted { "cpu" } else { "none" };
            vec![
                Edit::set("deepspeed_config.offload_optimizer_device", place(offload.optimizer)),
                Edit::set("deepspeed_config.offload_param_device", place(offload.weights)),
            ]
        }
        SettingChange::Offload(offload) if has_fsdp => {
            vec![Edit::set("fsdp_config.fsdp_offload_params", *offload != Offload::default())]
        }
        SettingChange::Offload(offload) if *offload == Offload::default() => vec![],
        _ => return Err(Some("it belongs in the trainer's file")),
    })
}

/// Keys that do not affect GPU memory.
pub(super) const IGNORED: &[&str] = &[
    "compute_environment",
    "debug",
    "downcast_bf16",
    "enable_cpu_affinity",
    "gpu_ids",
    "machine_rank",
    "num_machines",
    "main_*",
    "rdzv_backend",
    "same_network",
    "tpu_*",
    "commands",
    "command_file",
    "use_cpu",
    "mpirun_config*",
    "ipex_config*",
    "dynamo_config.*",
    "deepspeed_config.*",
    "fsdp_config.*",
];

/// Applies accelerate's settings to a run, and adds DeepSpeed's file to `layers` if it names one. Its keys for the
/// cards always apply; its precision applies only if the trainer sets none.
pub(crate) fn layer(view: &mut View, run: &mut Run, layers: &mut Vec<(TrainerKind, String)>) {
    if let Some(cards) = view.count(&["num_processes"]) {
        run.cards = cards;
    }
    let half = view.word(&["mixed_precision"]).as_deref().and_then(half_called);
    if let Some(half) = half.filter(|_| run.precision == Precision::Fp32) {
        run.precision = half.mixed();
    }
    match view.word(&["distributed_type"]).unwrap_or_default().to_ascii_uppercase().as_str() {
        "DEEPSPEED" => of_deepspeed(view, run, layers),
        "FSDP" => of_fsdp(view, run),
        "" | "NO" | "MULTI_GPU" => {}
        _ => view.note_last(Effect::Less(ALL), "not modeled: counted with a full copy on each card"),
    }
    let compiler = view.word(&["dynamo_config.dynamo_backend", "dynamo_backend"]);
    run.compiles |= compiler.is_some_and(|name| !name.eq_ignore_ascii_case("no"));
    view.note_unmodeled(
        &["megatron_lm_config*", "tp_config*", "parallelism_config*", "fp8_config*"],
        Effect::Either(ALL),
        "not modeled",
    );
    view.ignore(IGNORED);
}

fn of_deepspeed(view: &mut View, run: &mut Run, layers: &mut Vec<(TrainerKind, String)>) {
    let path = view.word(&["deepspeed_config.deepspeed_config_file"]);
    layers.extend(path.map(|path| (TrainerKind::DeepSpeed, path)));
    match view.number(&["deepspeed_config.zero_stage"]) {
        Some(stage @ 1..=3) => run.sharding = Sharding::Zero { stage: stage as u8 },
        Some(0) | None => {}
        Some(_) => view.reject_last("the stages are 0 to 3"),
    }
    let mut is_host = |key: &str| view.word(&[key]).is_some_and(|place| place == "cpu" || place == "nvme");
    run.offload.optimizer |= is_host("deepspeed_config.offload_optimizer_device");
    run.offload.weights |= is_host("deepspeed_config.offload_param_device");
    if let Some(times) = view.count(&["deepspeed_config.gradient_accumulation_steps"]) {
        run.accumulation = times;
    }
    if let Some(norm) = view.real(&["deepspeed_config.gradient_clipping"]) {
        run.clips = norm > 0.0;
    }
}

fn of_fsdp(view: &mut View, run: &mut Run) {
    run.sharding = Sharding::Fsdp;
    let strategy = view.word(&["fsdp_config.fsdp_sharding_strategy", "fsdp_config.fsdp_reshard_after_forward"]);
    let whole = ["FULL_SHARD", "1", "TRUE", ""];
    if !whole.contains(&strategy.unwrap_or_default().to_ascii_uppercase().as_str()) {
        view.note_last(Effect::More(DIVISION), "counted as `FULL_SHARD`, which also shards weights");
    }
    if view.flag(&["fsdp_config.fsdp_offload_params"]) == Some(true) {
        run.offload = Offload { optimizer: true, weights: true };
    }
    if view.flag(&["fsdp_config.fsdp_activation_checkpointing"]) == Some(true)
        && run.checkpointing == Checkpointing::Off
    {
        run.checkpointing = Checkpointing::NonReentrant;
    }
}
