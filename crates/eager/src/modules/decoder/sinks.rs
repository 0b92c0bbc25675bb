//! Attention with sinks: a score of each head that takes part in the softmax without a value.
//! Source: `eager_attention_forward` of transformers' `modeling_gpt_oss.py`.

use crate::modules::loader::Loader;
use crate::ops;
use crate::runtime::Tensor;
use plimsoll_graph::models::description;

/// Loads the scores (H,); `None` if attention has none.
pub(super) fn load(loader: &Loader, path: &str, attention: &description::Attention) -> Option<Tensor> {
    let sinks = attention.sinks.as_ref()?;
    Some(loader.parameter(&format!("{path}.{}", sinks.name), &[attention.heads as u64]))
}

/// Probabilities (B, H, T, S) of masked scores (B, H, T, S) and sinks (H,), after their dropout, and the tensors that
/// live until attention's end.
pub(super) fn probabilities(scores: &Tensor, sinks: &Tensor, rate: f32) -> (Tensor, Vec<Tensor>) {
    let (shape, columns) = (scores.shape().to_vec(), scores.size(-1));
    let sinks = sinks.reshape(&[1, shape[1], 1, 1]).expand(&[shape[0], shape[1], shape[2], 1]);
    let mut combined = ops::cat(&[scores, &sinks], -1);
    let [largest, _] = ops::max_last(&combined);
    combined = combined.sub(&largest);
    drop(largest);
    let all = combined.softmax(Some(combined.dtype()));
    let kept = all.narrow(-1, columns);
    (kept.dropout(rate), vec![sinks, combined, all, kept])
}
