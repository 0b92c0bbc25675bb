//! Cross-entropy of logits.

use crate::runtime::{DType, Op, Rt, Saved, Tensor};
use crate::usage::Kind;

/// Shifts labels (B, T) by one, like transformers' causal loss: pads them by one, and copies all but the first. Returns
/// both tensors.
pub(crate) fn pad_labels(labels: &Tensor) -> [Tensor; 2] {
    let (rows, length) = (labels.shape()[0], labels.shape()[1]);
    let padded = Tensor::new(labels.rt(), &[rows, length + 1], DType::I64, "constant_pad_nd");
    let moved = padded.alias(vec![rows, length], padded.strides().to_vec());
    let moved = moved.contiguous().view(&[rows * length]);
    [padded, moved]
}

/// Mean cross-entropy. logits: (N, V), labels: (N,) -> (). In single precision under autocast. Saves the
/// log-probabilities.
pub(crate) fn cross_entropy(logits: &Tensor, labels: &Tensor) -> Tensor {
    let upcast = logits.in_single_precision();
    upcast.mark(Kind::Logits);
    let logarithms = upcast.log_softmax();
    drop(upcast);
    logarithms.mark(Kind::Logits);
    let op = Op::new("nll_loss", &[&logarithms]);
    let saved = [op.save(&logarithms), op.save(labels)];
    let scalar = |rt: &Rt| Tensor::new(rt, &[], logarithms.dtype(), "nll_loss");
    let (out, weight) = (scalar(logarithms.rt()), scalar(logarithms.rt()));
    let weight = op.save(&weight);
    drop(logarithms);
    op.finish_one(out, move |rt, _, _| {
        let [logarithms, _labels] = saved.map(|saved| saved.map(Saved::unpack));
        let _weight = weight.map(Saved::unpack);
        let logarithms = logarithms.expect("the loss saves its operand");
        let gradient = Tensor::new(rt, logarithms.shape(), logarithms.dtype(), "nll_loss_backward");
        gradient.mark(Kind::Logits);
        vec![Some(gradient)]
    })
}
