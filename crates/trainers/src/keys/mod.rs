//! The keys of each trainer, one file per trainer: reading them, and writing a change to them.
//! Not here: editing a text (`rewrite/`), and the result of reading a file (`read.rs`).

mod accelerate;
mod axolotl;
mod deepspeed;
mod hugging_face;
mod llama_factory;
mod llama_factory_v1;
mod torchtune;
mod unsloth;

use crate::change::SettingChange;
use crate::document::{Document, Value};
use crate::kind::TrainerKind;
use crate::rewrite::edit::{Edit, Literal};
use crate::run::{Lora, Method, Optimizer, Precision, Run, Targets};
use crate::unsure::{
    ACTIVATIONS, ALL, DIVISION, Effect, GRADIENTS, LOGITS, OPTIMIZER_STATE, PREFERENCES, Part, RECOMPUTATION, SAMPLES,
    TEMPORARIES, TRAINED, WEIGHTS,
};
use crate::view::View;
use crate::words::notes::{GENERATES, ON_PREFERENCES};

/// An optional reason why a trainer has no key for a change.
pub(crate) type NoKey = Option<&'static str>;

/// The edits that write a change to a trainer's keys. Errors: the trainer has no key for it.
pub(crate) fn edits(kind: TrainerKind, change: &SettingChange, document: &Document) -> Result<Vec<Edit>, NoKey> {
    match kind {
        TrainerKind::HuggingFace => hugging_face::edits(change, document),
        TrainerKind::Axolotl => axolotl::edits(change, document),
        TrainerKind::LlamaFactory if llama_factory_v1::is_new(document) => llama_factory_v1::edits(change),
        TrainerKind::LlamaFactory => llama_factory::edits(change, document),
        TrainerKind::Torchtune => torchtune::edits(change, document),
        TrainerKind::Unsloth => unsloth::edits(change, document),
        TrainerKind::DeepSpeed => deepspeed::edits(change, document),
        TrainerKind::Accelerate => accelerate::edits(change, document),
    }
}

/// Where the arguments of model loading belong.
const AT_LOADING: &str = "the script passes it to `from_pretrained`";

/// Where DeepSpeed's settings belong.
const IN_DEEPSPEED: &str = "it belongs in DeepSpeed's file, which the key `deepspeed` names";

/// The first of these keys in a document.
fn present<'k>(document: &Document, keys: &[&'k str]) -> Option<&'k str> {
    keys.iter().copied().find(|key| document.0.iter().any(|entry| entry.key == *key))
}

/// Whether a key has a value that turns it on.
fn is_on(document: &Document, key: &str) -> bool {
    let Some(entry) = document.0.iter().find(|entry| entry.key == key) else { return false };
    match &entry.value {
        Value::Null => false,
        Value::Plain(text) => !matches!(text.to_ascii_lowercase().as_str(), "" | "false" | "no" | "off" | "null" | "0"),
        Value::List(items) => !items.is_empty(),
        Value::Map(_) | Value::Code => true,
    }
}

/// Hugging Face's name for an optimizer, also used by axolotl, LLaMA-Factory and Unsloth.
fn optim(optimizer: Optimizer) -> Result<&'static str, NoKey> {
    Ok(match optimizer {
        Optimizer::AdamWForeach => "adamw_torch",
        Optimizer::AdamWFused => "adamw_torch_fused",
        Optimizer::AdamW8bit => "adamw_bnb_8bit",
        Optimizer::PagedAdamW8bit => "paged_adamw_8bit",
        Optimizer::PagedAdamW => "paged_adamw_32bit",
        Optimizer::Adafactor => "adafactor",
        Optimizer::Sgd { momentum: false } => "sgd",
        Optimizer::AdamWForLoop => {
            return Err(Some("the trainer always uses PyTorch's default or fused implementation"));
        }
        Optimizer::Sgd { momentum: true } => return Err(Some("its `sgd` has no momentum")),
    })
}

