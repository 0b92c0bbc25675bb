//! What is predicted of time and told of memory, against arithmetic that is done here by hand.

use plimsoll_graph::models::ModelConfig;
use plimsoll_graph::ops::{Add, ExpertLinear, Linear, Transfer, WeightLayout};
use plimsoll_graph::{
    DType, DeviceKind, Io, MemoryId, Op, Optimizer, Products, Storage, Targets, TensorId, TensorType,
};
use plimsoll_plan::{
    Budget, Level, LeverRequest, Machine, Plan, PlannedProgram, PlannedTensor, Rates, Recompute, Request, Sample, Step,
    Work, card, moment_of_peak, search,
};
use plimsoll_units::Bytes;
use std::collections::BTreeSet;

/// No two figures are alike, so that one taken for another is seen.
const RATES: Rates = Rates {
    flops_per_s: 100.0,
    product_flops_per_s: 50.0,
    f16_flops_per_s: 200.0,
    bf16_flops_per_s: 400.0,
    fp8_flops_per_s: 800.0,
    without_library: 0.5,
    attention: 0.25,
    multiprocessors: 3,
    bytes_per_s: 10.0,
    transfer_bytes_per_s: 4.0,
    overlaps_transfers: false,
    host_bytes_per_s: 2.0,
    node_s: 0.25,
};

#[test]
fn a_node_takes_the_longer_of_its_operations_and_its_bytes_and_its_launch() {
    let machine = Machine::of_rates(RATES);
    let seconds = |op: Op, dtype, flops, bytes| {
        machine.node(&op, Work { device: DeviceKind::Cpu, dtype, flops, bytes, operands: 1, blocks: 0 })
    };
    for (dtype, flops, bytes, expected) in [
        (DType::F32, 1_000, 20, 0.25 + 10.0),
        (DType::F16, 1_000, 20, 0.25 + 5.0),
        (DType::Bf16, 1_000, 20, 0.25 + 2.5),
        (DType::F32, 100, 70, 0.25 + 7.0),
        (DType::F32, 0, 0, 0.25),
    ] {
        assert_eq!(seconds(Add.into(), dtype, flops, bytes), expected, "{dtype:?}, {flops} operations, {bytes} bytes");
    }
    let linear = Linear { layout: WeightLayout::InOut, bias: false };
    assert_eq!(seconds(linear.into(), DType::F32, 1_000, 20), 0.25 + 20.0, "products have a rate of their own");
    assert_eq!(seconds(linear.into(), DType::F16, 1_000, 20), 0.25 + 5.0);
    // Bytes moved are read here and written there, and each passes once.
    assert_eq!(seconds(Transfer.into(), DType::F32, 0, 60), 0.25 + 7.5);
    let work = Work { device: DeviceKind::Cpu, dtype: DType::F32, flops: 1_000_000, bytes: 60, operands: 1, blocks: 0 };
    assert_eq!(machine.on_host(&Add.into(), work), 30.0, "on a card's host its memory is the limit");
    let Work { dtype, flops, bytes, .. } = work;
    let sample = |device| Sample { device, op: "add".to_owned(), dtype, flops, bytes, operands: 1, seconds: 0.5 };
    let on_host =
        |device| Machine::measured(RATES, vec![sample(device)]).on_host(&Add.into(), Work { bytes: 2 * bytes, ..work });
    assert!((on_host(DeviceKind::Cpu) / (0.5 * 2f64.sqrt()) - 1.0).abs() < 1e-9, "and what was measured there");
    assert_eq!(on_host(DeviceKind::Cuda), 60.0, "a card's samples say nothing of it");
}

/// Figures from the makers' pages, times the parts of them that large products (those of `rates.csv` on tensor cores, 0.4
/// outside of them) and copies (0.8) reach.
#[test]
fn a_card_reaches_a_part_of_its_figures_on_paper() {
    let near = |a: f64, b: f64| (a / b - 1.0).abs() < 1e-3;
    let rates = |name| Rates::of_card(card(name).expect("a known card"));
    let rtx = rates("rtx 3070");
    assert!(near(rtx.bytes_per_s, 358.4e9) && near(rtx.flops_per_s, 8.12e12), "{rtx:?}");
    assert!(near(rtx.f16_flops_per_s, 0.87 * 40.6e12) && near(rtx.bf16_flops_per_s, 0.87 * 40.6e12), "{rtx:?}");
    assert!(near(rtx.transfer_bytes_per_s, 25.2e9), "16 lanes of the fourth generation: {rtx:?}");
    assert!(near(rtx.host_bytes_per_s, 40.96e9) && rtx.overlaps_transfers, "{rtx:?}");
    let v100 = rates("v100 sxm2 32gb");
    assert_eq!([v100.f16_flops_per_s, v100.bf16_flops_per_s], [v100.flops_per_s; 2], "no kernels for its tensor cores");
    assert!(near(v100.transfer_bytes_per_s, 12.6e9), "16 lanes of the third generation: {v100:?}");
    let by_library = Rates::of_products(card("v100 sxm2 32gb").expect("a known card"), Products::CublasLt, false);
    assert!(near(by_library.f16_flops_per_s, 0.7 * 125e12) && near(by_library.bf16_flops_per_s, 6.28e12));
    let gtx = rates("gtx 1070");
    assert_eq!([gtx.f16_flops_per_s, gtx.bf16_flops_per_s], [gtx.flops_per_s; 2], "no tensor cores");
}

