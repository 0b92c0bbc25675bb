//! Writes a change to axolotl's keys. Not here: reading them (`read.rs`).

use super::ATTENTIONS;
use crate::change::SettingChange;
use crate::document::Document;
use crate::keys::hugging_face::{attention_name, checkpointing, shared};
use crate::keys::{self, IN_DEEPSPEED, NoKey, lora, named, optim, present};
use crate::rewrite::edit::{Edit, Literal};
use crate::run::{Attention, Loss, Method, Offload, Precision, Sharding, Targets};

const LIGER: &str = "axolotl.integrations.liger.LigerPlugin";
const CCE: &str = "axolotl.integrations.cut_cross_entropy.CutCrossEntropyPlugin";

pub(in crate::keys) fn edits(change: &SettingChange, document: &Document) -> Result<Vec<Edit>, NoKey> {
    Ok(match change {
        SettingChange::MicroBatch(samples) => vec![Edit::set("micro_batch_size", *samples)],
        // `batch_size` is their product. axolotl rejects a file with both.
        SettingChange::Accumulation(times) => {
            vec![Edit::set("gradient_accumulation_steps", *times), Edit::remove("batch_size")]
        }
        SettingChange::SeqLen(tokens) => vec![Edit::set("sequence_len", *tokens)],
        SettingChange::Optimizer(optimizer) => vec![Edit::set("optimizer", optim(*optimizer)?)],
        SettingChange::Checkpointing(kind) => checkpointing(*kind, document),
        SettingChange::Attention(attention) => self::attention(*attention, document),
        SettingChange::Loss(loss) => self::loss(*loss),
        SettingChange::Precision(precision) => self::precision(*precision)?,
        SettingChange::Method(method) => self::method(method, document),
        SettingChange::Sharding(Sharding::Zero { stage }) => {
            vec![Edit::set("deepspeed", format!("deepspeed_configs/zero{stage}.json").as_str())]
        }
        SettingChange::Sharding(Sharding::Fsdp) => {
            vec![Edit::set("fsdp", vec!["full_shard".to_owned(), "auto_wrap".to_owned()])]
        }
        SettingChange::Offload(offload) if *offload != Offload::default() => return Err(Some(IN_DEEPSPEED)),
        SettingChange::TargetLen(_) => return Err(None),
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

/// Setting half precision also loads weights in half precision.
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
            return Err(Some("it loads weights in half precision if it computes in half precision"));
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
    edits.extend(keys::lora_dropout("lora_dropout", lora.dropout, false, document));
    // PEFT's default does not scale with the rank.
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
