//! Every op's kernels for cards, as compiled PTX on an interpreter that checks each access, against the op's reference:
//! on the examples, on random shapes and on those with edges, in every precision, in place and not, for both targets,
//! in several orders of warps and with approximate instructions blurred. Nothing but the op's operands and its scratch
//! may be touched.

#[path = "support/codes.rs"]
mod codes;
#[path = "support/parts.rs"]
mod parts;
#[path = "support/random.rs"]
mod random;
#[path = "support/routes.rs"]
mod routes;
#[path = "support/tables.rs"]
mod tables;
#[path = "support/tiles.rs"]
mod tiles;

use codes::{OfExperts, check_codes};
use parts::check_parts;
use plimsoll_exec::cases::{Case, Noise, PRECISIONS, in_half, in_precision};
use plimsoll_exec::cuda::{self, Operands, Scratch, device_scalars};
use plimsoll_exec::reference::Value;
use plimsoll_fake_cuda::ptx::run::{Accumulation, Order};
use plimsoll_fake_cuda::ptx::{Module, parse};
use plimsoll_fake_cuda::shadow::{Mode, Rights};
use plimsoll_fake_cuda::trace::Counters;
use plimsoll_fake_cuda::workbench::{ORDERS, Shape, Workbench};
use plimsoll_graph::ops::{
    Add, Attention, AttentionGrad, CachedAttention, Cast, ClampedSwiglu, ClampedSwigluGrad, ColumnScale,
    ColumnScaleGrad, Combine, CombineWeightGrad, Dispatch, Dropout, DropoutKey, Embedding, EmbeddingGrad, ExpertLinear,
    ExpertLinearInputGrad, ExpertLinearWeightGrad, Fp8Linear, GradNorm, HeadAdapterGrads, HeadLoss, HeadLossGrad,
    LayerNorm, LayerNormGrad, Linear, LinearInputGrad, LinearWeightGrad, LowRankNorm, MovingAverage, Nature,
    ParameterUpdate, Pool, PoolGrad, Pooling, Positions, PositionsGrad, PreferenceKind, PreferenceLoss,
    PreferenceLossGrad, RelativeBias, RmsNorm, RmsNormGrad, RopeScaling, Rotary, Route, RouteGrad, RouterLoss,
    StateFormat, TakeRow, Transfer, WeightFormat, WeightLayout,
};
use plimsoll_graph::optimizers::Rule;
use plimsoll_graph::{Access, DType, DeviceKind, Example, Fill, Op, Products, Scalars, Target, TensorType};
use random::random_examples;
use rayon::iter::{IntoParallelIterator, ParallelIterator};
use routes::check_routes;
use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::path::Path;
use std::sync::{Arc, LazyLock, Mutex};
use tables::check_tables;
use tiles::check_tiles;

/// Compute capabilities: one for each target of the committed PTX.
const CAPABILITIES: [(u8, u8); 2] = [(7, 5), (8, 0)];

/// The target with kernels for numbers of 8 bits, which has no others: those of 8.0 run there.
const WITH_FP8: (u8, u8) = (8, 9);

/// Modules by name and compute capability.
type Parsed = HashMap<(String, (u8, u8)), Arc<Module>>;

fn module(name: &str, capability: (u8, u8)) -> Arc<Module> {
    static PARSED: LazyLock<Mutex<Parsed>> = LazyLock::new(Mutex::default);
    let key = (name.to_owned(), capability);
    if let Some(module) = PARSED.lock().expect("no test panics in here").get(&key) {
        return Arc::clone(module);
    }
    assert!(cuda::ptx(name, capability).is_some(), "no PTX of {name} for {capability:?}");
    // The file, which may be newer than the PTX that was embedded at compile time.
    let target = if capability == WITH_FP8 && !name.starts_with("fp8") { (8, 0) } else { capability };
    let target = format!("kernels/ptx/sm_{}{}", target.0, target.1);
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join(target);
    let halves = name.trim_end_matches("_bf16").trim_end_matches("_f16");
    let text = std::fs::read_to_string(folder.join(format!("{halves}.ptx"))).expect("committed PTX");
    let text =
        if halves != name && name.ends_with("_f16") && capability >= (8, 0) { cuda::in_f16(&text) } else { text };
    let module = Arc::new(parse(&text).unwrap_or_else(|error| panic!("{name}: {error}")));
    PARSED.lock().expect("no test panics in here").insert(key, Arc::clone(&module));
    module
}

/// How a case is run.
#[derive(Debug, Clone, Copy)]
struct How {
    capability: (u8, u8),
    order: Order,
    blur: u64,
    /// A pair of the op's `reuse` that shares its memory.
    reused: Option<(usize, usize)>,
}

/// The outcome of a case on a card.
struct Ran {
    /// The results' bytes.
    results: Vec<Vec<u8>>,
    /// Counters of each launch, with its kernel's name.
    counters: Vec<(String, Counters)>,
    /// Bytes of operands that were read or written, each counted once per launch.
    operand_bytes: u64,
    /// The same of scratch.
    scratch_bytes: u64,
}

/// Runs a case with the kernels for cards.
trait OnCard {
    /// The results' bytes.
    fn on_card(&self, how: How) -> Vec<Vec<u8>> {
        self.run(how).results
    }

    /// The results with counters.
    fn run(&self, how: How) -> Ran;
}

impl OnCard for Case {
    fn run(&self, how: How) -> Ran {
        let (op, mut card) = (&self.example.op, Workbench::with(how.order, how.blur));
        if how.blur > 0 {
            // The rounding of sums in tensor cores is unspecified.
            card.settings.accumulation = Accumulation::Truncating;
        }
        let mut rights = Rights::none();
        let target = Target::Cuda { compute_capability: how.capability, products: Products::Kernels };
        let scratch_bytes = op.working_bytes(&self.io(), &target).0;
        let outputs = self.outputs.iter().enumerate().map(|(index, ty)| {
            let (address, mode) = match (op.access(index), how.reused) {
                (_, Some((from, to))) if to == index => (card.put(&self.input_bytes(from)), Mode::Update),
                (Access::ReadWrite, _) => (card.put(&self.state_bytes(index)), Mode::Update),
                (Access::Write, _) => (card.room(ty.bytes().0 as usize), Mode::Write),
            };
            rights.allow(address, ty.bytes().0, mode).expect("memory of its own");
            address
        });
        let outputs = outputs.collect::<Vec<_>>();
        let inputs = (0..self.inputs.len()).map(|index| match how.reused {
            Some((from, to)) if from == index => outputs[to],
            _ => {
                let bytes = self.input_bytes(index);
                let address = card.put(&bytes);
                rights.allow(address, bytes.len() as u64, Mode::Read).expect("memory of its own");
                address
            }
        });
        let inputs = inputs.collect::<Vec<_>>();
        let scratch = Scratch { address: card.room(scratch_bytes as usize), bytes: scratch_bytes };
        rights.allow(scratch.address, scratch.bytes, Mode::Scratch).expect("memory of its own");
        let scalars = card.put(&device_scalars(&self.example.scalars));
        rights.allow(scalars, 64, Mode::Read).expect("memory of its own");
        card.memory.rights = rights;
        let operands = Operands {
            inputs,
            outputs: outputs.clone(),
            scratch,
            scalars,
            io: self.io(),
            compute_capability: how.capability,
            tf32: self.tf32,
        };
        let (mut counters, mut touched_bytes, mut touched_scratch_bytes) = (Vec::new(), 0, 0);
        for launch in cuda::launches(op, &operands) {
            let module = module(launch.module, how.capability);
            let kernel = module.kernel(&launch.entry).unwrap_or_else(|| panic!("no kernel {}", launch.entry));
            let offsets = kernel.parameters.iter().map(|parameter| parameter.offset as usize).collect::<Vec<_>>();
            assert_eq!(launch.arguments.offsets(), offsets, "arguments of {}", launch.entry);
            assert_eq!(launch.arguments.bytes().len(), kernel.parameter_bytes as usize, "{}", launch.entry);
            let shape = Shape { grid: launch.grid, threads: launch.threads, shared_bytes: launch.shared_bytes };
            let outcome = card.start(&module, kernel, &shape, launch.arguments.bytes());
            let outcome = outcome.unwrap_or_else(|fault| panic!("{:?}\n{launch:?}\n{how:?}: {fault}", self.example));
            for (start, end, _written) in outcome.touched {
                touched_bytes += end - start;
                let (first, last) = (scratch.address, scratch.address + scratch_bytes);
                touched_scratch_bytes += end.min(last).saturating_sub(start.max(first));
            }
            counters.push((launch.entry.into_owned(), outcome.counters));
        }
        let results = outputs.iter().zip(&self.outputs);
        let results = results.map(|(&address, ty)| card.get(address, ty.bytes().0 as usize)).collect();
        let operand_bytes = touched_bytes - touched_scratch_bytes;
        Ran { results, counters, operand_bytes, scratch_bytes: touched_scratch_bytes }
    }
}

