//! Detects which trainer a settings file belongs to.
//! Not here: the meaning of keys (`keys/`), and command lines (`command.rs`).

use crate::document::{Document, Value};
use crate::keys;
use crate::kind::TrainerKind;

/// Detects the trainer of a settings file by its keys or, if they are not distinctive, by its name; `None` if the
/// trainer is unknown or the file has no keys. `name`: the file name without its folder, or empty.
pub fn detect(text: &str, name: &str) -> Option<TrainerKind> {
    detect_document(&Document::parse(text).ok()?, name)
}

/// Like [`detect`], for a parsed document.
pub(crate) fn detect_document(document: &Document, name: &str) -> Option<TrainerKind> {
    let count = |kind| telltales(document, kind);
    // LLaMA-Factory's and Unsloth's files also contain Hugging Face's keys, so their own keys decide.
    let own = [
        TrainerKind::Axolotl,
        TrainerKind::LlamaFactory,
        TrainerKind::Torchtune,
        TrainerKind::DeepSpeed,
        TrainerKind::Accelerate,
        TrainerKind::Unsloth,
    ];
    if keys::LLAMA_FACTORY_V1.iter().filter(|key| has(document, key)).count() > 1 {
        return Some(TrainerKind::LlamaFactory);
    }
    let best = own.into_iter().map(|kind| (count(kind), kind)).max_by_key(|(count, kind)| (*count, kind.is_layer()));
    match best {
        Some((found, TrainerKind::Unsloth)) if found < 2 => {}
        Some((found, kind)) if found > 0 => return Some(kind),
        _ => {}
    }
    if count(TrainerKind::HuggingFace) > 0 {
        return Some(TrainerKind::HuggingFace);
    }
    let name = name.to_ascii_lowercase();
    let called = [
        ("axolotl", TrainerKind::Axolotl),
        ("llama_factory", TrainerKind::LlamaFactory),
        ("torchtune", TrainerKind::Torchtune),
        ("unsloth", TrainerKind::Unsloth),
        ("deepspeed", TrainerKind::DeepSpeed),
        ("ds_", TrainerKind::DeepSpeed),
        ("accelerate", TrainerKind::Accelerate),
        ("training_args", TrainerKind::HuggingFace),
    ];
    called.into_iter().find(|(part, _)| name.contains(part)).map(|(_, kind)| kind)
}

/// The number of keys in a document that usually only this trainer has.
pub(crate) fn telltales(document: &Document, kind: TrainerKind) -> usize {
    telltales_of(kind).iter().filter(|key| has(document, key)).count()
}

/// Whether a script's settings certainly belong to this trainer. Keys such as `output_dir` and
/// `gradient_accumulation_steps`
/// prove nothing, since many scripts with their own flags have them.
pub(crate) fn is_certain(document: &Document, kind: TrainerKind) -> bool {
    let count = |keys: &[&str]| keys.iter().filter(|key| has(document, key)).count();
    match kind {
        TrainerKind::LlamaFactory => count(&["finetuning_type"]) > 0,
        TrainerKind::HuggingFace => {
            // `TrainingArguments` has no keys of these names.
            let is_other = count(&["batch_size", "train_batch_size"]) > 0;
            !is_other && (count(ONLY_HUGGING_FACE) > 0 || count(RARELY_ELSEWHERE) > 1)
        }
        _ => true,
    }
}

/// Keys that only `TrainingArguments` has.
const ONLY_HUGGING_FACE: &[&str] = &[
    "per_device_train_batch_size",
    "per_gpu_train_batch_size",
    "auto_find_batch_size",
    "gradient_checkpointing_kwargs",
    "lr_scheduler_kwargs",
];

/// Keys of `TrainingArguments` that few other scripts have. No other script has two of them.
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

/// Whether a document has a key. Dots separate nested keys.
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

/// Keys that usually only the files of this trainer have.
fn telltales_of(kind: TrainerKind) -> &'static [&'static str] {
    match kind {
        TrainerKind::HuggingFace => &[
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
        TrainerKind::Axolotl => &["base_model", "micro_batch_size", "sequence_len", "sample_packing", "num_epochs"],
        TrainerKind::LlamaFactory => &[
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
        TrainerKind::Torchtune => &[
            "model._component_",
            "optimizer._component_",
            "tokenizer._component_",
            "checkpointer",
            "enable_activation_checkpointing",
        ],
        TrainerKind::Unsloth => {
            &["use_gradient_checkpointing", "r", "max_seq_length", "full_finetuning", "target_modules"]
        }
        TrainerKind::DeepSpeed => {
            &["zero_optimization", "train_micro_batch_size_per_gpu", "zero_allow_untested_optimizer"]
        }
        TrainerKind::Accelerate => &["compute_environment", "distributed_type", "num_processes", "downcast_bf16"],
    }
}
