//! Every fast kernel against its reference, on the ops' examples and on random shapes, and every kernel against what
//! its op declared: it writes nothing but its outputs and its scratch, and gives the same bits on one thread and two.

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
use half::{bf16, f16};
use parts::check_parts;
use plimsoll_exec::cases::{Case, Noise, SINGLE, encode, in_half, in_precision};
use plimsoll_exec::reference::{RefCall, Value, run};
use plimsoll_exec::{Call, Input, Instructions, Output, instructions, run_cpu_kernel};
use plimsoll_graph::ops::{
    ExpertLinear, GradClip, HeadLoss, HeadLossGrad, Nature, PairedHeadLoss, PairedHeadLossGrad, WeightLayout,
};
use plimsoll_graph::{Access, DType, DeviceKind, Example, Fill, Io, Op, Scalars, Target, TensorType};
use random::random_examples;
use rayon::prelude::*;
use routes::check_routes;
use std::collections::HashSet;
use std::process::Command;
use tables::check_tables;
use tiles::check_tiles;

/// The bytes after the end of memory that a kernel may write, and the initial bytes of memory that it must write before
/// it reads: NaN as floats.
const GUARD: u8 = 0xFF;
const GUARD_BYTES: usize = 64;

/// Bytes with an arena's alignment.
struct Aligned {
    words: Vec<f64>,
    bytes: usize,
}

impl Aligned {
    /// `bytes` bytes with the guard's value, and a guard after them.
    fn new(bytes: usize) -> Self {
        let words = vec![f64::from_bits(u64::from_ne_bytes([GUARD; 8])); (bytes + GUARD_BYTES).div_ceil(8)];
        Self { words, bytes }
    }

    fn of(dtype: DType, values: &[f32]) -> Self {
        let mut aligned = Self::new(values.len() * dtype.size_bytes() as usize);
        for (into, &value) in aligned.usable().chunks_exact_mut(dtype.size_bytes() as usize).zip(values) {
            match dtype {
                DType::F32 => into.copy_from_slice(&value.to_ne_bytes()),
                DType::F16 => into.copy_from_slice(&f16::from_f32(value).to_ne_bytes()),
                DType::Bf16 => into.copy_from_slice(&bf16::from_f32(value).to_ne_bytes()),
                DType::I16 => into.copy_from_slice(&(value as i16).to_ne_bytes()),
                DType::U8 => into.copy_from_slice(&[value as u8]),
                DType::I32 => into.copy_from_slice(&(value as i32).to_ne_bytes()),
            }
        }
        aligned
    }

    fn usable(&mut self) -> &mut [u8] {
        let bytes = self.bytes;
        &mut bytemuck::cast_slice_mut::<f64, u8>(&mut self.words)[..bytes]
    }

    fn values(&mut self, dtype: DType) -> Vec<f32> {
        let chunks = self.usable().chunks_exact(dtype.size_bytes() as usize);
        let value = |bytes: &[u8]| match (dtype, bytes) {
            (DType::F32, &[a, b, c, d]) => f32::from_ne_bytes([a, b, c, d]),
            (DType::I32, &[a, b, c, d]) => i32::from_ne_bytes([a, b, c, d]) as f32,
            (DType::F16, &[a, b]) => f16::from_ne_bytes([a, b]).to_f32(),
            (DType::Bf16, &[a, b]) => bf16::from_ne_bytes([a, b]).to_f32(),
            (DType::I16, &[a, b]) => f32::from(i16::from_ne_bytes([a, b])),
            (DType::U8, &[code]) => f32::from(code),
            other => panic!("{other:?}"),
        };
        chunks.map(value).collect()
    }

    fn guard_is_whole(&self) -> bool {
        bytemuck::cast_slice::<f64, u8>(&self.words)[self.bytes..].iter().all(|&byte| byte == GUARD)
    }
}

