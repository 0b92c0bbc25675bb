//! torchtune's YAML, whose values are arguments of classes and functions. Source: torchtune 0.6, `recipes/configs/`, `recipes/`.

use super::{Found, GENERATES, LOGITS, NoKey, ON_PREFERENCES, OPTIMIZER_STATE, PREFERENCES, present};
use crate::change::SettingChange;
use crate::document::Document;
use crate::rewrite::edit::Edit;
use crate::run::{Checkpointing, Lora, Loss, Method, Offload, Optimizer, Precision, Quantized, Run, Sharding, Targets};
use crate::unsure::Effect;
use crate::view::View;
use crate::words::Layout;

/// Where the method and sharding are set.
const BY_RECIPE: &str = "it needs another recipe and another model builder";

pub(super) fn edits(change: &SettingChange, document: &Document) -> Result<Vec<Edit>, NoKey> {
    Ok(match change {
        SettingChange::MicroBatch(samples) => vec![Edit::set("batch_size", *samples)],
        SettingChange::Accumulation(times) => vec![Edit::set("gradient_accumulation_steps", *times)],
        SettingChange::SeqLen(tokens) => vec![Edit::set("tokenizer.max_seq_len", *tokens)],
        SettingChange::Optimizer(optimizer) => self::optimizer(*optimizer)?,
        SettingChange::Checkpointing(Checkpointing::Off) => vec![Edit::set("enable_activation_checkpointing", false)],
        SettingChange::Checkpointing(Checkpointing::NonReentrant) => {
            vec![Edit::set("enable_activation_checkpointing", true)]
        }
        SettingChange::Checkpointing(Checkpointing::Reentrant) => {
            return Err(Some("its checkpointing is not re-entrant"));
        }
        SettingChange::Precision(Precision::Fp32) => vec![Edit::set("dtype", "fp32")],
        SettingChange::Precision(Precision::PureBf16) => vec![Edit::set("dtype", "bf16")],
        SettingChange::Precision(_) => return Err(Some("it trains either in single precision or fully in bf16")),
        SettingChange::Loss(Loss::Plain) => vec![],
        SettingChange::Loss(_) => return Err(Some("its losses split the logits on their own")),
        SettingChange::Method(Method::Full) if !is_adapted(document) => vec![],
        SettingChange::Method(_) => return Err(Some(BY_RECIPE)),
        SettingChange::Offload(offload) if *offload == Offload::default() => {
            vec![Edit::replace("fsdp_cpu_offload", false)]
        }
        SettingChange::Offload(_) if present(document, &["fsdp_cpu_offload"]).is_some() => {
            vec![Edit::set("fsdp_cpu_offload", true)]
        }
        SettingChange::Offload(_) => return Err(Some(BY_RECIPE)),
        SettingChange::Sharding(_) => return Err(Some(BY_RECIPE)),
        SettingChange::Clips(false) => vec![Edit::remove("clip_grad_norm")],
        SettingChange::Clips(true) if super::is_on(document, "clip_grad_norm") => vec![],
        SettingChange::Clips(true) => vec![Edit::set("clip_grad_norm", 1u64)],
        SettingChange::Compiles(true) => vec![Edit::set("compile", true)],
        SettingChange::Compiles(false) => vec![Edit::replace("compile", false)],
        SettingChange::UpdatesInBackward(true) => {
            vec![Edit::set("optimizer_in_bwd", true), Edit::remove("clip_grad_norm")]
        }
        SettingChange::UpdatesInBackward(false) => vec![Edit::replace("optimizer_in_bwd", false)],
        SettingChange::Attention(_) => return Err(Some("it chooses on its own")),
        SettingChange::TargetLen(_) => return Err(None),
    })
}

/// Whether the model's builder adds adapters.
fn is_adapted(document: &Document) -> bool {
    let builder = document.plain("model._component_").unwrap_or_default();
    builder.rsplit('.').next().is_some_and(|name| name.starts_with("lora_") || name.starts_with("qlora_"))
}

/// Sets the optimizer's class and removes arguments that other classes reject.
fn optimizer(optimizer: Optimizer) -> Result<Vec<Edit>, NoKey> {
    let class = |class: &str| Edit::set("optimizer._component_", class);
    let without = || [Edit::remove("optimizer.fused"), Edit::remove("optimizer.foreach")];
    let of_bitsandbytes = |name: &str| {
        let mut edits = vec![class(&format!("bitsandbytes.optim.{name}"))];
        edits.extend(without());
        edits
    };
    Ok(match optimizer {
        Optimizer::AdamWFused => {
            vec![class("torch.optim.AdamW"), Edit::remove("optimizer.foreach"), Edit::set("optimizer.fused", true)]
        }
        Optimizer::AdamWForeach => std::iter::once(class("torch.optim.AdamW")).chain(without()).collect(),
        Optimizer::AdamWForLoop => {
            vec![class("torch.optim.AdamW"), Edit::remove("optimizer.fused"), Edit::set("optimizer.foreach", false)]
        }
        Optimizer::AdamW8bit => of_bitsandbytes("AdamW8bit"),
        Optimizer::PagedAdamW8bit => of_bitsandbytes("PagedAdamW8bit"),
        Optimizer::PagedAdamW => of_bitsandbytes("PagedAdamW"),
        Optimizer::Sgd { momentum: false } => {
            let others = ["fused", "foreach", "betas", "eps", "momentum"];
            let others = others.map(|key| Edit::remove(&format!("optimizer.{key}")));
            std::iter::once(class("torch.optim.SGD")).chain(others).collect()
        }
        Optimizer::Sgd { momentum: true } => return Err(Some("the amount of momentum is unknown")),
        Optimizer::Adafactor => return Err(Some("torch's Adafactor takes other arguments")),
    })
}