fn assert_right(case: &Case, found: &[Vec<u8>], expected: &[Vec<f64>], how: How) {
    assert_eq!(case.compare(DeviceKind::Cuda, found, expected).wrong, None, "{:?}\n{how:?}", case.example);
}

/// Compares with the reference on one of the targets; then requires the same bits in another order and in place, and
/// compares a blurred run on the other target. The seed selects targets and orders.
fn check(example: &Example, seed: u64) {
    let capabilities = if matches!(example.op, Op::Fp8Linear(_)) { [WITH_FP8; 2] } else { CAPABILITIES };
    check_on(capabilities, &Case::new(example, &mut Noise::new(seed)), seed);
}

/// The same for a filled case on these targets.
fn check_on(capabilities: [(u8, u8); 2], filled: &Case, seed: u64) {
    let (example, expected) = (&filled.example, filled.reference());
    let place = seed as usize;
    let (capability, order) = (capabilities[place % 2], ORDERS[place / 2 % ORDERS.len()]);
    let how = How { capability, order, blur: 0, reused: None };
    let found = filled.on_card(how);
    assert_right(filled, &found, &expected, how);
    let other = How { order: ORDERS[(place / 2 + 1) % ORDERS.len()], ..how };
    let reused = example.op.reuse().iter().filter(|pair| filled.outputs[pair.1] == example.inputs[pair.0].0);
    for pair in std::iter::once(None).chain(reused.map(Some)) {
        let again = How { reused: pair.copied(), ..other };
        assert!(found == filled.on_card(again), "{example:?}: other bits with {again:?}");
    }
    let blurred = How { capability: capabilities[(place + 1) % 2], blur: seed + 1, ..other };
    assert_right(filled, &filled.on_card(blurred), &expected, blurred);
}

/// A case in each precision that its op takes.
fn in_all_precisions(example: &Example) -> Vec<Example> {
    PRECISIONS.into_iter().filter_map(|dtype| in_precision(example, dtype)).collect()
}

fn check_all(examples: &[Example]) {
    let cases = examples.iter().flat_map(in_all_precisions).enumerate().collect::<Vec<_>>();
    cases.into_par_iter().for_each(|(seed, example)| check(&example, seed as u64));
}

#[test]
fn every_kernel_for_cards_equals_its_reference_on_the_examples() {
    let examples = Op::all_examples();
    let covered = examples.iter().map(|example| example.op.variant()).collect::<HashSet<_>>();
    assert_eq!(covered, Op::VARIANTS.iter().copied().collect(), "an op has no examples");
    check_all(&examples);
}

/// Every op with several code paths, on random shapes.
#[test]
fn kernels_for_cards_equal_their_references_on_random_shapes() {
    on_random_shapes(0..1, 20);
}

#[test]
#[ignore = "takes an hour: `cargo test --release -p plimsoll-exec --test cuda_kernels -- --ignored`"]
fn kernels_for_cards_equal_their_references_on_many_random_shapes() {
    on_random_shapes(1..100, 130);
}

/// Random examples with samples of at most `most_tokens` tokens.
fn on_random_shapes(seeds: Range<u64>, most_tokens: usize) {
    seeds.for_each(|seed| check_all(&random_examples(&mut Noise::new(2_000 + seed), most_tokens)));
}

fn case(op: impl Into<Op>, shapes: &[&[usize]]) -> Example {
    let inputs = shapes.iter().map(|shape| (TensorType::f32(shape), Fill::Uniform)).collect();
    let scalars = Scalars { seed: 5, loss_scale: 0.5, gradient_scale: 4.0, first_sample: 3, ..Scalars::default() };
    Example { op: op.into(), inputs, state: Fill::Uniform, scalars }
}

/// Fills operand `index` with integers.
fn integers(mut example: Example, index: usize, fill: Fill) -> Example {
    example.inputs[index] = (example.inputs[index].0.with_dtype(DType::I32), fill);
    example
}

#[test]
fn weights_with_their_remainders_are_kept_to_the_bit_on_cards() {
    for capability in CAPABILITIES {
        check_parts(|case| case.on_card(How { capability, order: Order::Forward, blur: 0, reused: None }));
    }
}

#[test]
fn gradients_of_embeddings_are_those_of_the_processor_to_the_bit_on_cards() {
    for (capability, order) in CAPABILITIES.into_iter().zip(ORDERS) {
        check_tables(|case| case.on_card(How { capability, order, blur: 0, reused: None }));
    }
}

#[test]
fn products_with_codes_are_those_with_decoded_weights_to_the_bit_on_cards() {
    for (capability, order) in CAPABILITIES.into_iter().zip(ORDERS) {
        // More experts than a card decodes at a time.
        let of_experts = OfExperts { experts: 11, extents: [[20, 64, 40], [21, 34, 22]], even: false };
        check_codes(&of_experts, |case| case.on_card(How { capability, order, blur: 0, reused: None }));
    }
}

#[test]
fn tiles_of_rows_do_not_change_the_rows_on_cards() {
    for (capability, order) in CAPABILITIES.into_iter().zip(ORDERS) {
        check_tiles(true, |case| case.on_card(How { capability, order, blur: 0, reused: None }));
    }
}

#[test]
fn routers_choose_lower_indices_among_equal_logits_and_nan_first_on_cards() {
    for (capability, order) in CAPABILITIES.into_iter().zip(ORDERS) {
        check_routes(|case| case.on_card(How { capability, order, blur: 0, reused: None }));
    }
}

/// A moving average of weights in bf16 with their remainders.
fn average_of_remainders(shape: &[usize]) -> Example {
    let mut example = case(MovingAverage { decay: 0.9 }, &[shape, &[1], shape]);
    for (index, dtype) in [(0, DType::Bf16), (2, DType::I16)] {
        example.inputs[index].0.dtype = dtype;
    }
    example
}

