//! What each trainer's keys mean, one file a trainer: how a change is written in them, and how they are read.
//! Not here: texts (`rewrite/`), and what a file comes to (`read.rs`).

mod accelerate;
mod axolotl;
mod deepspeed;
mod hugging_face;
mod llama_factory;
mod torchtune;
mod unsloth;

use crate::change::Change;
use crate::document::{Document, Value};
use crate::kind::Kind;
use crate::rewrite::edit::Edit;
use crate::run::{Lora, Method, Optimizer, Targets};

/// Why a trainer has no key for a change, where there is more to say.
pub(crate) type NoKey = Option<&'static str>;

/// What a change is in a trainer's keys. Errors: it has none.
pub(crate) fn edits(kind: Kind, change: &Change, document: &Document) -> Result<Vec<Edit>, NoKey> {
    match kind {
        Kind::HuggingFace => hugging_face::edits(change, document),
        Kind::Axolotl => axolotl::edits(change, document),
        Kind::LlamaFactory => llama_factory::edits(change, document),
        Kind::Torchtune => torchtune::edits(change, document),
        Kind::Unsloth => unsloth::edits(change, document),
        Kind::DeepSpeed => deepspeed::edits(change, document),
        Kind::Accelerate => accelerate::edits(change, document),
    }
}

/// Where models' code is told how attention is computed.
const AT_LOADING: &str = "`from_pretrained` of the script takes it";

/// What stands in a file of DeepSpeed's alone.
const IN_DEEPSPEED: &str = "a file of DeepSpeed's says it, which the key `deepspeed` names";

/// The first of these keys that is there.
fn present<'k>(document: &Document, keys: &[&'k str]) -> Option<&'k str> {
    keys.iter().copied().find(|key| document.0.iter().any(|entry| entry.key == *key))
}

/// Whether a key has a value that asks for something.
fn is_on(document: &Document, key: &str) -> bool {
    let Some(entry) = document.0.iter().find(|entry| entry.key == key) else { return false };
    match &entry.value {
        Value::Null => false,
        Value::Plain(text) => !matches!(text.to_ascii_lowercase().as_str(), "" | "false" | "no" | "off" | "null" | "0"),
        Value::List(items) => !items.is_empty(),
        Value::Map(_) | Value::Code => true,
    }
}

/// Hugging Face's name of an optimizer, which axolotl, LLaMA-Factory and Unsloth use too.
fn optim(optimizer: Optimizer) -> Result<&'static str, NoKey> {
    Ok(match optimizer {
        Optimizer::AdamWForeach => "adamw_torch",
        Optimizer::AdamWFused => "adamw_torch_fused",
        Optimizer::AdamW8bit => "adamw_bnb_8bit",
        Optimizer::PagedAdamW8bit => "paged_adamw_8bit",
        Optimizer::PagedAdamW => "paged_adamw_32bit",
        Optimizer::Adafactor => "adafactor",
        Optimizer::Sgd { momentum: false } => "sgd",
        Optimizer::AdamWForLoop => return Err(Some("a trainer always takes PyTorch's own choice, or the fused one")),
        Optimizer::Sgd { momentum: true } => return Err(Some("its `sgd` has no momentum")),
    })
}

/// The additions of a method, if it has any.
fn lora(method: &Method) -> Option<&Lora> {
    match method {
        Method::Full => None,
        Method::Lora(lora) | Method::Qlora(lora, _) => Some(lora),
    }
}

/// Names of layers that get additions; none where a trainer says it otherwise.
fn named(targets: &Targets) -> Option<Vec<String>> {
    match targets {
        Targets::Named(names) => Some(names.clone()),
        Targets::AllLinear | Targets::Default => None,
    }
}
