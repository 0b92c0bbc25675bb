//! The keywords of Unsloth's notebooks (`FastLanguageModel.from_pretrained`, `get_peft_model`, `SFTConfig`), in one object.
//! Source: unsloth 2026.10, `models/loader.py`, `models/llama.py`.

use super::hugging_face::{self, MICRO_BATCH, layers, method_of, mixed, note_evaluation, shared, shared_run};
use super::{
    ACTIVATIONS, ALL, Found, Half, LOGITS, NoKey, SAMPLES, TRAINED, Unmodelled, WEIGHTS, half_called, lora, named,
    optim, present,
};
use crate::change::Change;
use crate::document::Document;
use crate::rewrite::edit::{Edit, Literal};
use crate::run::{Checkpointing, Lora, Loss, Method, Precision, Quantized, Targets};
use crate::unsure::{Effect, Part};
use crate::view::View;

/// Names of the length of a sample, which `from_pretrained` is told.
pub(super) const SEQ_LEN: &[&str] = &["max_seq_length", "max_length"];

pub(super) fn edits(change: &Change, document: &Document) -> Result<Vec<Edit>, NoKey> {
    Ok(match change {
        Change::MicroBatch(samples) => vec![Edit::set("per_device_train_batch_size", *samples)],
        Change::SeqLen(tokens) => {
            vec![Edit::set(present(document, SEQ_LEN).unwrap_or(SEQ_LEN[0]), *tokens)]
        }
        Change::Optimizer(optimizer) => vec![Edit::set("optim", optim(*optimizer)?)],
        Change::Checkpointing(Checkpointing::Off) => vec![Edit::set("use_gradient_checkpointing", false)],
        Change::Checkpointing(_) => vec![Edit::set("use_gradient_checkpointing", true)],
        Change::Precision(precision) => self::precision(*precision, document)?,
        Change::Method(method) => self::method(method, document),
        Change::Attention(_) => return Err(Some("it has kernels of its own")),
        Change::Loss(Loss::Plain) => vec![],
        Change::Loss(_) => return Err(Some("it has a fused loss of its own")),
        Change::TargetLen(_) => return Err(None),
        other => shared(other, document)?,
    })
}

