//! GPT-2 against PyTorch: logits, every gradient, and ten steps of AdamW, on the values that `scripts/golden_gpt2.py`
//! stored. Both the fast kernels in their arena and the reference kernels in double precision must agree with it.

mod support;

use exec::reference::{Value, interpret};
use graph::models::Gpt2Config;
use graph::{DType, Graph, Optimizer, Role, Scalars, Storage, TensorId, TrainShape};
use plan::{Level, Levers, Recompute};
use safetensors::SafeTensors;
use std::collections::HashMap;
use support::{assert_close, plan_training};
use train::{Engine, Writer};

const B: usize = 3;
const T: usize = 10;
const VOCAB_SIZE: usize = 37;
const STEPS: usize = 10;
/// Tokens that a prompt is read at a time.
const PREFILL: usize = 4;

/// Rounding of single precision through the whole model, as an absolute difference of logits.
const LOGITS: f64 = 1e-4;
/// The same for gradients, as a part of the tensor's largest.
const GRADIENTS: f64 = 1e-4;
/// The same after several steps, as a part of the value.
const LATER_STEPS: f64 = 2e-4;

fn model() -> Gpt2Config {
    Gpt2Config {
        vocab_size: VOCAB_SIZE,
        n_positions: 16,
        n_embd: 16,
        n_layer: 2,
        n_head: 2,
        n_inner: None,
        attn_pdrop: 0.0,
        embd_pdrop: 0.0,
        resid_pdrop: 0.0,
        layer_norm_epsilon: 1e-5,
        initializer_range: 0.02,
        bias: true,
    }
}

/// What PyTorch computed.
struct Golden {
    archive: SafeTensors<'static>,
}

impl Golden {
    fn read() -> Self {
        let bytes = include_bytes!("golden/gpt2.safetensors");
        Self { archive: SafeTensors::deserialize(bytes).expect("the file in the repository is whole") }
    }

    fn words(&self, name: &str) -> Vec<[u8; 4]> {
        let view = self.archive.tensor(name).unwrap_or_else(|error| panic!("`{name}`: {error}"));
        view.data().as_chunks().0.to_vec()
    }

    fn floats(&self, name: &str) -> Vec<f32> {
        self.words(name).into_iter().map(f32::from_le_bytes).collect()
    }

    fn doubles(&self, name: &str) -> Vec<f64> {
        self.floats(name).into_iter().map(f64::from).collect()
    }

    fn ints(&self, name: &str) -> Vec<i32> {
        self.words(name).into_iter().map(i32::from_le_bytes).collect()
    }

    /// What PyTorch says comes after the first `count` tokens of a sample.
    fn logits_after(&self, sample: usize, count: usize) -> Vec<f64> {
        self.doubles("logits")[(sample * T + count - 1) * VOCAB_SIZE..][..VOCAB_SIZE].to_vec()
    }

    fn weight_count(&self) -> usize {
        self.archive.names().iter().filter(|name| name.starts_with("weight.")).count()
    }
}

/// Something that runs the programs of the model's graph.
trait Machine {
    fn graph(&self) -> &Graph;
    fn write_floats(&mut self, tensor: TensorId, values: &[f32]);
    fn write_ints(&mut self, tensor: TensorId, values: &[i32]);
    fn run(&mut self, program: &str, scalars: &Scalars);
    fn read(&mut self, tensor: TensorId) -> Vec<f64>;
}

/// The fast kernels in an arena.
struct Fast {
    graph: Graph,
    engine: Engine,
}

impl Machine for Fast {
    fn graph(&self) -> &Graph {
        &self.graph
    }

    fn write_floats(&mut self, tensor: TensorId, values: &[f32]) {
        self.engine.write(tensor, bytemuck::cast_slice(values)).expect("a tensor of this size");
    }

    fn write_ints(&mut self, tensor: TensorId, values: &[i32]) {
        self.engine.write(tensor, bytemuck::cast_slice(values)).expect("a tensor of this size");
    }

    fn run(&mut self, program: &str, scalars: &Scalars) {
        self.engine.run(program, scalars).expect("a sound plan runs");
    }

