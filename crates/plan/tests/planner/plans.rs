//! Plans of real models: pure and valid; and the search that chooses among them.

use plimsoll_graph::models::ModelConfig;
use plimsoll_graph::ops::StateFormat;
use plimsoll_graph::{MemoryId, Optimizer, Role, Targets};
use plimsoll_plan::{
    Budget, Found, Level, LeverRequest, Machine, Plan, PlanError, PlanViolation, Precision, Rates, Recompute, Request,
    card, saved_activations, search, validate,
};
use plimsoll_units::Bytes;

fn request(model: &str, global_batch: usize, micro_batch: Option<usize>, budget: Bytes) -> Request {
    let model = ModelConfig::preset(model).expect("a preset");
    let vocab_size = model.vocab_size();
    Request {
        seq_len: model.max_positions(),
        optimizer: Optimizer::default(),
        global_batch,
        micro_batch,
        budget: Budget::apart(budget, Bytes::gib(100)),
        levers: LeverRequest {
            recompute: Some(Recompute::all(Level::Cheap)),
            optimizer_offload: Some(0.0),
            head_chunk: Some(if vocab_size > 256 { 256 } else { 2048 }),
            attention_rows: Some(64),
            ..LeverRequest::default()
        },
        evaluates: true,
        sample_prefill: Some(32),
        ..Request::new(model, Targets::cpu(2), Machine::of_rates(Rates::guess(2)))
    }
}

fn found(request: &Request) -> Found {
    search(request).expect("a sensible request").expect("a plan that fits")
}

#[test]
fn invariant_1_pure_the_same_request_gives_the_same_bytes() {
    let request = request("nano", 32, None, Bytes::gib(1));
    let text = |plan: &Plan| serde_json::to_string(plan).expect("plans are plain data");
    assert_eq!(text(&found(&request).plan), text(&found(&request).plan));
}

#[test]
fn a_plan_survives_its_serialisation() {
    let plan = found(&request("nano", 32, None, Bytes::gib(1))).plan;
    let text = serde_json::to_string(&plan).expect("plans are plain data");
    assert_eq!(serde_json::from_str::<Plan>(&text).expect("what was written can be read"), plan);
}

#[test]
fn parts_of_the_breakdown_sum_to_the_peak() {
    let plan = found(&request("gpt2", 4, Some(2), Bytes::gib(100))).plan;
    let b = plan.breakdown;
    let parts = [
        b.weights_bytes,
        b.gradients_bytes,
        b.optimizer_bytes,
        b.activations_bytes,
        b.scratch_bytes,
        b.staging_bytes,
        b.unused_bytes,
    ];
    assert_eq!(parts.iter().sum::<u64>(), plan.peak().0);
    assert_eq!((plan.parameters, b.gradients_bytes), (124_439_808, b.weights_bytes));
}

#[test]
fn the_largest_micro_batch_that_fits_is_chosen_and_the_next_one_is_told() {
    let peak = |n| found(&request("nano", 12, Some(n), Bytes::gib(8))).plan.peak();
    for (budget, expected, next) in [
        (Bytes::gib(8), 12, None),
        (peak(12), 12, None),
        (peak(12) - Bytes(1), 6, Some((12, peak(12)))),
        (peak(4), 4, Some((6, peak(6)))),
        (peak(1), 1, Some((2, peak(2)))),
    ] {
        let found = found(&request("nano", 12, None, budget));
        assert_eq!((found.plan.micro_batch, found.next_larger), (expected, next), "budget {budget}");
        assert_eq!(found.plan.accumulation * found.plan.micro_batch, 12);
    }
}

#[test]
fn invariant_6_does_not_fit_is_a_value_with_configurations_that_do() {
    let budget = Bytes::gib(6);
    let mut request = request("gpt2-medium", 8, None, budget);
    request.levers.activation_offload = Some(0.0);
    let misfit = search(&request).expect("a sensible request").unwrap_err();
    assert_eq!(misfit.plan.micro_batch, 1);
    assert_eq!(misfit.plan.peak() - budget, misfit.short[MemoryId::DEVICE]);
    assert!(!misfit.nearest.is_empty() && misfit.nearest.iter().all(|n| n.peak <= budget), "{:?}", misfit.nearest);
}

