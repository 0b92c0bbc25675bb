//! The names that other programs use for the tensors of a model, and extra tensors in their files. Data, the same for
//! every family: a model's own names are those of `save_pretrained`.

use std::borrow::Cow;
use std::collections::HashSet;
use std::iter;

/// Prefixes that a model with a head adds to the names of the model without one; files of the latter lack them.
const PREFIXES: &[&str] = &["transformer.", "model."];

/// Beginnings of the names of encoders without a head, and the prefixes that a head adds.
const OF_ENCODERS: &[&str] = &["embeddings.", "encoder.layer.", "layers.", "final_norm."];
const PREFIXES_OF_ENCODERS: &[&str] = &["", "bert.", "model."];

/// Prefixes of the text model's names in the files of models that also read images or sound: its own, and theirs.
const OF_TEXT: &[(&str, &str)] = &[
    ("model.", "model.language_model."),
    ("model.", "language_model.model."),
    ("lm_head.", "language_model.lm_head."),
];

/// The parts of such a model that the text model does not use, and the heads of encoders, perhaps behind a prefix.
const OTHER_PARTS: &[&str] = &[
    "audio_tower.",
    "cls.",
    "embed_audio.",
    "embed_vision.",
    "multi_modal_projector.",
    "pooler.",
    "vision_model.",
    "vision_tower.",
    "visual.",
];

/// The output head's weight, if it is not tied to the embedding.
pub(super) const HEAD: &str = "lm_head.weight";

/// Alternative names of one tensor. The first is the model's; a file may have one or more of them.
const SAME: &[&[&str]] = &[
    &["transformer.wte.weight", HEAD],
    &["model.embed_tokens.weight", HEAD],
    &["shared.weight", "encoder.embed_tokens.weight", "decoder.embed_tokens.weight", HEAD],
];

/// Suffixes of the tensors that `transformers` ignores when it loads a model of a family: masks of GPT-2, rotary
/// frequencies, positions of BERT, ModernBERT's head of a masked language model, and a bias in T5's first conversions that the model never had.
/// Source: `_keys_to_ignore_on_load_unexpected` of each family's classes.
const IGNORED: &[&str] = &[
    "attn.bias",
    "attn.masked_bias",
    "rotary_emb.inv_freq",
    "embeddings.position_ids",
    "head.dense.weight",
    "head.norm.weight",
    "decoder.bias",
    "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight",
];

/// Ends of names, and what they are in files that TensorFlow's BERT was converted to.
const OLDER: &[(&str, &str)] = &[("LayerNorm.weight", "LayerNorm.gamma"), ("LayerNorm.bias", "LayerNorm.beta")];

/// What quantized models store instead of a `weight`: integers, several per word.
const PACKED: &[&str] = &["qweight", "weight_packed"];

/// The names under which a file may store the model's tensor `name`, most likely first. A name that belongs to another
/// tensor of the model, such as an untied head, only stands for that tensor.
pub(super) fn candidates<'a>(name: &'a str, of_model: &'a HashSet<&str>) -> impl Iterator<Item = Cow<'a, str>> {
    let same = SAME.iter().filter(move |names| names[0] == name).flat_map(|names| &names[1..]);
    let same = same.copied().filter(|other| !of_model.contains(other));
    iter::once(name).chain(same).flat_map(|name| {
        let in_larger = OF_TEXT
            .iter()
            .filter_map(move |(own, larger)| name.strip_prefix(own).map(|rest| Cow::Owned(format!("{larger}{rest}"))));
        with_and_without_prefix(name).map(Cow::Borrowed).chain(in_larger).chain(of_encoder(name).map(Cow::Owned))
    })
}

/// The model's names for a tensor that a file stores as a duplicate.
pub(super) fn originals(duplicate: &str) -> impl Iterator<Item = &'static str> {
    let duplicate = duplicate.strip_prefix("language_model.").unwrap_or(duplicate);
    SAME.iter().filter(move |names| names[1..].contains(&duplicate)).map(|names| names[0])
}

/// Whether `transformers` ignores a tensor of this name, or it belongs to a part for images or sound.
pub(super) fn is_ignored(name: &str) -> bool {
    let inner = ["model.", "bert."].iter().find_map(|prefix| name.strip_prefix(prefix)).unwrap_or(name);
    OTHER_PARTS.iter().any(|part| inner.starts_with(part)) || is_ignored_by_suffix(name)
}

fn is_ignored_by_suffix(name: &str) -> bool {
    IGNORED.iter().any(|ending| name.strip_suffix(ending).is_some_and(|rest| rest.is_empty() || rest.ends_with('.')))
}

