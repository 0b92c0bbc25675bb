//! Predicted tokens a second, compared with what other programs reach with the same work on cards that are not here. No share
//! of `rates.csv` is for one row: each is for an architecture and for what multiplies.

use plimsoll_graph::models::ModelConfig;
use plimsoll_graph::ops::StateFormat;
use plimsoll_graph::{AdapterSettings, Adapters, Products, Targets, WeightCodes};
use plimsoll_plan::{Budget, Level, LeverRequest, Machine, Precision, Rates, Recompute, Request, card, search};
use plimsoll_units::Bytes;

/// A published measurement of a step in bf16.
struct Row {
    model: &'static str,
    card: &'static str,
    seq_len: usize,
    /// Samples of a step.
    samples: usize,
    tokens_per_s: f64,
}

const fn row(model: &'static str, card: &'static str, seq_len: usize, samples: usize, tokens_per_s: f64) -> Row {
    Row { model, card, seq_len, samples, tokens_per_s }
}

/// Of LLMQ, with moments in bf16. It multiplies by cuBLASLt. Source: IST-DASLab/llmq, benchmarks/4090x1.md, 5060Ti.md and others.
const LLMQ: [Row; 6] = [
    row("qwen2.5-0.5b", "4090", 1024, 512, 39_850.0),
    row("qwen2.5-3b", "4090", 1024, 512, 7_005.0),
    row("qwen2.5-1.5b", "5060 ti 16gb", 1024, 512, 3_900.0),
    row("qwen2.5-1.5b", "5090", 1024, 512, 17_000.0),
    row("qwen2.5-1.5b", "h100", 1024, 512, 58_800.0),
    row("qwen2.5-7b", "h100", 1024, 512, 13_850.0),
];

/// Of FlexTrain, with 192 GiB of host memory. Source: als244/flextrain, docs/verified_runs.md.
const FLEXTRAIN: [Row; 2] =
    [row("llama-3.2-1b", "5090", 2048, 64, 21_856.0), row("llama-3.1-8b", "5090", 2048, 128, 3_723.0)];

/// Programs that stream weights from the host, with the card's memory that they may use. Source: as above, and
/// docs/verified_runs_extra.md of FlexTrain.
const STREAMED: [(Row, Bytes, StateFormat); 3] = [
    (row("qwen2.5-14b", "4090", 1024, 512, 1_350.0), Bytes::gib(24), StateFormat::Bf16),
    (row("qwen2.5-7b", "5060 ti 16gb", 1024, 512, 889.0), Bytes::gib(16), StateFormat::Bf16),
    (row("llama-3.1-8b", "5090", 2048, 128, 3_572.0), Bytes::gib(16), StateFormat::F32),
];

/// The same work as a request. Neither program keeps a margin of the card's memory.
fn request(row: &Row, levers: LeverRequest) -> Request {
    let (card, model) = (card(row.card).expect("a known card"), ModelConfig::preset(row.model).expect("a preset"));
    let machine = Machine::of_rates(Rates::of_products(card, Products::CublasLt, false));
    Request {
        seq_len: row.seq_len,
        global_batch: row.samples,
        budget: Budget::apart(card.memory, Bytes::gib(192)),
        levers: LeverRequest { precision: Precision::Bf16, ..levers },
        ..Request::new(model, Targets::cuda(card.compute_capability, 16).multiplying_by(Products::CublasLt), machine)
    }
}

/// Predicted tokens a second relative to those measured.
fn ratio(row: &Row, request: &Request) -> f64 {
    let found = search(request).expect("a sensible request");
    let found = found.unwrap_or_else(|misfit| panic!("{} on {}: short {:?}", row.model, row.card, misfit.short));
    (row.samples * row.seq_len) as f64 / found.step.0 / row.tokens_per_s
}

fn is_near(row: &Row, ratio: f64) {
    is_within(row, ratio, 1.15);
}

fn is_within(row: &Row, ratio: f64, most: f64) {
    println!("{} on {}: {ratio:.3} of what was measured", row.model, row.card);
    assert!((0.85..=most).contains(&ratio), "{} on {}: {ratio}", row.model, row.card);
}

#[test]
fn predictions_are_near_what_other_programs_reach() {
    let in_bf16 = LeverRequest { optimizer_state: Some(StateFormat::Bf16), ..LeverRequest::default() };
    for row in &LLMQ {
        is_near(row, ratio(row, &request(row, in_bf16)));
    }
    for row in &FLEXTRAIN {
        is_near(row, ratio(row, &request(row, LeverRequest::default())));
    }
}

/// Two samples at a time, with all blocks recomputed, as torchtune's recipe for one GPU does.
/// Source: pytorch/torchtune, README.md; recipes/configs/llama3_1/8B_qlora_single_device.yaml.
#[test]
fn predictions_of_adapters_are_near_what_torchtune_reaches() {
    let row = row("llama-3.1-8b", "4090", 2048, 32, 2_413.0);
    let levers = LeverRequest {
        base_weights: Some(WeightCodes::Nf4),
        recompute: Some(Recompute::all(Level::Block)),
        ..LeverRequest::default()
    };
    let request = request(&row, levers);
    let adapters = Adapters::of(&request.model, &AdapterSettings::default()).expect("layers");
    let request = Request { adapters: Some(adapters), micro_batch: Some(2), ..request };
    is_near(&row, ratio(&row, &request));
}

/// The host has as much memory as the plans ask for, and updates while the next step begins, which those programs do not do.
#[test]
fn predictions_of_streamed_weights_are_near_what_other_programs_reach() {
    for (row, memory, state) in &STREAMED {
        let levers = LeverRequest { optimizer_state: Some(*state), ..LeverRequest::default() };
        let request = Request { budget: Budget::apart(*memory, Bytes::gib(384)), ..request(row, levers) };
        is_within(row, ratio(row, &request), 1.2);
    }
}

/// Transfers of weights hide behind products: a card with all the memory that a run can use is at most a tenth faster.
#[test]
fn streamed_weights_cost_at_most_a_tenth() {
    for (model, card, memory) in [
        ("qwen2.5-7b", "5060 ti 16gb", Bytes::gib(16)),
        ("llama-3.1-8b", "4090", Bytes::gib(12)),
        ("qwen2.5-14b", "4090", Bytes::gib(16)),
        ("qwen2.5-32b", "4090", Bytes::gib(24)),
    ] {
        let row = row(model, card, 1024, 512, 1.0);
        let levers = LeverRequest { optimizer_state: Some(StateFormat::Bf16), ..LeverRequest::default() };
        let of = |device| Request { budget: Budget::apart(device, Bytes::gib(768)), ..request(&row, levers) };
        let part = ratio(&row, &of(memory)) / ratio(&row, &of(Bytes::gib(2048)));
        println!("{model} in {memory} of a {card}: {part:.3} of its speed with all memory");
        assert!(part > 0.9, "{model} in {memory} of a {card}: {part}");
    }
}
