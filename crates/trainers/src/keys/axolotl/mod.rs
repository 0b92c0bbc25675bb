//! axolotl's YAML. Source: axolotl 0.19, `utils/schemas/`, `utils/config/`, `loaders/`, `core/builders/`.

mod read;
mod write;

pub(super) use read::read;
pub(super) use write::edits;

use crate::run::Attention;

/// Keys for the attention implementation. Newer files have `attn_implementation`.
const ATTENTIONS: &[(&str, Option<Attention>)] = &[
    ("flash_attention", Some(Attention::Flash2)),
    ("sdp_attention", Some(Attention::Sdpa)),
    ("eager_attention", Some(Attention::Eager)),
    ("xformers_attention", None),
    ("flex_attention", None),
    ("sage_attention", None),
];
