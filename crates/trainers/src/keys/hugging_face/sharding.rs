//! Sharding in Hugging Face's keys: FSDP, nested DeepSpeed keys, and the path of DeepSpeed's file.

use crate::keys::{DIVISION, deepspeed};
use crate::kind::TrainerKind;
use crate::run::{Offload, Run, Sharding};
use crate::unsure::Effect;
use crate::view::View;
use plimsoll_units::Bytes;

/// Reads the sharding. In older versions `fsdp` is a list of words. Source: transformers 5.23, `_process_fsdp_args`.
pub(super) fn sharding(view: &mut View, run: &mut Run) {
    let words = view.list(&["fsdp"]).unwrap_or_default();
    let is_on = |word: &String| !matches!(word.to_ascii_lowercase().as_str(), "false" | "no" | "none");
    if words.iter().any(is_on) {
        run.sharding = Sharding::Fsdp;
        if words
            .iter()
            .any(|word| matches!(word.as_str(), "shard_grad_op" | "no_shard" | "hybrid_shard" | "hybrid_shard_zero2"))
        {
            view.note_last(Effect::More(DIVISION), "counted as `full_shard`, which also shards weights");
        }
    }
    if view.flag(&["fsdp_config.reshard_after_forward", "fsdp_config.fsdp_reshard_after_forward"]) == Some(false) {
        view.note_last(Effect::More(DIVISION), "weights are counted as resharded after each block");
    }
    let offload =
        view.flag(&["fsdp_config.cpu_offload", "fsdp_config.offload_params", "fsdp_config.fsdp_offload_params"]);
    if offload == Some(true) || words.iter().any(|word| word == "offload") {
        run.offload = Offload { optimizer: true, weights: true };
    }
    let bucket = view.count(&["ddp_bucket_cap_mb"]).map(|mib| Bytes(mib.saturating_mul(1 << 20)));
    match bucket {
        Some(bucket) if run.sharding == Sharding::None => run.sharding = Sharding::Ddp { bucket, views: false },
        _ => {}
    }
    if view.has("deepspeed.zero_optimization") {
        deepspeed::layer("deepspeed.", view, run);
    }
}

/// The paths of layers that the settings name.
pub(in crate::keys) fn layers(view: &mut View) -> Vec<(TrainerKind, String)> {
    match view.has("deepspeed") && !view.has("deepspeed.zero_optimization") {
        true => view.word(&["deepspeed"]).map(|path| (TrainerKind::DeepSpeed, path)).into_iter().collect(),
        false => vec![],
    }
}
