//! Memory of a card in sharded runs, compared with manual sums for GPT-2's 124,439,808 parameters.

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
/// Parameters outside blocks: tokens, positions, and the last norm.
const REST: u64 = 50_257 * 768 + 1024 * 768 + 2 * 768;
/// Parameters of each of the twelve blocks.
const BLOCK: u64 = (PARAMETERS - REST) / 12;
const CARDS: u64 = 4;
const HOST: Offload = Offload { optimizer: true, weights: false };
const GPU: Gpu = Gpu { memory: Bytes::gib(80), compute_capability: (9, 0) };
const DDP: Sharding = Sharding::Ddp { bucket: Bytes::mib(25), views: false };
const DDP_VIEWS: Sharding = Sharding::Ddp { bucket: Bytes::mib(25), views: true };

fn run_with(sharding: Sharding, offload: Offload) -> Run {
    let precision = Precision::AmpBf16;
    Run { precision, micro_batch: 1, seq_len: 8, sharding, offload, cards: CARDS, ..Run::default() }
}

fn steps_of(run: &Run, bound: Bound) -> Steps {
    let model = ModelConfig::preset("gpt2").expect("a preset");
    steps(&model, run, GPU, false, bound).expect("this run is modeled")
}

/// Bytes that remain between steps, by kind.
fn resident(run: &Run) -> BTreeMap<Kind, u64> {
    let steps = steps_of(run, Bound::Likely);
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

/// The peak of the bytes in an op's storages.
fn most(run: &Run, bound: Bound, op: &str) -> u64 {
    let steps = steps_of(run, bound);
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
fn bytes_between_steps_follow_from_the_sharding() {
    const P: u64 = PARAMETERS;
    const PART: u64 = P / CARDS;
    // Parameters with fewer than 100,000 elements, which stage 3 does not shard: norms and biases.
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
        // A gradient in transit to the host, with the size of the token embedding.
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
        let kinds = resident(&run_with(sharding, offload));
        let kinds = [Kind::Weight, Kind::Gradient, Kind::OptimizerState, Kind::Bucket]
            .map(|kind| kinds.get(&kind).copied().unwrap_or(0));
        for (kind, expected) in kinds.into_iter().zip(expected) {
            // Parts are rounded up.
            assert!(kind.abs_diff(expected) < 8192, "{name}: {kinds:?}, expected {expected}");
        }
    }
}

#[test]
fn fsdp_has_the_rest_and_a_few_gathered_blocks() {
    let run = run_with(Sharding::Fsdp, Offload::default());
    for (bound, blocks) in [(Bound::Least, 1), (Bound::Likely, 2), (Bound::Most, 3)] {
        let gathered = most(&run, bound, "all_gather");
        assert!(gathered.abs_diff(2 * (REST + blocks * BLOCK)) < 64, "{bound:?}: {gathered}");
    }
    // Gradients outside blocks are flattened while all of them are present.
    assert_eq!(most(&run, Bound::Least, "cat"), 2 * REST);
}

#[test]
fn fsdp_keeps_whole_gradients_between_micro_batches() {
    let accumulates = Run { accumulation: 2, ..run_with(Sharding::Fsdp, Offload::default()) };
    assert!(most(&accumulates, Bound::Least, "cat") >= 2 * PARAMETERS);
}

#[test]
fn zero_sums_in_one_bucket_or_two_and_in_a_copy() {
    let run = run_with(Sharding::Zero { stage: 2 }, Offload::default());
    assert_eq!(most(&run, Bound::Likely, "ipg_bucket"), 2 * 500_000_000);
    assert_eq!(most(&run, Bound::Most, "ipg_bucket"), 4 * 500_000_000);
    assert_eq!(most(&run, Bound::Least, "ipg_bucket"), 2 * 768 * 768);
    // The bucket holds all gradients; the sum uses a copy.
    assert_eq!(most(&run, Bound::Likely, "_flatten_dense_tensors"), 2 * PARAMETERS);
}

#[test]
fn buckets_have_the_sizes_in_deepspeeds_config() {
    let run = run_with(Sharding::Zero { stage: 2 }, Offload::default());
    let with = |buffers| Run { buffers, ..run.clone() };
    let run = with(Buffers { reduce: Elements::Of(12_345_678), overlaps: Some(true), ..Buffers::default() });
    let auto = with(Buffers { reduce: Elements::Auto, overlaps: Some(false), ..Buffers::default() });
    for bound in [Bound::Least, Bound::Likely, Bound::Most] {
        assert_eq!(most(&run, bound, "ipg_bucket"), 2 * 2 * 12_345_678, "{bound:?}: two, since sums overlap");
        assert_eq!(most(&auto, bound, "ipg_bucket"), 2 * 768 * 768, "{bound:?}");
    }
}

#[test]
fn only_stage_1_has_all_gradients_until_the_backward_pass_ends() {
    let peak = |stage: u8| {
        let run = run_with(Sharding::Zero { stage }, Offload::default());
        let model = ModelConfig::preset("gpt2").expect("a preset");
        estimate(&model, &run, GPU).expect("this run is modeled").likely.allocated.0
    };
    // Both then have a copy of the bucket, as large as all gradients; stage 1 also has the gradients until the copy
    // exists.
    assert!(peak(1) >= peak(2));
    let run = run_with(Sharding::Zero { stage: 1 }, Offload::default());
    assert!(most(&run, Bound::Likely, "mm_backward") > 2 * (PARAMETERS - REST) * 9 / 10);
}

#[test]
fn gradients_that_are_views_of_buckets_have_no_memory_of_their_own() {
    let gradients = |sharding| {
        let steps = steps_of(&run_with(sharding, Offload::default()), Bound::Likely);
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
fn ranges_contain_the_likely_values_and_cards_have_nccl_buffers() {
    let model = ModelConfig::preset("gpt2").expect("a preset");
    let of = |run: &Run| estimate(&model, run, GPU).expect("this run is modeled");
    for sharding in [DDP, Sharding::Zero { stage: 1 }, Sharding::Zero { stage: 3 }, Sharding::Fsdp] {
        let found = of(&run_with(sharding, Offload::default()));
        let [low, high] = found.range;
        assert!(low.allocated <= found.likely.allocated && found.likely.allocated <= high.allocated, "{sharding:?}");
        assert!(low.process() < found.likely.process() && found.likely.process() < high.process(), "{sharding:?}");
    }
    let alone = of(&Run { sharding: Sharding::None, cards: 1, ..run_with(DDP, Offload::default()) });
    let several = of(&run_with(DDP, Offload::default()));
    assert!(several.likely.context > alone.likely.context, "NCCL has buffers");
}

#[test]
fn weights_without_sharding_cannot_be_offloaded() {
    let model = ModelConfig::preset("gpt2").expect("a preset");
    let both = Offload { optimizer: true, weights: true };
    for run in [run_with(DDP, both), run_with(Sharding::Zero { stage: 2 }, both)] {
        assert!(estimate(&model, &run, GPU).is_err(), "{run:?}");
    }
}

/// Compared with `scripts/record_fsdp.py`.
#[test]
fn fsdp_gathers_flattens_and_frees_as_recorded() {
    let json = r#"{"model_type": "gpt2", "n_layer": 3, "n_embd": 48, "n_head": 3, "n_positions": 64, "vocab_size": 101,
        "attn_pdrop": 0.0, "embd_pdrop": 0.0, "resid_pdrop": 0.0}"#;
    let model = ModelConfig::from_json(json).expect("a model");
    let run = Run { micro_batch: 2, seq_len: 16, ..run_with(Sharding::Fsdp, Offload::default()) };
    let steps = steps(&model, &run, GPU, false, Bound::Least).expect("this run is modeled");
    let mut log = vec![];
    for event in &steps.events {
        match event {
            Event::Enter(Phase::Forward) => log.clear(),
            Event::Enter(_) => {}
            Event::Allocate(id) | Event::Free(id) => {
                let record = &steps.records[*id as usize];
                let is_new = matches!(event, Event::Allocate(_));
                match (record.op, is_new) {
                    ("all_gather", true) => log.push(format!("+{}", record.bytes)),
                    ("all_gather", false) => log.push(format!("-{}", record.bytes)),
                    ("cat", true) => log.push(format!("={}", record.bytes)),
                    _ => {}
                }
            }
        }
    }
    let recorded = include_str!("../../tests/fsdp.txt").lines().collect::<Vec<_>>();
    assert!(recorded.len() > 15, "{recorded:?}");
    assert_eq!(log, recorded);
}