/// Rows that whole vectors fit in, and tiles of products with an edge on each side.
#[test]
fn vectors_and_edges_of_tiles_are_correct() {
    let x: &[usize] = &[1, 3, 328];
    let rows: &[usize] = &[1, 3];
    let norm = LayerNormGrad { weight: true, bias: true, residual: true, accumulate: true };
    let mut examples = vec![
        case(Add, &[x, x]),
        case(LayerNorm { eps: 1e-5, bias: true }, &[x, &[328], &[328]]),
        case(norm, &[x, x, &[328], rows, rows, x]),
        case(RmsNorm { eps: 1e-5, unit_offset: false }, &[x, &[328]]),
        rms_norm_grad(x, 328, true),
        case(ColumnScale { bias: true }, &[x, &[328], &[328], &[328]]),
        column_scale_grad(x),
        integers(case(Embedding, &[&[1, 5], &[9, 24]]), 0, Fill::Index(9)),
        integers(
            case(EmbeddingGrad { vocab_size: 9, accumulate: false }, &[&[2, 150, 24], &[2, 150]]),
            1,
            Fill::Index(9),
        ),
    ];
    for layout in [WeightLayout::InOut, WeightLayout::OutIn] {
        let weight = |from, to| if layout == WeightLayout::InOut { [from, to] } else { [to, from] };
        for [m, from, to] in [[65, 40, 72], [70, 67, 65]] {
            examples.push(case(Linear { layout, bias: true }, &[&[1, m, from], &weight(from, to), &[to]]));
            examples.push(case(LinearInputGrad { layout }, &[&[1, m, to], &weight(from, to)]));
            let op = LinearWeightGrad { layout, weight: true, bias: true, accumulate: m == 65 };
            examples.push(case(op, &[&[1, m, from], &[1, m, to]]));
        }
    }
    let in_fp8 = |example: &Example| Some(Example { op: example.op.in_fp8(&|_| true, &|_| true)?, ..example.clone() });
    examples.extend(examples.iter().filter_map(in_fp8).collect::<Vec<_>>());
    check_all(&examples);
}

/// Larger tiles, some of them partly empty; terms in several parts; and zeros, which have any scale.
#[test]
fn products_in_8_bits_are_right_in_larger_tiles_and_in_parts() {
    let linear = Fp8Linear::Forward(Linear { layout: WeightLayout::OutIn, bias: true });
    let large = case(linear, &[&[1, 1030, 48], &[1290, 48], &[1290]]);
    let gradient = |layout| LinearWeightGrad { layout, weight: true, bias: true, accumulate: true };
    let layouts = [WeightLayout::InOut, WeightLayout::OutIn];
    let in_parts =
        layouts.map(|layout| case(Fp8Linear::WeightGrad(gradient(layout)), &[&[1, 4100, 16], &[1, 4100, 33]]));
    for (seed, example) in [&large].into_iter().chain(&in_parts).enumerate() {
        let example = in_half(example, DType::Bf16).expect("takes half precision");
        let mut filled = Case::new(&example, &mut Noise::new(seed as u64));
        check_on([WITH_FP8; 2], &filled, seed as u64);
        let Value::Float(first) = &mut filled.inputs[0] else { panic!("floats") };
        first.fill(0.0);
        check_on([WITH_FP8; 2], &filled, seed as u64);
    }
    let how = How { capability: WITH_FP8, order: Order::Forward, blur: 0, reused: None };
    let kernels = |example: &Example| {
        let example = in_half(example, DType::Bf16).expect("takes half precision");
        let ran = Case::new(&example, &mut Noise::new(1)).run(how);
        ran.counters.into_iter().map(|(kernel, _)| kernel).collect::<Vec<_>>()
    };
    assert!(kernels(&large).contains(&"product_nt_e4m3_e4m3_128".to_owned()), "{:?}", kernels(&large));
    for (example, formats) in in_parts.iter().zip(["e4m3_e5m2", "e5m2_e4m3"]) {
        let kernels = kernels(example);
        assert!(kernels.contains(&format!("product_nt_{formats}_64")), "{kernels:?}");
        assert!(kernels.contains(&"product_join".to_owned()), "{kernels:?}");
    }
}

/// A number that isn't finite makes every result of a product NaN, so that the step is noticed as one that failed.
#[test]
fn products_in_8_bits_of_a_factor_that_is_not_finite_are_nan() {
    let linear = Fp8Linear::Forward(Linear { layout: WeightLayout::OutIn, bias: false });
    let example = in_half(&case(linear, &[&[1, 3, 33], &[16, 33]]), DType::Bf16).expect("takes half precision");
    for value in [f32::INFINITY, f32::NEG_INFINITY, f32::NAN] {
        let mut filled = Case::new(&example, &mut Noise::new(1));
        let Value::Float(weight) = &mut filled.inputs[1] else { panic!("floats") };
        weight[70] = value;
        let how = How { capability: WITH_FP8, order: Order::Forward, blur: 0, reused: None };
        let found = filled.on_card(how);
        assert_right(&filled, &found, &filled.reference(), how);
        assert!(filled.reference()[0].iter().all(|value| value.is_nan()));
    }
}