    fn read(&mut self, tensor: TensorId) -> Vec<f64> {
        let mut values = vec![0.0; self.graph[tensor].ty.elements()];
        self.engine.read(tensor, &mut values).expect("a tensor of this size");
        values.into_iter().map(f64::from).collect()
    }
}

/// The reference kernels in double precision, which know no plan.
struct Reference {
    graph: Graph,
    values: HashMap<TensorId, Value<f64>>,
}

impl Machine for Reference {
    fn graph(&self) -> &Graph {
        &self.graph
    }

    fn write_floats(&mut self, tensor: TensorId, values: &[f32]) {
        self.values.insert(tensor, Value::Float(values.iter().map(|&x| f64::from(x)).collect()));
    }

    fn write_ints(&mut self, tensor: TensorId, values: &[i32]) {
        self.values.insert(tensor, Value::Int(values.to_vec()));
    }

    fn run(&mut self, program: &str, scalars: &Scalars) {
        let program = self.graph.program(program).expect("a program of the graph");
        interpret(&self.graph, program, &mut self.values, scalars);
    }

    fn read(&mut self, tensor: TensorId) -> Vec<f64> {
        self.values[&tensor].floats().to_vec()
    }
}

fn fast(level: Level) -> Fast {
    let shape = TrainShape {
        micro_batch: B,
        seq_len: T,
        // Gradients stay until the update, where they can be read.
        accumulates: true,
        head_chunk: 7,
        evaluates: true,
        sample_prefill: Some(PREFILL),
        ..TrainShape::default()
    };
    let levers = Levers { recompute: Recompute::all(level), ..Levers::default() };
    let (graph, plan) = plan_training(&model(), &shape, &Optimizer::default(), &levers, B, 2);
    let engine = Engine::new(Box::new(exec::CpuDevice::new()), &graph, plan).expect("memory for a tiny model");
    Fast { graph, engine }
}

/// Every machine, with PyTorch's weights and with zeros for everything else that stays.
fn machines(golden: &Golden) -> Vec<(&'static str, Box<dyn Machine>)> {
    let (kept, again) = (fast(Level::None), fast(Level::Block));
    let reference = Reference { graph: again.graph.clone(), values: HashMap::new() };
    let mut machines: Vec<(_, Box<dyn Machine>)> =
        vec![("fast", Box::new(kept)), ("fast, recomputing", Box::new(again)), ("reference", Box::new(reference))];
    for (_, machine) in &mut machines {
        fill(machine.as_mut(), golden);
    }
    machines
}

fn fill(machine: &mut dyn Machine, golden: &Golden) {
    let tensors = machine.graph().tensors.clone();
    let stays = tensors.iter().enumerate().filter(|(_, t)| t.storage != Storage::Transient);
    for (index, tensor) in stays.filter(|(_, t)| t.ty.dtype == DType::F32) {
        let values = match tensor.role {
            Role::Weight => golden.floats(&format!("weight.{}", tensor.name)),
            _ => vec![0.0; tensor.ty.elements()],
        };
        machine.write_floats(TensorId(index as u32), &values);
    }
}

/// Feeds the batch to `program` and returns the loss.
fn loss_of_batch(machine: &mut dyn Machine, golden: &Golden, program: &str) -> f64 {
    let ports = machine.graph().program(program).expect("a program with a batch").ports.clone();
    machine.write_ints(ports.tokens.expect("tokens are fed"), &golden.ints("tokens"));
    machine.write_ints(ports.targets.expect("targets are fed"), &golden.ints("targets"));
    machine.run(program, &Scalars { loss_scale: 1.0 / (B * T) as f32, ..Scalars::default() });
    machine.read(ports.loss.expect("a loss is given"))[0]
}