/// Its defaults are those of its recipes, which have keys for nearly everything. Source: `recipes/`: no clipping, and
/// samples that the tokenizer does not truncate.
pub(super) fn read(view: &mut View) -> Found {
    let mut run = Run { clips: false, optimizer: Optimizer::AdamWForeach, ..Run::default() };
    run.micro_batch = view.count(&["batch_size"]).unwrap_or(1);
    run.accumulation = view.count(&["gradient_accumulation_steps"]).unwrap_or(1);
    run.seq_len = view.count(&["tokenizer.max_seq_len"]).unwrap_or(run.seq_len);
    view.assume(Effect::Same, "torchtune's modules are counted like those of transformers");
    run.optimizer = read_optimizer(view);
    if view.flag(&["enable_activation_checkpointing"]) == Some(true) {
        run.checkpointing = Checkpointing::NonReentrant;
    }
    run.precision = match view.word(&["dtype"]).as_deref() {
        Some("fp32" | "float32") => Precision::Fp32,
        Some("fp16" | "float16") => Precision::PureFp16,
        // Source: `training/precision.py`: bf16 in the files of all recipes.
        _ => Precision::PureBf16,
    };
    let loss = view.word(&["loss._component_", "loss"]).unwrap_or_default();
    if loss.contains("KL") || loss.contains("KD") || loss.contains("GRPO") || loss.contains("PPO") {
        view.note_last(Effect::Unbounded, GENERATES);
    } else if loss.contains("DPO") || loss.contains("RSO") || loss.contains("SimPO") {
        view.note_last(Effect::More(PREFERENCES), ON_PREFERENCES);
    } else if loss.contains("Chunked") || loss.contains("Linear") {
        view.note_last(
            Effect::Less(LOGITS),
            "its chunks need fewer logits in single precision: counted as the plain loss",
        );
    }
    run.clips = view.real(&["clip_grad_norm"]).is_some_and(|norm| norm > 0.0);
    run.updates_in_backward = view.flag(&["optimizer_in_bwd"]) == Some(true);
    run.compiles = view.flag(&["compile"]) == Some(true);
    if view.flag(&["fsdp_cpu_offload"]) == Some(true) {
        run.offload = Offload { optimizer: true, weights: true };
    }
    if view.has("fsdp_cpu_offload") | view.request("fsdp_reshard_after_forward") {
        run.sharding = Sharding::Fsdp;
    }
    let model = view.word(&["model._component_"]);
    read_method(view, &mut run);
    view.apply_words(Layout::Torchtune);
    (run, model, vec![])
}

fn read_method(view: &mut View, run: &mut Run) {
    let rank = view.count(&["model.lora_rank"]).unwrap_or(8);
    let attention = view.list(&["model.lora_attn_modules"]).unwrap_or_default();
    let mlp = view.flag(&["model.apply_lora_to_mlp"]) == Some(true);
    let head = view.flag(&["model.apply_lora_to_output"]) == Some(true);
    let dropout = view.real(&["model.lora_dropout"]).is_some_and(|dropout| dropout > 0.0);
    let base = view.flag(&["model.quantize_base"]) == Some(true);
    if !is_adapted(view.document()) {
        return;
    }
    // The names of the same layers in transformers.
    let mut names: Vec<String> = attention.iter().map(|name| name.replace("output_proj", "o_proj")).collect();
    if mlp {
        names.extend(["gate_proj", "up_proj", "down_proj"].map(str::to_owned));
    }
    if head {
        names.push("lm_head".to_owned());
    }
    let lora = Lora { rank, targets: Targets::Named(names), dropout };
    let builder = view.document().plain("model._component_").unwrap_or_default();
    let four_bits = base || builder.contains(".qlora_");
    // Source: torchao's NF4 tensors: blocks of 64, scales in 8 bits.
    run.method = match four_bits {
        true => Method::Qlora(lora, Quantized { block: 64, double: true }),
        false => Method::Lora(lora),
    };
}

/// Reads the optimizer's class. `torch.optim.AdamW` updates all parameters at once unless `fused` is set.
fn read_optimizer(view: &mut View) -> Optimizer {
    let fused = view.flag(&["optimizer.fused"]) == Some(true);
    let one_by_one = view.flag(&["optimizer.foreach"]) == Some(false);
    let momentum = view.real(&["optimizer.momentum"]).is_some_and(|momentum| momentum > 0.0);
    let Some(class) = view.word(&["optimizer._component_"]) else { return Optimizer::AdamWForeach };
    let name = class.rsplit('.').next().unwrap_or_default();
    match (name, class.contains("bitsandbytes")) {
        ("PagedAdamW8bit" | "PagedAdam8bit", _) => Optimizer::PagedAdamW8bit,
        ("PagedAdamW" | "PagedAdamW32bit", _) => Optimizer::PagedAdamW,
        ("AdamW8bit" | "Adam8bit", _) => Optimizer::AdamW8bit,
        ("AdamW" | "Adam", false) if fused => Optimizer::AdamWFused,
        ("AdamW" | "Adam", false) if one_by_one => Optimizer::AdamWForLoop,
        ("AdamW" | "Adam", false) => Optimizer::AdamWForeach,
        ("AdamW" | "AdamW32bit", true) => Optimizer::PagedAdamW,
        ("SGD", _) => Optimizer::Sgd { momentum },
        ("Adafactor", _) => Optimizer::Adafactor,
        _ => {
            view.note_last(Effect::Either(OPTIMIZER_STATE), "unknown optimizer: counted as AdamW");
            Optimizer::AdamWForeach
        }
    }
}