/// Kernels that pass over elements access few sectors. They move hardly more bytes of operands than their ops declare,
/// and of scratch no more than one write and one read, or three of either for a router, which turns counts into places, and for the
/// norm of gradients, which sums each gradient's sums; and they request few bytes repeatedly, cached or not.
#[test]
fn streaming_kernels_access_few_sectors_and_move_the_declared_bytes() {
    let (x, flat): (&[usize], &[usize]) = (&[1, 64, 512], &[32768]);
    let (rows, choices): (&[usize], &[usize]) = (&[1, 64], &[1, 64, 4]);
    let expert_bias =
        ExpertLinearWeightGrad { layout: WeightLayout::OutIn, weight: false, bias: true, accumulate: true };
    let swiglu = ClampedSwigluGrad { forward: ClampedSwiglu { alpha: 1.702, limit: 0.7 } };
    let balance = RouterLoss { coefficient: 0.1, experts_per_token: 2, accumulate: true };
    let preferred = PreferenceLoss { kind: PreferenceKind::Sigmoid, beta: 0.1, smoothing: 0.0 };
    let preferred_grad = PreferenceLossGrad { forward: preferred, accumulate_loss: true };
    let single = PreferenceLoss {
        kind: PreferenceKind::Single { liked: 1.0, disliked: 2.0, has_reference_point: true },
        ..preferred
    };
    let odds = PreferenceLoss { kind: PreferenceKind::Orpo, ..preferred };
    let mut streaming = vec![
        case(swiglu, &[&[1, 64, 256], x]),
        case(Dropout { key: DropoutKey { rate: 0.1, site: 11 } }, &[x]),
        case(Cast { to: DType::Bf16 }, &[x]),
        case(Transfer, &[x]),
        case(TakeRow, &[&[64, 4, 512]]),
        case(Positions { offset: false, same: false }, &[x, &[64, 512]]),
        case(PositionsGrad { positions: 64, same: false, accumulate: false }, &[x]),
        case(rotary(), &[x]),
        case(Rotary { rotated: 32, ..rotary() }, &[x]),
        case(LayerNorm { eps: 1e-5, bias: true }, &[x, &[512], &[512]]),
        case(RmsNorm { eps: 1e-5, unit_offset: false }, &[x, &[512]]),
        case(RmsNorm { eps: 1e-5, unit_offset: true }, &[x, &[128]]),
        layer_norm_grad(x, true),
        layer_norm_grad(x, false),
        rms_norm_grad(x, 512, true),
        rms_norm_grad(x, 512, false),
        rms_norm_grad(x, 128, true),
        rms_norm_grad(x, 64, false),
        bias_grad(x),
        case(ColumnScale { bias: true }, &[x, &[512], &[512], &[512]]),
        column_scale_grad(x),
        case(LowRankNorm { scale: 0.01 }, &[&[512], &[64, 512], &[512, 64]]),
        integers(case(expert_bias, &[x, x, &[9]]), 2, Fill::Bounds(64)),
        integers(case(Embedding, &[rows, &[64, 512]]), 0, Fill::Index(64)),
        case(Route { experts_per_token: 4, normalized: true, sums: true }, &[x]),
        integers(
            case(RouteGrad { normalized: false, sums: true }, &[x, choices, choices, &[512]]),
            1,
            Fill::Distinct(512),
        ),
        integers(case(Dispatch { weighted: true }, &[x, choices, choices]), 1, Fill::Permutation),
        integers(case(Combine { weighted: true }, &[&[1, 256, 512], choices, choices]), 1, Fill::Permutation),
        integers(case(CombineWeightGrad, &[x, &[1, 256, 512], choices]), 2, Fill::Permutation),
        integers(case(Pool { pooling: Pooling::Mean }, &[&[4, 16, 512], &[4, 16]]), 1, Fill::Runs(3)),
        integers(case(PoolGrad { pooling: Pooling::Mean }, &[&[4, 512], &[4, 16], &[4, 16, 512]]), 1, Fill::Runs(3)),
        integers(case(balance, &[&[4096], &[4097]]), 1, Fill::Bounds(128)),
        integers(case(preferred, &[&[64], &[64], &[64, 512]]), 2, Fill::Target(3)),
        integers(case(preferred_grad, &[&[64], &[64], &[64, 512]]), 2, Fill::Target(3)),
        integers(case(single, &[&[64], &[64], &[64, 512]]), 2, Fill::Grouped(3)),
        integers(case(odds, &[&[64, 2], &[64, 512]]), 1, Fill::Grouped(3)),
        case(GradNorm, &[flat]),
        case(MovingAverage { decay: 0.9 }, &[flat, &[1]]),
        average_of_remainders(flat),
    ];
    for accumulate in [true, false] {
        let op = EmbeddingGrad { vocab_size: 64, accumulate };
        streaming.push(integers(case(op, &[x, rows]), 1, Fill::Index(64)));
    }
    for (weight, state) in [
        (WeightFormat::F32, StateFormat::F32),
        (WeightFormat::F32, StateFormat::Blockwise8),
        (WeightFormat::Bf16, StateFormat::Bf16),
        (WeightFormat::Bf16, StateFormat::Blockwise8),
        (WeightFormat::Bf16AndRemainder, StateFormat::F32),
        (WeightFormat::Bf16AndRemainder, StateFormat::Blockwise8),
    ] {
        let update = |rule| ParameterUpdate { rule, weight_decay: 0.1, rate: 1.0, weight, state, site: 3 };
        streaming.extend(Rule::all().into_iter().map(|rule| case(update(rule), &[flat, &[1]])));
    }
    // The first has no kernel, the second one thread.
    let mut covered = HashSet::from(["AwaitTransfer", "GradClip"]);
    covered.extend(streaming.iter().map(|example| example.op.variant()));
    let others = Op::all_examples().into_iter().filter(|example| example.op.nature() == Nature::Streaming);
    for example in others.filter(|example| !covered.contains(example.op.variant())) {
        let enlarged = elementwise(&example, x);
        streaming.push(enlarged.unwrap_or_else(|| panic!("no case of {:?}, which streams, is above", example.op)));
    }
    let cases = streaming.iter().flat_map(in_all_precisions).collect::<Vec<_>>();
    cases.into_par_iter().for_each(|example| {
        let traffic = Traffic::of(&example);
        let Traffic { taken, fewest, conflicts, operands, scratch, declared_scratch, expected } = traffic;
        assert!(10 * taken <= 11 * fewest, "{example:?}: {traffic:?}: sectors");
        assert!(10 * operands <= 11 * expected, "{example:?}: {traffic:?}: bytes of operands");
        let passes = if matches!(example.op, Op::Route(_) | Op::GradNorm(_)) { 3 } else { 2 };
        assert!(scratch <= passes * declared_scratch, "{example:?}: {traffic:?}: bytes of scratch");
        if sums_parts(&example) {
            assert_eq!(conflicts, 0, "{example:?}: {traffic:?}: bank conflicts");
        } else {
            assert!(traffic.ratio() <= 1.1, "{example:?}: {traffic:?}: bytes");
        }
        let (requested, most) = (traffic.requested(), most_requested(&example));
        assert!(requested <= most, "{example:?}: {traffic:?}: requested {requested} times, not {most}");
    });
}

/// An example of an op all of whose operands have one shape, with operands of another shape; `None` if they have
/// several.
fn elementwise(example: &Example, shape: &[usize]) -> Option<Example> {
    let (first, _) = example.inputs.first()?;
    let are_alike = example.inputs.iter().all(|(ty, _)| ty == first);
    are_alike.then(|| case(example.op.clone(), &vec![shape; example.inputs.len()]))
}

/// Whether scratch, for parts of sums or a table, is a large part of the traffic if there are few rows.
fn sums_parts(example: &Example) -> bool {
    use Op::{ColumnScaleGrad, LayerNormGrad, LinearWeightGrad, RmsNormGrad, Rotary, Route, RouterLoss};
    matches!(
        example.op,
        ColumnScaleGrad(_)
            | LayerNormGrad(_)
            | LinearWeightGrad(_)
            | RmsNormGrad(_)
            | Rotary(_)
            | Route(_)
            | RouterLoss(_)
    )
}

/// How many times requests may access each moved byte, ignoring caches, with 64 rows of 512 channels. A kernel that
/// reads an operand one extra time exceeds it.
fn most_requested(example: &Example) -> f64 {
    match example.op {
        // A row three times, from the first-level cache: sum, squares and result. Parameters for every row.
        Op::LayerNorm(_) => 3.0,
        // A row twice.
        Op::RmsNorm(_) => 2.0,
        // Magnitudes and norms for every part, which is one row here.
        Op::ColumnScaleGrad(_) => 1.65,
        // The weight for every part, statistics for every warp.
        Op::LayerNormGrad(_) => 1.22,
        // The weight for each of these few short rows.
        Op::RmsNormGrad(_) if example.inputs[2].0.columns() < 512 => 1.4,
        Op::RmsNormGrad(_) => 1.17,
        // Rows that were zeroed again to add to them, and all tokens for every eight rows of the table.
        Op::EmbeddingGrad(_) => 1.42,
        // A token's logits for each of four choices, for the total and for the sums; all choices for every expert.
        Op::Route(_) => 5.2,
        // A token's logits and the gradient of the sums twice, its choices for every 32 experts.
        Op::RouteGrad(_) => 4.6,
        // A sample's gradient and segments for each of its tokens.
        Op::PoolGrad(_) => 3.3,
        // A sample's segments for each of its columns.
        Op::Pool(_) => 1.5,
        // A token for each of its four rows.
        Op::CombineWeightGrad(_) => 1.65,
        // Bounds for every warp, with eight rows for an expert.
        Op::ExpertLinearWeightGrad(_) => 1.7,
        // Bounds as first and as last rows.
        Op::RouterLoss(_) => 1.3,
        // Seed and step for every warp.
        Op::Dropout(_) | Op::UniformNoise(_) => 1.26,
        // Tokens, factors and angles for every warp.
        _ => 1.13,
    }
}

