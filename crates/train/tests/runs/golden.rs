//! Compares every family with PyTorch: logits, every gradient, and ten steps of AdamW, on values stored by the
//! repository's `scripts/golden_*.py`. Both the fast kernels in their arena and the reference kernels in double
//! precision must agree with it.

use crate::support::{assert_close, plan_training};
use plimsoll_exec::reference::{Value, interpret};
use plimsoll_graph::models::{Gpt2Config, ModelConfig};
use plimsoll_graph::ops::WeightLayout;
use plimsoll_graph::{
    ADAPTER_PREFIX, AdapterFile, Adapters, Contrastive, DType, Graph, Objective, Optimizer, Parameter, ProgramKind,
    SampleShape, Scalars, Storage, Targets, TensorId, TrainShape,
};
use plimsoll_plan::{Level, Levers, Precision, Recompute, plan_sampling};
use plimsoll_train::{Engine, Sampling, Writer};
use plimsoll_units::Bytes;
use safetensors::SafeTensors;
use std::collections::{HashMap, HashSet};

/// Tokens of a prompt that are read at a time.
const PREFILL: usize = 4;

/// Tolerance for rounding in single precision through the whole model: absolute difference of logits.
const LOGITS: f64 = 1e-4;
/// Tolerance for gradients, relative to the tensor's largest.
const GRADIENTS: f64 = 1e-4;
/// A gradient below this is zero except for rounding: biases of keys change no probability.
const ZERO: f64 = 1e-8;
/// Tolerance after several steps, relative to the value.
const LATER_STEPS: f64 = 2e-4;

/// The adapters with LoRA+, and the ratio of their learning rates.
const LORA_PLUS: (&str, f32) = ("adapters with LoRA+", 4.0);

/// The configuration of the stored GPT-2, which its file lacks.
fn gpt2() -> ModelConfig {
    ModelConfig::Gpt2(Gpt2Config {
        vocab_size: 37,
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
    })
}

/// The stored results of PyTorch.
struct Golden {
    family: &'static str,
    archive: SafeTensors<'static>,
    model: ModelConfig,
    adapters: Option<Adapters>,
    /// Samples, and tokens of each.
    tokens: [usize; 2],
    /// Targets of each sample.
    targets: usize,
    /// Hard negatives of each sample of an encoder.
    negatives: usize,
}

