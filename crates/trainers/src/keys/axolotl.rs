//! axolotl's YAML. Source: axolotl 0.12, `utils/schemas/`, `loaders/`, `core/builders/`.

use super::hugging_face::{attention_name, checkpointing, layers, method_of, quantized, shared, shared_run};
use super::{Found, IN_DEEPSPEED, NoKey, lora, named, optim, present};
use crate::change::Change;
use crate::document::Document;
use crate::rewrite::edit::{Edit, Literal};
use crate::run::{Attention, Checkpointing, Lora, Loss, Method, Offload, Optimizer, Precision, Run, Sharding, Targets};
use crate::view::View;

/// The keys of ways to compute attention; newer files have `attn_implementation`.
const ATTENTIONS: &[(&str, Option<Attention>)] = &[
    ("flash_attention", Some(Attention::Flash2)),
    ("sdp_attention", Some(Attention::Sdpa)),
    ("eager_attention", Some(Attention::Eager)),
    ("xformers_attention", None),
    ("flex_attention", None),
    ("sage_attention", None),
];

const LIGER: &str = "axolotl.integrations.liger.LigerPlugin";
const CCE: &str = "axolotl.integrations.cut_cross_entropy.CutCrossEntropyPlugin";

pub(super) fn edits(change: &Change, document: &Document) -> Result<Vec<Edit>, NoKey> {
    Ok(match change {
        Change::MicroBatch(samples) => vec![Edit::set("micro_batch_size", *samples)],
        // `batch_size` says the same as their product, and both are refused.
        Change::Accumulation(times) => {
            vec![Edit::set("gradient_accumulation_steps", *times), Edit::remove("batch_size")]
        }
        Change::SeqLen(tokens) => vec![Edit::set("sequence_len", *tokens)],
        Change::Optimizer(optimizer) => vec![Edit::set("optimizer", optim(*optimizer)?)],
        Change::Checkpointing(kind) => checkpointing(*kind, document),
        Change::Attention(attention) => self::attention(*attention, document),
        Change::Loss(loss) => self::loss(*loss),
        Change::Precision(precision) => self::precision(*precision)?,
        Change::Method(method) => self::method(method, document),
        Change::Sharding(Sharding::Zero { stage }) => {
            vec![Edit::set("deepspeed", format!("deepspeed_configs/zero{stage}.json").as_str())]
        }
        Change::Sharding(Sharding::Fsdp) => {
            vec![Edit::set("fsdp", vec!["full_shard".to_owned(), "auto_wrap".to_owned()])]
        }
        Change::Offload(offload) if *offload != Offload::default() => return Err(Some(IN_DEEPSPEED)),
        Change::TargetLen(_) => return Err(None),
        other => shared(other, document)?,
    })
}

fn attention(attention: Attention, document: &Document) -> Vec<Edit> {
    if let Some(key) = present(document, &["attn_implementation"]) {
        return vec![Edit::set(key, attention_name(attention))];
    }
    let edit = |(key, of): &(&str, Option<Attention>)| match *of == Some(attention) {
        true => Edit::set(key, true),
        false => Edit::replace(key, false),
    };
    ATTENTIONS.iter().map(edit).collect()
}

fn loss(loss: Loss) -> Vec<Edit> {
    match loss {
        Loss::Plain => vec![
            Edit::replace("liger_fused_linear_cross_entropy", false),
            Edit::replace("liger_cross_entropy", false),
            Edit::replace("cut_cross_entropy", false),
        ],
        Loss::Liger => vec![
            Edit::push("plugins", LIGER),
            Edit::set("liger_fused_linear_cross_entropy", true),
            Edit::replace("liger_cross_entropy", false),
            Edit::replace("cut_cross_entropy", false),
        ],
        Loss::CutCrossEntropy => vec![
            Edit::push("plugins", CCE),
            Edit::set("cut_cross_entropy", true),
            Edit::replace("liger_fused_linear_cross_entropy", false),
            Edit::replace("liger_cross_entropy", false),
        ],
    }
}

/// Weights are loaded in half precision where one is asked for.
fn precision(precision: Precision) -> Result<Vec<Edit>, NoKey> {
    Ok(match precision {
        Precision::PureBf16 => vec![Edit::set("bf16", true), Edit::replace("fp16", false)],
        Precision::PureFp16 => vec![Edit::set("fp16", true), Edit::replace("bf16", false)],
        Precision::Fp32 => vec![
            Edit::set("bf16", false),
            Edit::replace("fp16", false),
            Edit::replace("bfloat16", false),
            Edit::replace("float16", false),
        ],
        Precision::AmpBf16 | Precision::AmpFp16 => {
            return Err(Some("it loads weights in half precision where it computes so"));
        }
    })
}