/// With as many rows as in training, the traffic including parts of sums and tables is within 1.1 of what the op
/// declares. Parts are as wide as rows, so only the number of rows matters: of a norm's gradient in half precision,
/// without a residual, 512 parts of two sums are written and read, 8,192 bytes for each channel; operands are 3
/// half-precision numbers for each channel of each row. With 1,024 rows that is 2.33 times the operands, with 4,096
/// rows 1.33. Fewer parts would be fewer blocks for the multiprocessors. The table of rotary embeddings, of a head's
/// size, is small compared to many heads.
#[test]
fn parts_of_sums_and_tables_are_small_with_many_rows() {
    let mut cases = Vec::new();
    for (dtype, wider) in [(DType::F32, 1), (DType::Bf16, 2)] {
        let rows = |count: usize| [1, wider * count, 64];
        for residual in [true, false] {
            cases.extend([
                (layer_norm_grad(&rows(8192), residual), dtype),
                (rms_norm_grad(&rows(4096), 64, residual), dtype),
            ]);
        }
        cases.extend([
            (column_scale_grad(&rows(4096)), dtype),
            (bias_grad(&rows(4096)), dtype),
            (case(rotary(), &[&[1, 128, 2048]]), dtype),
        ]);
    }
    cases.into_par_iter().for_each(|(example, dtype)| {
        assert!(sums_parts(&example));
        let example = in_precision(&example, dtype).expect("in every precision");
        let traffic = Traffic::of(&example);
        assert!(traffic.ratio() <= 1.1, "{example:?}: {traffic:?}");
    });
}

/// The traffic of a case's launches, in bytes except for sectors and conflicts.
#[derive(Debug)]
struct Traffic {
    /// Sectors that requests accessed.
    taken: u64,
    /// The least possible number of sectors.
    fewest: u64,
    /// Wavefronts of shared memory beyond the fewest.
    conflicts: u64,
    /// Operands, each byte once per launch and direction.
    operands: u64,
    /// Scratch, counted in the same way.
    scratch: u64,
    /// Scratch that the op declares.
    declared_scratch: u64,
    /// The bytes that the op declares.
    expected: u64,
}

impl Traffic {
    fn of(example: &Example) -> Self {
        let mut case = Case::new(example, &mut Noise::new(7));
        for (value, (_, fill)) in case.inputs.iter_mut().zip(&example.inputs) {
            // Each row of a table once, as ops assume.
            if let (Value::Int(indices), Fill::Index(rows)) = (value, fill) {
                indices.iter_mut().zip(0..).for_each(|(index, place)| *index = 37 * place % rows);
            }
        }
        let how = How { capability: (8, 0), order: Order::Forward, blur: 0, reused: None };
        let ran = case.run(how);
        let waves = ran.counters.iter().map(|(_, counters)| counters.total(true));
        let sectors = ran.counters.iter().map(|(_, counters)| counters.total(false));
        let (taken, fewest) = sectors.fold((0, 0), |sum, sectors| (sum.0 + sectors.0, sum.1 + sectors.1));
        let target = Target::Cuda { compute_capability: how.capability, products: Products::Kernels };
        Self {
            taken,
            fewest,
            conflicts: waves.map(|(taken, fewest)| taken - fewest).sum(),
            operands: ran.operand_bytes,
            scratch: ran.scratch_bytes,
            declared_scratch: example.op.working_bytes(&case.io(), &target).0,
            expected: example.op.bytes_moved(&case.io()).0,
        }
    }

    /// Bytes requested per byte moved.
    fn requested(&self) -> f64 {
        (32 * self.taken) as f64 / (self.operands + self.scratch) as f64
    }

    /// Bytes moved per declared byte.
    fn ratio(&self) -> f64 {
        (self.operands + self.scratch) as f64 / self.expected as f64
    }
}

fn rotary() -> Rotary {
    Rotary { head_size: 64, rotated: 64, base: 1e4, scaling: RopeScaling::None, inverse: false, offset: false }
}

fn layer_norm_grad(x: &[usize], residual: bool) -> Example {
    let (rows, columns) = (&x[..2], &x[2..]);
    let op = LayerNormGrad { weight: true, bias: true, residual, accumulate: true };
    case(op, &[x, x, columns, rows, rows, x][..if residual { 6 } else { 5 }])
}

fn rms_norm_grad(x: &[usize], of_group: usize, residual: bool) -> Example {
    let op = RmsNormGrad { unit_offset: false, weight: true, residual, accumulate: false };
    let statistics = [x[0], x[1], x[2] / of_group];
    case(op, &[x, x, &[of_group], &statistics, x][..if residual { 5 } else { 4 }])
}

fn column_scale_grad(x: &[usize]) -> Example {
    let columns = &x[2..];
    case(ColumnScaleGrad { magnitude: true, accumulate: true }, &[x, x, columns, columns])
}

/// The gradient of a linear layer whose weight is not trained.
fn bias_grad(x: &[usize]) -> Example {
    let op = LinearWeightGrad { layout: WeightLayout::OutIn, weight: false, bias: true, accumulate: true };
    case(op, &[x, x])
}

/// In single precision, 195 tiles of 128, which are used from 192 tiles on; some of them are partly empty.
#[test]
fn products_of_many_tiles_in_single_precision_are_right() {
    let linear = Linear { layout: WeightLayout::OutIn, bias: true };
    check(&case(linear, &[&[1, 1540, 8], &[1860, 8], &[1860]]), 1);
}

/// Enough tiles that the larger ones are used, some of them partly empty.
#[test]
fn products_of_many_tiles_are_right() {
    let (m, from, to) = (1030, 40, 1290);
    let half = DType::F16;
    let cases = [WeightLayout::InOut, WeightLayout::OutIn].map(|layout| {
        let weight = if layout == WeightLayout::InOut { [from, to] } else { [to, from] };
        case(Linear { layout, bias: true }, &[&[1, m, from], &weight, &[to]])
    });
    let gradient = LinearWeightGrad { layout: WeightLayout::InOut, weight: true, bias: false, accumulate: true };
    let gradient = case(gradient, &[&[1, from, m], &[1, from, to]]);
    let examples = cases.iter().chain([&gradient]).map(|case| in_half(case, half).expect("takes half precision"));
    for (seed, example) in examples.enumerate() {
        check(&example, 2 * seed as u64);
    }
}

/// Enough tiles that the larger ones are used, and experts with several, partly empty tiles, with one row and without
/// rows. Larger tiles and another routing give a row the same bits.
#[test]
fn products_of_experts_are_right_for_any_routing() {
    let (from, to, rows) = (24, 4000, 260);
    let all = [0, 130, 130, 131, 260];
    let how = How { capability: (8, 0), order: Order::Forward, blur: 0, reused: None };
    for (seed, layout) in [(0, WeightLayout::InOut), (2, WeightLayout::OutIn)] {
        let weight = if layout == WeightLayout::InOut { [4, from, to] } else { [4, to, from] };
        let linear = case(ExpertLinear { layout, bias: true }, &[&[1, rows, from], &weight, &[5], &[4, to]]);
        let example =
            in_half(&integers(linear, 2, Fill::Bounds(rows as i32)), DType::F16).expect("takes half precision");
        let mut filled = Case::new(&example, &mut Noise::new(seed));
        filled.inputs[2] = Value::Int(all.to_vec());
        let whole = filled.run(how);
        assert_right(&filled, &whole.results, &filled.reference(), how);
        assert!(whole.counters[0].0.ends_with("_128"), "{}", whole.counters[0].0);
        // The rows of the last expert alone, with the smaller tiles.
        let mut alone = filled.clone();
        let last = 131;
        alone.example.inputs[0].0.shape[1] = rows - last;
        alone.outputs[0].shape[1] = rows - last;
        let Value::Float(x) = &mut alone.inputs[0] else { panic!("floats") };
        x.drain(..last * from);
        alone.inputs[2] = Value::Int(vec![0, 0, 0, 0, (rows - last) as i32]);
        alone.state[0].drain(..last * to);
        assert!(alone.on_card(how)[0] == whole.results[0][2 * last * to..], "other bits in another routing");
    }
    let op = ExpertLinearWeightGrad { layout: WeightLayout::InOut, weight: true, bias: true, accumulate: false };
    let gradient = case(op, &[&[1, 40, 392], &[1, 40, 1032], &[4]]);
    let gradient = in_half(&integers(gradient, 2, Fill::Bounds(40)), DType::Bf16).expect("takes half precision");
    let mut filled = Case::new(&gradient, &mut Noise::new(5));
    filled.inputs[2] = Value::Int(vec![0, 33, 33, 40]);
    let found = filled.run(how);
    assert!(found.counters[0].0.ends_with("_128"), "{}", found.counters[0].0);
    assert_right(&filled, &found.results, &filled.reference(), how);
}