/// What is frozen is in half precision always; what is all trained may be in single precision under autocast.
fn precision(precision: Precision, document: &Document) -> Result<Vec<Edit>, NoKey> {
    let bf16 = || vec![Edit::set("bf16", true), Edit::replace("fp16", false), Edit::replace("dtype", "bfloat16")];
    let fp16 = || vec![Edit::set("fp16", true), Edit::replace("bf16", false), Edit::replace("dtype", "float16")];
    let single = "float32_mixed_precision";
    Ok(match (super::is_on(document, "full_finetuning"), precision) {
        (true, Precision::AmpBf16) => [bf16(), vec![Edit::set(single, true)]].concat(),
        (true, Precision::AmpFp16) | (false, Precision::PureFp16) => fp16(),
        (_, Precision::PureBf16) => [bf16(), vec![Edit::replace(single, false)]].concat(),
        (true, Precision::PureFp16) => return Err(Some("it trains weights in fp16 as single precision")),
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

/// Keys on which no memory of a card depends, beside those of `TrainingArguments`.
pub(super) const NOTHING: &[&str] = &[
    "token",
    "device_map",
    "trust_remote_code",
    "fix_tokenizer",
    "tokenizer*",
    "revision",
    "fast_inference",
    "gpu_memory_utilization",
    "max_lora_rank",
    "disable_log_stats",
    "lora_alpha",
    "use_rslora",
    "dataset*",
    "packing",
    "train_dataset",
    "eval_dataset",
    "task_type",
    "chat_template",
    "rope_scaling",
    "attn_implementation",
    "load_in_16bit",
    "use_exact_model_name",
    "float8_kv_cache",
    "text_only",
    "temporary_location",
    "assistant_only_loss",
    "completion_only_loss",
    "padding_free",
];

/// Keys that matter, and how they are taken.
const UNMODELLED: &[Unmodelled] = &[
    (&["modules_to_save"], Effect::More(&[Part::Additions]), "modules that are trained whole are not counted"),
    (&["layers_to_transform"], Effect::Less(TRAINED), "adapters are counted in all layers"),
    (&["loftq_config*", "init_lora_weights", "use_dora", "layer_replication"], Effect::More(ALL), "it is not modelled"),
    (
        &["finetune_*", "layers_pattern", "target_parameters", "offload_layers", "checkpoint_skip_layers"],
        Effect::Either(ALL),
        "all layers are counted alike, with adapters in those of their names",
    ),
    (&["bias"], Effect::Same, "biases are counted as not trained"),
    (
        &["load_in_fp8", "float8_training", "qat_scheme", "embedding_learning_rate"],
        Effect::Either(ALL),
        "it is not modelled",
    ),
    (&["offload_embedding"], Effect::Less(WEIGHTS), "embeddings are counted as if they stayed on the card"),
    (&["unsloth_tiled_mlp"], Effect::Less(SAMPLES), "its tiles hold less: counted as the whole rows"),
    (&["resize_model_vocab"], Effect::Same, "the vocabulary is counted as the model's own"),
    (&["packing_strategy", "activation_offloading"], Effect::Less(ACTIVATIONS), "it is not modelled"),
];

/// Its defaults. Source: `FastLanguageModel.from_pretrained` and `get_peft_model`: weights in 4 bits, samples of 2,048 tokens,
/// rank 16 on the seven projections of a block.
pub(super) fn read(view: &mut View) -> Found {
    let mut run = shared_run(view);
    run.micro_batch = view.count(MICRO_BATCH).unwrap_or(8);
    run.seq_len = view.count(SEQ_LEN).unwrap_or(2048);
    run.checkpointing = checkpoints(view);
    note_evaluation(view, &["per_device_eval_batch_size"], 8, run.micro_batch);
    // Its own loss, whatever `use_liger_kernel` says; how it cuts depends on what is free when the first step begins.
    // Source: unsloth_zoo 2026.10, `fused_losses/cross_entropy_loss.py`: as many tokens at a time as half of what is free, 4 GiB
    // at the most, has room for, 16 bytes a logit; older versions hold all of them.
    run.loss = Loss::Plain;
    view.assume(
        Effect::Less(LOGITS),
        "all logits at once; Unsloth's own loss cuts them to fit in half of what is free, 4 GiB at the most, and needs less",
    );
    view.assume(
        Effect::Less(SAMPLES),
        "modules as transformers has them, which hold more for the backward pass than Unsloth's own",
    );
    let full = view.flag(&["full_finetuning"]) == Some(true);
    let four = view.flag(&["load_in_4bit"]) != Some(false);
    view.cannot(
        &["load_in_8bit"],
        Effect::Less(WEIGHTS),
        "weights in 8 bits are not modelled: counted as they are loaded otherwise",
    );
    let rank = view.count(&["r", "lora_r"]).unwrap_or(16);
    let names = view.list(&["target_modules"]).unwrap_or_else(|| PROJECTIONS.map(str::to_owned).to_vec());
    let dropout = view.real(&["lora_dropout"]).is_some_and(|dropout| dropout > 0.0);
    if !full {
        let lora = Lora { rank, targets: super::targets(Some(names)), dropout };
        run.method = method_of(lora, four.then_some(Quantized { block: 64, double: true }));
    }
    run.precision = read_precision(view, full);
    for (keys, effect, why) in UNMODELLED {
        view.cannot(keys, *effect, why);
    }
    let model = view.word(&["model_name", "model_name_or_path"]).map(|name| plain_name(&name));
    view.nothing(NOTHING);
    (run, model, layers(view))
}

/// `unsloth`, its default, recomputes and sends what is kept of each block to the host.
fn checkpoints(view: &mut View) -> Checkpointing {
    const TO_HOST: &str = "its checkpoints go to the host: counted as if they stayed on the card";
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

/// Weights that are not quantized are in half precision, unless all are trained and it is told otherwise; those in fp16 are
/// trained in single precision. Source: unsloth 2026.10, `models/vision.py`.
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

/// What it adapts where nothing else is told.
const PROJECTIONS: [&str; 7] = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"];

/// The name of the weights that its own copies in 4 bits are made of.
fn plain_name(name: &str) -> String {
    let name = ["-unsloth-bnb-4bit", "-bnb-4bit"].iter().find_map(|suffix| name.strip_suffix(suffix)).unwrap_or(name);
    name.strip_prefix("unsloth/").unwrap_or(name).to_owned()
}
