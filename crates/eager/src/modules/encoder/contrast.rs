//! Mean pooling, and the loss of pairs: each anchor's positive among the positives of the batch.
//! Source: sentence-transformers 6.2, `modules/pooling.py` (`_forward_padded`), `util/similarity.py` (`cos_sim`),
//! `losses/multiple_negatives_ranking.py`.

use crate::ops;
use crate::runtime::{DType, Rt, Tensor};

/// Hidden states (B, T, C) and the mask of tokens (B, T) -> their means (B, C), as a copy.
pub(super) fn pooled(hidden: &Tensor, mask: &Tensor) -> Tensor {
    ops::cat(&[&mean(hidden, mask)], -1)
}

fn mean(hidden: &Tensor, mask: &Tensor) -> Tensor {
    let mask = mask.unsqueeze(2).to(hidden.dtype());
    let sum = {
        let counted = hidden.mul(&mask);
        counted.sum_in(1, false, DType::F32)
    };
    let mut counts = mask.sum_in(1, false, DType::F32);
    counts = counts.empty_like(DType::F32, "clamp");
    sum.div(&counts).to(hidden.dtype())
}

/// The loss of embeddings (B, C) of the anchors and of the positives.
pub(super) fn loss(rt: &Rt, embeddings: &[Tensor]) -> Tensor {
    let [anchors, positives] = [&embeddings[0], &embeddings[1]];
    let candidates = ops::cat(&[positives], 0);
    let numbers = [(); 2].map(|()| Tensor::new(rt, &[anchors.size(0)], DType::I64, "arange"));
    let local = [anchors, positives].map(|embeddings| ops::index(embeddings, &numbers[0]));
    let mut similarities = cosines(&local[0], &candidates);
    similarities = similarities.scale();
    let of_positives = ops::index_pairs(&similarities, &numbers[1], &numbers[0]);
    let scores = ops::cat(&[&similarities], 1);
    let all = scores.logsumexp();
    let mut loss = of_positives.sub(&all);
    loss = loss.mean_all();
    loss.scale()
}

/// Cosines of rows (N, C) with rows (M, C): (N, M).
fn cosines(a: &Tensor, b: &Tensor) -> Tensor {
    let wide = [a, b].map(|rows| rows.to(DType::F32));
    let unit = wide.each_ref().map(|rows| rows.div(&rows.norm_last().expand(rows.shape())));
    unit[0].mm(&unit[1].transpose(0, 1))
}
