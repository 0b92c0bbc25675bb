//! Every fast kernel against its reference, on the ops' examples and on random shapes, and every kernel against what
//! its op declared: it writes nothing but its outputs and its scratch, and gives the same bits on one thread and two.

mod support;

use exec::reference::{RefCall, Value, run};
use exec::{Call, Input, run_cpu_kernel};
use graph::ops::{
    AdamW, Add, Attention, AttentionGrad, Dropout, DropoutKey, EmbeddingGrad, Gelu, GeluGrad, GradNorm, HeadLoss,
    HeadLossGrad, LayerNorm, LayerNormGrad, Linear, LinearInputGrad, LinearWeightGrad, WeightLayout,
};
use graph::{DType, DeviceKind, Example, Fill, Io, Op, Scalars, Target, TensorType};
use std::collections::HashSet;
use support::{Noise, fill_value};

const GUARD: f32 = 12345.678;

/// Values of an example's operands and what its outputs hold beforehand.
struct Filled {
    example: Example,
    outputs: Vec<TensorType>,
    inputs: Vec<Value<f32>>,
    state: Vec<Vec<f32>>,
}

impl Filled {
    fn new(example: &Example, noise: &mut Noise) -> Self {
        let types = example.inputs.iter().map(|(ty, _)| ty).collect::<Vec<_>>();
        let outputs = example.op.infer(&types).expect("examples are well-typed");
        let inputs = example.inputs.iter().map(|(ty, fill)| fill_value(ty, *fill, noise)).collect();
        let state = outputs.iter().map(|ty| fill_value::<f32>(ty, example.state, noise).floats().to_vec()).collect();
        Self { example: example.clone(), outputs, inputs, state }
    }

    fn io(&self) -> Io<'_> {
        Io { inputs: self.example.inputs.iter().map(|(ty, _)| ty).collect(), outputs: self.outputs.iter().collect() }
    }

    /// In double precision on the single-precision operands: what the op means.
    fn reference(&self) -> Vec<Vec<f64>> {
        let widen = |values: &[f32]| values.iter().map(|&x| f64::from(x)).collect::<Vec<_>>();
        let inputs = self.inputs.iter().map(|value| match value {
            Value::Float(values) => Value::Float(widen(values)),
            Value::Int(values) => Value::Int(values.clone()),
        });
        let inputs = inputs.collect::<Vec<_>>();
        let mut outputs = self.state.iter().map(|s| widen(s)).collect::<Vec<_>>();
        let call = RefCall { inputs: inputs.iter().collect(), io: self.io(), scalars: &self.example.scalars };
        run(&self.example.op, &call, &mut outputs);
        outputs
    }

    /// By the fast kernel, on `threads` threads; `reused` is a pair of the op's `reuse` that is to share its memory.
    fn fast(&self, threads: usize, reused: Option<(usize, usize)>) -> Vec<Vec<f32>> {
        let target = Target { device: DeviceKind::Cpu, threads };
        let scratch_bytes = self.example.op.scratch(&self.io(), &target).0 as usize;
        // A guard behind each output and behind the scratch shows writes past their ends.
        let mut outputs = self.state.iter().map(|s| [&s[..], &[GUARD; 16]].concat()).collect::<Vec<_>>();
        // Doubles are laid over scratch, so it is aligned as the arena would align it.
        let mut scratch = vec![f64::NAN; scratch_bytes.div_ceil(8) + 8];
        if let Some((from, to)) = reused {
            let Value::Float(values) = &self.inputs[from] else { panic!("only floats are reused") };
            outputs[to][..values.len()].copy_from_slice(values);
        }
        let scratch_floats: &mut [f32] = bytemuck::cast_slice_mut(&mut scratch);
        let (usable, behind) = scratch_floats.split_at_mut(scratch_bytes / 4);
        behind.fill(GUARD);
        let inputs = self.inputs.iter().enumerate().map(|(index, value)| match value {
            _ if reused.is_some_and(|(from, _)| from == index) => Input::InOutput,
            Value::Float(values) => Input::F32(values),
            Value::Int(values) => Input::I32(values),
        });
        let call = Call {
            inputs: inputs.collect(),
            outputs: outputs
                .iter_mut()
                .map(|o| {
                    let length = o.len() - 16;
                    &mut o[..length]
                })
                .collect(),
            scratch: usable,
            io: self.io(),
            scalars: &self.example.scalars,
            threads,
        };
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().expect("a pool");
        pool.install(|| run_cpu_kernel(&self.example.op, call));
        let name = self.example.op.name();
        assert!(behind.iter().all(|&x| x == GUARD), "{name} writes past its scratch");
        for output in &mut outputs {
            let guard = output.split_off(output.len() - 16);
            assert!(guard.iter().all(|&x| x == GUARD), "{name} writes past an output");
        }
        outputs
    }
}

fn close(found: f32, expected: f64, scale: f64) -> bool {
    (f64::from(found) - expected).abs() <= 2e-5 * scale || (found.is_nan() && expected.is_nan())
}

