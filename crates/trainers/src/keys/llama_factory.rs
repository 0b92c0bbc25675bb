//! LLaMA-Factory's YAML, with the keys of `TrainingArguments` and its own. Source: LLaMA-Factory 0.9.5, `hparams/`,
//! `model/adapter.py`, `model/model_utils/`.

use super::hugging_face::{MICRO_BATCH, checkpoints, layers, method_of, mixed, note_evaluation, shared, shared_run};
use super::{Found, GENERATES, NoKey, ON_PREFERENCES, PREFERENCES, TRAINED, WEIGHTS, lora, named, present};
use crate::change::SettingChange;
use crate::document::Document;
use crate::rewrite::edit::{Edit, Literal};
use crate::run::{Attention, Checkpointing, Lora, Loss, Method, Precision, Quantized, Run, Targets};
use crate::unsure::Effect;
use crate::view::View;
use crate::words::Layout;

pub(super) fn edits(change: &SettingChange, document: &Document) -> Result<Vec<Edit>, NoKey> {
    Ok(match change {
        SettingChange::MicroBatch(samples) => vec![
            Edit::set(present(document, MICRO_BATCH).unwrap_or(MICRO_BATCH[0]), *samples),
            Edit::replace("auto_find_batch_size", false),
        ],
        SettingChange::SeqLen(tokens) => vec![Edit::set("cutoff_len", *tokens)],
        SettingChange::TargetLen(_) => return Err(None),
        SettingChange::Checkpointing(Checkpointing::Off) => vec![Edit::set("disable_gradient_checkpointing", true)],
        SettingChange::Checkpointing(Checkpointing::Reentrant) => {
            vec![Edit::replace("disable_gradient_checkpointing", false), Edit::replace("use_reentrant_gc", true)]
        }
        SettingChange::Checkpointing(Checkpointing::NonReentrant) => {
            vec![Edit::replace("disable_gradient_checkpointing", false), Edit::set("use_reentrant_gc", false)]
        }
        SettingChange::Attention(attention) => vec![Edit::set(
            "flash_attn",
            match attention {
                Attention::Eager => "disabled",
                Attention::Sdpa | Attention::Efficient => "sdpa",
                Attention::Flash2 => "fa2",
            },
        )],
        SettingChange::Loss(Loss::Liger) => vec![Edit::set("enable_liger_kernel", true)],
        SettingChange::Loss(Loss::Plain) => vec![Edit::replace("enable_liger_kernel", false)],
        SettingChange::Loss(Loss::CutCrossEntropy) => return Err(None),
        SettingChange::Precision(precision) => self::precision(*precision, document)?,
        SettingChange::Method(method) => self::method(method, document),
        other => shared(other, document)?,
    })
}

/// Whether all weights are trained. LoRA is the default.
fn trains_all(document: &Document) -> bool {
    document.plain("finetuning_type") == Some("full")
}

/// With `bf16`, trained weights are in single precision and frozen ones in bf16. With `pure_bf16`, all are in bf16. It
/// rejects a file with both.
fn precision(precision: Precision, document: &Document) -> Result<Vec<Edit>, NoKey> {
    let off = |key: &str| Edit::replace(key, false);
    let on = |key: &str| Edit::set(key, true);
    let all = trains_all(document);
    Ok(match precision {
        Precision::Fp32 if all => vec![off("bf16"), off("fp16"), off("pure_bf16")],
        Precision::PureBf16 if all => vec![off("bf16"), off("fp16"), on("pure_bf16")],
        Precision::AmpBf16 if all => vec![off("fp16"), off("pure_bf16"), on("bf16")],
        Precision::AmpFp16 if all => vec![off("bf16"), off("pure_bf16"), on("fp16")],
        Precision::PureFp16 if all => return Err(Some("it trains fully in bf16 or in mixed precision")),
        Precision::PureBf16 => vec![off("fp16"), off("pure_bf16"), on("bf16")],
        Precision::PureFp16 => vec![off("bf16"), off("pure_bf16"), on("fp16")],
        Precision::Fp32 | Precision::AmpBf16 | Precision::AmpFp16 => {
            return Err(Some("it keeps frozen weights in half precision"));
        }
    })
}

fn method(method: &Method, document: &Document) -> Vec<Edit> {
    let Some(lora) = lora(method) else {
        return vec![Edit::set("finetuning_type", "full"), Edit::replace("quantization_bit", Literal::Null)];
    };
    let mut edits = vec![Edit::set("finetuning_type", "lora"), Edit::set("lora_rank", lora.rank)];
    match named(&lora.targets) {
        Some(names) => edits.push(Edit::set("lora_target", names.join(",").as_str())),
        None if lora.targets == Targets::AllLinear => edits.push(Edit::set("lora_target", "all")),
        None => {}
    }
    edits.extend(super::lora_dropout("lora_dropout", lora.dropout, false, document));
    match method {
        Method::Qlora(_, quantized) => edits.extend([
            Edit::set("quantization_bit", 4u64),
            if quantized.double {
                Edit::replace("double_quantization", true)
            } else {
                Edit::set("double_quantization", false)
            },
        ]),
        _ => edits.push(Edit::replace("quantization_bit", Literal::Null)),
    }
    edits
}