/// Runs the fast kernel on `threads` threads; `reused` is a pair of the op's `reuse` that shares memory.
fn fast(case: &Case, threads: usize, reused: Option<(usize, usize)>) -> Vec<Vec<f32>> {
    let target = Target::Cpu { threads };
    let scratch_bytes = case.example.op.working_bytes(&case.io(), &target).0 as usize;
    let types = case.outputs.iter().map(|ty| ty.dtype).collect::<Vec<_>>();
    let before = |(index, (state, &dtype)): (usize, (&Vec<f32>, &DType))| match case.example.op.access(index) {
        Access::ReadWrite => Aligned::of(dtype, state),
        Access::Write => Aligned::new(state.len() * dtype.size_bytes() as usize),
    };
    let mut outputs = case.state.iter().zip(&types).enumerate().map(before).collect::<Vec<_>>();
    let mut scratch = Aligned::new(scratch_bytes);
    if let Some((from, to)) = reused {
        let Value::Float(values) = &case.inputs[from] else { panic!("only floats are reused") };
        outputs[to] = Aligned::of(types[to], values);
    }
    let mut raw = case
        .inputs
        .iter()
        .zip(&case.example.inputs)
        .map(|(value, (ty, _))| match value {
            Value::Float(values) if ty.dtype != DType::F32 => Some(Aligned::of(ty.dtype, values)),
            _ => None,
        })
        .collect::<Vec<_>>();
    let inputs = case.inputs.iter().zip(&mut raw).enumerate().map(|(index, (value, raw))| match (value, raw) {
        _ if reused.is_some_and(|(from, _)| from == index) => Input::InOutput,
        (_, Some(raw)) => Input::Raw(raw.usable()),
        (Value::Float(values), None) => Input::F32(values),
        (Value::Int(values), None) => Input::I32(values),
    });
    let call = Call {
        inputs: inputs.collect(),
        outputs: outputs
            .iter_mut()
            .zip(&types)
            .map(|(output, dtype)| match dtype {
                DType::F32 => Output::F32(bytemuck::cast_slice_mut(output.usable())),
                _ => Output::Raw(output.usable()),
            })
            .collect(),
        scratch: bytemuck::cast_slice_mut(&mut scratch.usable()[..scratch_bytes / 4 * 4]),
        io: case.io(),
        scalars: &case.example.scalars,
        threads,
    };
    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().expect("a pool");
    pool.install(|| run_cpu_kernel(&case.example.op, call));
    let name = case.example.op.name();
    assert!(scratch.guard_is_whole(), "{name} writes past its scratch");
    assert!(outputs.iter().all(Aligned::guard_is_whole), "{name} writes past an output");
    outputs.iter_mut().zip(&types).map(|(output, dtype)| output.values(*dtype)).collect()
}
fn check(example: &Example, noise: &mut Noise) {
    let case = Case::new(example, noise);
    let plain = fast(&case, 2, None);
    let verdict = case.compare_values(DeviceKind::Cpu, &plain, &case.reference());
    assert_eq!(verdict.wrong, None, "{example:?}");
    assert_eq!(bits(&plain), bits(&fast(&case, 1, None)), "{:?}: other bits on one thread", example.op);
    for &pair in example.op.reuse() {
        if case.outputs[pair.1] == example.inputs[pair.0].0 {
            assert_eq!(
                bits(&plain),
                bits(&fast(&case, 2, Some(pair))),
                "{:?}: other bits in place {pair:?}",
                example.op
            );
        }
    }
}

fn bits(outputs: &[Vec<f32>]) -> Vec<Vec<u32>> {
    outputs.iter().map(|o| o.iter().map(|x| x.to_bits()).collect()).collect()
}

#[test]
fn every_fast_kernel_equals_its_reference_on_the_examples() {
    let examples = Op::all_examples();
    let covered = examples.iter().map(|e| e.op.variant()).collect::<HashSet<_>>();
    assert_eq!(covered, Op::VARIANTS.iter().copied().collect(), "an op has no examples");
    for (seed, example) in examples.iter().enumerate() {
        check(example, &mut Noise::new(seed as u64));
    }
}