fn check(example: &Example, noise: &mut Noise) {
    let filled = Filled::new(example, noise);
    let expected = filled.reference();
    let plain = filled.fast(2, None);
    for (index, (found, expected)) in plain.iter().zip(&expected).enumerate() {
        let scale = 1.0 + expected.iter().fold(0.0f64, |m, x| m.max(x.abs()));
        for (element, (&f, &e)) in found.iter().zip(expected).enumerate() {
            assert!(close(f, e, scale), "{:?}: output {index}[{element}] is {f}, the reference says {e}", example);
        }
    }
    assert_eq!(bits(&plain), bits(&filled.fast(1, None)), "{:?}: other bits on one thread", example.op);
    for &pair in example.op.reuse() {
        if filled.outputs[pair.1] == example.inputs[pair.0].0 {
            assert_eq!(
                bits(&plain),
                bits(&filled.fast(2, Some(pair))),
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

/// An example of random shape of each op whose kernel has more than one way to go.
fn random_examples(noise: &mut Noise) -> Vec<Example> {
    let pick = |choices: &[usize], noise: &mut Noise| choices[noise.below(choices.len())];
    let (b, t) = (pick(&[1, 2, 3], noise), pick(&[1, 2, 7, 16, 33, 64, 65, 130], noise));
    let (heads, d) = (pick(&[1, 2, 3, 5], noise), pick(&[1, 3, 8, 16, 32, 64, 65], noise));
    let (c, o) = (heads * d, pick(&[1, 5, 16, 48, 129, 300], noise));
    let v = pick(&[2, 50, 257, 1000], noise);
    let [bias, accumulate, residual, causal] = [0; 4].map(|_| noise.unit() < 0.5);
    let layout = if noise.unit() < 0.5 { WeightLayout::InOut } else { WeightLayout::OutIn };
    let weight = if layout == WeightLayout::InOut { [c, o] } else { [o, c] };
    let key = DropoutKey { rate: noise.unit() as f32 * 0.9, site: noise.word() };
    let dropout = (noise.unit() < 0.5).then_some(key);
    let forward = Attention { heads, causal, dropout, rows: pick(&[1, 8, 64], noise) };
    let chunk = pick(&[1, 16, 1000], noise);
    let scalars = Scalars {
        seed: u64::from(noise.word()) << 20,
        step: 1 + noise.below(100) as u64,
        learning_rate: 1e-3,
        first_sample: u64::from(noise.word()),
        loss_scale: 0.5,
        ..Scalars::default()
    };
    let case = |op: Op, shapes: &[&[usize]]| Example {
        op,
        inputs: shapes.iter().map(|s| (TensorType::f32(s), Fill::Uniform)).collect(),
        state: Fill::Uniform,
        scalars,
    };
    let fill = |mut example: Example, index: usize, fill: Fill| {
        if matches!(fill, Fill::Index(_) | Fill::Target(_)) {
            example.inputs[index].0.dtype = DType::I32;
        }
        example.inputs[index].1 = fill;
        example
    };
    let x: &[usize] = &[b, t, c];
    let with_bias = |op: Op, shapes: &[&[usize]], extra: &[usize]| {
        case(op, &if bias { [shapes, &[extra]].concat() } else { shapes.to_vec() })
    };
    let mut norm_inputs: Vec<&[usize]> = vec![x, x, &x[2..], &x[..2], &x[..2]];
    if residual {
        norm_inputs.push(x);
    }
    vec![
        case(Add.into(), &[x, x]),
        case(Gelu.into(), &[x]),
        case(GeluGrad.into(), &[x, x]),
        case(Dropout { key }.into(), &[x]),
        with_bias(LayerNorm { eps: 1e-5, bias }.into(), &[x, &x[2..]], &x[2..]),
        fill(case(LayerNormGrad { bias, residual, accumulate }.into(), &norm_inputs), 4, Fill::Positive),
        with_bias(Linear { layout, bias }.into(), &[x, &weight], &[o]),
        case(LinearInputGrad { layout }.into(), &[&[b, t, o], &weight]),
        case(LinearWeightGrad { layout, bias, accumulate }.into(), &[x, &[b, t, o]]),
        case(forward.into(), &[&[b, t, 3 * c]]),
        case(AttentionGrad { forward }.into(), &[x, &[b, t, 3 * c], x, &[b, heads, t]]),
        fill(case(HeadLoss { chunk }.into(), &[x, &[v, c], &x[..2]]), 2, Fill::Target(v as i32)),
        fill(
            case(HeadLossGrad { chunk, accumulate_loss: residual, accumulate }.into(), &[x, &[v, c], &x[..2]]),
            2,
            Fill::Target(v as i32),
        ),
        fill(case(EmbeddingGrad { vocab_size: v, accumulate }.into(), &[x, &x[..2]]), 1, Fill::Index(v as i32)),
        case(GradNorm.into(), &[x, &weight, &[o]]),
        Example {
            state: Fill::Positive,
            ..case(AdamW { beta1: 0.9, beta2: 0.99, eps: 1e-8, weight_decay: 0.1 }.into(), &[x, &[1]])
        },
    ]
}

#[test]
fn fast_kernels_equal_their_references_on_random_shapes() {
    for seed in 0..40 {
        let mut noise = Noise::new(1000 + seed);
        for example in random_examples(&mut noise) {
            check(&example, &mut noise);
        }
    }
}

/// The vocabulary of GPT-2 divides into nothing: odd in every way.
#[test]
fn the_head_of_gpt2_with_its_odd_vocabulary_is_exact() {
    let mut noise = Noise::new(3);
    let shapes: [&[usize]; 3] = [&[1, 5, 8], &[50257, 8], &[1, 5]];
    let mut inputs = shapes.map(|s| (TensorType::f32(s), Fill::Uniform)).to_vec();
    inputs[2] = (TensorType::i32(shapes[2]), Fill::Target(50257));
    let op = HeadLossGrad { chunk: 2, accumulate_loss: false, accumulate: true }.into();
    check(&Example { op, inputs, state: Fill::Uniform, scalars: Scalars::default() }, &mut noise);
}
