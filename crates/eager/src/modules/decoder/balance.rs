//! The loss on the balance of experts: the share of the rows that each expert receives, times its mean probability.
//! Source: `load_balancing_loss_func` of transformers' `modeling_qwen3_moe.py`, which the families share.

use crate::ops;
use crate::runtime::{DType, Rt, Tensor};
use plimsoll_graph::models::description::Experts;

/// The loss plus that of the routers. logits: (N, E) of each block with experts; mask: (B, T), if the loop passes one.
pub(super) fn balanced(rt: &Rt, loss: &Tensor, logits: &[Tensor], experts: &Experts, mask: Option<&Tensor>) -> Tensor {
    let per_expert = |dtype, op| Tensor::new(rt, &[experts.count as u64], dtype, op);
    let mut assigned = per_expert(DType::F32, "zeros");
    let mut probabilities = per_expert(DType::F32, "zeros");
    let mask = mask.map(|mask| mask.to(DType::F32).view(&[mask.elements()]));
    // Python's variables hold the values of the last block.
    let mut _last = None;
    for logits in logits {
        let each = logits.softmax(None);
        let [values, chosen] = ops::topk(&each, experts.chosen as u64);
        _last = Some((each.clone(), values));
        match &mask {
            Some(mask) => {
                let counts = per_expert(DType::F32, "zeros");
                drop(Tensor::new(rt, &[chosen.elements()], DType::F32, "clone"));
                assigned = assigned.add(&counts);
                drop((counts, chosen));
                let sum = each.to(DType::F32).mul(&mask.unsqueeze(1)).sum_over(0, false);
                probabilities = probabilities.add(&sum);
            }
            None => {
                let narrowed = Tensor::new(rt, &[chosen.elements()], DType::I32, "_to_copy");
                let counts = per_expert(DType::I32, "histc");
                drop(narrowed);
                assigned = assigned.add(&counts);
                drop((counts, chosen));
                let sum = each.to(DType::F32).sum_over(0, false);
                probabilities = probabilities.add(&sum);
            }
        }
    }
    let shares = assigned.scale();
    let means = probabilities.scale();
    let products = shares.mul(&means);
    let balance = products.sum_over(-1, false).scale();
    loss.add(&balance.scale())
}
