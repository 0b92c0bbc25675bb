//! What each trainer's keys mean, one file a trainer: how a change is written in them, and how they are read.
//! Not here: texts (`rewrite/`), and what a file comes to (`read.rs`).

mod accelerate;
mod axolotl;
mod deepspeed;
mod hugging_face;
mod llama_factory;
mod llama_factory_v1;
mod torchtune;
mod unsloth;

use crate::change::Change;
use crate::document::{Document, Value};
use crate::kind::Kind;
use crate::rewrite::edit::{Edit, Literal};
use crate::run::{Lora, Method, Optimizer, Precision, Run, Targets};
use crate::unsure::{Effect, Part};
use crate::view::View;

const ACTIVATIONS: &[Part] = &[Part::Activations];
const ATTENTION: &[Part] = &[Part::Attention];
const DIVISION: &[Part] = &[Part::Division];
const GRADIENTS: &[Part] = &[Part::Gradients];
const LOGITS: &[Part] = &[Part::Logits];
const OPTIMIZER_STATE: &[Part] = &[Part::OptimizerState];
const RECOMPUTATION: &[Part] = &[Part::Recomputation];
const TEMPORARIES: &[Part] = &[Part::Temporaries];
const WEIGHTS: &[Part] = &[Part::Weights];
/// All that grows with the samples.
const SAMPLES: &[Part] = &[Part::Activations, Part::Temporaries, Part::Logits];
/// All that there is for what is trained.
const TRAINED: &[Part] = &[Part::Gradients, Part::OptimizerState, Part::Activations];
/// A second model, and two samples in place of one.
const PREFERENCES: &[Part] = &[Part::Weights, Part::Activations, Part::Temporaries, Part::Logits];
/// The model and all that is computed with it.
const ALL: &[Part] =
    &[Part::Weights, Part::Gradients, Part::OptimizerState, Part::Activations, Part::Temporaries, Part::Logits];

/// How training on preferences is counted.
const ON_PREFERENCES: &str = "counted as training on one sample in place of a pair, without a reference model";

/// Why runs that generate are not counted.
const GENERATES: &str = "runs that generate or teach with other models are not modeled";

/// A setting that is not modeled: its keys, what that leaves open, and how it is counted.
type Unmodelled = (&'static [&'static str], Effect, &'static str);

/// Why a trainer has no key for a change, where there is more to say.
pub(crate) type NoKey = Option<&'static str>;

/// What a change is in a trainer's keys. Errors: it has none.
pub(crate) fn edits(kind: Kind, change: &Change, document: &Document) -> Result<Vec<Edit>, NoKey> {
    match kind {
        Kind::HuggingFace => hugging_face::edits(change, document),
        Kind::Axolotl => axolotl::edits(change, document),
        Kind::LlamaFactory if llama_factory_v1::is_new(document) => llama_factory_v1::edits(change),
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

/// What says whether additions have a dropout. `default`: whether they have one where nothing is told.
fn lora_dropout(key: &str, wanted: bool, default: bool, document: &Document) -> Option<Edit> {
    let has = is_on(document, key) && document.plain(key) != Some("0.0");
    match (wanted, has || default && present(document, &[key]).is_none()) {
        (true, false) => Some(Edit::Set(key.to_owned(), Literal::Decimal("0.05".to_owned()))),
        (false, true) => Some(Edit::set(key, 0u64)),
        _ => None,
    }
}

/// Names of layers that get additions; none where a trainer says it otherwise.
fn named(targets: &Targets) -> Option<Vec<String>> {
    match targets {
        Targets::Named(names) => Some(names.clone()),
        Targets::AllLinear | Targets::Default => None,
    }
}

/// What a trainer's settings come to: the run, the model's name, and files to be layered onto it.
pub(crate) fn read(kind: Kind, view: &mut View) -> Found {
    match kind {
        Kind::HuggingFace => hugging_face::read(view),
        Kind::Axolotl => axolotl::read(view),
        Kind::LlamaFactory if llama_factory_v1::is_new(view.document()) => llama_factory_v1::read(view),
        Kind::LlamaFactory => llama_factory::read(view),
        Kind::Torchtune => torchtune::read(view),
        Kind::Unsloth => unsloth::read(view),
        Kind::DeepSpeed => {
            let mut run = Run::default();
            deepspeed::layer("", view, &mut run);
            (run, None, vec![])
        }
        Kind::Accelerate => {
            let (mut run, mut layers) = (Run::default(), vec![]);
            accelerate::layer(view, &mut run, &mut layers);
            (run, None, layers)
        }
    }
}

/// A run, the name of its model, and files to be layered onto it.
pub(crate) type Found = (Run, Option<String>, Vec<(Kind, String)>);

pub(crate) use accelerate::layer as layer_accelerate;
pub(crate) use llama_factory_v1::TELLTALES as LLAMA_FACTORY_V1;

/// AdamW in one kernel where no key names an optimizer. Source: `TrainingArguments.default_optim` of transformers 5.23.
fn assume_fused(view: &mut View, keys: &[&str]) {
    if !keys.iter().any(|key| view.has(key)) {
        view.assume(
            Effect::More(&[Part::FusedUpdate]),
            "AdamW in one kernel, which is the default with PyTorch 2.8 or newer; with an older one it needs temporaries as large \
             as the weights",
        );
    }
}

/// Whether a key says how long samples are, in Hugging Face's words.
pub(crate) fn is_length(key: &str) -> bool {
    hugging_face::SEQ_LEN.contains(&key)
}

/// Lays DeepSpeed's own file over a run.
pub(crate) fn layer_deepspeed(view: &mut View, run: &mut Run) {
    deepspeed::layer("", view, run);
}

/// The optimizer that Hugging Face calls so, and how it differs if it is not quite that one. None: no such one.
fn optimizer_called(name: &str) -> Option<(Optimizer, Option<(Effect, &'static str)>)> {
    type Note = (Effect, &'static str);
    const ONE_MOMENT: Note = (Effect::Same, "it keeps one moment: counted as gradient descent with momentum");
    const EIGHT_BITS: Note = (Effect::Either(OPTIMIZER_STATE), "counted as AdamW with moments in 8 bits");
    const AT_MOST: Note =
        (Effect::Less(&[Part::Gradients, Part::OptimizerState]), "it keeps less than AdamW: counted as AdamW");
    const AS_ADAMW: Note = (Effect::Either(OPTIMIZER_STATE), "counted as AdamW, whose state is the nearest");
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

/// Reads an optimizer's name. `default`: the trainer's own.
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
            view.note_last(Effect::Either(OPTIMIZER_STATE), "no such optimizer is known: counted as AdamW");
            Optimizer::AdamWForeach
        }
    }
}

/// A type of weights by its name.
fn half_called(name: &str) -> Option<Half> {
    match name.trim_start_matches("torch.").to_ascii_lowercase().as_str() {
        "bfloat16" | "bf16" => Some(Half::Bf16),
        "float16" | "fp16" | "half" => Some(Half::Fp16),
        _ => None,
    }
}

/// The two types of half precision.
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

/// The layers that get additions, by their names or the word for all. None: those that PEFT takes.
fn targets(names: Option<Vec<String>>) -> Targets {
    match names {
        None => Targets::Default,
        Some(names) if names.iter().any(|name| matches!(name.as_str(), "all" | "all-linear")) => Targets::AllLinear,
        Some(names) => Targets::Named(names),
    }
}

#[cfg(test)]
mod tests;
