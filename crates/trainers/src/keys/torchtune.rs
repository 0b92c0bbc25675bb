//! torchtune's YAML, whose values are arguments of classes and functions. Source: torchtune 0.6, `recipes/configs/`, `recipes/`.

use super::{NoKey, present};
use crate::change::Change;
use crate::document::Document;
use crate::rewrite::edit::Edit;
use crate::run::{Checkpointing, Loss, Method, Offload, Optimizer, Precision};

/// What decides over it.
const BY_RECIPE: &str = "another recipe and another builder of the model do it";

pub(super) fn edits(change: &Change, document: &Document) -> Result<Vec<Edit>, NoKey> {
    Ok(match change {
        Change::MicroBatch(samples) => vec![Edit::set("batch_size", *samples)],
        Change::Accumulation(times) => vec![Edit::set("gradient_accumulation_steps", *times)],
        Change::SeqLen(tokens) => vec![Edit::set("tokenizer.max_seq_len", *tokens)],
        Change::Optimizer(optimizer) => self::optimizer(*optimizer)?,
        Change::Checkpointing(Checkpointing::Off) => vec![Edit::set("enable_activation_checkpointing", false)],
        Change::Checkpointing(Checkpointing::NonReentrant) => vec![Edit::set("enable_activation_checkpointing", true)],
        Change::Checkpointing(Checkpointing::Reentrant) => return Err(Some("its checkpointing is not re-entrant")),
        Change::Precision(Precision::Fp32) => vec![Edit::set("dtype", "fp32")],
        Change::Precision(Precision::PureBf16) => vec![Edit::set("dtype", "bf16")],
        Change::Precision(_) => return Err(Some("it trains in single precision, or in bf16 alone")),
        Change::Loss(Loss::Plain) => vec![],
        Change::Loss(_) => return Err(Some("its losses cut the logits by themselves")),
        Change::Method(Method::Full) if !is_adapted(document) => vec![],
        Change::Method(_) => return Err(Some(BY_RECIPE)),
        Change::Offload(offload) if *offload == Offload::default() => {
            vec![Edit::replace("fsdp_cpu_offload", false)]
        }
        Change::Offload(_) if present(document, &["fsdp_cpu_offload"]).is_some() => {
            vec![Edit::set("fsdp_cpu_offload", true)]
        }
        Change::Offload(_) => return Err(Some(BY_RECIPE)),
        Change::Sharding(_) => return Err(Some(BY_RECIPE)),
        Change::Clips(false) => vec![Edit::remove("clip_grad_norm")],
        Change::Clips(true) if super::is_on(document, "clip_grad_norm") => vec![],
        Change::Clips(true) => vec![Edit::set("clip_grad_norm", 1u64)],
        Change::Compiles(true) => vec![Edit::set("compile", true)],
        Change::Compiles(false) => vec![Edit::replace("compile", false)],
        Change::Attention(_) => return Err(Some("it chooses by itself")),
        Change::TargetLen(_) => return Err(None),
    })
}

/// Whether the model's builder adds adapters.
pub(super) fn is_adapted(document: &Document) -> bool {
    let builder = document.plain("model._component_").unwrap_or_default();
    builder.rsplit('.').next().is_some_and(|name| name.starts_with("lora_") || name.starts_with("qlora_"))
}

/// The class, and the arguments that the others would refuse.
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
        Optimizer::Sgd { momentum: true } => return Err(Some("how much momentum is not known")),
        Optimizer::Adafactor => return Err(Some("torch's Adafactor takes other arguments")),
    })
}