#[test]
fn every_fast_kernel_equals_its_reference_in_half_precision() {
    let mut covered = HashSet::new();
    for (seed, example) in Op::all_examples().iter().enumerate() {
        for dtype in [DType::F16, DType::Bf16] {
            if let Some(half) = in_precision(example, dtype) {
                covered.insert(half.op.variant());
                check(&half, &mut Noise::new(seed as u64));
            }
        }
    }
    let left_out = Op::VARIANTS.iter().filter(|v| !covered.contains(*v)).copied().collect::<Vec<_>>();
    assert_eq!(left_out, SINGLE, "an op takes no half precision");
}

#[test]
fn weights_with_their_remainders_are_kept_to_the_bit() {
    check_parts(fast_bytes);
}

#[test]
fn gradients_of_embeddings_are_added_up_in_the_order_of_their_rows() {
    check_tables(fast_bytes);
}

#[test]
fn products_with_codes_are_those_with_decoded_weights_to_the_bit() {
    // Enough rows for tiles: few are multiplied in another order in single precision.
    check_codes(&OfExperts { experts: 2, extents: [[80, 128, 96], [66, 70, 46]], even: true }, fast_bytes);
}

#[test]
fn tiles_of_rows_do_not_change_the_rows() {
    check_tiles(false, fast_bytes);
}

#[test]
fn routers_choose_lower_indices_among_equal_logits_and_nan_first() {
    check_routes(fast_bytes);
}

fn fast_bytes(case: &Case) -> Vec<Vec<u8>> {
    let results = fast(case, 2, None);
    results.iter().zip(&case.outputs).map(|(values, ty)| encode(ty.dtype, values)).collect()
}

/// The environment variable with the instructions for products.
const SWITCH: &str = "PLIMSOLL_INSTRUCTIONS";

#[test]
fn matrices_are_multiplied_by_the_instructions_that_the_switch_names() {
    match std::env::var(SWITCH) {
        Ok(wanted) => assert_eq!(instructions().name(), wanted),
        Err(_) => {
            assert!(
                Instructions::ALL
                    .into_iter()
                    .filter(|path| path.is_available())
                    .all(|path| { path >= instructions() || path == Instructions::Avx512Bf16 })
            )
        }
    }
}

/// Each available set of instructions in a separate process, which chooses once.
#[test]
fn kernels_equal_their_references_by_all_instructions() {
    let tests = [
        "matrices_are_multiplied_by_the_instructions_that_the_switch_names",
        "every_fast_kernel_equals_its_reference_on_the_examples",
        "every_fast_kernel_equals_its_reference_in_half_precision",
    ];
    for path in Instructions::ALL.into_iter().filter(|path| path.is_available()) {
        let mut command = Command::new(std::env::current_exe().expect("tests are a program"));
        let said = command.arg("--exact").args(tests).env(SWITCH, path.name()).output().expect("it runs again");
        let text = String::from_utf8_lossy(&said.stdout);
        assert!(said.status.success() && text.contains("3 passed"), "{path:?}: {text}");
    }
}

#[test]
fn fast_kernels_equal_their_references_on_random_shapes() {
    (0..40).into_par_iter().for_each(|seed| {
        let mut noise = Noise::new(1000 + seed);
        for example in random_examples(&mut noise, 130) {
            check(&example, &mut noise);
            let dtype = if seed % 2 == 0 { DType::F16 } else { DType::Bf16 };
            if let Some(half) = in_half(&example, dtype) {
                check(&half, &mut noise);
            }
        }
    });
}