impl Golden {
    /// The stored results of every family.
    fn all() -> Vec<Self> {
        let files: [(_, &'static [u8]); 41] = [
            ("gpt2", include_bytes!("../golden/gpt2.safetensors")),
            ("llama", include_bytes!("../golden/llama.safetensors")),
            ("mistral", include_bytes!("../golden/mistral.safetensors")),
            ("ministral", include_bytes!("../golden/ministral.safetensors")),
            ("qwen2", include_bytes!("../golden/qwen2.safetensors")),
            ("qwen2 window", include_bytes!("../golden/qwen2_window.safetensors")),
            ("qwen3", include_bytes!("../golden/qwen3.safetensors")),
            ("gemma", include_bytes!("../golden/gemma.safetensors")),
            ("gemma2", include_bytes!("../golden/gemma2.safetensors")),
            ("gemma3", include_bytes!("../golden/gemma3.safetensors")),
            ("phi3", include_bytes!("../golden/phi3.safetensors")),
            ("smollm3", include_bytes!("../golden/smollm3.safetensors")),
            ("olmo2", include_bytes!("../golden/olmo2.safetensors")),
            ("olmo3", include_bytes!("../golden/olmo3.safetensors")),
            ("granite", include_bytes!("../golden/granite.safetensors")),
            ("qwen3 moe", include_bytes!("../golden/qwen3_moe.safetensors")),
            ("olmoe", include_bytes!("../golden/olmoe.safetensors")),
            ("mixtral", include_bytes!("../golden/mixtral.safetensors")),
            ("gpt-oss", include_bytes!("../golden/gpt_oss.safetensors")),
            ("qwen3 moe balanced", include_bytes!("../golden/qwen3_moe_balanced.safetensors")),
            ("gpt-oss balanced", include_bytes!("../golden/gpt_oss_balanced.safetensors")),
            ("t5 v1.0", include_bytes!("../golden/t5_v1_0.safetensors")),
            ("t5 v1.1", include_bytes!("../golden/t5_v1_1.safetensors")),
            ("adapters of llama", include_bytes!("../golden/adapters_llama.safetensors")),
            ("adapters of gpt2", include_bytes!("../golden/adapters_gpt2.safetensors")),
            ("adapters of phi3", include_bytes!("../golden/adapters_phi3.safetensors")),
            ("adapters of an embedding", include_bytes!("../golden/adapters_embedding.safetensors")),
            ("adapters of a tied embedding", include_bytes!("../golden/adapters_tied.safetensors")),
            ("adapters of a head", include_bytes!("../golden/adapters_head.safetensors")),
            ("adapters of a tied head", include_bytes!("../golden/adapters_head_tied.safetensors")),
            (LORA_PLUS.0, include_bytes!("../golden/adapters_plus.safetensors")),
            ("adapters with magnitudes", include_bytes!("../golden/adapters_dora.safetensors")),
            ("adapters with magnitudes of gpt2", include_bytes!("../golden/adapters_dora_gpt2.safetensors")),
            ("adapters with magnitudes of phi3", include_bytes!("../golden/adapters_dora_phi3.safetensors")),
            ("adapters of experts", include_bytes!("../golden/adapters_experts.safetensors")),
            ("adapters of fused experts", include_bytes!("../golden/adapters_fused.safetensors")),
            ("adapters of stacked experts", include_bytes!("../golden/adapters_stacked.safetensors")),
            ("adapters of t5", include_bytes!("../golden/adapters_t5.safetensors")),
            ("bert", include_bytes!("../golden/bert.safetensors")),
            ("modernbert", include_bytes!("../golden/modernbert.safetensors")),
            ("bert with negatives", include_bytes!("../golden/bert_negatives.safetensors")),
        ];
        files.into_iter().map(|(family, bytes)| Self::read(family, bytes)).collect()
    }

    /// Those of families that continue text.
    fn with_logits() -> Vec<Self> {
        Self::all().into_iter().filter(|golden| !golden.model.is_encoder()).collect()
    }

    fn read(family: &'static str, bytes: &'static [u8]) -> Self {
        let archive = SafeTensors::deserialize(bytes).expect("the file in the repository is whole");
        let (_, metadata) = SafeTensors::read_metadata(bytes).expect("the file in the repository is whole");
        let config = metadata.metadata().as_ref().and_then(|m| m.get("config"));
        let model = match config {
            Some(text) => ModelConfig::from_json(text).unwrap_or_else(|error| panic!("{family}: {error}")),
            None => gpt2(),
        };
        let extents = |name: &str| {
            let shape = archive.tensor(name).expect("every family has these").shape().to_vec();
            [shape[0], shape[1]]
        };
        let of_targets = if model.is_encoder() { "decoder_tokens" } else { "targets" };
        let (tokens, [rows, targets]) = (extents("tokens"), extents(of_targets));
        let negatives = rows / tokens[0] - 1;
        let adapters = metadata.metadata().as_ref().and_then(|m| m.get("adapters"));
        let adapters = adapters.map(|text| adapters_of(&archive, text));
        Self { family, archive, model, adapters, tokens, targets, negatives }
    }

    fn words(&self, name: &str) -> Vec<[u8; 4]> {
        let view = self.archive.tensor(name).unwrap_or_else(|error| panic!("{}: `{name}`: {error}", self.family));
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

    /// One sample's part of a tensor stored for all samples.
    fn of_sample(&self, name: &str, sample: usize) -> Vec<i32> {
        let all = self.ints(name);
        let each = all.len() / self.tokens[0];
        all[sample * each..][..each].to_vec()
    }

    fn has_decoder(&self) -> bool {
        self.model.decoder_start().is_some()
    }

    /// The tokens before a prediction: the decoder's, if there is one.
    fn fed(&self, sample: usize) -> Vec<i32> {
        self.of_sample(if self.has_decoder() { "decoder_tokens" } else { "tokens" }, sample)
    }

    /// PyTorch's logits after the first `count` of them.
    fn logits_after(&self, sample: usize, count: usize) -> Vec<f64> {
        let vocab_size = self.model.vocab_size();
        self.doubles("logits")[(sample * self.targets + count - 1) * vocab_size..][..vocab_size].to_vec()
    }

    /// Number of targets that are not ignored.
    fn counted(&self) -> usize {
        self.ints("targets").iter().filter(|&&target| target >= 0).count()
    }

    fn weight_count(&self) -> usize {
        self.archive.names().iter().filter(|name| name.starts_with("weight.")).count()
    }
}

/// The adapters of a stored `adapter_config.json`.
fn adapters_of(archive: &SafeTensors, text: &str) -> Adapters {
    let views = archive.tensors();
    let trained = views.iter().filter_map(|(name, view)| Some((name.strip_prefix("grad.")?, view.shape())));
    // In PEFT's files, parameters of the model that are trained whole have the prefix too.
    let stored = trained.map(|(name, shape)| match name.starts_with(ADAPTER_PREFIX) {
        true => (name.to_owned(), shape),
        false => (format!("{ADAPTER_PREFIX}{name}"), shape),
    });
    let stored = stored.collect::<Vec<_>>();
    let file = AdapterFile::from_json(text).expect("PEFT's own file");
    file.adapters(stored.iter().map(|(name, shape)| (name.as_str(), *shape))).expect("PEFT's own file")
}

/// Runs the programs of the model's graph.
trait Machine {
    fn graph(&self) -> &Graph;
    fn write_floats(&mut self, tensor: TensorId, values: &[f32]);
    fn write_ints(&mut self, tensor: TensorId, values: &[i32]);
    fn run(&mut self, program: ProgramKind, scalars: &Scalars);
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

    fn run(&mut self, program: ProgramKind, scalars: &Scalars) {
        self.engine.run(program, scalars).expect("a sound plan runs");
    }

    fn read(&mut self, tensor: TensorId) -> Vec<f64> {
        let mut values = vec![0.0; self.graph[tensor].ty.elements()];
        self.engine.read(tensor, &mut values).expect("a tensor of this size");
        values.into_iter().map(f64::from).collect()
    }
}

/// The reference kernels in double precision, without a plan.
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

    fn run(&mut self, program: ProgramKind, scalars: &Scalars) {
        let program = self.graph.program(program).expect("a program of the graph");
        interpret(&self.graph, program, &mut self.values, scalars);
    }

    fn read(&mut self, tensor: TensorId) -> Vec<f64> {
        self.values[&tensor].floats().to_vec()
    }
}

fn fast(golden: &Golden, level: Level) -> Fast {
    fast_with(golden, &Levers { recompute: Recompute::all(level), ..Levers::default() })
}

fn fast_with(golden: &Golden, levers: &Levers) -> Fast {
    let [samples, tokens] = golden.tokens;
    let shape = TrainShape {
        micro_batch: samples,
        seq_len: tokens,
        target_len: golden.model.takes_pairs().then_some(golden.targets),
        // Gradients are kept until the update, so they can be read.
        accumulates: true,
        head_chunk: 7,
        evaluates: true,
        sample_prefill: Some(PREFILL),
        adapters: golden.adapters.clone(),
        // The scale of the stored loss.
        objective: Objective {
            contrastive: Contrastive { scale: 1.0, negatives: golden.negatives, ..Contrastive::default() },
            ..Objective::default()
        },
        ..TrainShape::default()
    };
    let lora_plus = if golden.family == LORA_PLUS.0 { LORA_PLUS.1 } else { 1.0 };
    let optimizer = Optimizer { lora_plus, ..Optimizer::default() };
    let (graph, plan) = plan_training(&golden.model, &shape, &optimizer, levers, samples, 2);
    let engine = Engine::new(Box::new(plimsoll_exec::CpuDevice::new()), &graph, plan).expect("memory for a tiny model");
    Fast { graph, engine }
}

/// Every machine, with PyTorch's weights, and with zeros in all other persistent tensors.
fn machines(golden: &Golden) -> Vec<(String, Box<dyn Machine>)> {
    let (kept, again) = (fast(golden, Level::None), fast(golden, Level::Block));
    let reference = Reference { graph: again.graph.clone(), values: HashMap::new() };
    let mut machines: Vec<(_, Box<dyn Machine>)> =
        vec![("fast", Box::new(kept)), ("fast, recomputing", Box::new(again)), ("reference", Box::new(reference))];
    for (_, machine) in &mut machines {
        fill(machine.as_mut(), golden);
    }
    machines.into_iter().map(|(name, machine)| (format!("{}, {name}", golden.family), machine)).collect()
}

/// A parameter's part of the values that PyTorch stores under `PREFIX.NAME`.
fn of_parameter(golden: &Golden, prefix: &str, graph: &Graph, parameter: &Parameter) -> Vec<f32> {
    let tensor = &graph[parameter.tensor];
    if parameter.stored.is_empty() {
        return golden.floats(&format!("{prefix}.{}", tensor.name));
    }
    let mut values = vec![0.0; tensor.ty.elements()];
    for piece in &parameter.stored {
        let stored = golden.floats(&format!("{prefix}.{}", piece.tensor));
        if let Some(rows) = piece.transposed {
            let (own, columns) = (&stored[piece.from..][..piece.elements], piece.elements / rows);
            return (0..own.len()).map(|index| own[index % rows * columns + index / rows]).collect();
        }
        values[piece.at..][..piece.elements].copy_from_slice(&stored[piece.from..][..piece.elements]);
    }
    values
}

/// The norm of each output's weights.
fn norms(golden: &Golden, graph: &Graph, parameter: &Parameter) -> Vec<f32> {
    let weights = of_parameter(golden, "weight", graph, parameter);
    let layout = parameter.norms.expect("a weight with norms").layout;
    let (inputs, outputs) = layout.extents(&graph[parameter.tensor].ty);
    let at = |o: usize, i: usize| if layout == WeightLayout::OutIn { o * inputs + i } else { i * outputs + o };
    let norm = |o| (0..inputs).map(|i| weights[at(o, i)].powi(2)).sum::<f32>().sqrt();
    (0..outputs).map(norm).collect()
}

fn fill(machine: &mut dyn Machine, golden: &Golden) {
    let graph = machine.graph().clone();
    let parameter = |id: TensorId| graph.parameters.iter().find(|p| p.tensor == id);
    let tensors = graph.tensors.clone();
    let stays = tensors.iter().enumerate().filter(|(_, t)| t.storage != Storage::Transient);
    for (index, tensor) in stays.filter(|(_, t)| t.ty.dtype == DType::F32) {
        let id = TensorId(index as u32);
        let values = match parameter(id) {
            Some(parameter) => of_parameter(golden, "weight", &graph, parameter),
            None => match graph.parameters.iter().find(|p| p.norms.is_some_and(|norms| norms.tensor == id)) {
                Some(weight) => norms(golden, &graph, weight),
                None => vec![0.0; tensor.ty.elements()],
            },
        };
        machine.write_floats(id, &values);
    }
}

/// Feeds the batch to `program` and returns the loss.
fn loss_of_batch(machine: &mut dyn Machine, golden: &Golden, program: ProgramKind) -> f64 {
    let ports = machine.graph().program(program).expect("a program with a batch").ports.clone();
    machine.write_ints(ports.tokens.expect("tokens are fed"), &golden.ints("tokens"));
    machine.write_ints(ports.targets.expect("targets are fed"), &golden.ints("targets"));
    if let (Some(segments), Some(tokens), Some(of_decoder)) =
        (ports.segments, ports.decoder_tokens, ports.decoder_segments)
    {
        machine.write_ints(segments, &golden.ints("segments"));
        machine.write_ints(tokens, &golden.ints("decoder_tokens"));
        let ones = || vec![1; golden.tokens[0] * golden.targets];
        let stored = golden.model.is_encoder().then(|| golden.ints("decoder_segments"));
        machine.write_ints(of_decoder, &stored.unwrap_or_else(ones));
    }
    machine.run(program, &Scalars { loss_scale: 1.0 / golden.counted() as f32, ..Scalars::default() });
    machine.read(ports.loss.expect("there is a loss"))[0]
}

/// Reads a sample's source, if there is a decoder.
fn encode(machine: &mut dyn Machine, golden: &Golden, sample: usize) {
    let Some(ports) = machine.graph().program(ProgramKind::Encode).map(|p| p.ports.clone()) else { return };
    machine.write_ints(ports.tokens.expect("tokens are fed"), &golden.of_sample("tokens", sample));
    machine.write_ints(ports.segments.expect("segments are fed"), &golden.of_sample("segments", sample));
    machine.run(ProgramKind::Encode, &Scalars::default());
}

/// The logits after the last of `tokens`: runs `prefill` for each full chunk, then `sample`.
fn logits_after(machine: &mut dyn Machine, golden: &Golden, sample: usize, tokens: &[i32]) -> Vec<f64> {
    encode(machine, golden, sample);
    let (wide, rest) = if golden.has_decoder() { (&[][..], tokens) } else { tokens.as_chunks::<PREFILL>() };
    let wide = wide.iter().map(|chunk| (ProgramKind::Prefill, &chunk[..]));
    let (mut position, mut logits) = (0, vec![]);
    for (program, chunk) in wide.chain(rest.chunks(1).map(|token| (ProgramKind::Sample, token))) {
        let ports = machine.graph().program(program).expect("a program that samples").ports.clone();
        machine.write_ints(ports.tokens.expect("tokens are fed"), chunk);
        if let (Some(segments), Some(of_decoder)) = (ports.segments, ports.decoder_segments) {
            machine.write_ints(segments, &golden.of_sample("segments", sample));
            machine.write_ints(of_decoder, &[1]);
        }
        machine.run(program, &Scalars { position, row: chunk.len() as u32 - 1, ..Scalars::default() });
        logits = machine.read(ports.logits.expect("logits are given"));
        position += chunk.len() as u32;
    }
    logits
}

#[test]
fn logits_at_every_position_are_pytorchs() {
    for golden in Golden::with_logits() {
        for (name, mut machine) in machines(&golden) {
            for sample in 0..golden.tokens[0] {
                let tokens = golden.fed(sample);
                for count in 1..=tokens.len() {
                    let found = logits_after(machine.as_mut(), &golden, sample, &tokens[..count]);
                    let what = format!("{name}, logits of sample {sample} after {count} tokens");
                    assert_close(&what, &found, &golden.logits_after(sample, count), LOGITS);
                }
            }
        }
    }
}

/// The writer selects the programs itself, and pads a partial chunk.
#[test]
fn a_writer_gets_pytorchs_logits_for_any_chunks() {
    for golden in Golden::with_logits().into_iter().filter(|g| !g.has_decoder()) {
        let tokens = golden.fed(0).into_iter().map(|id| id as u32).collect::<Vec<_>>();
        for cuts in [vec![], vec![1], vec![2, 3], vec![5], vec![6, 8], (1..tokens.len()).collect()] {
            let mut fast = fast(&golden, Level::Cheap);
            fill(&mut fast, &golden);
            let mut writer = Writer::new(&mut fast.engine, None);
            let mut done = 0;
            for cut in cuts.iter().copied().chain([tokens.len()]) {
                let logits = writer.feed(&[&tokens[done..cut]]).expect("tokens of the vocabulary");
                let found = logits.iter().copied().map(f64::from).collect::<Vec<_>>();
                let what = format!("{}, cut at {cuts:?}, {cut} tokens", golden.family);
                assert_close(&what, &found, &golden.logits_after(0, cut), LOGITS);
                done = cut;
            }
        }
    }
}

/// Ten tokens, each the most probable, as generated by `transformers`.
#[test]
fn greedy_text_is_that_of_transformers() {
    for golden in Golden::all().into_iter().filter(|g| g.archive.tensor("greedy").is_ok()) {
        let expected = golden.ints("greedy");
        let shape = SampleShape {
            rows: 2,
            prefill: PREFILL,
            capacity: golden.tokens[1] + expected.len(),
            source: golden.tokens[1],
        };
        let targets = Targets::cpu(2);
        let adapters = golden.adapters.as_ref();
        let planned = plan_sampling(&golden.model, adapters, &shape, None, &targets, Bytes::gib(1));
        let (graph, plan) = planned.expect("a sensible model");
        let engine =
            Engine::new(Box::new(plimsoll_exec::CpuDevice::new()), &graph, plan).expect("memory for a tiny model");
        let mut fast = Fast { graph, engine };
        fill(&mut fast, &golden);
        let tokens = golden.of_sample("tokens", 0);
        let segments = if golden.has_decoder() { golden.of_sample("segments", 0) } else { vec![1; tokens.len()] };
        let real = tokens.iter().zip(&segments).filter(|(_, segment)| **segment > 0);
        let prompt = real.map(|(&id, _)| id as u32).collect::<Vec<_>>();
        let greedy = Sampling { temperature: 0.0, top_k: None, top_p: 1.0, seed: 0 };
        // Next to another prompt of the same length: the rows are independent.
        let other = prompt.iter().rev().copied().collect::<Vec<_>>();
        let mut found = vec![];
        let mut on_token = |prompt: usize, id: u32| {
            if prompt == 1 {
                found.push(id as i32);
            }
            true
        };
        Writer::new(&mut fast.engine, golden.model.decoder_start())
            .write(&[&other, &prompt], expected.len(), golden.model.vocab_size(), &[], &greedy, &mut on_token)
            .expect("tokens of the vocabulary");
        assert_eq!(found, expected, "{}", golden.family);
    }
}

#[test]
fn every_gradient_is_pytorchs() {
    for golden in Golden::all() {
        for (name, mut machine) in machines(&golden) {
            let loss = loss_of_batch(machine.as_mut(), &golden, ProgramKind::MicroStep);
            assert_close(&format!("{name}, loss"), &[loss], &golden.doubles("losses")[..1], LATER_STEPS);
            let graph = machine.graph().clone();
            let of = |p: &Parameter| match p.stored.as_slice() {
                [] => vec![graph[p.tensor].name.to_string()],
                pieces => pieces.iter().map(|piece| piece.tensor.to_string()).collect(),
            };
            let stored = graph.parameters.iter().flat_map(of).collect::<HashSet<_>>();
            assert_eq!(stored.len(), golden.weight_count(), "{name}");
            let trained = golden.archive.names().iter().filter(|name| name.starts_with("grad.")).count();
            let found = graph.parameters.iter().filter(|p| p.training.is_some()).flat_map(of).collect::<HashSet<_>>();
            assert_eq!(found.len(), trained, "{name}: trained parameters");
            for parameter in &graph.parameters {
                let Some(training) = &parameter.training else { continue };
                let weight = &graph[parameter.tensor].name;
                let expected = of_parameter(&golden, "grad", &graph, parameter);
                let expected = expected.into_iter().map(f64::from).collect::<Vec<_>>();
                let largest = expected.iter().fold(0.0, |largest: f64, x| largest.max(x.abs()));
                let found = machine.read(training.gradient);
                assert_close(&format!("{name}, {weight}"), &found, &expected, (GRADIENTS * largest).max(ZERO));
            }
        }
    }
}

#[test]
fn ten_steps_of_adamw_are_pytorchs() {
    for golden in Golden::all() {
        let (losses, norms) = (golden.doubles("losses"), golden.doubles("grad_norms"));
        let has_terms = golden.archive.tensor("losses_of_targets").is_ok();
        let of_targets = if has_terms { golden.doubles("losses_of_targets") } else { losses.clone() };
        assert!(norms.iter().any(|&n| n > 1.0), "clipping is not put to the test: {norms:?}");
        for (name, mut machine) in machines(&golden) {
            for step in 0..losses.len() {
                let evaluated = loss_of_batch(machine.as_mut(), &golden, ProgramKind::Evaluate);
                let trained = loss_of_batch(machine.as_mut(), &golden, ProgramKind::MicroStep);
                machine.run(
                    ProgramKind::Update,
                    &Scalars { update: step as u64 + 1, learning_rate: 1e-2, ..Scalars::default() },
                );
                let norm = machine
                    .graph()
                    .program(ProgramKind::Update)
                    .and_then(|p| p.ports.grad_norm)
                    .expect("there is a norm");
                let norm = machine.read(norm)[0];
                let relative = |what, found: f64, expected: f64| {
                    assert_close(&format!("{name}, step {step}, {what}"), &[found / expected], &[1.0], LATER_STEPS);
                };
                relative("loss", trained, losses[step]);
                relative("held-out loss", evaluated, of_targets[step]);
                relative("gradient norm", norm, norms[step]);
            }
        }
    }
}

/// Micro-batches share the loss on the balance of experts: two equal ones have the loss and the gradients of one.
#[test]
fn equal_micro_batches_have_the_loss_on_the_balance_of_one() {
    for golden in Golden::all().into_iter().filter(|golden| golden.archive.tensor("losses_of_targets").is_ok()) {
        for (name, mut machine) in machines(&golden) {
            let ports = machine.graph().program(ProgramKind::MicroStep).expect("training").ports.clone();
            let half =
                Scalars { loss_scale: 0.5 / golden.counted() as f32, micro_batch_share: 0.5, ..Scalars::default() };
            for program in [ProgramKind::MicroStep, ProgramKind::MicroStepAdd] {
                let of_program = machine.graph().program(program).expect("training").ports.clone();
                machine.write_ints(of_program.tokens.expect("tokens are fed"), &golden.ints("tokens"));
                machine.write_ints(of_program.targets.expect("targets are fed"), &golden.ints("targets"));
                machine.run(program, &half);
            }
            let loss = machine.read(ports.loss.expect("there is a loss"));
            assert_close(&format!("{name}, loss"), &loss, &golden.doubles("losses")[..1], LATER_STEPS);
            for parameter in machine.graph().parameters.clone() {
                let expected = of_parameter(&golden, "grad", machine.graph(), &parameter);
                let expected = expected.into_iter().map(f64::from).collect::<Vec<_>>();
                let largest = expected.iter().fold(0.0, |largest: f64, x| largest.max(x.abs()));
                let found = machine.read(parameter.training.as_ref().expect("every parameter is trained").gradient);
                assert_close(&format!("{name}, a gradient"), &found, &expected, GRADIENTS * largest);
            }
        }
    }
}

/// An engine in bf16 with PyTorch's weights in single precision: rounded, with remainders.
fn in_bf16(golden: &Golden) -> Fast {
    let mut fast = fast_with(golden, &Levers { precision: Precision::Bf16, ..Levers::default() });
    fill(&mut fast, golden);
    for parameter in fast.graph.parameters.clone() {
        let weight = of_parameter(golden, "weight", &fast.graph, &parameter);
        let weight = bytemuck::cast_slice(&weight);
        fast.engine.fill_parameter(&parameter, 0, DType::F32, weight).expect("a tensor of this size");
    }
    fast
}

/// Largest relative change by rounding to bf16, which keeps eight bits.
const BF16: f64 = 1.0 / 256.0;

/// In bf16, logits, gradients and ten losses differ from PyTorch's in single precision by a few roundings: logits
/// relative to the largest, gradients by the norm of the difference, relative to their own. T5 does not scale its
/// scores, so its gradients double many roundings: PyTorch's own in bf16 are off by up to 38 of these units, with a
/// median of 21, in v1.0, and by up to 19, with a median of 8, in v1.1; ours, whose attention rounds probabilities and
/// slopes before multiplying them, by up to 40, with a mean of 21, and by up to 32, for a single weight, with a mean of
/// 11. Norms of queries and keys amplify roundings from step to step: PyTorch's own losses in bf16 are off by up to 7 units
/// for Gemma 3 and 2 for Qwen3, Gemma 3's gradients by up to 13; ours by up to 25. A token of Qwen3-MoE gets
/// another expert in bf16: PyTorch's own gradients are off by up to 41 units, ours by up to 42. PyTorch's own losses of
/// gpt-oss are off by up to 4 units, ours by up to 7. PyTorch's own logits of a Gemma 2 with an adapter of its head are off by
/// up to 9 units, ours by up to 8. With adapters of experts too, some tokens get other experts: PyTorch's own losses are off by up
/// to 6 units (Qwen3-MoE) and 3 (gpt-oss), but by up to 1 and 3 if tokens get the experts that they get in single precision; its
/// own gradients by up to 44 and 92 units.
#[test]
fn golden_values_hold_in_bf16_within_its_rounding() {
    for golden in Golden::all() {
        let (gradients, of_losses) = match golden.family {
            "t5 v1.0" => (50.0, 6.0),
            "t5 v1.1" => (40.0, 6.0),
            // A token that gets another expert changes the loss.
            "adapters of experts" => (40.0, 12.0),
            // Their gradients are products of small numbers.
            adapters if adapters.starts_with("adapters") => (40.0, 6.0),
            "gemma3" => (30.0, 12.0),
            "qwen3" | "phi3" => (20.0, 12.0),
            "qwen3 moe" | "qwen3 moe balanced" => (50.0, 12.0),
            "gpt-oss" | "gpt-oss balanced" => (20.0, 12.0),
            _ => (20.0, 6.0),
        };
        let of_logits = if golden.family == "adapters of a tied head" { 10.0 } else { 6.0 };
        let mut fast = in_bf16(&golden);
        if !golden.model.is_encoder() {
            let tokens = golden.fed(0);
            let found = logits_after(&mut fast, &golden, 0, &tokens);
            let expected = golden.logits_after(0, tokens.len());
            let largest = expected.iter().fold(0.0, |largest: f64, x| largest.max(x.abs()));
            assert_close(&format!("{}, logits", golden.family), &found, &expected, of_logits * BF16 * largest);
        }

        let losses = golden.doubles("losses");
        for (step, expected) in losses.iter().enumerate() {
            let loss = loss_of_batch(&mut fast, &golden, ProgramKind::MicroStep);
            assert_close(&format!("{}, loss {step}", golden.family), &[loss / expected], &[1.0], of_losses * BF16);
            if step == 0 {
                for parameter in fast.graph.parameters.clone() {
                    let Some(training) = &parameter.training else { continue };
                    let weight = &fast.graph[parameter.tensor].name.clone();
                    let expected = of_parameter(&golden, "grad", &fast.graph, &parameter);
                    let expected = expected.into_iter().map(f64::from).collect::<Vec<_>>();
                    let found = fast.read(training.gradient);
                    let norm = |values: &mut dyn Iterator<Item = f64>| values.map(|x| x * x).sum::<f64>().sqrt();
                    let of_expected = norm(&mut expected.iter().copied());
                    if of_expected < ZERO {
                        continue;
                    }
                    let error = norm(&mut found.iter().zip(&expected).map(|(f, e)| f - e)) / of_expected;
                    assert!(error < gradients * BF16, "{}, {weight}: {error}", golden.family);
                }
            }
            fast.run(
                ProgramKind::Update,
                &Scalars { update: step as u64 + 1, learning_rate: 1e-2, ..Scalars::default() },
            );
        }
    }
}
