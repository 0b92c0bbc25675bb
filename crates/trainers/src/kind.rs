//! Whose settings a file or a command line has.
//! Not here: what keys mean (`keys/`), and command lines (`command.rs`).

use crate::document::{Document, Value};
use crate::keys;
use std::fmt;

/// A trainer, or what lies beside one, with keys of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// Hugging Face's `TrainingArguments`, and flags of scripts that parse them.
    HuggingFace,
    /// axolotl.
    Axolotl,
    /// LLaMA-Factory.
    LlamaFactory,
    /// torchtune.
    Torchtune,
    /// The keywords of Unsloth's notebooks, in one object.
    Unsloth,
    /// DeepSpeed's own file, which is layered onto a trainer's.
    DeepSpeed,
    /// What `accelerate config` writes, which is layered onto a trainer's.
    Accelerate,
}

impl Kind {
    /// All kinds, trainers first.
    pub const ALL: [Self; 7] = [
        Self::HuggingFace,
        Self::Axolotl,
        Self::LlamaFactory,
        Self::Torchtune,
        Self::Unsloth,
        Self::DeepSpeed,
        Self::Accelerate,
    ];

    /// Its name, as its authors write it.
    pub fn name(self) -> &'static str {
        match self {
            Self::HuggingFace => "Hugging Face's Trainer",
            Self::Axolotl => "axolotl",
            Self::LlamaFactory => "LLaMA-Factory",
            Self::Torchtune => "torchtune",
            Self::Unsloth => "Unsloth",
            Self::DeepSpeed => "DeepSpeed",
            Self::Accelerate => "accelerate",
        }
    }

    /// Whether its file says how a run is divided and no more, and so belongs beside a trainer's.
    pub fn is_layer(self) -> bool {
        matches!(self, Self::DeepSpeed | Self::Accelerate)
    }

    /// Keys that only this one's files have, as a rule.
    fn telltales(self) -> &'static [&'static str] {
        match self {
            Self::HuggingFace => &[
                "per_device_train_batch_size",
                "per_device_eval_batch_size",
                "per_gpu_train_batch_size",
                "gradient_accumulation_steps",
                "gradient_checkpointing",
                "num_train_epochs",
                "output_dir",
                "optim",
                "lr_scheduler_type",
                "save_total_limit",
                "use_liger_kernel",
                "model_name_or_path",
                "use_peft",
                "bf16",
                "fp16",
            ],
            Self::Axolotl => &["base_model", "micro_batch_size", "sequence_len", "sample_packing", "num_epochs"],
            Self::LlamaFactory => &[
                "finetuning_type",
                "cutoff_len",
                "stage",
                "template",
                "lora_target",
                "enable_liger_kernel",
                "disable_gradient_checkpointing",
                "flash_attn",
                "pure_bf16",
            ],
            Self::Torchtune => &[
                "model._component_",
                "optimizer._component_",
                "tokenizer._component_",
                "checkpointer",
                "enable_activation_checkpointing",
            ],
            Self::Unsloth => {
                &["use_gradient_checkpointing", "r", "max_seq_length", "full_finetuning", "target_modules"]
            }
            Self::DeepSpeed => {
                &["zero_optimization", "train_micro_batch_size_per_gpu", "zero_allow_untested_optimizer"]
            }
            Self::Accelerate => &["compute_environment", "distributed_type", "num_processes", "downcast_bf16"],
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Whose settings a text has, by its keys; where none is told apart by them, by the file's name. None: nobody's that is
/// known, or no keys at all. `name`: the file's, without its folder, or empty.
pub fn detect(text: &str, name: &str) -> Option<Kind> {
    detect_document(&Document::parse(text).ok()?, name)
}

/// As [`detect`], of a text that was parsed.
pub(crate) fn detect_document(document: &Document, name: &str) -> Option<Kind> {
    let count = |kind| telltales(document, kind);
    // Hugging Face's keys are in LLaMA-Factory's and Unsloth's files as well, whose own decide.
    let own = [Kind::Axolotl, Kind::LlamaFactory, Kind::Torchtune, Kind::DeepSpeed, Kind::Accelerate, Kind::Unsloth];
    if keys::LLAMA_FACTORY_V1.iter().filter(|key| has(document, key)).count() > 1 {
        return Some(Kind::LlamaFactory);
    }
    let best = own.into_iter().map(|kind| (count(kind), kind)).max_by_key(|(count, kind)| (*count, kind.is_layer()));
    match best {
        Some((found, Kind::Unsloth)) if found < 2 => {}
        Some((found, kind)) if found > 0 => return Some(kind),
        _ => {}
    }
    if count(Kind::HuggingFace) > 0 {
        return Some(Kind::HuggingFace);
    }
    let name = name.to_ascii_lowercase();
    let called = [
        ("axolotl", Kind::Axolotl),
        ("llama_factory", Kind::LlamaFactory),
        ("torchtune", Kind::Torchtune),
        ("unsloth", Kind::Unsloth),
        ("deepspeed", Kind::DeepSpeed),
        ("ds_", Kind::DeepSpeed),
        ("accelerate", Kind::Accelerate),
        ("training_args", Kind::HuggingFace),
    ];
    called.into_iter().find(|(part, _)| name.contains(part)).map(|(_, kind)| kind)
}

/// How many keys a document has that only this trainer's have, as a rule.
pub(crate) fn telltales(document: &Document, kind: Kind) -> usize {
    kind.telltales().iter().filter(|key| has(document, key)).count()
}

/// Whether settings of a script are certainly this trainer's. Keys such as `output_dir` and `gradient_accumulation_steps` are
/// those of many scripts that parse their own flags, so they are no proof.
pub(crate) fn is_certain(document: &Document, kind: Kind) -> bool {
    let count = |keys: &[&str]| keys.iter().filter(|key| has(document, key)).count();
    match kind {
        Kind::LlamaFactory => count(&["finetuning_type"]) > 0,
        Kind::HuggingFace => {
            // `TrainingArguments` have no key of these names.
            let is_other = count(&["batch_size", "train_batch_size"]) > 0;
            !is_other && (count(ONLY_HUGGING_FACE) > 0 || count(RARELY_ELSEWHERE) > 1)
        }
        _ => true,
    }
}

/// Keys that only `TrainingArguments` have.
const ONLY_HUGGING_FACE: &[&str] = &[
    "per_device_train_batch_size",
    "per_gpu_train_batch_size",
    "auto_find_batch_size",
    "gradient_checkpointing_kwargs",
    "lr_scheduler_kwargs",
];

/// Keys of `TrainingArguments` that few other scripts have; none has two of them.
const RARELY_ELSEWHERE: &[&str] = &[
    "per_device_eval_batch_size",
    "eval_strategy",
    "evaluation_strategy",
    "save_strategy",
    "save_total_limit",
    "logging_strategy",
    "load_best_model_at_end",
    "metric_for_best_model",
    "overwrite_output_dir",
    "predict_with_generate",
    "dataloader_num_workers",
    "dataloader_pin_memory",
    "ddp_find_unused_parameters",
    "use_liger_kernel",
    "torch_compile_backend",
];

/// Whether a document has a key, whose keys within keys are joined by dots.
fn has(document: &Document, path: &str) -> bool {
    let mut entries = &document.0;
    let mut parts = path.split('.').peekable();
    while let Some(part) = parts.next() {
        let Some(entry) = entries.iter().find(|entry| entry.key.replace('-', "_") == part) else { return false };
        match &entry.value {
            _ if parts.peek().is_none() => return true,
            Value::Map(inner) => entries = inner,
            _ => return false,
        }
    }
    false
}
