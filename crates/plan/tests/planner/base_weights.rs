//! Frozen weights in codes: their bytes, and what can't be in codes.

use plimsoll_graph::models::ModelConfig;
use plimsoll_graph::ops::{QuantizedLinear, QuantizedLinearInputGrad};
use plimsoll_graph::{AdapterSettings, Adapters, DType, Graph, Op, ProgramKind, SampleShape, Targets, WeightCodes};
use plimsoll_plan::{
    LeverRequest, Levers, Machine, PlanError, Precision, Rates, Request, Settings, plan_sampling, plan_settings,
    validate,
};
use plimsoll_units::Bytes;

/// A step of one short sample in bf16, with the parameters frozen whose names contain one of these.
fn request(model: &str, frozen: &[&str]) -> Request {
    let model = ModelConfig::preset(model).expect("a preset");
    let names = model.parameter_names();
    let frozen = names.iter().filter(|name| frozen.iter().any(|part| name.contains(part))).cloned().collect();
    Request {
        seq_len: 128,
        frozen,
        evaluates: true,
        sample_prefill: Some(16),
        levers: LeverRequest { precision: Precision::Bf16, ..LeverRequest::default() },
        ..Request::new(model, Targets::cuda((8, 9), 4), Machine::of_rates(Rates::guess(4)))
    }
}

fn planned(request: &Request, codes: Option<WeightCodes>) -> Result<(Graph, plimsoll_plan::Plan), PlanError> {
    let levers = Levers { precision: Precision::Bf16, base_weights: codes, ..Levers::default() };
    plan_settings(request, Settings { micro_batch: 1, head_chunk: 128, levers })
}

/// The parameters in codes, and the bytes of their codes and scales for each weight.
fn coded(graph: &Graph) -> (Vec<&str>, f64) {
    let coded = graph.parameters.iter().filter(|parameter| parameter.coded.is_some()).collect::<Vec<_>>();
    let (mut bytes, mut weights) = (0, 0);
    for parameter in &coded {
        let scales = &parameter.coded.as_ref().expect("just chosen").scales;
        bytes += scales.iter().chain([&parameter.tensor]).map(|&id| graph[id].ty.bytes().0).sum::<u64>();
        weights += parameter.shape(&graph[parameter.tensor].ty).iter().product::<usize>();
    }
    (coded.iter().map(|parameter| &*graph[parameter.tensor].name).collect(), bytes as f64 / weights as f64)
}

#[test]
fn a_frozen_llama_has_about_four_bits_for_each_weight_of_its_blocks() {
    let request = request("llama-3.1-8b", &["layers."]);
    let (whole, of_whole) = planned(&request, None).expect("a plan");
    for (format, bits) in [(WeightCodes::Nf4, 4.127), (WeightCodes::Int8, 8.007)] {
        let (graph, plan) = planned(&request, Some(format)).expect("a plan");
        assert_eq!(validate(&plan), Ok(()));
        let (names, bytes) = coded(&graph);
        assert_eq!(names.len(), 32 * 7, "four of attention and three of the feed-forward network in each block");
        assert!((8.0 * bytes - bits).abs() < 1e-3, "{format:?}: {} bits", 8.0 * bytes);
        assert_eq!(graph.parameter_count(), whole.parameter_count());
        assert_eq!(plan.parameters, of_whole.parameters);
        let saved = of_whole.breakdown.weights_bytes - plan.breakdown.weights_bytes;
        let weights = 32.0 * (2.0 * 4096.0 * 4096.0 + 2.0 * 4096.0 * 1024.0 + 3.0 * 4096.0 * 14336.0);
        assert!((saved as f64 / weights - (2.0 - bits / 8.0)).abs() < 1e-3, "{format:?}: {saved} bytes");
        // The output head, the embedding and norms keep their precision.
        for parameter in graph.parameters.iter().filter(|parameter| parameter.coded.is_none()) {
            assert_eq!(graph[parameter.tensor].ty.dtype, DType::Bf16, "{}", graph[parameter.tensor].name);
        }
    }
}