/// Kernels that pass over tensors compute in single precision for every format of the tensors, to the bit.
#[test]
fn streaming_kernels_round_their_single_precision_results_to_half() {
    let mut covered = HashSet::new();
    let random = (0..12).flat_map(|seed| random_examples(&mut Noise::new(2000 + seed), 130));
    let streams = |example: &Example| example.op.nature() == Nature::Streaming;
    for (seed, example) in Op::all_examples().into_iter().chain(random).filter(streams).enumerate() {
        for dtype in [DType::F16, DType::Bf16] {
            let Some(half) = in_precision(&example, dtype) else { continue };
            let half = Case::new(&half, &mut Noise::new(seed as u64));
            // The same values, in wider types.
            let types = example.inputs.iter().map(|(ty, _)| ty).collect::<Vec<_>>();
            let outputs = example.op.infer(&types).expect("examples are well-typed");
            let single = Case { example: example.clone(), outputs, ..half.clone() };
            let results = fast(&half, 2, None).into_iter().zip(fast(&single, 2, None)).zip(&half.outputs);
            for (index, ((found, single), ty)) in results.enumerate() {
                let (found, expected) = (encode(ty.dtype, &found), encode(ty.dtype, &single));
                assert_eq!(found, expected, "result {index} in {dtype:?}: {example:?}");
                covered.extend(ty.dtype.is_half().then_some(example.op.variant()));
            }
        }
    }
    assert!(covered.contains("LayerNormGrad") && covered.len() > 15, "{covered:?}");
}

/// A norm as small as the constant that keeps the division finite.
#[test]
fn gradients_with_a_tiny_norm_are_clipped_as_by_the_reference() {
    let example = Example {
        op: GradClip { max_norm: Some(1e-6) }.into(),
        inputs: vec![(TensorType::f32(&[1]), Fill::Positive)],
        state: Fill::Uniform,
        scalars: Scalars { gradient_scale: 1e6, ..Scalars::default() },
    };
    let case = Case::new(&example, &mut Noise::new(1));
    let (found, expected) = (f64::from(fast(&case, 1, None)[0][0]), case.reference()[0][0]);
    assert!((found / expected - 1.0).abs() < 1e-5 && expected < 0.7e-6, "{found} {expected}");
}

/// GPT-2's vocabulary is not a multiple of any vector or tile.
#[test]
fn the_head_of_gpt2_with_its_odd_vocabulary_is_exact() {
    let mut noise = Noise::new(3);
    let shapes: [&[usize]; 3] = [&[1, 5, 8], &[50257, 8], &[1, 5]];
    let mut inputs = shapes.map(|s| (TensorType::f32(s), Fill::Uniform)).to_vec();
    inputs[2] = (TensorType::i32(shapes[2]), Fill::Target(50257));
    let op = HeadLossGrad {
        chunk: 2,
        smoothing: 0.0,
        cap: None,
        input: true,
        weight: true,
        adapter: None,
        accumulate_loss: false,
        accumulate: true,
    }
    .into();
    check(&Example { op, inputs, state: Fill::Uniform, scalars: Scalars::default() }, &mut noise);
}

/// If both draws are the same, their divergence is zero: the loss, and the sum of the gradients, are the single head's.
#[test]
fn a_pair_of_equal_draws_is_one_head() {
    let (x, v): (&[usize], usize) = (&[2, 9, 5], 51);
    let mut noise = Noise::new(4);
    let (chunk, smoothing, accumulate_loss, accumulate) = (4, 0.1, false, false);
    let case = |op: Op, shapes: &[&[usize]]| {
        let mut inputs = shapes.iter().map(|s| (TensorType::f32(s), Fill::Uniform)).collect::<Vec<_>>();
        inputs.push((TensorType::i32(&x[..2]), Fill::Target(v as i32)));
        Example { op, inputs, state: Fill::Uniform, scalars: Scalars::default() }
    };
    let (input, weight, adapter) = (true, true, None);
    let one = HeadLossGrad { chunk, smoothing, cap: None, input, weight, adapter, accumulate_loss, accumulate };
    let one = Case::new(&case(one.into(), &[x, &[v, 5]]), &mut noise);
    let pair = PairedHeadLossGrad {
        chunk,
        alpha: 3.0,
        smoothing,
        cap: None,
        input,
        weight,
        adapter,
        accumulate_loss,
        accumulate,
    };
    let mut pair = Case::new(&case(pair.into(), &[x, x, &[v, 5]]), &mut noise);
    pair.inputs = [0, 0, 1, 2].map(|index: usize| one.inputs[index].clone()).to_vec();
    let (one, pair) = (fast(&one, 2, None), fast(&pair, 2, None));
    let both_dx = pair[1].iter().zip(&pair[2]).map(|(a, b)| a + b).collect::<Vec<_>>();
    for (one, pair) in [(&one[0], &pair[0]), (&one[1], &both_dx), (&one[2], &pair[3])] {
        for (one, pair) in one.iter().zip(pair) {
            assert!((one - pair).abs() < 2e-5 * (1.0 + one.abs()), "{pair}, not {one}");
        }
    }
}