/// The logits after the last of `tokens`: `prefill` as often as it can be filled, then `sample`.
fn logits_after(machine: &mut dyn Machine, tokens: &[i32]) -> Vec<f64> {
    let (wide, rest) = tokens.as_chunks::<PREFILL>();
    let wide = wide.iter().map(|chunk| ("prefill", &chunk[..]));
    let (mut position, mut logits) = (0, vec![]);
    for (program, chunk) in wide.chain(rest.chunks(1).map(|token| ("sample", token))) {
        let ports = machine.graph().program(program).expect("a program that samples").ports.clone();
        machine.write_ints(ports.tokens.expect("tokens are fed"), chunk);
        machine.run(program, &Scalars { position, row: chunk.len() as u32 - 1, ..Scalars::default() });
        logits = machine.read(ports.logits.expect("logits are given"));
        position += chunk.len() as u32;
    }
    logits
}

#[test]
fn logits_at_every_position_are_pytorchs() {
    let golden = Golden::read();
    for (name, mut machine) in machines(&golden) {
        for (sample, tokens) in golden.ints("tokens").chunks(T).enumerate() {
            for count in 1..=T {
                let found = logits_after(machine.as_mut(), &tokens[..count]);
                let what = format!("{name}, logits of sample {sample} after {count} tokens");
                assert_close(&what, &found, &golden.logits_after(sample, count), LOGITS);
            }
        }
    }
}

/// The writer chooses between the programs by itself, and pads what does not fill one.
#[test]
fn a_writer_sees_pytorchs_logits_however_it_is_fed() {
    let golden = Golden::read();
    let tokens = golden.ints("tokens")[..T].iter().map(|&id| id as u32).collect::<Vec<_>>();
    for cuts in [vec![], vec![1], vec![2, 3], vec![5], vec![6, 8], (1..T).collect()] {
        let mut fast = fast(Level::Cheap);
        fill(&mut fast, &golden);
        let mut writer = Writer::new(&mut fast.engine);
        let mut done = 0;
        for cut in cuts.iter().copied().chain([T]) {
            let logits = writer.feed(&tokens[done..cut]).expect("tokens of the vocabulary");
            let found = logits.iter().copied().map(f64::from).collect::<Vec<_>>();
            assert_close(&format!("cut at {cuts:?}, {cut} tokens"), &found, &golden.logits_after(0, cut), LOGITS);
            done = cut;
        }
    }
}

#[test]
fn every_gradient_is_pytorchs() {
    let golden = Golden::read();
    for (name, mut machine) in machines(&golden) {
        let loss = loss_of_batch(machine.as_mut(), &golden, "micro_step");
        assert_close(&format!("{name}, loss"), &[loss], &golden.doubles("losses")[..1], LATER_STEPS);
        let graph = machine.graph().clone();
        assert_eq!(graph.parameters.len(), golden.weight_count());
        for parameter in &graph.parameters {
            let weight = &graph[parameter.tensor].name;
            let expected = golden.doubles(&format!("grad.{weight}"));
            let largest = expected.iter().fold(0.0, |largest: f64, x| largest.max(x.abs()));
            let gradient = parameter.training.as_ref().expect("every parameter is trained").gradient;
            assert_close(&format!("{name}, {weight}"), &machine.read(gradient), &expected, GRADIENTS * largest);
        }
    }
}

#[test]
fn ten_steps_of_adamw_are_pytorchs() {
    let golden = Golden::read();
    let (losses, norms) = (golden.doubles("losses"), golden.doubles("grad_norms"));
    assert!(norms.iter().any(|&n| n > 1.0), "clipping is not put to the test: {norms:?}");
    for (name, mut machine) in machines(&golden) {
        for step in 0..STEPS {
            let evaluated = loss_of_batch(machine.as_mut(), &golden, "evaluate");
            let trained = loss_of_batch(machine.as_mut(), &golden, "micro_step");
            machine.run("update", &Scalars { update: step as u64 + 1, learning_rate: 1e-2, ..Scalars::default() });
            let norm = machine.graph().program("update").and_then(|p| p.ports.grad_norm).expect("a norm is given");
            let norm = machine.read(norm)[0];
            let relative = |what, found: f64, expected: f64| {
                assert_close(&format!("{name}, step {step}, {what}"), &[found / expected], &[1.0], LATER_STEPS);
            };
            relative("loss", trained, losses[step]);
            relative("held-out loss", evaluated, losses[step]);
            relative("gradient norm", norm, norms[step]);
        }
    }
}