/// Experts are most of a mixture's weights. Those of gpt-oss have the layout (in, out).
#[test]
fn frozen_experts_have_about_four_bits_for_each_weight() {
    for (model, parameters) in [("qwen3-30b-a3b", 48 * (4 + 3)), ("gpt-oss-20b", 24 * (4 + 2))] {
        let request = request(model, &["layers."]);
        let (_, of_whole) = planned(&request, None).expect("a plan");
        let (graph, plan) = planned(&request, Some(WeightCodes::Nf4)).expect("a plan");
        assert_eq!(validate(&plan), Ok(()));
        let (names, bytes) = coded(&graph);
        assert_eq!(names.len(), parameters, "{model}");
        assert!(names.iter().all(|name| name.contains("_proj")), "{model}: no router");
        assert!((8.0 * bytes - 4.127).abs() < 2e-3, "{model}: {} bits", 8.0 * bytes);
        assert!(3 * plan.breakdown.weights_bytes < of_whole.breakdown.weights_bytes, "{model}");
    }
}

#[test]
fn every_program_reads_the_same_codes() {
    let (graph, _) = planned(&request("llama-3.2-1b", &["layers."]), Some(WeightCodes::Nf4)).expect("a plan");
    let ops = |kind: ProgramKind| {
        let nodes = &graph.program(kind).expect("a program").nodes;
        let count = |is: fn(&Op) -> bool| nodes.iter().filter(|node| is(&node.op)).count();
        [
            count(|op| matches!(op, Op::QuantizedLinear(QuantizedLinear { codes: WeightCodes::Nf4, .. }))),
            count(|op| matches!(op, Op::QuantizedLinearInputGrad(QuantizedLinearInputGrad { .. }))),
        ]
    };
    // The tied head is read as the embedding.
    assert_eq!(ops(ProgramKind::MicroStep), [16 * 7, 16 * 7]);
    for kind in [ProgramKind::Evaluate, ProgramKind::Prefill, ProgramKind::Sample] {
        assert_eq!(ops(kind), [16 * 7, 0], "{kind:?}");
    }
}

#[test]
fn only_frozen_weights_of_linear_layers_can_be_in_codes() {
    let refused = |model: &str, frozen: &[&str]| {
        let format = WeightCodes::Nf4;
        match planned(&request(model, frozen), Some(format)) {
            Err(error @ PlanError::NothingQuantized { .. }) => error.to_string(),
            other => panic!("{:?}", other.map(|(graph, _)| coded(&graph).0.len())),
        }
    };
    assert!(refused("llama-3.2-1b", &[]).contains("all are trained"));
    for (model, frozen) in [("llama-3.2-1b", &["norm", "embed"][..]), ("gpt2", &["h.0."])] {
        assert!(refused(model, frozen).contains("linear layer within a block"), "{model}");
    }
    // Trained weights keep their precision.
    let (graph, _) = planned(&request("llama-3.2-1b", &["layers.3."]), Some(WeightCodes::Int8)).expect("a plan");
    let (names, _) = coded(&graph);
    assert_eq!(names.len(), 7);
    assert!(names.iter().all(|name| name.contains("layers.3.")), "{names:?}");
}

#[test]
fn a_plan_for_sampling_has_the_codes_of_one_for_training() {
    let model = ModelConfig::preset("llama-3-8b").expect("a preset");
    let shape = SampleShape { rows: 1, prefill: 16, capacity: 64, source: 64 };
    let plan = |codes| plan_sampling(&model, None, &shape, codes, &Targets::cpu(2), Bytes::gib(80)).expect("a plan");
    let ((whole, of_whole), (graph, plan)) = (plan(None), plan(Some(WeightCodes::Nf4)));
    let trained = planned(&request("llama-3-8b", &["layers."]), Some(WeightCodes::Nf4)).expect("a plan").0;
    assert_eq!(coded(&graph), coded(&trained), "the head stays as it is");
    assert_eq!(graph.parameter_count(), whole.parameter_count());
    assert!(3 * plan.breakdown.weights_bytes < of_whole.breakdown.weights_bytes);
}

/// Adapters once left the output head in the last block, so that text was written with a head in codes.
#[test]
fn adapters_do_not_change_which_weights_are_in_codes() {
    let model = ModelConfig::preset("llama-3-8b").expect("a preset");
    let adapters = Adapters::of(&model, &AdapterSettings::default()).expect("layers");
    let shape = SampleShape { rows: 1, prefill: 16, capacity: 64, source: 64 };
    let plan = |adapters| {
        let codes = Some(WeightCodes::Nf4);
        plan_sampling(&model, adapters, &shape, codes, &Targets::cpu(2), Bytes::gib(80)).expect("a plan").0
    };
    let (plain, adapted) = (plan(None), plan(Some(&adapters)));
    assert_eq!(coded(&plain), coded(&adapted));
}