fn method(method: &Method, document: &Document) -> Vec<Edit> {
    let Some(lora) = lora(method) else {
        return vec![
            Edit::replace("adapter", Literal::Null),
            Edit::replace("load_in_4bit", false),
            Edit::replace("load_in_8bit", false),
        ];
    };
    let four_bits = matches!(method, Method::Qlora(..));
    let mut edits = vec![
        Edit::set("adapter", if four_bits { "qlora" } else { "lora" }),
        Edit::set("lora_r", lora.rank),
        Edit::replace("load_in_8bit", false),
        if four_bits { Edit::set("load_in_4bit", true) } else { Edit::replace("load_in_4bit", false) },
    ];
    edits.extend(super::lora_dropout("lora_dropout", lora.dropout, false, document));
    // PEFT has no default that scales with the rank.
    edits.extend(present(document, &["lora_alpha"]).is_none().then(|| Edit::set("lora_alpha", 2 * lora.rank)));
    match named(&lora.targets) {
        Some(names) => {
            edits.extend([Edit::replace("lora_target_linear", false), Edit::set("lora_target_modules", names)])
        }
        None if lora.targets == Targets::AllLinear => {
            edits.extend([Edit::remove("lora_target_modules"), Edit::set("lora_target_linear", true)])
        }
        None => {}
    }
    edits
}

/// Keys on which no memory of a card depends, beside those of `TrainingArguments`.
const NOTHING: &[&str] = &[
    "base_model_*",
    "model_type",
    "model_config*",
    "tokenizer_*",
    "cls_model_config",
    "processor_type",
    "trust_remote_code",
    "is_*_derived_model",
    "is_falcon_derived_model",
    "is_llama_derived_model",
    "is_mistral_derived_model",
    "is_qwen_derived_model",
    "strict",
    "revision_of_model",
    "dataset*",
    "datasets*",
    "test_datasets*",
    "pretraining_dataset*",
    "shuffle_*",
    "skip_prepare_dataset",
    "val_set_size",
    "chat_template*",
    "default_system_message",
    "eot_tokens",
    "special_tokens*",
    "wandb*",
    "mlflow*",
    "comet*",
    "use_*",
    "swanlab*",
    "gradio*",
    "num_epochs",
    "lr_*",
    "cosine_*",
    "embedding_lr*",
    "train_on_inputs",
    "group_by_length",
    "early_stopping*",
    "evals_per_epoch",
    "saves_per_epoch",
    "eval_*",
    "loss_watchdog*",
    "auto_resume_from_checkpoints",
    "sample_packing*",
    "pad_to_sequence_len",
    "curriculum_sampling",
    "multipack_real_batches",
    "batch_flattening",
    "pretrain_multipack*",
    "excess_length_strategy",
    "min_sample_len",
    "max_prompt_len",
    "gc_steps",
    "profiler_steps",
    "lora_model_dir",
    "lora_alpha",
    "lora_fan_in_fan_out",
    "lora_on_cpu",
    "loraplus_*",
    "peft_use_rslora",
    "peft_init_lora_weights",
    "merge_*",
    "bnb_config_kwargs*",
    "device",
    "device_map",
    "world_size",
    "ddp",
    "max_memory*",
    "gpu_memory_limit",
    "low_cpu_mem_usage",
    "hf_use_auth_token",
    "push_dataset_to_hub",
    "float32",
    "liger_*",
    "plugins",
    "fsdp_final_state_dict_type",
    "fix_untrained_tokens",
    "flash_attn_*",
    "experimental_skip_move_to_device",
];

/// Its defaults. Source: `AxolotlInputConfig` and the parts of it: a micro-batch of 1, `sequence_len` 512, `bf16: auto`,
/// `adamw_torch_fused`, a rank that is PEFT's 8.
pub(super) fn read(view: &mut View) -> Found {
    let mut run = shared_run(view);
    run.micro_batch = view.count(&["micro_batch_size"]).unwrap_or(1);
    if let Some(batch) = view.count(&["batch_size"]).filter(|_| !view.has("gradient_accumulation_steps")) {
        run.accumulation = (batch / run.micro_batch).max(1);
    }
    match view.count(&["sequence_len"]) {
        Some(tokens) => run.seq_len = tokens,
        None => run.seq_len = 512,
    }
    run.optimizer = super::read_optimizer(view, &["optimizer"], Optimizer::AdamWFused);
    run.checkpointing = checkpoints(view);
    run.attention = read_attention(view);
    read_loss(view, &mut run);
    run.precision = read_precision(view);
    read_method(view, &mut run);
    for (keys, why) in UNMODELLED {
        view.cannot(keys, why);
    }
    let model = view.word(&["base_model"]);
    view.nothing(NOTHING);
    (run, model, layers(view))
}