#[test]
fn tf32_changes_the_rate_of_products_in_single_precision_alone() {
    for (name, product_flops_per_s) in [("rtx 3070", 0.87 * 20.3e12), ("a100", 0.6 * 156e12), ("v100", 0.4 * 15.7e12)] {
        let card = card(name).expect("a known card");
        let (without, with) = (Rates::of_card(card), Rates::of_products(card, Products::Kernels, true));
        assert_eq!(without.product_flops_per_s, without.flops_per_s);
        assert!((with.product_flops_per_s / product_flops_per_s - 1.0).abs() < 1e-9, "{name}: {with:?}");
        assert_eq!(Rates { product_flops_per_s: without.product_flops_per_s, ..with }, without);
    }
}

/// 4 blocks on 3 multiprocessors take two waves, of which the second is a third full. `RATES` has 100 operations a second
/// outside of tensor cores.
#[test]
fn products_on_tensor_cores_wait_for_their_last_wave() {
    let machine = Machine::of_rates(RATES);
    let work = |dtype, blocks| Work { device: DeviceKind::Cuda, dtype, flops: 1_200, bytes: 20, operands: 1, blocks };
    let seconds = |op: &Op, dtype, blocks| machine.node(op, work(dtype, blocks)) - RATES.node_s;
    let linear = Op::from(Linear { layout: WeightLayout::InOut, bias: false });
    for (blocks, expected) in [(0, 3.0), (1, 9.0), (3, 3.0), (4, 4.5), (6, 3.0), (2_999_999, 3.0)] {
        let found = seconds(&linear, DType::Bf16, blocks);
        assert!((found / expected - 1.0).abs() < 1e-5, "{blocks} blocks: {found}");
    }
    assert_eq!(seconds(&linear, DType::F32, 4), 24.0, "not on tensor cores");
    assert_eq!(seconds(&Add.into(), DType::Bf16, 4), 3.0, "not a product");
    let of_experts = ExpertLinear { layout: WeightLayout::InOut, bias: false };
    assert_eq!(seconds(&of_experts.into(), DType::Bf16, 3), 6.0, "no library computes it");
}

/// A product's blocks are counted on a card only, and are those of its tiles of 128 x 128.
#[test]
fn blocks_of_a_product_are_those_of_its_tiles() {
    let [x, weight] = [&[4, 1024, 768][..], &[768, 3072]].map(|shape| TensorType::f32(shape).with_dtype(DType::Bf16));
    let linear = Op::from(Linear { layout: WeightLayout::InOut, bias: false });
    let types = [&x, &weight];
    let results = linear.infer(&types).expect("types of a linear layer");
    let blocks = |targets: Targets| Work::of(&linear, &Io::new(types, &results), &targets.device).blocks;
    assert_eq!([blocks(Targets::cuda((8, 9), 2)), blocks(Targets::cpu(2))], [32 * 24, 0]);
}

#[test]
fn a_processor_computes_as_fast_as_its_cores_and_copies_as_fast_as_four() {
    let [one, four, eight] = [1, 4, 8].map(Rates::guess);
    assert_eq!(four.flops_per_s, 4.0 * one.flops_per_s);
    assert_eq!(eight.flops_per_s, 8.0 * one.flops_per_s);
    assert_eq!((four.bytes_per_s, eight.bytes_per_s), (4.0 * one.bytes_per_s, 4.0 * one.bytes_per_s));
    // Where the instructions are missing, operands are converted; where they are there, they do twice as much.
    assert!((0.9..1.0).contains(&(eight.bf16_flops_per_s / eight.flops_per_s)), "{eight:?}");
    assert_eq!(eight.with_bf16_products(2.0).bf16_flops_per_s, 2.0 * eight.flops_per_s);
    assert!(one.bytes_per_s > 1e9 && one.flops_per_s > 1e10, "{one:?}");
}

fn request(model: &str, budget: Budget, levers: LeverRequest) -> Request {
    let model = ModelConfig::preset(model).expect("a preset");
    let has_decoder = model.decoder_start().is_some();
    Request {
        seq_len: 64,
        target_len: has_decoder.then_some(32),
        optimizer: Optimizer::default(),
        global_batch: 4,
        budget,
        levers,
        evaluates: true,
        sample_prefill: Some(8),
        ..Request::new(model, Targets::cpu(2), Machine::of_rates(Rates::guess(2)))
    }
}

fn roomy() -> Budget {
    Budget::apart(Bytes::gib(8), Bytes::gib(8))
}

fn plan_of(request: &Request) -> Plan {
    search(request).expect("a sensible request").expect("eight gibibytes are enough").plan
}