/// Linear layers and output heads in TF32, in each layout, with edges of tiles and with tiles of both sizes.
#[test]
fn products_in_tf32_are_right() {
    let mut examples = Op::all_examples();
    examples.retain(|example| example.op.nature() == Nature::Products && !matches!(example.op, Op::Fp8Linear(_)));
    for layout in [WeightLayout::InOut, WeightLayout::OutIn] {
        let weight = |from, to| if layout == WeightLayout::InOut { [from, to] } else { [to, from] };
        for [m, from, to] in [[65, 40, 72], [70, 67, 65]] {
            examples.push(case(Linear { layout, bias: true }, &[&[1, m, from], &weight(from, to), &[to]]));
            examples.push(case(LinearInputGrad { layout }, &[&[1, m, to], &weight(from, to)]));
            let op = LinearWeightGrad { layout, weight: true, bias: true, accumulate: m == 65 };
            examples.push(case(op, &[&[1, m, from], &[1, m, to]]));
        }
        let experts = [3, weight(40, 72)[0], weight(40, 72)[1]];
        let op = ExpertLinear { layout, bias: false };
        examples.push(integers(case(op, &[&[1, 90, 40], &experts, &[4]]), 2, Fill::Bounds(90)));
        let op = ExpertLinearInputGrad { layout };
        examples.push(integers(case(op, &[&[1, 90, 72], &experts, &[4]]), 2, Fill::Bounds(90)));
    }
    examples.push(case(Linear { layout: WeightLayout::OutIn, bias: true }, &[&[1, 1030, 12], &[1290, 12], &[1290]]));
    let cases = examples.into_iter().enumerate().collect::<Vec<_>>();
    cases.into_par_iter().for_each(|(seed, example)| {
        let case = Case::new(&example, &mut Noise::new(seed as u64)).in_tf32();
        check_on([(8, 0); 2], &case, seed as u64);
        let how = How { capability: (8, 0), order: Order::Forward, blur: 0, reused: None };
        let is_product =
            |kernel: &str| kernel.starts_with("product_") && kernel != "product_join" || kernel.starts_with("experts_");
        let products = case.run(how).counters.into_iter().filter(|(kernel, _)| is_product(kernel));
        for (kernel, counters) in products {
            assert!(kernel.contains("_tf32_") && counters.matrix_flops > 0, "{kernel}");
        }
    });
}

/// Half precision, and cards without TF32, use the same kernels as before.
#[test]
fn tf32_is_for_single_precision_on_cards_that_have_it() {
    let linear = case(Linear { layout: WeightLayout::InOut, bias: false }, &[&[1, 8, 8], &[8, 8]]);
    let kernel = |example: &Example, capability, tf32| {
        let mut case = Case::new(example, &mut Noise::new(1));
        case.tf32 = tf32;
        let how = How { capability, order: Order::Forward, blur: 0, reused: None };
        case.run(how).counters.remove(0).0
    };
    let half = in_half(&linear, DType::Bf16).expect("takes half precision");
    for (example, capability, tf32, expected) in [
        (&linear, (8, 0), true, "product_nn_tf32_64"),
        (&linear, (8, 0), false, "product_nn_64"),
        (&linear, (7, 5), true, "product_nn_64"),
        (&half, (8, 0), true, "product_nn_bf16_64"),
    ] {
        assert_eq!(kernel(example, capability, tf32), expected, "{capability:?} {tf32}");
    }
}

/// More rows than parts of sums, rows too long for shared memory, and more tokens than a block processes together.
#[test]
fn long_sums_are_right() {
    let rows: &[usize] = &[1, 300];
    let x: &[usize] = &[1, 300, 4];
    let wide: &[usize] = &[1, 2, 6000];
    let norm = LayerNormGrad { weight: true, bias: true, residual: false, accumulate: false };
    let two: &[usize] = &[1, 2];
    check_all(&[
        case(norm, &[x, x, &[4], rows, rows]),
        case(norm, &[wide, wide, &[6000], two, two]),
        integers(
            case(EmbeddingGrad { vocab_size: 20, accumulate: true }, &[&[3, 200, 5], &[3, 200]]),
            1,
            Fill::Index(20),
        ),
    ]);
}

/// Several tiles of queries and keys, with all of attention's options.
#[test]
fn attention_over_several_tiles_is_right() {
    let key = Some(DropoutKey { rate: 0.3, site: 9 });
    let bias = RelativeBias { buckets: 16, max_distance: 40, bidirectional: true };
    let plain = attention(1, 1, true);
    let cases = [
        (plain, [1, 70, 70, 8]),
        (Attention { causal: false, bias: Some(bias), dropout: key, segmented: true, ..plain }, [1, 40, 75, 5]),
        (Attention { heads: 2, dropout: key, ..plain }, [1, 65, 65, 16]),
        (Attention { causal: false, ..plain }, [1, 3, 33, 72]),
        (Attention { segmented: true, ..plain }, [1, 97, 97, 33]),
        (Attention { window: Some(20), ..plain }, [1, 100, 100, 8]),
        (Attention { window: Some(33), segmented: true, dropout: key, ..plain }, [1, 150, 150, 8]),
        (Attention { window: Some(1), heads: 2, ..plain }, [1, 66, 66, 8]),
        (Attention { causal: false, window: Some(20), segmented: true, ..plain }, [1, 100, 100, 8]),
        (Attention { cap: Some(0.6), scale: 1.5, dropout: key, ..plain }, [1, 70, 70, 8]),
        (Attention { cap: Some(2.0), has_sinks: true, window: Some(33), segmented: true, ..plain }, [1, 70, 70, 136]),
        (Attention { has_sinks: true, heads: 4, kv_heads: 2, dropout: key, ..plain }, [2, 40, 40, 8]),
    ];
    let mut examples = cases.into_iter().flat_map(both_ways).collect::<Vec<_>>();
    let cached = cached();
    let mut fed = case(cached, &[&[1, 2, 144], &[1, 2, 72], &[1, 2, 72]]);
    fed.scalars.position = 37;
    let windows = [1, 6, 37]
        .map(|window| Example { op: CachedAttention { window: Some(window), ..cached }.into(), ..fed.clone() });
    let capped = Example { op: CachedAttention { cap: Some(0.5), scale: 0.6, ..cached }.into(), ..fed.clone() };
    let mut with_sinks = Example { op: CachedAttention { has_sinks: true, ..cached }.into(), ..fed.clone() };
    with_sinks.inputs.push((TensorType::f32(&[2]), Fill::Uniform));
    examples.push(fed);
    examples.extend(windows);
    examples.extend([capped, with_sinks]);
    check_all(&examples);
}

/// A cached attention without options.
fn cached() -> CachedAttention {
    CachedAttention {
        heads: 2,
        kv_heads: 1,
        packed: false,
        window: None,
        scale: 0.2,
        cap: None,
        bias: None,
        has_sinks: false,
        capacity: 40,
    }
}