/// The names under which a quantized file may store a weight.
pub(super) fn packed(name: &str) -> impl Iterator<Item = String> {
    let stems = name.strip_suffix("weight").into_iter().flat_map(with_and_without_prefix);
    stems.flat_map(|stem| PACKED.iter().map(move |ending| format!("{stem}{ending}")))
}

fn with_and_without_prefix(name: &str) -> impl Iterator<Item = &str> {
    iter::once(name).chain(PREFIXES.iter().find_map(|prefix| name.strip_prefix(prefix)))
}

/// Other names of a tensor of an encoder; none for other models.
fn of_encoder(name: &str) -> impl Iterator<Item = String> {
    let is_of_encoder = OF_ENCODERS.iter().any(|beginning| name.starts_with(beginning));
    let older = OLDER.iter().filter_map(move |(end, old)| Some(format!("{}{old}", name.strip_suffix(end)?)));
    let names = iter::once(name.to_owned()).chain(older).filter(move |_| is_of_encoder);
    let prefixed = names.flat_map(|name| PREFIXES_OF_ENCODERS.iter().map(move |prefix| format!("{prefix}{name}")));
    prefixed.filter(move |other| other != name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_family_has_its_candidate_names() {
        let check = |name: &str, of_model: &[&str], expected: &[&str]| {
            let of_model = of_model.iter().copied().collect();
            let found = candidates(name, &of_model).filter(|name| !name.contains("language_model."));
            assert_eq!(found.collect::<Vec<_>>(), expected, "{name}");
        };
        check("transformer.h.0.ln_1.weight", &[], &["transformer.h.0.ln_1.weight", "h.0.ln_1.weight"]);
        check("transformer.wte.weight", &[], &["transformer.wte.weight", "wte.weight", "lm_head.weight"]);
        check("model.norm.weight", &[], &["model.norm.weight", "norm.weight"]);
        check("layers.0.x", &[], &["layers.0.x", "bert.layers.0.x", "model.layers.0.x"]);
        let [newer, older] = ["weight", "gamma"]
            .map(|end| ["", "bert.", "model."].map(|prefix| format!("{prefix}embeddings.LayerNorm.{end}")));
        let all = newer.iter().chain(&older).map(String::as_str).collect::<Vec<_>>();
        check("embeddings.LayerNorm.weight", &[], &all);
        let bare = ["model.embed_tokens.weight", "embed_tokens.weight"];
        check("model.embed_tokens.weight", &[], &[&bare[..], &["lm_head.weight"]].concat());
        // An untied head is not the embedding.
        check("model.embed_tokens.weight", &["lm_head.weight"], &bare);
        check("lm_head.weight", &["lm_head.weight"], &["lm_head.weight"]);
        let shared = ["shared.weight", "encoder.embed_tokens.weight", "decoder.embed_tokens.weight"];
        check("shared.weight", &["lm_head.weight"], &shared);
        check("shared.weight", &[], &[&shared[..], &["lm_head.weight"]].concat());
    }

    #[test]
    fn a_text_model_is_found_within_a_larger_one() {
        let none = HashSet::new();
        let found = |name| candidates(name, &none).map(Cow::into_owned).collect::<Vec<_>>();
        for larger in ["model.language_model.norm.weight", "language_model.model.norm.weight"] {
            assert!(found("model.norm.weight").contains(&larger.to_owned()), "{larger}");
        }
        assert!(found("lm_head.weight").contains(&"language_model.lm_head.weight".to_owned()));
        assert!(originals("language_model.lm_head.weight").any(|name| name == "model.embed_tokens.weight"));
        for name in ["vision_tower.x.weight", "model.vision_tower.x.weight", "model.multi_modal_projector.weight"] {
            assert!(is_ignored(name), "{name}");
        }
        assert!(!is_ignored("model.language_model.layers.0.x.weight"));
    }

    #[test]
    fn only_tensors_that_transformers_ignores_are_ignored() {
        for name in [
            "h.0.attn.bias",
            "transformer.h.11.attn.bias",
            "attn.masked_bias",
            "model.layers.3.self_attn.rotary_emb.inv_freq",
            "layers.3.self_attn.rotary_emb.inv_freq",
            "model.rotary_emb.inv_freq",
            "embeddings.position_ids",
            "pooler.dense.bias",
            "bert.pooler.dense.weight",
            "cls.predictions.transform.dense.weight",
            "head.norm.weight",
            "decoder.bias",
            "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight",
        ] {
            assert!(is_ignored(name), "{name}");
        }
        for name in [
            "h.0.attn.c_attn.bias",
            "model.layers.0.self_attn.q_proj.bias",
            "h.0.crossattn.bias",
            "decoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight",
            "decoder.block.1.layer.1.EncDecAttention.relative_attention_bias.weight",
            "encoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight",
        ] {
            assert!(!is_ignored(name), "{name}");
        }
    }
}
