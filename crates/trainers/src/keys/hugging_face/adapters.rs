//! Reads and writes LoRA in the keys of TRL's `ModelConfig`, and keys of adapters that all trainers share.

use crate::document::Document;
use crate::keys::{self, NoKey, named, present};
use crate::rewrite::edit::Edit;
use crate::run::{Lora, Method, Quantized, Targets};
use crate::view::View;

/// The edits for adapters in the keys of TRL's `ModelConfig`, if the script uses it.
pub(super) fn method(method: &Method, document: &Document) -> Result<Vec<Edit>, NoKey> {
    let is_known = present(document, &["use_peft", "lora_r", "load_in_4bit", "lora_target_modules"]).is_some();
    let Some(lora) = keys::lora(method) else {
        return Ok(vec![Edit::replace("use_peft", false), Edit::replace("load_in_4bit", false)]);
    };
    if !is_known {
        return Err(Some("the script creates adapters"));
    }
    let four_bits = matches!(method, Method::Qlora(..));
    let mut edits = vec![Edit::set("use_peft", true), Edit::set("lora_r", lora.rank)];
    edits.push(if four_bits { Edit::set("load_in_4bit", true) } else { Edit::replace("load_in_4bit", false) });
    if let Method::Qlora(_, quantized) = method {
        edits.push(Edit::set("use_bnb_nested_quant", quantized.double));
    }
    edits.extend(keys::lora_dropout("lora_dropout", lora.dropout, true, document));
    match named(&lora.targets) {
        Some(names) => edits.push(Edit::set("lora_target_modules", names)),
        None if lora.targets == Targets::AllLinear => edits.push(Edit::set("lora_target_modules", "all-linear")),
        None => edits.push(Edit::remove("lora_target_modules")),
    }
    Ok(edits)
}

/// Reads the method in TRL's keys. Its defaults are rank 16 and dropout 0.05.
pub(super) fn read_method(view: &mut View) -> Method {
    let quantized = quantized(view, false);
    let adapts = view.flag(&["use_peft"]);
    let rank = view.count(&["lora_r", "lora_rank"]);
    let targets = keys::targets(view.list(&["lora_target_modules"]));
    let dropout = view.real(&["lora_dropout"]).is_none_or(|dropout| dropout > 0.0);
    match adapts == Some(true) || adapts.is_none() && (rank.is_some() || quantized.is_some()) {
        true => method_of(Lora { rank: rank.unwrap_or(16), targets, dropout }, quantized),
        false => Method::Full,
    }
}

/// Reads the quantization of weights, if any. `double`: whether scales are in 8 bits by default.
pub(in crate::keys) fn quantized(view: &mut View, double: bool) -> Option<Quantized> {
    let four = view.flag(&["load_in_4bit"]) == Some(true);
    let double = view.flag(&["use_bnb_nested_quant", "bnb_4bit_use_double_quant"]).unwrap_or(double);
    // Source: bitsandbytes' default for NF4.
    four.then_some(Quantized { block: 64, double })
}

/// The method of an adapter.
pub(in crate::keys) fn method_of(lora: Lora, quantized: Option<Quantized>) -> Method {
    match quantized {
        Some(quantized) => Method::Qlora(lora, quantized),
        None => Method::Lora(lora),
    }
}