/// An attention with this many heads and no other options.
fn attention(heads: usize, kv_heads: usize, causal: bool) -> Attention {
    Attention {
        heads,
        kv_heads,
        packed: false,
        causal,
        window: None,
        scale: 0.3,
        cap: None,
        bias: None,
        has_sinks: false,
        segmented: false,
        dropout: None,
        rows: 64,
    }
}

/// An attention and its gradient on operands of these extents: B, T, S, D.
fn both_ways((forward, extents): (Attention, [usize; 4])) -> [Example; 2] {
    let grad = AttentionGrad::of_all(forward);
    if !forward.packed {
        return [forward.example(extents), grad.example(extents)];
    }
    let [b, t, _, d] = extents;
    let (x, y, lse): (&[usize], &[usize], &[usize]) =
        (&[b, t, 3 * forward.heads * d], &[b, t, forward.heads * d], &[b, forward.heads, t]);
    [case(forward, &[x]), case(grad, &[y, x, y, lse])]
}

/// Heads of all sizes, partial tiles on each side, and all of attention's options, in half precision.
#[test]
fn attention_on_tensor_cores_is_right() {
    let key = Some(DropoutKey { rate: 0.3, site: 9 });
    let bias = |bidirectional| Some(RelativeBias { buckets: 16, max_distance: 40, bidirectional });
    let cases = [
        (attention(1, 1, true), [1, 65, 65, 64]),
        (attention(1, 1, false), [1, 1, 130, 32]),
        (attention(2, 1, false), [1, 63, 64, 40]),
        (Attention { dropout: key, ..attention(2, 1, true) }, [2, 33, 33, 80]),
        (Attention { bias: bias(true), segmented: true, dropout: key, ..attention(1, 1, false) }, [1, 65, 70, 96]),
        (Attention { segmented: true, ..attention(1, 1, true) }, [1, 130, 130, 128]),
        (Attention { bias: bias(true), ..attention(1, 1, false) }, [1, 34, 65, 160]),
        (Attention { bias: bias(false), dropout: key, ..attention(1, 1, true) }, [1, 64, 64, 256]),
        (Attention { packed: true, ..attention(2, 2, true) }, [1, 65, 65, 24]),
        (attention(3, 3, false), [1, 20, 40, 20]),
        (attention(1, 1, false), [1, 130, 1, 8]),
        (Attention { window: Some(1), ..attention(1, 1, true) }, [1, 130, 130, 64]),
        (Attention { window: Some(50), dropout: key, ..attention(2, 1, true) }, [1, 200, 200, 32]),
        (Attention { window: Some(64), segmented: true, ..attention(1, 1, true) }, [1, 260, 260, 40]),
        (Attention { window: Some(70), bias: bias(false), ..attention(1, 1, true) }, [1, 150, 150, 128]),
        (Attention { window: Some(33), ..attention(2, 1, true) }, [1, 129, 129, 160]),
        (Attention { window: Some(50), dropout: key, ..attention(2, 1, false) }, [1, 200, 200, 32]),
        (Attention { window: Some(1), ..attention(1, 1, false) }, [1, 130, 130, 64]),
        (Attention { window: Some(70), segmented: true, ..attention(1, 1, false) }, [1, 140, 140, 256]),
        (Attention { window: Some(70), ..attention(1, 1, true) }, [1, 140, 140, 256]),
        (Attention { cap: Some(0.6), scale: 1.5, dropout: key, ..attention(2, 1, true) }, [1, 70, 70, 64]),
        (Attention { cap: Some(5.0), scale: -2.0, ..attention(1, 1, false) }, [1, 34, 65, 32]),
        (Attention { cap: Some(50.0), window: Some(50), ..attention(1, 1, true) }, [1, 70, 70, 256]),
        (Attention { has_sinks: true, window: Some(40), ..attention(2, 1, true) }, [2, 130, 130, 64]),
        (Attention { has_sinks: true, segmented: true, dropout: key, ..attention(2, 2, false) }, [1, 40, 75, 96]),
        (Attention { has_sinks: true, bias: bias(false), ..attention(1, 1, true) }, [1, 70, 70, 128]),
    ];
    let halves = |example: Example| [DType::F16, DType::Bf16].map(|dtype| in_half(&example, dtype));
    let cases = cases.into_iter().flat_map(both_ways).flat_map(halves).flatten().enumerate().collect::<Vec<_>>();
    cases.into_par_iter().for_each(|(seed, example)| check(&example, seed as u64));
}

/// Kernels on tensor cores copy a span of a large head as whole vectors, so such heads must consist of whole vectors.
#[test]
fn attention_refuses_large_heads_that_are_not_whole_vectors() {
    for (dtype, head_size, is_refused) in [
        (DType::Bf16, 130, true),
        (DType::F16, 255, true),
        (DType::Bf16, 136, false),
        (DType::Bf16, 100, false),
        (DType::F32, 130, false),
        (DType::F32, 257, true),
    ] {
        for example in both_ways((attention(1, 1, true), [1, 2, 2, head_size])) {
            let example = in_precision(&example, dtype).expect("attention in every precision");
            let case = Case::new(&example, &mut Noise::new(1));
            assert_eq!(cuda::refusal(&example.op, &case.io(), (8, 0)).is_some(), is_refused, "{dtype:?}, {head_size}");
        }
    }
}

/// Tiles in shared memory have no bank conflicts, and products are computed only for heads' own channels and for
/// visible tiles.
#[test]
fn attention_on_tensor_cores_has_no_bank_conflicts() {
    let bias = Some(RelativeBias { buckets: 16, max_distance: 40, bidirectional: true });
    for (capability, dtype, head_size) in
        [((8, 0), DType::Bf16, 64), ((8, 0), DType::F16, 96), ((7, 5), DType::F16, 64)]
    {
        let plain = attention(1, 1, true);
        for op in [plain, Attention { bias, ..plain }] {
            for example in both_ways((op, [1, 128, 128, head_size])) {
                let example = in_half(&example, dtype).expect("attention in half precision");
                let how = How { capability, order: Order::Forward, blur: 0, reused: None };
                for (kernel, counters) in Case::new(&example, &mut Noise::new(1)).run(how).counters {
                    let (taken, fewest) = counters.total(true);
                    assert_eq!(taken, fewest, "{kernel} {how:?}");
                    // Of pairs of queries and keys: tiles of 64 by 64, and of 64 by 32 where the diagonal ends.
                    let name = kernel.trim_end_matches("_bf16").trim_end_matches("_f16");
                    let pairs = match name.trim_end_matches("_64").trim_end_matches("_256") {
                        "attention_tensor" => 2 * 3 * 64 * 64,
                        "attention_tensor_grad_queries" => 3 * 3 * 64 * 64,
                        "attention_tensor_grad_keys" => 4 * 3 * 64 * 64,
                        _ => 0,
                    };
                    assert_eq!(counters.matrix_flops, 2 * pairs * head_size as u64, "{kernel} {how:?}");
                }
            }
        }
    }
}

