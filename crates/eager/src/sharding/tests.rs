//! Memory of a card in sharded runs, compared with sums by hand of GPT-2's 124,439,808 parameters.

use super::Bound;
use crate::card::Gpu;
use crate::estimator::estimate;
use crate::runtime::Event;
use crate::step::{Steps, steps};
use crate::usage::{Kind, Phase};
use plimsoll_graph::models::ModelConfig;
use plimsoll_trainers::{Buffers, Elements, Offload, Precision, Run, Sharding};
use plimsoll_units::Bytes;
use std::collections::BTreeMap;

const PARAMETERS: u64 = 124_439_808;
/// Tokens, positions, and the last norm.
const REST: u64 = 50_257 * 768 + 1024 * 768 + 2 * 768;
/// Of each of twelve blocks.
const BLOCK: u64 = (PARAMETERS - REST) / 12;
const CARDS: u64 = 4;
const HOST: Offload = Offload { optimizer: true, weights: false };
const GPU: Gpu = Gpu { memory: Bytes::gib(80), compute_capability: (9, 0) };
const DDP: Sharding = Sharding::Ddp { bucket: Bytes::mib(25), views: false };
const DDP_VIEWS: Sharding = Sharding::Ddp { bucket: Bytes::mib(25), views: true };

fn told(sharding: Sharding, offload: Offload) -> Run {
    let precision = Precision::AmpBf16;
    Run { precision, micro_batch: 1, seq_len: 8, sharding, offload, cards: CARDS, ..Run::default() }
}

fn run(told: &Run, bound: Bound) -> Steps {
    let model = ModelConfig::preset("gpt2").expect("a preset");
    steps(&model, told, GPU, false, bound).expect("it is modeled")
}

/// Bytes between steps, by kind.
fn resident(told: &Run) -> BTreeMap<Kind, u64> {
    let steps = run(told, Bound::Likely);
    let (mut live, mut last) = (BTreeMap::new(), BTreeMap::new());
    for event in &steps.events {
        match event {
            Event::Enter(Phase::Forward) => last = live.clone(),
            Event::Enter(_) => {}
            Event::Allocate(id) => {
                let record = &steps.records[*id as usize];
                *live.entry(record.kind).or_insert(0) += record.bytes;
            }
            Event::Free(id) => {
                let record = &steps.records[*id as usize];
                *live.get_mut(&record.kind).expect("it was allocated") -= record.bytes;
            }
        }
    }
    last
}

/// The most bytes that storages of an op ever had at once.
fn most(told: &Run, bound: Bound, op: &str) -> u64 {
    let steps = run(told, bound);
    let (mut live, mut most) = (0, 0);
    for event in &steps.events {
        let bytes = |id: &u32| {
            let record = &steps.records[*id as usize];
            if record.op == op { record.bytes } else { 0 }
        };
        match event {
            Event::Allocate(id) => live += bytes(id),
            Event::Free(id) => live -= bytes(id),
            Event::Enter(_) => {}
        }
        most = live.max(most);
    }
    most
}

