//! Settings that belong in a Python script: calls of Hugging Face's libraries with their arguments.

use crate::change::SettingChange;
use crate::run::{Attention, Lora, Loss, Method, Optimizer, Precision, Targets};

/// Lines of Python for a setting without a key in `TrainingArguments`.
pub(super) fn lines(change: &SettingChange) -> Vec<String> {
    match change {
        SettingChange::Precision(Precision::PureBf16) => vec!["from_pretrained(…, dtype=torch.bfloat16)".to_owned()],
        SettingChange::Precision(Precision::PureFp16) => vec!["from_pretrained(…, dtype=torch.float16)".to_owned()],
        SettingChange::Attention(attention) => {
            let name = match attention {
                Attention::Eager => "eager",
                Attention::Sdpa | Attention::Efficient => "sdpa",
                Attention::Flash2 => "flash_attention_2",
            };
            vec![format!("from_pretrained(…, attn_implementation=\"{name}\")")]
        }
        SettingChange::SeqLen(tokens) => vec![format!("samples of {tokens} tokens: set in the script")],
        SettingChange::TargetLen(tokens) => vec![format!("targets of {tokens} tokens: set in the script")],
        SettingChange::Method(Method::Lora(lora)) => vec![lora_line(lora)],
        SettingChange::Method(Method::Qlora(lora, quantized)) => {
            let double = if quantized.double { "True" } else { "False" };
            vec![
                format!(
                    "BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type=\"nf4\", \
                     bnb_4bit_use_double_quant={double}, bnb_4bit_compute_dtype=torch.bfloat16)"
                ),
                lora_line(lora),
            ]
        }
        SettingChange::Optimizer(Optimizer::AdamWForLoop) => vec!["torch.optim.AdamW(…, foreach=False)".to_owned()],
        SettingChange::Optimizer(Optimizer::Sgd { .. }) => vec!["torch.optim.SGD(…, momentum=0.9)".to_owned()],
        SettingChange::Loss(Loss::CutCrossEntropy) => vec!["cut_cross_entropy.cce_patch(model)".to_owned()],
        other => vec![format!("{other}: set in the script")],
    }
}

fn lora_line(lora: &Lora) -> String {
    let targets = match &lora.targets {
        Targets::AllLinear => ", target_modules=\"all-linear\"".to_owned(),
        Targets::Named(names) => format!(", target_modules={names:?}"),
        Targets::Default => String::new(),
    };
    let dropout = if lora.dropout { ", lora_dropout=0.05" } else { "" };
    format!("LoraConfig(r={}{targets}{dropout})", lora.rank)
}