/// More rows of an expert than are multiplied at a time.
#[test]
fn experts_with_many_rows_are_right() {
    let (rows, from, to) = (2500, 33, 40);
    let example = Example {
        op: ExpertLinear { layout: WeightLayout::OutIn, bias: true }.into(),
        inputs: vec![
            (TensorType::f32(&[1, rows, from]), Fill::Uniform),
            (TensorType::f32(&[2, to, from]), Fill::Uniform),
            (TensorType::i32(&[3]), Fill::Bounds(rows as i32)),
            (TensorType::f32(&[2, to]), Fill::Uniform),
        ],
        state: Fill::Uniform,
        scalars: Scalars::default(),
    };
    for example in [in_half(&example, DType::Bf16).expect("takes half precision"), example] {
        check(&example, &mut Noise::new(6));
    }
}

/// Values of `torch.nn.functional.cross_entropy` with `label_smoothing`, and of R-Drop written with its `kl_div`, of
/// PyTorch 2.15.
#[test]
fn smoothed_and_paired_losses_equal_pytorchs() {
    let floats = |values: &[f64]| Value::Float(values.to_vec());
    let identity = floats(&(0..16).map(|i| f64::from(u8::from(i % 5 == 0))).collect::<Vec<_>>());
    let x = floats(&[0.5, -1.0, 2.0, 0.25, 1.5, 0.0, -0.5, 1.0]);
    let other = floats(&[0.0, -1.0, 1.0, 0.5, 1.0, 0.5, -0.5, 1.5]);
    let targets = Value::Int(vec![2, 1]);
    let [states, weight, ids] = [&[1usize, 2, 4][..], &[4, 4], &[1, 2]].map(TensorType::f32);
    let ids = ids.with_dtype(DType::I32);
    let one = TensorType::f32(&[1]);
    let loss = |op: Op, inputs: Vec<&Value<f64>>, types: Vec<&TensorType>| {
        let io = Io::new(types, [&one]);
        let mut outputs = vec![vec![0.0]];
        run(&op, &RefCall { inputs, io, scalars: &Scalars::default() }, &mut outputs);
        outputs[0][0]
    };
    let smoothed = HeadLoss { chunk: 1, smoothing: 0.1, cap: None, adapter: false };
    let found = loss(smoothed.into(), vec![&x, &identity, &targets], vec![&states, &weight, &ids]);
    assert!((found - 2.651_019_573).abs() < 1e-6, "{found}");
    let paired = PairedHeadLoss { chunk: 1, alpha: 2.0, smoothing: 0.0, cap: None, adapter: false };
    let types = vec![&states, &states, &weight, &ids];
    let found = loss(paired.into(), vec![&x, &other, &identity, &targets], types.clone());
    assert!((found - 2.991_747_856).abs() < 1e-6, "{found}");
    // Logits `torch.tanh(x / 1.5) * 1.5`.
    let cap = Some(1.5);
    let capped = HeadLoss { cap, ..smoothed };
    let found = loss(capped.into(), vec![&x, &identity, &targets], vec![&states, &weight, &ids]);
    assert!((found - 2.671_720_834).abs() < 1e-6, "{found}");
    let capped = PairedHeadLoss { cap, ..paired };
    let found = loss(capped.into(), vec![&x, &other, &identity, &targets], types);
    assert!((found - 2.670_169_092).abs() < 1e-6, "{found}");
}