#[test]
fn what_stays_between_steps_is_what_each_way_divides() {
    const P: u64 = PARAMETERS;
    const PART: u64 = P / CARDS;
    // Parameters below 100,000 elements, which stage 3 keeps whole: norms and biases.
    const SMALL: u64 = 12 * (4 * 768 + 2304 + 768 + 3072 + 768) + 2 * 768;
    const BUCKET: u64 = 2 * 500_000_000;
    let both = Offload { optimizer: true, weights: true };
    // Weights, gradients, state, buckets.
    let cases = [
        ("ddp", DDP, Offload::default(), [4 * P, 0, 8 * P, 4 * P]),
        ("ddp, by the host", DDP, HOST, [4 * P, 0, 0, 4 * P]),
        ("alone, by the host", Sharding::None, HOST, [4 * P, 0, 0, 0]),
        ("zero 1", Sharding::Zero { stage: 1 }, Offload::default(), [2 * P + 4 * PART, 0, 8 * PART, 0]),
        ("zero 2", Sharding::Zero { stage: 2 }, Offload::default(), [2 * P + 4 * PART, 0, 8 * PART, 0]),
        // A gradient on its way to the host, as large as the table of tokens.
        ("zero 2, by the host", Sharding::Zero { stage: 2 }, HOST, [2 * P, 0, 0, 2 * 50_257 * 768]),
        (
            "zero 3",
            Sharding::Zero { stage: 3 },
            Offload::default(),
            [2 * PART + 2 * SMALL + 4 * PART, 2 * PART, 8 * PART, BUCKET],
        ),
        ("zero 3, by the host", Sharding::Zero { stage: 3 }, HOST, [2 * PART + 2 * SMALL, 0, 0, BUCKET]),
        ("zero 3, all on the host", Sharding::Zero { stage: 3 }, both, [2 * SMALL, 0, 0, BUCKET]),
        ("fsdp", Sharding::Fsdp, Offload::default(), [4 * PART, 0, 8 * PART, 0]),
        ("fsdp, all on the host", Sharding::Fsdp, both, [0, 0, 0, 0]),
    ];
    for (name, sharding, offload, expected) in cases {
        let kinds = resident(&told(sharding, offload));
        let kinds = [Kind::Weight, Kind::Gradient, Kind::OptimizerState, Kind::Bucket]
            .map(|kind| kinds.get(&kind).copied().unwrap_or(0));
        for (kind, expected) in kinds.into_iter().zip(expected) {
            // Parts are rounded up.
            assert!(kind.abs_diff(expected) < 8192, "{name}: {kinds:?}, by hand {expected}");
        }
    }
}

#[test]
fn fsdp_has_the_rest_and_some_blocks_at_once() {
    let told = told(Sharding::Fsdp, Offload::default());
    for (bound, blocks) in [(Bound::Least, 1), (Bound::Likely, 2), (Bound::Most, 3)] {
        let gathered = most(&told, bound, "all_gather");
        assert!(gathered.abs_diff(2 * (REST + blocks * BLOCK)) < 64, "{bound:?}: {gathered}");
    }
    // Gradients of what is in no block are flattened with all of them there.
    assert_eq!(most(&told, Bound::Least, "cat"), 2 * REST);
}

#[test]
fn fsdp_keeps_whole_gradients_between_micro_batches() {
    let accumulates = Run { accumulation: 2, ..told(Sharding::Fsdp, Offload::default()) };
    assert!(most(&accumulates, Bound::Least, "cat") >= 2 * PARAMETERS);
}

#[test]
fn zero_sums_in_one_bucket_or_two_and_in_a_copy() {
    let told = told(Sharding::Zero { stage: 2 }, Offload::default());
    assert_eq!(most(&told, Bound::Likely, "ipg_bucket"), 2 * 500_000_000);
    assert_eq!(most(&told, Bound::Most, "ipg_bucket"), 4 * 500_000_000);
    assert_eq!(most(&told, Bound::Least, "ipg_bucket"), 2 * 768 * 768);
    // The bucket has room for all gradients, which are copied for the sum.
    assert_eq!(most(&told, Bound::Likely, "_flatten_dense_tensors"), 2 * PARAMETERS);
}

#[test]
fn buckets_have_the_sizes_that_deepspeed_is_told() {
    let run = told(Sharding::Zero { stage: 2 }, Offload::default());
    let with = |buffers| Run { buffers, ..run.clone() };
    let told = with(Buffers { reduce: Elements::Of(12_345_678), overlaps: Some(true), ..Buffers::default() });
    let auto = with(Buffers { reduce: Elements::Auto, overlaps: Some(false), ..Buffers::default() });
    for bound in [Bound::Least, Bound::Likely, Bound::Most] {
        assert_eq!(most(&told, bound, "ipg_bucket"), 2 * 2 * 12_345_678, "{bound:?}: two, since sums overlap");
        assert_eq!(most(&auto, bound, "ipg_bucket"), 2 * 768 * 768, "{bound:?}");
    }
}

