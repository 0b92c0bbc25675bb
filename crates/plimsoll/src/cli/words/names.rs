//! Values that are names in other trainers: of optimizers, and of functions that build models.

use super::{Refusal, refused, unknown};
use plimsoll_graph::models::ModelConfig;
use plimsoll_graph::ops::StateFormat;
use plimsoll_graph::optimizers::Rule;
use plimsoll_trainers::words::Reason;

/// The optimizer of this name, as Hugging Face writes it (`adamw_bnb_8bit`), as Plimsoll does, or by its class
/// (`bitsandbytes.optim.PagedAdamW8bit`). Errors: the name is unknown.
pub(super) fn optimizer(name: &str) -> Result<Vec<(&'static str, String)>, Refusal> {
    let class = squeezed(name.rsplit('.').next().unwrap_or(name));
    let known = || Rule::all().into_iter().flat_map(|rule| rule.known_as()).map(|(known, _)| *known);
    let of_class = || known().find(|known| squeezed(known) == class).and_then(Rule::known_elsewhere_as);
    let other = || Refusal { instead: Some(Reason::OtherOptimizer), ..unknown(known()) };
    let (rule, state) = Rule::known_elsewhere_as(name).or_else(of_class).ok_or_else(other)?;
    let state = match state {
        StateFormat::F32 => None,
        StateFormat::Bf16 => Some(("optimizer_state", "bf16")),
        StateFormat::Blockwise8 => Some(("optimizer_state", "8bit")),
    };
    let settings = [("optimizer", rule.name())].into_iter().chain(state);
    Ok(settings.map(|(name, value)| (name, value.to_owned())).collect())
}

/// The preset that a torchtune function builds, as in `torchtune.models.llama3_2.llama3_2_1b`, and the training method if
/// the function adds adapters. Errors: there is no such preset.
pub(super) fn built(function: &str) -> Result<Vec<(&'static str, String)>, Refusal> {
    let name = function.rsplit('.').next().unwrap_or(function);
    let adapters: &[(&str, &str)] = match name.split_once('_').map(|(kind, _)| kind) {
        Some("lora") => &[("method", "lora")],
        Some("qlora") => &[("method", "qlora")],
        Some("dora") => &[("method", "lora"), ("dora", "true")],
        Some("qdora") => &[("method", "qlora"), ("dora", "true")],
        _ => &[],
    };
    let model = ("model", model(&without_adapters(function))?);
    Ok([model].into_iter().chain(adapters.iter().map(|(setting, value)| (*setting, (*value).to_owned()))).collect())
}

/// The preset of a torchtune function without adapters. Errors: there is none.
pub(in crate::cli) fn model(function: &str) -> Result<String, Refusal> {
    let name = function.rsplit('.').next().unwrap_or(function);
    let name = name.replace("code_llama2", "codellama");
    let plain = ["_base", "_instruct"].iter().find_map(|suffix| name.strip_suffix(suffix)).unwrap_or(&name);
    let preset = ModelConfig::preset_names().into_iter().find(|preset| squeezed(preset) == squeezed(plain));
    let unknown = || Refusal { instead: Some(Reason::ModelList), ..refused("is not known") };
    preset.map(str::to_owned).ok_or_else(unknown)
}

/// The torchtune function that builds the same model without adapters.
pub(in crate::cli) fn without_adapters(function: &str) -> String {
    ["lora_", "qlora_", "dora_", "qdora_"].iter().fold(function.to_owned(), |function, prefix| {
        let (path, name) = function.rsplit_once('.').unwrap_or(("", &function));
        name.strip_prefix(prefix).map_or(function.clone(), |name| format!("{path}.{name}"))
    })
}

/// Only the letters and digits, in lower case.
fn squeezed(name: &str) -> String {
    name.chars().filter(char::is_ascii_alphanumeric).map(|c| c.to_ascii_lowercase()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_and_functions_are_found_by_their_names() {
        for (name, expected) in [
            ("torch.optim.AdamW", &[("optimizer", "adamw")][..]),
            ("bitsandbytes.optim.PagedAdamW8bit", &[("optimizer", "adamw"), ("optimizer_state", "8bit")]),
            ("bitsandbytes.optim.PagedAdamW", &[("optimizer", "adamw")]),
            ("lion_8bit", &[("optimizer", "lion"), ("optimizer_state", "8bit")]),
            ("adamw_torch_fused", &[("optimizer", "adamw")]),
        ] {
            let found = optimizer(name).expect("a known optimizer");
            let found = found.iter().map(|(name, value)| (*name, value.as_str())).collect::<Vec<_>>();
            assert_eq!(found, expected, "{name}");
        }
        assert!(optimizer("torch.optim.SGD").unwrap_err().what.contains("`adamw_bnb_8bit`"));
        for (function, preset) in [
            ("torchtune.models.llama3_2.llama3_2_1b", "llama-3.2-1b"),
            ("torchtune.models.llama3.llama3_8b", "llama-3-8b"),
            ("torchtune.models.qwen2_5.qwen2_5_0_5b", "qwen2.5-0.5b"),
            ("torchtune.models.qwen2_5.qwen2_5_1_5b_instruct", "qwen2.5-1.5b"),
            ("torchtune.models.mistral.mistral_7b", "mistral-7b"),
            ("torchtune.models.llama2.llama2_7b", "llama-2-7b"),
            ("torchtune.models.code_llama2.code_llama2_7b", "codellama-7b"),
            ("torchtune.models.qwen2.qwen2_1_5b", "qwen2-1.5b"),
        ] {
            assert_eq!(model(function).as_deref(), Ok(preset), "{function}");
        }
        assert_eq!(model("torchtune.models.phi3.phi3_mini").unwrap_err().what, "is not known");
        let built = |prefix: &str| built(&format!("torchtune.models.llama3_2.{prefix}llama3_2_1b"));
        let of = |adapters: &[(&'static str, &str)]| {
            let adapters = adapters.iter().map(|(setting, value)| (*setting, (*value).to_owned()));
            Ok([("model", "llama-3.2-1b".to_owned())].into_iter().chain(adapters).collect())
        };
        assert_eq!(built(""), of(&[]));
        for method in ["lora", "qlora"] {
            assert_eq!(built(&format!("{method}_")), of(&[("method", method)]));
            let with_magnitudes = built(&format!("{}_", method.replace("lora", "dora")));
            assert_eq!(with_magnitudes, of(&[("method", method), ("dora", "true")]));
        }
    }
}
