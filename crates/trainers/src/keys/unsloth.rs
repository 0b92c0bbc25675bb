//! The keyword arguments of Unsloth's notebooks (`FastLanguageModel.from_pretrained`, `get_peft_model`, `SFTConfig`),
//! in one object.
//! Source: unsloth 2026.10, `models/loader.py`, `models/llama.py`.

use super::hugging_face::{self, MICRO_BATCH, layers, method_of, mixed, note_evaluation, shared, shared_run};
use super::{ACTIVATIONS, Found, Half, LOGITS, NoKey, SAMPLES, half_called, lora, named, optim, present};
use crate::change::SettingChange;
use crate::document::Document;
use crate::rewrite::edit::{Edit, Literal};
use crate::run::{Checkpointing, Lora, Loss, Method, Precision, Quantized, Targets};
use crate::unsure::Effect;
use crate::view::View;
use crate::words::Layout;

/// Keys for the sample length, an argument of `from_pretrained`.
pub(super) const SEQ_LEN: &[&str] = &["max_seq_length", "max_length"];

pub(super) fn edits(change: &SettingChange, document: &Document) -> Result<Vec<Edit>, NoKey> {
    Ok(match change {
        SettingChange::MicroBatch(samples) => vec![Edit::set("per_device_train_batch_size", *samples)],
        SettingChange::SeqLen(tokens) => {
            vec![Edit::set(present(document, SEQ_LEN).unwrap_or(SEQ_LEN[0]), *tokens)]
        }
        SettingChange::Optimizer(optimizer) => vec![Edit::set("optim", optim(*optimizer)?)],
        SettingChange::Checkpointing(Checkpointing::Off) => vec![Edit::set("use_gradient_checkpointing", false)],
        SettingChange::Checkpointing(_) => vec![Edit::set("use_gradient_checkpointing", true)],
        SettingChange::Precision(precision) => self::precision(*precision, document)?,
        SettingChange::Method(method) => self::method(method, document),
        SettingChange::Attention(_) => return Err(Some("it has its own kernels")),
        SettingChange::Loss(Loss::Plain) => vec![],
        SettingChange::Loss(_) => return Err(Some("it has its own fused loss")),
        SettingChange::TargetLen(_) => return Err(None),
        other => shared(other, document)?,
    })
}

/// Frozen weights are always in half precision. With full fine-tuning, weights may be in single precision under
/// autocast.
fn precision(precision: Precision, document: &Document) -> Result<Vec<Edit>, NoKey> {
    let bf16 = || vec![Edit::set("bf16", true), Edit::replace("fp16", false), Edit::replace("dtype", "bfloat16")];
    let fp16 = || vec![Edit::set("fp16", true), Edit::replace("bf16", false), Edit::replace("dtype", "float16")];
    let single = "float32_mixed_precision";
    Ok(match (super::is_on(document, "full_finetuning"), precision) {
        (true, Precision::AmpBf16) => [bf16(), vec![Edit::set(single, true)]].concat(),
        (true, Precision::AmpFp16) | (false, Precision::PureFp16) => fp16(),
        (_, Precision::PureBf16) => [bf16(), vec![Edit::replace(single, false)]].concat(),
        (true, Precision::PureFp16) => return Err(Some("it trains fp16 weights in single precision")),
        (true, Precision::Fp32) => return Err(Some("it computes in half precision")),
        (false, _) => return Err(Some("it loads weights in half precision")),
    })
}

fn method(method: &Method, document: &Document) -> Vec<Edit> {
    let Some(lora) = lora(method) else {
        return vec![Edit::set("full_finetuning", true), Edit::set("load_in_4bit", false)];
    };
    let four_bits = matches!(method, Method::Qlora(..));
    let mut edits = vec![
        Edit::replace("full_finetuning", false),
        Edit::set("load_in_4bit", four_bits),
        Edit::replace("load_in_8bit", false),
        Edit::set("r", lora.rank),
    ];
    edits.extend(super::lora_dropout("lora_dropout", lora.dropout, false, document));
    match named(&lora.targets) {
        Some(names) => edits.push(Edit::set("target_modules", names)),
        None if lora.targets == Targets::AllLinear => {
            edits.push(Edit::set("target_modules", Literal::from("all-linear")));
        }
        None => {}
    }
    edits
}

