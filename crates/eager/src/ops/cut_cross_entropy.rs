//! Cut cross-entropy: the loss of an output head whose logits are only in on-chip memory.
//! Source: apple/ml-cross-entropy, `cut_cross_entropy/cce.py`, `cce_lse_forward.py`, `cce_backward.py`,
//! `indexed_dot.py`.

use crate::runtime::{DType, Op, Saved, Tensor};
use crate::usage::Kind;

/// Number of rows, of the hidden states and of the head, that share a lock.
const BLOCK: u64 = 128;
/// Number of channels that share a lock.
const BLOCK_CHANNELS: u64 = 64;

/// The causal loss of hidden states (B, T, C), the head's weight (V, C) and labels (B, T): a scalar. Saves the hidden
/// states, the weight, the labels, the indices of the labeled rows, each row's log-sum-exp, and the mean of each logit,
/// by which the backward pass orders the logits.
pub(crate) fn cut_cross_entropy(hidden: &Tensor, weight: &Tensor, labels: &Tensor) -> Tensor {
    const NAME: &str = "LinearCrossEntropyFunction";
    let rt = hidden.rt().clone();
    let (rows, channels) = (hidden.elements() / hidden.size(-1), hidden.size(-1));
    // Rows with a label: all but the last of each sample.
    let learned = rows - hidden.size(0);
    let found = Tensor::new(&rt, &[learned, 2], DType::I64, "nonzero");
    let found = Tensor::new(&rt, found.shape(), DType::I32, "_to_copy");
    let valid = Tensor::new(&rt, &[learned], DType::I64, "sum");
    drop(found);
    let hidden = hidden.contiguous().view(&[rows, channels]);
    let op = Op::new(NAME, &[&hidden, weight]);
    let vocabulary = weight.size(0);
    let sums = Tensor::new(&rt, &[learned], DType::F32, NAME);
    let means = Tensor::new(&rt, &[vocabulary], DType::F32, NAME);
    let locks = Tensor::new(&rt, &[learned.div_ceil(BLOCK)], DType::F32, NAME);
    drop(locks);
    let losses = Tensor::new(&rt, &[learned], DType::F32, NAME);
    let loss = Tensor::new(&rt, &[], DType::F32, "sum");
    drop(losses);
    let saved = [&hidden, weight, &sums, labels, &valid, &means].map(|tensor| op.save(tensor));
    drop((sums, means, valid));
    op.finish_one(loss, move |rt, _, needs| {
        const NAME: &str = "LinearCrossEntropyFunction_backward";
        let [hidden, weight, _sums, _labels, _valid, means] =
            saved.map(|saved| saved.map(Saved::unpack).expect("the loss saves its operands"));
        let order = Tensor::new(rt, means.shape(), DType::I64, "argsort");
        let _order = Tensor::new(rt, order.shape(), DType::I32, "_to_copy");
        drop(order);
        let zeros = |like: &Tensor| like.empty_like(like.dtype(), NAME);
        let of_hidden = needs[0].then(|| zeros(&hidden));
        let of_weight = needs[1].then(|| zeros(&weight));
        of_weight.iter().for_each(|gradient| gradient.mark(Kind::Gradient));
        let locks = |rows: u64| {
            let shape = [rows.div_ceil(BLOCK), hidden.size(1).div_ceil(BLOCK_CHANNELS)];
            Tensor::new(rt, &shape, DType::I32, NAME)
        };
        let _locks = [needs[0].then(|| locks(learned)), needs[1].then(|| locks(weight.size(0)))];
        vec![of_hidden, of_weight]
    })
}

#[cfg(test)]
mod tests {
    use crate::card::Gpu;
    use crate::sharding::Bound;
    use crate::step::steps;
    use plimsoll_graph::models::ModelConfig;
    use plimsoll_trainers::{Loss, Precision, Run};
    use plimsoll_units::Bytes;

    const VOCABULARY: u64 = 32_000;
    const CHANNELS: u64 = 64;

    #[test]
    fn no_storage_has_the_size_of_logits() {
        let json = format!(
            r#"{{"model_type": "llama", "hidden_size": {CHANNELS}, "intermediate_size": 96, "num_attention_heads": 4,
            "num_hidden_layers": 1, "vocab_size": {VOCABULARY}, "max_position_embeddings": 2048}}"#
        );
        let model = ModelConfig::from_json(&json).expect("a model");
        let gpu = Gpu { memory: Bytes::gib(80), compute_capability: (9, 0) };
        let run = Run { precision: Precision::PureBf16, micro_batch: 2, seq_len: 1024, ..Run::default() };
        let largest = |loss| {
            let run = Run { loss, ..run.clone() };
            let steps = steps(&model, &run, gpu, false, Bound::Likely).expect("this run is modeled");
            let backward = steps.records.iter().filter(|record| record.op == "LinearCrossEntropyFunction_backward");
            let backward = backward.map(|record| record.bytes).collect::<Vec<_>>();
            (steps.records.iter().map(|record| record.bytes).max(), backward)
        };
        let (plain, _) = largest(Loss::Plain);
        assert_eq!(plain, Some(2048 * VOCABULARY * 4), "logits in single precision");
        let (cut, backward) = largest(Loss::CutCrossEntropy);
        assert_eq!(cut, Some(VOCABULARY * CHANNELS * 2), "the token embedding");
        // Gradients of hidden states and of the head; locks for blocks of 128 of the 2,046 rows and of the head's rows,
        // 64 channels each.
        assert_eq!(backward[..4], [2048 * CHANNELS * 2, VOCABULARY * CHANNELS * 2, 16 * 4, 250 * 4]);
    }
}