/// Its defaults. Source: `hparams/`: LoRA of rank 8 on all linear layers, samples of 2,048 tokens, re-entrant checkpointing
/// unless it is disabled, scales of 4-bit weights in 8 bits; all others are those of `TrainingArguments`.
pub(super) fn read(view: &mut View) -> Found {
    let mut run = shared_run(view);
    super::assume_fused(view, &["optim", "adafactor"]);
    run.micro_batch = view.count(MICRO_BATCH).unwrap_or(8);
    run.seq_len = view.count(&["cutoff_len"]).unwrap_or(2048);
    let disabled = view.flag(&["disable_gradient_checkpointing"]) == Some(true);
    let reentrant = view.flag(&["use_reentrant_gc"]) != Some(false);
    let of_trainer = checkpoints(view);
    run.checkpointing = match (disabled, reentrant) {
        (true, _) => of_trainer,
        (false, true) => Checkpointing::Reentrant,
        (false, false) => Checkpointing::NonReentrant,
    };
    run.attention = match view.word(&["flash_attn"]).as_deref() {
        Some("disabled" | "off" | "false") => Attention::Eager,
        Some("fa2" | "fa3") => Attention::Flash2,
        _ => Attention::Sdpa,
    };
    if view.flag(&["enable_liger_kernel"]) == Some(true) {
        run.loss = Loss::Liger;
    }
    note_evaluation(view, &["per_device_eval_batch_size"], 8, run.micro_batch);
    let stage = view.word(&["stage"]);
    match stage.as_deref() {
        None | Some("pt" | "sft") => {}
        Some("dpo" | "kto" | "rm") => view.note_last(Effect::More(PREFERENCES), ON_PREFERENCES),
        Some(_) => view.note_last(Effect::Unbounded, GENERATES),
    }
    read_method(view, &mut run);
    run.precision = read_precision(view, &run.method);
    let model = view.word(&["model_name_or_path"]);
    view.apply_words(Layout::LlamaFactory);
    (run, model, layers(view))
}

fn read_method(view: &mut View, run: &mut Run) {
    let rank = view.count(&["lora_rank"]).unwrap_or(8);
    let targets = super::targets(Some(view.list(&["lora_target"]).unwrap_or_else(|| vec!["all".to_owned()])));
    let dropout = view.real(&["lora_dropout"]).is_some_and(|dropout| dropout > 0.0);
    let bits = view.number(&["quantization_bit"]);
    if bits.is_some_and(|bits| bits != 4) {
        view.note_last(Effect::Less(WEIGHTS), "only weights in 4 bits are modeled: counted in their usual type");
    }
    if view.word(&["quantization_type"]).is_some_and(|name| name == "fp4") {
        view.note_last(Effect::Same, "counted as NF4, which has the same size");
    }
    if view.word(&["quantization_method"]).is_some_and(|name| !matches!(name.as_str(), "bnb" | "bitsandbytes")) {
        view.note_last(Effect::Either(WEIGHTS), "counted as 4 bits of bitsandbytes");
    }
    let double = view.flag(&["double_quantization"]) != Some(false);
    let quantized = bits.filter(|bits| *bits == 4).map(|_| Quantized { block: 64, double });
    match view.word(&["finetuning_type"]).as_deref() {
        None | Some("lora") => run.method = method_of(Lora { rank, targets, dropout }, quantized),
        Some("full") => {}
        Some(_) => {
            view.note_of("finetuning_type", Effect::Less(TRAINED), "not modeled: all weights are counted as trained")
        }
    }
}

/// Trained weights are cast to single precision unless `pure_bf16` is set. Frozen weights stay in half precision.
/// Source: `model/adapter.py`.
fn read_precision(view: &mut View, method: &Method) -> Precision {
    let pure = view.flag(&["pure_bf16"]) == Some(true);
    match (mixed(view), method) {
        _ if pure => Precision::PureBf16,
        (Some(half), Method::Full) => half.mixed(),
        (Some(half), _) => half.pure(),
        (None, Method::Full) => Precision::Fp32,
        (None, _) => {
            view.assume(
                Effect::More(WEIGHTS),
                "frozen weights in bf16: neither `bf16` nor `fp16` is set, so they keep their stored type",
            );
            Precision::PureBf16
        }
    }
}