/// A smaller micro-batch is no way out then: it would accumulate.
#[test]
fn what_does_not_fit_with_updates_in_the_backward_pass_is_a_misfit_too() {
    let mut request = request("nano", 8, Some(8), Bytes::mib(4));
    request.optimizer.grad_clip = None;
    request.levers.update_in_backward = Some(true);
    let misfit = search(&request).expect("a sensible request").unwrap_err();
    let settings = misfit.nearest.iter().flat_map(|way| &way.changes).map(|change| change.setting);
    assert!(misfit.short[MemoryId::DEVICE] > Bytes::ZERO && !settings.clone().any(|setting| setting == "micro-batch"));
}

#[test]
fn requests_without_sense_are_refused() {
    let ok = request("nano", 12, None, Bytes::gib(1));
    for (bad, expected) in [
        (Request { global_batch: 0, ..ok.clone() }, "the global batch is 0"),
        (Request { micro_batch: Some(0), ..ok.clone() }, "the micro-batch is 0"),
        (Request { micro_batch: Some(5), ..ok.clone() }, "5 does not divide the global batch of 12"),
        (Request { seq_len: 65, ..ok.clone() }, "65 tokens does not fit"),
        (Request { global_batch: usize::MAX, ..ok.clone() }, "is too large"),
    ] {
        let error: PlanError = search(&bad).unwrap_err();
        assert!(error.to_string().contains(expected), "{error}");
    }
}

#[test]
fn invariant_2_validated_every_kind_of_damage_is_found() {
    let plan = found(&request("nano", 4, Some(2), Bytes::gib(1))).plan;
    assert_eq!(validate(&plan), Ok(()));
    let transient = |name: &str| plan.tensors.iter().position(|t| t.name == name).expect("a tensor of this name");

    let mut shifted = plan.clone();
    shifted.tensors[transient("h0/mlp/linear")].offset = plan.tensors[transient("h1/mlp/linear")].offset;
    assert!(matches!(validate(&shifted), Err(PlanViolation::Overlap { .. })));

    let mut misaligned = plan.clone();
    misaligned.tensors[transient("h0/mlp/linear")].offset += 4;
    assert!(matches!(validate(&misaligned), Err(PlanViolation::Misaligned { .. } | PlanViolation::OutOfBounds { .. })));

    let mut small = plan.clone();
    small.memories[MemoryId::DEVICE].peak_bytes -= 1;
    assert!(matches!(validate(&small), Err(PlanViolation::OutOfBounds { .. })));

    let poor = plan.clone().within(&Budget::unlimited().with(MemoryId::DEVICE, Bytes(plan.peak().0 - 1)));
    assert!(matches!(validate(&poor), Err(PlanViolation::OverBudget { .. })));

    let mut reordered = plan.clone();
    reordered.programs[0].steps.swap(0, 3);
    assert!(matches!(validate(&reordered), Err(PlanViolation::ReadBeforeWrite { .. })));

    let mut ill_typed = plan.clone();
    ill_typed.tensors[transient("h0/mlp/linear")].ty.shape[0] -= 1;
    assert!(matches!(validate(&ill_typed), Err(PlanViolation::IllTyped { .. })));
}

fn on_a_card(request: Request) -> Request {
    let card = card("rtx-3070").expect("a known card");
    let targets = Targets::cuda(card.compute_capability, 4);
    Request { targets, machine: Machine::of_rates(Rates::of_card(card)), ..request }
}

#[test]
fn a_card_keeps_its_scores_on_the_chip_whatever_the_processor_beside_it() {
    let request = request("gpt2", 4, Some(2), Bytes::gib(100));
    let scratch_of = |plan: &Plan, op: &str| {
        let steps = plan.programs[0].steps.iter().filter(|step| step.op.name() == op);
        steps.map(|step| step.scratch.map_or(0, |region| region.bytes)).max().expect("a step of this op")
    };
    let of_card = found(&on_a_card(request.clone())).plan;
    assert_eq!(scratch_of(&of_card, "attention"), 0);
    // One number for each query of each head.
    assert_eq!(scratch_of(&of_card, "attention_grad"), 4 * 2 * 12 * 1024);
    assert!(scratch_of(&found(&request).plan, "attention") > 0);
    let with_more_threads = Request { targets: Targets::cuda((8, 6), 32), ..on_a_card(request) };
    let threads = |plan: Plan| Plan { targets: of_card.targets, ..plan };
    assert_eq!(threads(found(&with_more_threads).plan), of_card, "nothing runs on the host");
}

