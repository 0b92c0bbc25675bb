//! Settings that are said in a script of Hugging Face's libraries: as the arguments that its calls take.

use crate::change::Change;
use crate::run::{Attention, Lora, Loss, Method, Optimizer, Precision, Targets};

/// The lines of a script that say a setting for which `TrainingArguments` has no key.
pub(super) fn lines(change: &Change) -> Vec<String> {
    match change {
        Change::Precision(Precision::PureBf16) => vec!["from_pretrained(…, dtype=torch.bfloat16)".to_owned()],
        Change::Precision(Precision::PureFp16) => vec!["from_pretrained(…, dtype=torch.float16)".to_owned()],
        Change::Attention(attention) => {
            let name = match attention {
                Attention::Eager => "eager",
                Attention::Sdpa => "sdpa",
                Attention::Flash2 => "flash_attention_2",
            };
            vec![format!("from_pretrained(…, attn_implementation=\"{name}\")")]
        }
        Change::SeqLen(tokens) => vec![format!("samples of {tokens} tokens, by the script")],
        Change::TargetLen(tokens) => vec![format!("targets of {tokens} tokens, by the script")],
        Change::Method(Method::Lora(lora)) => vec![lora_line(lora)],
        Change::Method(Method::Qlora(lora, quantized)) => {
            let double = if quantized.double { "True" } else { "False" };
            vec![
                format!(
                    "BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type=\"nf4\", \
                     bnb_4bit_use_double_quant={double}, bnb_4bit_compute_dtype=torch.bfloat16)"
                ),
                lora_line(lora),
            ]
        }
        Change::Optimizer(Optimizer::AdamWForLoop) => vec!["torch.optim.AdamW(…, foreach=False)".to_owned()],
        Change::Optimizer(Optimizer::Sgd { .. }) => vec!["torch.optim.SGD(…, momentum=0.9)".to_owned()],
        Change::Loss(Loss::CutCrossEntropy) => vec!["cut_cross_entropy.cce_patch(model)".to_owned()],
        other => vec![format!("{other}: by the script")],
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
