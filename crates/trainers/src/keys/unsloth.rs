//! The keywords of Unsloth's notebooks (`FastLanguageModel.from_pretrained`, `get_peft_model`, `SFTConfig`), in one object.
//! Source: unsloth 2025.10, `models/loader.py`, `models/llama.py`.

use super::hugging_face::{MICRO_BATCH, layers, method_of, mixed, shared, shared_run};
use super::{Found, Half, NoKey, half_called, lora, named, optim, present};
use crate::change::Change;
use crate::document::Document;
use crate::rewrite::edit::{Edit, Literal};
use crate::run::{Checkpointing, Lora, Loss, Method, Precision, Quantized, Targets};
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
        Change::Precision(precision) => self::precision(*precision)?,
        Change::Method(method) => self::method(method, document),
        Change::Attention(_) => return Err(Some("it has kernels of its own")),
        Change::Loss(Loss::Plain) => vec![],
        Change::Loss(_) => return Err(Some("it has a fused loss of its own")),
        Change::TargetLen(_) => return Err(None),
        other => shared(other, document)?,
    })
}

fn precision(precision: Precision) -> Result<Vec<Edit>, NoKey> {
    Ok(match precision {
        Precision::PureBf16 | Precision::AmpBf16 => {
            vec![Edit::set("bf16", true), Edit::replace("fp16", false), Edit::replace("dtype", "bfloat16")]
        }
        Precision::PureFp16 | Precision::AmpFp16 => {
            vec![Edit::set("fp16", true), Edit::replace("bf16", false), Edit::replace("dtype", "float16")]
        }
        Precision::Fp32 => return Err(Some("it loads weights in half precision")),
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
const NOTHING: &[&str] = &[
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
];

/// Keys that matter, and how they are taken.
const UNMODELLED: &[(&[&str], &str)] = &[
    (
        &[
            "modules_to_save",
            "layers_to_transform",
            "loftq_config*",
            "init_lora_weights",
            "use_dora",
            "layer_replication",
        ],
        "it is not modelled",
    ),
    (&["finetune_*"], "adapters are counted in all layers of their names"),
    (&["load_in_16bit", "load_in_fp8", "embedding_learning_rate"], "it is not modelled"),
];

/// Its defaults. Source: `FastLanguageModel.from_pretrained` and `get_peft_model`: weights in 4 bits, samples of 2,048 tokens,
/// rank 16 on the seven projections of a block, checkpoints that go to the host.
pub(super) fn read(view: &mut View) -> Found {
    let mut run = shared_run(view);
    run.micro_batch = view.count(MICRO_BATCH).unwrap_or(8);
    run.seq_len = view.count(SEQ_LEN).unwrap_or(2048);
    run.checkpointing = match view.word(&["use_gradient_checkpointing"]).as_deref() {
        Some("true" | "True") => Checkpointing::Reentrant,
        Some("false" | "False") => Checkpointing::Off,
        _ => {
            view.note_last("its checkpoints go to the host: counted as if they stayed on the card");
            Checkpointing::Reentrant
        }
    };
    // Its fused head holds some rows of logits, as Liger's does.
    run.loss = Loss::Liger;
    view.assumed.push("Unsloth's own kernels take what Liger's do, which are what is modelled".to_owned());
    let full = view.flag(&["full_finetuning"]) == Some(true);
    let four = view.flag(&["load_in_4bit"]) != Some(false);
    view.cannot(&["load_in_8bit"], "weights in 8 bits are not modelled: counted as they are loaded otherwise");
    let rank = view.count(&["r", "lora_r"]).unwrap_or(16);
    let names = view.list(&["target_modules"]).unwrap_or_else(|| PROJECTIONS.map(str::to_owned).to_vec());
    let dropout = view.real(&["lora_dropout"]).is_some_and(|dropout| dropout > 0.0);
    if !full {
        let lora = Lora { rank, targets: super::targets(Some(names)), dropout };
        run.method = method_of(lora, four.then_some(Quantized { block: 64, double: true }));
    }
    let dtype = view.word(&["dtype", "torch_dtype"]).as_deref().and_then(half_called);
    let mixed = mixed(view);
    run.precision = match (full, dtype.or(mixed)) {
        (true, None) => Precision::AmpBf16,
        (_, half) => half.unwrap_or(Half::Bf16).pure(),
    };
    for (keys, why) in UNMODELLED {
        view.cannot(keys, why);
    }
    let model = view.word(&["model_name", "model_name_or_path"]).map(|name| plain_name(&name));
    view.nothing(NOTHING);
    (run, model, layers(view))
}

/// What it adapts where nothing else is told.
const PROJECTIONS: [&str; 7] = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"];

/// The name of the weights that its own copies in 4 bits are made of.
fn plain_name(name: &str) -> String {
    let name = ["-unsloth-bnb-4bit", "-bnb-4bit"].iter().find_map(|suffix| name.strip_suffix(suffix)).unwrap_or(name);
    name.strip_prefix("unsloth/").unwrap_or(name).to_owned()
}