/// The LoRA settings of a method, if it has any.
fn lora(method: &Method) -> Option<&Lora> {
    match method {
        Method::Full => None,
        Method::Lora(lora) | Method::Qlora(lora, _) => Some(lora),
    }
}

/// The edit that turns dropout of the adapters on or off, if needed. `default`: whether they have dropout if the key is
/// unset.
fn lora_dropout(key: &str, wanted: bool, default: bool, document: &Document) -> Option<Edit> {
    let has = is_on(document, key) && document.plain(key) != Some("0.0");
    match (wanted, has || default && present(document, &[key]).is_none()) {
        (true, false) => Some(Edit::Set(key.to_owned(), Literal::Decimal("0.05".to_owned()))),
        (false, true) => Some(Edit::set(key, 0u64)),
        _ => None,
    }
}

/// Names of the target layers; `None` if they are not listed by name.
fn named(targets: &Targets) -> Option<Vec<String>> {
    match targets {
        Targets::Named(names) => Some(names.clone()),
        Targets::AllLinear | Targets::Default => None,
    }
}

/// Reads a trainer's settings: the run, the model's name, and the paths of layers.
pub(crate) fn read(kind: TrainerKind, view: &mut View) -> Found {
    match kind {
        TrainerKind::HuggingFace => hugging_face::read(view),
        TrainerKind::Axolotl => axolotl::read(view),
        TrainerKind::LlamaFactory if llama_factory_v1::is_new(view.document()) => llama_factory_v1::read(view),
        TrainerKind::LlamaFactory => llama_factory::read(view),
        TrainerKind::Torchtune => torchtune::read(view),
        TrainerKind::Unsloth => unsloth::read(view),
        TrainerKind::DeepSpeed => {
            let mut run = Run::default();
            deepspeed::layer("", view, &mut run);
            (run, None, vec![])
        }
        TrainerKind::Accelerate => {
            let (mut run, mut layers) = (Run::default(), vec![]);
            accelerate::layer(view, &mut run, &mut layers);
            (run, None, layers)
        }
    }
}

/// A run, the name of its model, and the paths of its layers.
pub(crate) type Found = (Run, Option<String>, Vec<(TrainerKind, String)>);

pub(crate) use accelerate::layer as layer_accelerate;
pub(crate) use llama_factory_v1::TELLTALES as LLAMA_FACTORY_V1;

/// Assumes AdamW in one kernel if no key names an optimizer. Source: `TrainingArguments.default_optim` of transformers
/// 5.23.
fn assume_fused(view: &mut View, keys: &[&str]) {
    if !keys.iter().any(|key| view.has(key)) {
        view.assume(
            Effect::More(&[Part::FusedUpdate]),
            "AdamW in one kernel, the default since PyTorch 2.8; older versions need temporaries as large \
             as the weights",
        );
    }
}

/// Whether a key is a Hugging Face key for the sample length.
pub(crate) fn is_length(key: &str) -> bool {
    hugging_face::SEQ_LEN.contains(&key)
}

/// Applies DeepSpeed's file to a run.
pub(crate) fn layer_deepspeed(view: &mut View, run: &mut Run) {
    deepspeed::layer("", view, run);
}

