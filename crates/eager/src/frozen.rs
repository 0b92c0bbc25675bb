//! LoRA on weights that ZeRO-3 or FSDP shard: a range derived from the same run with whole weights. The trained part is
//! small, and trainers differ in how they gather frozen weights, in 4 bits or whole.

use crate::card::Gpu;
use crate::estimate::Estimate;
use crate::usage::Kind;
use plimsoll_graph::models::ModelConfig;
use plimsoll_trainers::{Method, Run, Sharding};
use plimsoll_units::Bytes;

/// Likely number of gathered blocks: the running one, and the next.
const GATHERED: u64 = 2;

/// Whether a run shards frozen weights.
pub(crate) fn divides_frozen_weights(run: &Run) -> bool {
    run.method != Method::Full && matches!(run.sharding, Sharding::Zero { stage: 3.. } | Sharding::Fsdp)
}

/// The same run with whole weights on each card.
pub(crate) fn with_whole_weights(run: &Run) -> Run {
    let mut whole = Run { sharding: Sharding::Ddp { bucket: Bytes::mib(25), views: false }, ..run.clone() };
    whole.offload.weights = false;
    whole
}

/// The range of a run, derived from that with whole weights, which is the upper bound. At least, a card has its part of
/// the weights, or none if they are on the host; the likely value adds two gathered blocks.
pub(crate) fn divided(mut whole: Estimate, model: &ModelConfig, run: &Run, gpu: Gpu) -> Estimate {
    let weights =
        whole.breakdown.iter().filter(|share| share.kind == Kind::Weight).map(|share| share.bytes.0).sum::<u64>();
    let part = if run.offload.weights { 0 } else { weights.div_ceil(run.cards) };
    let saved = weights - part;
    let likely = saved.saturating_sub(GATHERED * weights.div_ceil(model.blocks().max(1) as u64));
    whole.range[0].allocated = whole.range[0].allocated.saturating_sub(Bytes(saved));
    whole.range[0].reserved = whole.range[0].reserved.saturating_sub(Bytes(saved));
    whole.likely.allocated = whole.likely.allocated.saturating_sub(Bytes(likely));
    whole.likely.reserved = whole.likely.reserved.saturating_sub(Bytes(likely));
    let mut left = likely;
    for share in whole.breakdown.iter_mut().filter(|share| share.kind == Kind::Weight) {
        let less = left.min(share.bytes.0);
        share.bytes = Bytes(share.bytes.0 - less);
        left -= less;
    }
    whole.least_fits |= whole.range[0].process() <= gpu.memory;
    whole.shortfall = whole.shortfall.filter(|_| whole.likely.process() > gpu.memory);
    whole.caveats.push(
        "Sharding and gathering of frozen weights are not modeled: the range is from a GPU's part of them to all of them, \
         and the likely value is the part and two gathered blocks."
            .to_owned(),
    );
    whole
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::estimate;
    use plimsoll_trainers::{Lora, Offload, Precision, Quantized, Targets};

    /// TinyLlama's weights in bf16, and how much of them each way keeps on a card.
    #[test]
    fn the_range_is_from_a_part_of_the_weights_to_all_of_them() {
        let model = ModelConfig::preset("tinyllama-1.1b").expect("a preset");
        let gpu = Gpu { memory: Bytes::gib(80), compute_capability: (9, 0) };
        let lora = Lora { rank: 8, targets: Targets::AllLinear, dropout: false };
        let run = Run {
            method: Method::Lora(lora.clone()),
            precision: Precision::PureBf16,
            micro_batch: 1,
            seq_len: 512,
            cards: 4,
            sharding: Sharding::Fsdp,
            ..Run::default()
        };
        let whole = estimate(&model, &with_whole_weights(&run), gpu).expect("modeled");
        let here = estimate(&model, &run, gpu).expect("modeled");
        assert_eq!(here.range[1], whole.range[1]);
        // 1.1 billion parameters of two bytes each; three quarters of them are on other cards.
        let saved = (whole.range[0].allocated - here.range[0].allocated).as_f64();
        assert!((saved / (1.1e9 * 2.0 * 0.75) - 1.0).abs() < 0.03, "{saved}");
        assert!(here.range[0].allocated < here.likely.allocated && here.likely.allocated < here.range[1].allocated);
        let parts = |estimate: &Estimate| estimate.breakdown.iter().map(|share| share.bytes.0).sum::<u64>();
        let less = whole.likely.allocated - here.likely.allocated;
        assert_eq!(parts(&whole) - parts(&here), less.0, "the parts decrease by the same bytes");
        let offload = Offload { weights: true, optimizer: true };
        let on_host = estimate(&model, &Run { offload, ..run.clone() }, gpu).expect("modeled");
        assert!(on_host.range[0].allocated < here.range[0].allocated);
        let method = Method::Qlora(lora, Quantized { block: 64, double: true });
        let packed =
            estimate(&model, &Run { method, sharding: Sharding::Zero { stage: 3 }, ..run }, gpu).expect("modeled");
        let [least, most] = packed.range.map(|footprint| footprint.allocated);
        assert!(least < packed.likely.allocated && packed.likely.allocated < most);
    }
}
