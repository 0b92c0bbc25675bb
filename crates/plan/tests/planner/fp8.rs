//! Products in 8 bits: which there are, and what they cost.

use plimsoll_graph::models::ModelConfig;
use plimsoll_graph::ops::Fp8Linear;
use plimsoll_graph::{AdapterSettings, Adapters, Graph, Op, ProgramKind, Targets};
use plimsoll_plan::{
    LeverRequest, Levers, Machine, Plan, Precision, Rates, Request, Settings, card, in_fp8, plan_settings, search,
    validate,
};

fn request(model: &str) -> Request {
    let model = ModelConfig::preset(model).expect("a preset");
    let target_len = model.takes_pairs().then_some(128);
    Request {
        seq_len: 256,
        target_len,
        evaluates: true,
        sample_prefill: Some(16),
        levers: LeverRequest { precision: Precision::Fp8, ..LeverRequest::default() },
        ..Request::new(model, Targets::cuda((8, 9), 4), Machine::of_rates(Rates::guess(4)))
    }
}

fn planned(request: &Request, sequence_tile: Option<usize>) -> (Graph, Plan) {
    let levers = Levers { precision: Precision::Fp8, sequence_tile, ..Levers::default() };
    let (graph, plan) =
        plan_settings(request, Settings { micro_batch: 1, head_chunk: 128, levers }).expect("a sensible request");
    assert_eq!(validate(&plan), Ok(()));
    (graph, plan)
}

/// Products in 8 bits of a program: forward, of gradients of operands, and of gradients of weights.
fn rounded(graph: &Graph, kind: ProgramKind) -> [usize; 3] {
    let mut found = [0; 3];
    let mut count = |op: &Op| {
        if let Op::Fp8Linear(op) = op {
            match op {
                Fp8Linear::Forward(_) => found[0] += 1,
                Fp8Linear::InputGrad(_) => found[1] += 1,
                Fp8Linear::WeightGrad(_) => found[2] += 1,
            }
        }
    };
    for node in graph.program(kind).map_or(&[][..], |program| &program.nodes) {
        match &node.op {
            Op::ByRows(op) => op.chain.ops.iter().for_each(|own| count(&own.op)),
            Op::ByRowsGrad(op) => op.further.ops.iter().for_each(|own| count(&own.op)),
            op => count(op),
        }
    }
    found
}

/// Four products of a block of GPT-2, seven of Llama's, four of a block with experts. The first block's gradient continues to the
/// embedding. Neither heads, routers nor experts are rounded, nor any product that writes text.
#[test]
fn linear_layers_of_blocks_are_in_8_bits_and_nothing_else() {
    for (model, layers) in
        [("gpt2", 12 * 4), ("llama-3.2-1b", 16 * 7), ("olmoe-1b-7b", 16 * 4), ("t5-small", 6 * 6 + 6 * 10)]
    {
        let (graph, _) = planned(&request(model), None);
        assert_eq!(rounded(&graph, ProgramKind::MicroStep), [layers; 3], "{model}");
        assert_eq!(rounded(&graph, ProgramKind::Evaluate), [layers, 0, 0], "{model}");
        for kind in [ProgramKind::Prefill, ProgramKind::Sample, ProgramKind::Encode] {
            assert_eq!(rounded(&graph, kind), [0; 3], "{model}: {kind:?}");
        }
    }
}

#[test]
fn adapters_are_not_rounded_and_frozen_weights_have_no_gradient() {
    let mut request = request("llama-3.2-1b");
    let adapters = Adapters::of(&request.model, &AdapterSettings { rank: 128, ..AdapterSettings::default() });
    request.adapters = Some(adapters.expect("layers with adapters"));
    let (graph, _) = planned(&request, None);
    // Nothing before the first block's queries, keys and values is trained.
    assert_eq!(rounded(&graph, ProgramKind::MicroStep), [16 * 7, 16 * 7 - 3, 0]);
}

/// The chain after attention has four of a block's seven products, which its gradient computes again.
#[test]
fn products_in_tiles_of_rows_are_rounded_too() {
    let (graph, _) = planned(&request("llama-3.2-1b"), Some(64));
    assert_eq!(rounded(&graph, ProgramKind::MicroStep), [16 * (3 + 4 + 3), 16 * 7, 16 * 7]);
}

/// A layer whose extents are no multiples of 16 stays in bf16.
#[test]
fn odd_extents_are_not_rounded() {
    let ModelConfig::Gpt2(nano) = ModelConfig::preset("nano").expect("a preset") else { panic!("nano is a GPT-2") };
    let odd = plimsoll_graph::models::Gpt2Config { n_embd: 120, n_head: 6, ..nano };
    let (graph, _) = planned(&Request { model: ModelConfig::Gpt2(odd), seq_len: 64, ..request("nano") }, None);
    assert_eq!(rounded(&graph, ProgramKind::MicroStep), [0; 3]);
}

/// On a card whose tensor cores multiply 8 bits at twice the rate, a step is faster, and its plan hardly larger; on Hopper, only a
/// library does.
#[test]
fn a_step_in_8_bits_is_faster_where_tensor_cores_are() {
    for (name, library, fastest, slowest) in
        [("4090", false, 0.6, 0.9), ("5090", false, 0.6, 0.85), ("h100", true, 0.6, 0.9), ("h100", false, 1.0, 1.2)]
    {
        let card = card(name).expect("a known card");
        let products = if library { plimsoll_graph::Products::CublasLt } else { plimsoll_graph::Products::Kernels };
        let asked = Request {
            targets: Targets::cuda(card.compute_capability, 8).multiplying_by(products),
            machine: Machine::of_rates(Rates::of_products(card, products, false)),
            seq_len: 1024,
            global_batch: 16,
            levers: LeverRequest { precision: Precision::Bf16, ..LeverRequest::default() },
            ..request("llama-3.2-1b")
        };
        let found = search(&asked).expect("a sensible request").expect("it fits");
        let (step, peak) = in_fp8(&asked, &found).expect("a sensible request");
        let share = step.0 / found.step.0;
        assert!((fastest..slowest).contains(&share), "{name} {library}: {share}");
        let more = peak.0 as f64 / found.plan.peak().0 as f64;
        assert!((1.0..1.05).contains(&more), "{name}: {more}");
    }
}