#[test]
fn stage_1_has_all_gradients_until_the_backward_pass_ends_and_stage_2_has_not() {
    let peak = |stage: u8| {
        let told = told(Sharding::Zero { stage }, Offload::default());
        let model = ModelConfig::preset("gpt2").expect("a preset");
        estimate(&model, &told, GPU).expect("it is modeled").likely.allocated.0
    };
    // Both have a copy of the bucket then, as large as all gradients; stage 1 the gradients, too, until it is made.
    assert!(peak(1) >= peak(2));
    let told = told(Sharding::Zero { stage: 1 }, Offload::default());
    assert!(most(&told, Bound::Likely, "mm_backward") > 2 * (PARAMETERS - REST) * 9 / 10);
}

#[test]
fn gradients_that_are_views_of_buckets_have_no_memory_of_their_own() {
    let gradients = |sharding| {
        let steps = run(&told(sharding, Offload::default()), Bound::Likely);
        let (mut live, mut at_update) = (0, 0);
        for event in &steps.events {
            let bytes = |id: &u32| {
                let record = &steps.records[*id as usize];
                if record.kind == Kind::Gradient { record.bytes } else { 0 }
            };
            match event {
                Event::Allocate(id) => live += bytes(id),
                Event::Free(id) => live -= bytes(id),
                Event::Enter(Phase::Update) => at_update = live,
                Event::Enter(_) => {}
            }
        }
        at_update
    };
    assert_eq!(gradients(DDP), 4 * PARAMETERS);
    assert_eq!(gradients(DDP_VIEWS), 0);
}

#[test]
fn ranges_hold_the_likely_figures_and_cards_have_buffers_of_nccl() {
    let model = ModelConfig::preset("gpt2").expect("a preset");
    let of = |told: &Run| estimate(&model, told, GPU).expect("it is modeled");
    for sharding in [DDP, Sharding::Zero { stage: 1 }, Sharding::Zero { stage: 3 }, Sharding::Fsdp] {
        let found = of(&told(sharding, Offload::default()));
        let [low, high] = found.range;
        assert!(low.allocated <= found.likely.allocated && found.likely.allocated <= high.allocated, "{sharding:?}");
        assert!(low.process() < found.likely.process() && found.likely.process() < high.process(), "{sharding:?}");
    }
    let alone = of(&Run { sharding: Sharding::None, cards: 1, ..told(DDP, Offload::default()) });
    let several = of(&told(DDP, Offload::default()));
    assert!(several.likely.context > alone.likely.context, "NCCL has buffers");
}

#[test]
fn weights_that_are_not_divided_are_not_offloaded() {
    let model = ModelConfig::preset("gpt2").expect("a preset");
    let both = Offload { optimizer: true, weights: true };
    for told in [told(DDP, both), told(Sharding::Zero { stage: 2 }, both)] {
        assert!(estimate(&model, &told, GPU).is_err(), "{told:?}");
    }
}

/// Held to `scripts/record_fsdp.py`.
#[test]
fn fsdp_gathers_flattens_and_frees_as_recorded() {
    let json = r#"{"model_type": "gpt2", "n_layer": 3, "n_embd": 48, "n_head": 3, "n_positions": 64, "vocab_size": 101,
        "attn_pdrop": 0.0, "embd_pdrop": 0.0, "resid_pdrop": 0.0}"#;
    let model = ModelConfig::from_json(json).expect("a model");
    let told = Run { micro_batch: 2, seq_len: 16, ..told(Sharding::Fsdp, Offload::default()) };
    let steps = steps(&model, &told, GPU, false, Bound::Least).expect("it is modeled");
    let mut said = vec![];
    for event in &steps.events {
        match event {
            Event::Enter(Phase::Forward) => said.clear(),
            Event::Enter(_) => {}
            Event::Allocate(id) | Event::Free(id) => {
                let record = &steps.records[*id as usize];
                let is_new = matches!(event, Event::Allocate(_));
                match (record.op, is_new) {
                    ("all_gather", true) => said.push(format!("+{}", record.bytes)),
                    ("all_gather", false) => said.push(format!("-{}", record.bytes)),
                    ("cat", true) => said.push(format!("={}", record.bytes)),
                    _ => {}
                }
            }
        }
    }
    let recorded = include_str!("../../tests/fsdp.txt").lines().collect::<Vec<_>>();
    assert!(recorded.len() > 15, "{recorded:?}");
    assert_eq!(said, recorded);
}