/// Its defaults. Source: `FastLanguageModel.from_pretrained` and `get_peft_model`: weights in 4 bits, samples of 2,048
/// tokens, rank 16 for the seven projections of a block.
pub(super) fn read(view: &mut View) -> Found {
    let mut run = shared_run(view);
    run.micro_batch = view.count(MICRO_BATCH).unwrap_or(8);
    run.seq_len = view.count(SEQ_LEN).unwrap_or(2048);
    run.checkpointing = checkpoints(view);
    note_evaluation(view, &["per_device_eval_batch_size"], 8, run.micro_batch);
    // It uses its own loss regardless of `use_liger_kernel`, with chunks that depend on the free memory at the first
    // step.
    // Source: unsloth_zoo 2026.10, `fused_losses/cross_entropy_loss.py`: a chunk has the tokens that fit in half of the
    // free memory, at most 4 GiB, with 16 bytes per logit. Older versions use all logits at once.
    run.loss = Loss::Plain;
    view.assume(
        Effect::Less(LOGITS),
        "all logits at once; Unsloth's loss uses chunks of up to half of the free memory, at most 4 GiB, and needs less",
    );
    view.assume(Effect::Less(SAMPLES), "modules of transformers, which save more for the backward pass than Unsloth's");
    let full = view.flag(&["full_finetuning"]) == Some(true);
    let four = view.flag(&["load_in_4bit"]) != Some(false);
    let rank = view.count(&["r", "lora_r"]).unwrap_or(16);
    let names = view.list(&["target_modules"]).unwrap_or_else(|| PROJECTIONS.map(str::to_owned).to_vec());
    let dropout = view.real(&["lora_dropout"]).is_some_and(|dropout| dropout > 0.0);
    if !full {
        let lora = Lora { rank, targets: super::targets(Some(names)), dropout };
        run.method = method_of(lora, four.then_some(Quantized { block: 64, double: true }));
    }
    run.precision = read_precision(view, full);
    let model = view.word(&["model_name", "model_name_or_path"]).map(|name| plain_name(&name));
    view.apply_words(Layout::Unsloth);
    (run, model, layers(view))
}

/// `unsloth`, its default, recomputes blocks and offloads their inputs to the host.
fn checkpoints(view: &mut View) -> Checkpointing {
    const TO_HOST: &str = "it offloads checkpoints to the host: counted on the card";
    let of_trainer = hugging_face::checkpoints(view);
    match view.word(&["use_gradient_checkpointing"]).map(|how| how.to_ascii_lowercase()).as_deref() {
        None => {
            view.assume(
                Effect::Less(ACTIVATIONS),
                format!("`use_gradient_checkpointing: unsloth`, its default: {TO_HOST}"),
            );
            Checkpointing::Reentrant
        }
        Some("false" | "no" | "off" | "none" | "0" | "") => of_trainer,
        Some("true" | "yes" | "on" | "1") => Checkpointing::Reentrant,
        Some(_) => {
            view.note_last(Effect::Less(ACTIVATIONS), TO_HOST);
            Checkpointing::Reentrant
        }
    }
}

/// Weights that are not quantized are in half precision, unless full fine-tuning is set to single precision. fp16
/// weights are trained in single precision. Source: unsloth 2026.10, `models/vision.py`.
fn read_precision(view: &mut View, trains_all: bool) -> Precision {
    let dtype = view.word(&["dtype", "torch_dtype"]).as_deref().and_then(half_called);
    let half = dtype.or(mixed(view)).unwrap_or(Half::Bf16);
    let single = view.flag(&["float32_mixed_precision"]) == Some(true);
    match (trains_all, half) {
        (true, Half::Fp16) => half.mixed(),
        (true, Half::Bf16) if single => half.mixed(),
        _ => half.pure(),
    }
}

/// The default target layers.
const PROJECTIONS: [&str; 7] = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"];

/// The name of the original model of one of Unsloth's 4-bit copies.
fn plain_name(name: &str) -> String {
    let name = ["-unsloth-bnb-4bit", "-bnb-4bit"].iter().find_map(|suffix| name.strip_suffix(suffix)).unwrap_or(name);
    name.strip_prefix("unsloth/").unwrap_or(name).to_owned()
}