/// Keys that matter, and how they are taken.
const UNMODELLED: &[(&[&str], &str)] = &[
    (&["auto_find_batch_size"], "it halves the micro-batch by itself: counted with the one that is told"),
    (
        &["rl", "rl_*", "trl*", "dpo_*", "orpo_alpha", "kto_*", "reward_model", "process_reward_model"],
        "only training on the next token is modelled",
    ),
    (&["unfrozen_parameters"], "all weights are counted as trained"),
    (&["lora_modules_to_save"], "modules that are trained whole beside adapters are not counted"),
    (
        &["lora_target_parameters", "peft_layers_to_transform", "peft_layers_pattern", "peft_layer_replication"],
        "adapters are counted in all layers",
    ),
    (&["peft_use_dora"], "DoRA's magnitudes are not counted"),
    (&["lora_mlp_kernel", "lora_qkv_kernel", "lora_o_kernel"], "its kernels save activations, which is not counted"),
    (&["unsloth_*"], "Unsloth's kernels are not modelled"),
    (&["fp8", "qat*", "quantization*", "gptq", "peft.*"], "it is not modelled"),
    (
        &[
            "sequence_parallel_degree",
            "context_parallel_size",
            "tensor_parallel_size",
            "dp_shard_size",
            "dp_replicate_size",
            "ring_attn_func",
            "heads_k_stride",
        ],
        "sequences and layers are not divided among cards",
    ),
    (
        &["tokens", "added_tokens_overrides", "resize_token_embeddings_to_32x", "shrink_embeddings"],
        "the vocabulary is counted as the model's own",
    ),
    (&["relora*", "lisa_*", "use_pose", "pose_*"], "it is not modelled"),
    (&["noisy_embedding_alpha"], "its noise, as large as the embeddings, is not counted"),
    (&["activation_offloading"], "activations are counted as if they stayed on the card"),
];

fn checkpoints(view: &mut View) -> Checkpointing {
    // Source: `utils/config`: re-entrant unless told otherwise.
    let reentrant = view.flag(&["gradient_checkpointing_kwargs.use_reentrant"]) != Some(false);
    let how = view.word(&["gradient_checkpointing"]).unwrap_or_default();
    match how.to_ascii_lowercase().as_str() {
        "" | "false" | "no" | "off" => Checkpointing::Off,
        "offload" | "offload_disk" | "unsloth" => {
            view.note_last("checkpoints are counted as if they stayed on the card");
            Checkpointing::Reentrant
        }
        _ if reentrant => Checkpointing::Reentrant,
        _ => Checkpointing::NonReentrant,
    }
}

fn read_attention(view: &mut View) -> Attention {
    let newer = super::hugging_face::attention(view, &["attn_implementation"]);
    let chosen = ATTENTIONS.iter().find_map(|(key, of)| {
        (view.flag(&[key]) == Some(true)).then(|| {
            if of.is_none() {
                view.note_last("not modelled: counted as SDPA");
            }
            of.unwrap_or(Attention::Sdpa)
        })
    });
    view.cannot(&["s2_attention", "flash_optimum"], "not modelled: counted as SDPA");
    chosen.unwrap_or(newer)
}

fn read_loss(view: &mut View, run: &mut Run) {
    let liger = view.flag(&["liger_fused_linear_cross_entropy"]) == Some(true);
    let cut = view.flag(&["cut_cross_entropy"]) == Some(true);
    let plugins = view.list(&["plugins"]).unwrap_or_default();
    let has = |part: &str| plugins.iter().any(|plugin| plugin.contains(part));
    // Its plugin cuts the loss by itself.
    if cut || has("cut_cross_entropy") && !view.has("cut_cross_entropy") {
        run.loss = Loss::CutCrossEntropy;
    } else if liger {
        run.loss = Loss::Liger;
    }
    view.cannot(
        &["chunked_cross_entropy", "liger_cross_entropy", "unsloth_cross_entropy_loss"],
        "counted as the plain loss",
    );
}

/// Weights are loaded in the type that is computed in; `auto` is bf16 where a card has it, as all since 2020.
fn read_precision(view: &mut View) -> Precision {
    let pure = |view: &mut View, key| view.flag(&[key]) == Some(true);
    let bf16 = view.word(&["bf16"]).unwrap_or_else(|| "auto".to_owned()).to_ascii_lowercase();
    let (bfloat16, fp16, float16) = (pure(view, "bfloat16"), pure(view, "fp16"), pure(view, "float16"));
    match bf16.as_str() {
        "true" | "full" | "yes" | "on" => Precision::PureBf16,
        _ if bfloat16 => Precision::PureBf16,
        _ if fp16 || float16 => Precision::PureFp16,
        "auto" => Precision::PureBf16,
        _ => Precision::Fp32,
    }
}

fn read_method(view: &mut View, run: &mut Run) {
    let adapter = view.word(&["adapter"]).unwrap_or_default();
    // Source: `loaders/model.py`: NF4 with scales in 8 bits.
    let quantized = quantized(view, true);
    let rank = view.count(&["lora_r"]).unwrap_or(8);
    let all = view.flag(&["lora_target_linear"]) == Some(true);
    let names = view.list(&["lora_target_modules"]);
    let targets = if all { Targets::AllLinear } else { super::targets(names) };
    let dropout = view.real(&["lora_dropout"]).is_some_and(|dropout| dropout > 0.0);
    let lora = Lora { rank, targets, dropout };
    match adapter.as_str() {
        "" | "false" | "none" => {}
        "lora" | "qlora" => run.method = method_of(lora, quantized),
        _ => view.note_of("adapter", "no such adapter is modelled: all weights are counted as trained"),
    }
}