/// What lives while a step of a program runs: what stays, and what was touched before it or by it, and is by it or later.
fn living<'p>(plan: &'p Plan, program: &PlannedProgram, step: usize) -> Vec<(TensorId, &'p PlannedTensor)> {
    let touched =
        |steps: &[Step]| steps.iter().flat_map(|s| s.inputs.iter().chain(&s.outputs)).copied().collect::<BTreeSet<_>>();
    let (before, behind) = (touched(&program.steps[..=step]), touched(&program.steps[step..]));
    let before = before.into_iter().chain(program.ports.fed()).collect::<BTreeSet<_>>();
    let carries = touched(&program.steps).iter().any(|&id| plan[id].storage == Storage::Carried);
    let all = (0..).map(TensorId).zip(&plan.tensors).filter(|(_, tensor)| tensor.memory == MemoryId::DEVICE);
    let lives = |(id, tensor): &(TensorId, &PlannedTensor)| match tensor.storage {
        Storage::Persistent => true,
        Storage::Carried => carries,
        Storage::Transient => before.contains(id) && behind.contains(id),
    };
    all.filter(lives).collect()
}

/// Whether a name is one of those in which a number stands for each `*`.
fn is_of_blocks(pattern: &str, name: &str) -> bool {
    let mut left = name;
    for (index, part) in pattern.split('*').enumerate() {
        if index > 0 {
            left = left.trim_start_matches(|c: char| c.is_ascii_digit());
        }
        let Some(rest) = left.strip_prefix(part) else { return false };
        left = rest;
    }
    left.is_empty()
}

/// What is said to be alive at the peak is what lives then, all of it side by side but for results in the place of an
/// operand, and scratch, and nothing else.
#[test]
fn what_is_alive_at_the_peak_is_what_lives_then() {
    let offloads = LeverRequest { optimizer_offload: Some(0.5), ..LeverRequest::default() };
    let recomputes = LeverRequest { recompute: Some(Recompute::all(Level::Block)), ..LeverRequest::default() };
    for (model, levers) in [("nano", LeverRequest::default()), ("nano", offloads), ("t5-nano", recomputes)] {
        let plan = plan_of(&request(model, roomy(), levers));
        let moment = moment_of_peak(&plan, usize::MAX).expect("a plan of steps");
        let program = plan.programs.iter().find(|p| p.name == moment.program).expect("a program of this name");
        let (step, living) = (&program.steps[moment.step], living(&plan, program, moment.step));
        let touches = |id: &TensorId| step.inputs.contains(id) || step.outputs.contains(id);
        for (index, (a, tensor)) in living.iter().enumerate() {
            for (b, other) in living[..index].iter().filter(|(b, _)| !(touches(a) && touches(b))) {
                let apart = tensor.region().end() <= other.offset || other.region().end() <= tensor.offset;
                assert!(apart, "{model}: {a:?} {} and {b:?} {} overlap in one memory", tensor.name, other.name);
            }
        }
        let mut expected = living.iter().map(|(_, t)| (t.name.clone(), t.region().bytes)).collect::<Vec<_>>();
        expected.extend(step.scratch.map(|scratch| (format!("scratch of {}", step.op.name()), scratch.bytes)));
        assert!(moment.alive.is_sorted_by(|a, b| a.bytes >= b.bytes), "{model}: the largest come first");
        assert!(moment.alive.iter().any(|alive| alive.count > 1), "{model}: blocks are alike");
        for alive in &moment.alive {
            let is_one = |(name, bytes): &(String, u64)| {
                is_of_blocks(&alive.name, name) && *bytes * alive.count as u64 == alive.bytes
            };
            let before = expected.len();
            expected.retain(|one| !is_one(one));
            assert_eq!(before - expected.len(), alive.count, "{model}: {}", alive.name);
        }
        assert!(expected.is_empty(), "{model}: not told {expected:?}");
    }
}

/// The time that a change adds is that of one of its tokens compared with one of the run as it was asked for.
#[test]
fn a_change_is_priced_by_the_time_of_its_tokens() {
    let levers = LeverRequest { recompute: Some(Recompute::all(Level::None)), ..LeverRequest::default() };
    let asked = request("nano", roomy(), levers);
    let found = search(&asked).expect("a sensible request").expect("eight gibibytes are enough");
    let mut changes = 0;
    for part in [11, 14, 17] {
        let device = Bytes(found.plan.peak().0 * part / 20);
        let tight = Request { budget: Budget::apart(device, Bytes::ZERO), ..asked.clone() };
        let Err(misfit) = search(&tight).expect("a sensible request") else { continue };
        for near in &misfit.nearest {
            // A sequence of half the length has half of the tokens.
            let of_a_token = (1.0 + near.added_time) * found.step.0 / near.step.0;
            let is_known = [1.0, 2.0, 4.0].into_iter().any(|ratio: f64| (of_a_token / ratio - 1.0).abs() < 1e-9);
            assert!(is_known, "{near:?} and a step of {} s", found.step.0);
            changes += 1;
        }
    }
    assert!(changes > 0, "nothing helps in any of the budgets");
}