/// What people have, what they want to train on it, and that it fits: sequences of 1,024, twelve of them a step.
#[test]
fn cards_of_eight_and_six_gibibytes_hold_what_they_are_said_to() {
    let margin = Bytes::gib(1);
    for (model, memory, margin, precision, state, offload) in [
        ("gpt2-medium", Bytes::gib(8), margin, Precision::Fp16, None, Some(0.0)),
        ("gpt2-medium", Bytes::gib(6), margin, Precision::Fp16, Some(StateFormat::Blockwise8), Some(0.0)),
        ("gpt2-medium", Bytes::gib(6), margin, Precision::Fp32, Some(StateFormat::Blockwise8), Some(0.0)),
        ("gpt2-xl", Bytes::gib(8), margin, Precision::Bf16, None, None),
        ("gpt2-xl", Bytes::gib(8), margin, Precision::Fp32, None, None),
        ("gpt2", Bytes::mib(768), Bytes::ZERO, Precision::Bf16, None, None),
    ] {
        let levers =
            LeverRequest { precision, optimizer_state: state, optimizer_offload: offload, ..LeverRequest::default() };
        let wanted = on_a_card(Request { levers, ..request(model, 12, None, memory - margin) });
        let found = found(&wanted);
        assert_eq!(validate(&found.plan), Ok(()), "{model}");
        assert_eq!(found.plan.seq_len, 1024);
        assert!(found.plan.peak() <= memory - margin);
    }
}

/// GPT-2 with room for 8,192 tokens: each thousand of them takes the same again, and nothing is as large as all scores
/// of even one head.
#[test]
fn memory_grows_linearly_with_the_length_of_sequences() {
    let long = ModelConfig::preset("gpt2").expect("a preset").to_json().replace("1024", "8192");
    let model = ModelConfig::from_json(&long).expect("a preset of more positions");
    assert_eq!(model.max_positions(), 8192);
    for (level, is_card) in [(Level::None, false), (Level::Cheap, true), (Level::Block, false)] {
        let plan = |seq_len| {
            let mut wanted = Request { seq_len, model: model.clone(), ..request("gpt2", 1, Some(1), Bytes::gib(100)) };
            wanted.levers.recompute = Some(Recompute::all(level));
            wanted.levers.head_chunk = Some(64);
            found(&if is_card { on_a_card(wanted) } else { wanted }).plan
        };
        let plans = [1024, 2048, 4096, 8192].map(plan);
        let peaks = plans.each_ref().map(|plan| plan.peak().0 as f64);
        let growth = [peaks[1] - peaks[0], (peaks[2] - peaks[1]) / 2.0, (peaks[3] - peaks[2]) / 4.0];
        assert!(
            // From 4,096 tokens on a card cuts the gradients of weights in parts: 19 MB more, whatever the length. A processor
            // packs up to 1,536 tokens of their operands at a time: 1.5 MB more than of 1,024.
            growth.iter().all(|g| (g / growth[0] - 1.0).abs() < 0.03),
            "{level:?}, on a card: {is_card}: {growth:?} bytes a thousand tokens"
        );
        let [.., longest] = plans;
        let scores = 4 * 8192 * 8192;
        let scratch = longest.programs.iter().flat_map(|p| &p.steps).filter_map(|step| Some(step.scratch?.bytes));
        let largest = scratch.max().expect("some op takes scratch");
        assert!(largest < scores / 8, "{largest} bytes of scratch");
        let transient = longest.tensors.iter().filter(|t| t.role == Role::Activation);
        assert!(transient.map(|t| t.region().bytes).max() < Some(scores), "an activation is quadratic");
    }
}

/// By hand, for rows of hidden states of 4 bytes an element: what a block of GPT-2 saves, and what is saved outside of blocks.
#[test]
fn what_the_forward_pass_saves_is_counted_once() {
    let (rows, channels, heads, blocks) = (4 * 64, 128, 4, 4);
    let hidden = rows * channels * 4;
    let statistics = 2 * rows * 4;
    // Norms, queries with keys and values, attention, the sum after it; gelu with its operand; the sum after that.
    let block = 2 * (hidden + statistics) + 3 * hidden + (hidden + rows * heads * 4) + hidden + 8 * hidden + hidden;
    // What the first block takes in, the last norm's statistics, and the gradient that the output head made.
    let outside = hidden + statistics + hidden;
    for (level, expected) in [(Level::None, blocks * block + outside), (Level::Block, blocks * hidden + outside)] {
        let plain = request("nano", 4, Some(4), Bytes::gib(8));
        let levers = LeverRequest { recompute: Some(Recompute::all(level)), ..plain.levers };
        let found = found(&Request { levers, ..plain });
        assert_eq!(saved_activations(&found.plan), Bytes(expected), "{level:?}");
    }
}