/// Tiles outside of the window are skipped by every kernel, forward and backward: their arithmetic is linear in the
/// tokens, not quadratic.
#[test]
fn attention_skips_tiles_before_the_window() {
    let (tiles, window) = (4, Some(64));
    let how = |capability| How { capability, order: Order::Forward, blur: 0, reused: None };
    let flops = |op: Attention, tiles: usize, (capability, dtype, head_size)| {
        let examples = both_ways((op, [1, 64 * tiles, 64 * tiles, head_size]));
        let ran = examples.iter().flat_map(|example| {
            let example = in_precision(example, dtype).expect("attention in every precision");
            Case::new(&example, &mut Noise::new(1)).run(how(capability)).counters
        });
        ran.map(|(kernel, counters)| (kernel, counters.matrix_flops + counters.flops)).collect::<Vec<_>>()
    };
    let cards = [
        ((8, 0), DType::Bf16, 64),
        ((8, 0), DType::F16, 256),
        ((7, 5), DType::F16, 128),
        ((7, 5), DType::Bf16, 16),
        ((8, 0), DType::F32, 16),
    ];
    cards.into_par_iter().for_each(|card| {
        let op = Attention { window, cap: Some(50.0), has_sinks: true, ..attention(1, 1, true) };
        let [few, more, most] = [2, 3, 4].map(|tiles| flops(op, tiles, card));
        for (((kernel, few), (_, more)), (_, most)) in few.iter().zip(&more).zip(&most) {
            let (first, second) = (more - few, most - more);
            let off = first.abs_diff(second);
            assert!(100 * off <= second, "{kernel} on {card:?}: {few}, {more}, {most}");
        }
    });
    let reading = |window| {
        let op = CachedAttention { heads: 1, kv_heads: 1, packed: false, window, capacity: 512, ..cached() };
        let fed: &[usize] = &[1, 1, 64];
        let mut example = case(op, &[fed; 3]);
        example.scalars.position = 500;
        let counters = Case::new(&example, &mut Noise::new(1)).run(how((8, 0))).counters;
        counters.into_iter().map(|(_, counters)| counters.flops).sum::<u64>()
    };
    assert!(4 * reading(window) < reading(None), "cached attention reads keys before the window");
    // Two tiles of 64 by 64 per tile of queries, or of keys; one at the end.
    let op = Attention { window, ..attention(1, 1, true) };
    for head_size in [64, 256] {
        let example = both_ways((op, [1, 64 * tiles, 64 * tiles, head_size]));
        let counters = example.iter().flat_map(|example| {
            let example = in_half(example, DType::Bf16).expect("attention in half precision");
            Case::new(&example, &mut Noise::new(1)).run(how((8, 0))).counters
        });
        for (kernel, counters) in counters {
            // Two spans of a head with 256 channels each compute all scores.
            let spans = if head_size > 128 { 2 } else { 1 };
            let products = match kernel.trim_end_matches("_bf16").trim_end_matches("_64").trim_end_matches("_256") {
                "attention_tensor" => spans + 1,
                "attention_tensor_grad_queries" => 2 * spans + 1,
                "attention_tensor_grad_keys" => 2 * spans + 2,
                _ => 0,
            };
            let pairs = products * (2 * tiles - 1) * 64 * 64;
            assert_eq!(counters.matrix_flops, (2 * pairs * head_size) as u64, "{kernel}");
        }
    }
}

/// Consecutive documents in a row, each with the tokens of some tiles, give the same bits as separate samples: the same
/// tiles are computed and no others.
#[test]
fn attention_skips_tiles_of_other_documents() {
    let (tokens, documents) = (128, 3);
    let row: &[i32] = &[1, 2, 0].map(|segment| vec![segment; tokens]).concat();
    for (dtype, head_size) in
        [(None, 24), (Some(DType::Bf16), 40), (Some(DType::F16), 64), (Some(DType::Bf16), 128), (Some(DType::F16), 160)]
    {
        for causal in [true, false] {
            let alone = attention(1, 1, causal);
            let packed = Attention { segmented: true, ..alone };
            let alone = both_ways((alone, [documents, tokens, tokens, head_size]));
            let packed = both_ways((packed, [1, row.len(), row.len(), head_size]));
            for (alone, packed) in alone.iter().zip(&packed) {
                let typed = |example: &Example| match dtype {
                    Some(dtype) => in_half(example, dtype).expect("attention in half precision"),
                    None => example.clone(),
                };
                let alone = Case::new(&typed(alone), &mut Noise::new(1));
                let mut packed = Case::new(&typed(packed), &mut Noise::new(1));
                let mut values = alone.inputs.iter();
                for value in &mut packed.inputs {
                    *value = match value {
                        Value::Float(_) => values.next().expect("as many as without segments").clone(),
                        Value::Int(_) => Value::Int(row.to_vec()),
                    };
                }
                let how = How { capability: (8, 0), order: Order::Forward, blur: 0, reused: None };
                let (alone, packed) = (alone.run(how), packed.run(how));
                assert!(alone.results == packed.results, "other bits: {dtype:?}, {head_size}, causal: {causal}");
                for ((kernel, alone), (_, packed)) in alone.counters.iter().zip(&packed.counters) {
                    let of = |counters: &Counters| (counters.matrix_flops, counters.flops);
                    let (alone, packed) = (of(alone), of(packed));
                    assert_eq!(packed.0, alone.0, "{kernel}, {head_size}, causal: {causal}");
                    assert!(100 * packed.1 <= 101 * alone.1, "{kernel}: {packed:?}, not {alone:?}");
                }
            }
        }
    }
}

/// Tiles of documents in any order, including repeated ones.
#[test]
fn attention_handles_documents_in_any_order() {
    let plain = Attention { segmented: true, ..attention(1, 1, true) };
    let orders = [vec![3, 0, 2, 3], vec![0, 0, 7, 7], vec![-1, 5, 5, i32::MIN], vec![4, 4, 4, 1]];
    let cases = orders.iter().flat_map(|order| [true, false].map(|causal| (order, causal, 64)));
    // Kernels for larger heads use the same tiles.
    let cases = cases.chain([(&orders[0], false, 128)]);
    cases.enumerate().collect::<Vec<_>>().into_par_iter().for_each(|(seed, (order, causal, head_size))| {
        let of_row = |length: usize| (0..length).map(|token| order[token * order.len() / length]).collect::<Vec<_>>();
        let (queries, keys) = if causal { (130, 130) } else { (70, 150) };
        for example in both_ways((Attention { causal, ..plain }, [1, queries, keys, head_size])) {
            for example in in_all_precisions(&example) {
                let mut case = Case::new(&example, &mut Noise::new(seed as u64));
                let segments = case.inputs.iter_mut().filter(|value| matches!(value, Value::Int(_)));
                segments.zip([queries, keys]).for_each(|(value, length)| *value = Value::Int(of_row(length)));
                check_on([(8, 0); 2], &case, seed as u64);
            }
        }
    });
}

/// Partial chunks, a vocabulary and a rank that are not multiples of vectors, absent targets.
#[test]
fn heads_are_right_in_chunks() {
    let shapes: [&[usize]; 3] = [&[1, 11, 9], &[307, 9], &[1, 11]];
    let with_adapter: [&[usize]; 5] = [shapes[0], shapes[1], shapes[2], &[1, 11, 3], &[307, 3]];
    let grad = HeadLossGrad {
        chunk: 4,
        smoothing: 0.1,
        cap: None,
        input: true,
        weight: true,
        adapter: None,
        accumulate_loss: true,
        accumulate: true,
    };
    let adapted = HeadLossGrad { adapter: Some(HeadAdapterGrads { low: true, up: true }), ..grad };
    check_all(&[
        integers(case(HeadLoss { chunk: 5, smoothing: 0.0, cap: None, adapter: false }, &shapes), 2, Fill::Target(307)),
        integers(case(grad, &shapes), 2, Fill::Target(307)),
        integers(case(HeadLossGrad { cap: Some(1.5), ..grad }, &shapes), 2, Fill::Target(307)),
        integers(
            case(HeadLoss { chunk: 5, smoothing: 0.0, cap: None, adapter: true }, &with_adapter),
            2,
            Fill::Target(307),
        ),
        integers(case(adapted, &with_adapter), 2, Fill::Target(307)),
        integers(case(HeadLossGrad { input: false, weight: false, ..adapted }, &with_adapter), 2, Fill::Target(307)),
    ]);
}