/// The optimizer of a Hugging Face name, with a note if it is only similar; `None` if the name is unknown.
fn optimizer_called(name: &str) -> Option<(Optimizer, Option<(Effect, &'static str)>)> {
    type Note = (Effect, &'static str);
    const ONE_MOMENT: Note = (Effect::Same, "it keeps one moment: counted as gradient descent with momentum");
    const EIGHT_BITS: Note = (Effect::Either(OPTIMIZER_STATE), "counted as AdamW with moments in 8 bits");
    const AT_MOST: Note =
        (Effect::Less(&[Part::Gradients, Part::OptimizerState]), "it needs less than AdamW: counted as AdamW");
    const AS_ADAMW: Note = (Effect::Either(OPTIMIZER_STATE), "counted as AdamW, whose state is the most similar");
    Some(match name {
        "adamw_torch" | "adamw" | "adam" => (Optimizer::AdamWForeach, None),
        "adamw_torch_fused" => (Optimizer::AdamWFused, None),
        "adamw_hf" | "adamw_anyprecision" => (Optimizer::AdamWForLoop, None),
        "adamw_bnb_8bit" | "adamw_8bit" => (Optimizer::AdamW8bit, None),
        "paged_adamw_8bit" => (Optimizer::PagedAdamW8bit, None),
        "paged_adamw_32bit" | "paged_adamw" => (Optimizer::PagedAdamW, None),
        "adafactor" => (Optimizer::Adafactor, None),
        "sgd" => (Optimizer::Sgd { momentum: false }, None),
        "lion_32bit" | "lion" | "adagrad" | "rmsprop" | "rmsprop_bnb" | "rmsprop_bnb_32bit" => {
            (Optimizer::Sgd { momentum: true }, Some(ONE_MOMENT))
        }
        "lion_8bit" | "adamw_torch_8bit" | "adamw_torch_4bit" | "ademamix_8bit" | "rmsprop_bnb_8bit"
        | "ao_adamw_8bit" | "ao_adamw_4bit" => (Optimizer::AdamW8bit, Some(EIGHT_BITS)),
        "paged_lion_8bit" | "paged_ademamix_8bit" => (Optimizer::PagedAdamW8bit, Some(EIGHT_BITS)),
        "paged_lion_32bit" | "paged_ademamix_32bit" => (Optimizer::PagedAdamW, Some(AS_ADAMW)),
        name if name.starts_with("galore_") || name.starts_with("apollo_") => (Optimizer::AdamWForeach, Some(AT_MOST)),
        "lomo" | "adalomo" => (
            Optimizer::Sgd { momentum: false },
            Some((Effect::Either(GRADIENTS), "it frees gradients early: counted with them")),
        ),
        "ademamix"
        | "grokadamw"
        | "stable_adamw"
        | "muon"
        | "schedule_free_adamw"
        | "schedule_free_radam"
        | "schedule_free_sgd"
        | "adopt_adamw"
        | "ao_adamw_fp8"
        | "came_pytorch"
        | "optimi_adamw"
        | "dion" => (Optimizer::AdamWForeach, Some(AS_ADAMW)),
        _ => return None,
    })
}

/// Reads an optimizer's name. `default`: the trainer's default.
fn read_optimizer(view: &mut View, keys: &[&str], default: Optimizer) -> Optimizer {
    let Some(name) = view.word(keys) else { return default };
    match optimizer_called(&name) {
        Some((optimizer, note)) => {
            if let Some((effect, note)) = note {
                view.note_last(effect, note);
            }
            optimizer
        }
        None => {
            view.note_last(Effect::Either(OPTIMIZER_STATE), "unknown optimizer: counted as AdamW");
            Optimizer::AdamWForeach
        }
    }
}

/// The half-precision type of a name.
fn half_called(name: &str) -> Option<Half> {
    match name.trim_start_matches("torch.").to_ascii_lowercase().as_str() {
        "bfloat16" | "bf16" => Some(Half::Bf16),
        "float16" | "fp16" | "half" => Some(Half::Fp16),
        _ => None,
    }
}

/// The two half-precision types.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Half {
    Bf16,
    Fp16,
}

impl Half {
    fn pure(self) -> Precision {
        match self {
            Self::Bf16 => Precision::PureBf16,
            Self::Fp16 => Precision::PureFp16,
        }
    }

    fn mixed(self) -> Precision {
        match self {
            Self::Bf16 => Precision::AmpBf16,
            Self::Fp16 => Precision::AmpFp16,
        }
    }
}

/// The target layers, by their names or a word for all. `None` means PEFT's default.
fn targets(names: Option<Vec<String>>) -> Targets {
    match names {
        None => Targets::Default,
        Some(names) if names.iter().any(|name| matches!(name.as_str(), "all" | "all-linear")) => Targets::AllLinear,
        Some(names) => Targets::Named(names),
    }
}

#[cfg(test)]
mod tests;
