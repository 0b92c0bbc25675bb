//! A training step of every family on the card and on the processor: the same losses and the same weights for all
//! levers; and every wait of its plan is needed.

use super::machine::Machine as CudaMachine;
use super::streams::without_a_wait;
use plimsoll_exec::cuda::CudaOptions;
use plimsoll_exec::{CpuDevice, Device, DeviceError, converted, joined, normal_pair, philox, remainders, run_program};
use plimsoll_graph::models::{Gpt2Config, ModelConfig};
use plimsoll_graph::{
    Contrastive, DType, Graph, Init, Objective, Op, Optimizer, Products, ProgramKind, Scalars, Target, Targets,
    TensorId, TrainShape, build_training,
};
use plimsoll_plan::{Level, Levers, Machine, Plan, Precision, Rates, Recompute, lay_out, validate};

/// A run with any model, shape and levers.
#[derive(Clone)]
pub struct Run {
    model: ModelConfig,
    shape: TrainShape,
    levers: Levers,
    pace: Pace,
}

/// Number of steps, and the duration of each.
#[derive(Clone, Copy)]
struct Pace {
    steps: u64,
    learning_rate: f32,
}

/// Losses of each step, and all parameters at the end.
type LossesAndWeights = (Vec<f32>, Vec<f32>);

const SEED: u64 = 11;
const SHORT: Pace = Pace { steps: 2, learning_rate: 0.01 };
pub const CARD: Target = Target::Cuda { compute_capability: (8, 6), products: Products::Kernels };

pub fn gpt2() -> ModelConfig {
    ModelConfig::Gpt2(Gpt2Config {
        vocab_size: 29,
        n_positions: 8,
        n_embd: 16,
        n_layer: 1,
        n_head: 2,
        n_inner: None,
        attn_pdrop: 0.1,
        embd_pdrop: 0.1,
        resid_pdrop: 0.1,
        layer_norm_epsilon: 1e-5,
        initializer_range: 0.2,
        bias: true,
    })
}

fn of_json(config: &str) -> ModelConfig {
    ModelConfig::from_json(config).expect("a valid model")
}

pub fn llama() -> ModelConfig {
    of_json(
        r#"{"model_type": "llama", "vocab_size": 29, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1,
        "num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 8, "initializer_range": 0.2}"#,
    )
}

pub fn t5() -> ModelConfig {
    of_json(
        r#"{"model_type": "t5", "vocab_size": 29, "d_model": 16, "d_kv": 8, "d_ff": 24, "num_layers": 1, "num_heads": 2,
        "relative_attention_num_buckets": 8, "relative_attention_max_distance": 20, "dropout_rate": 0.1,
        "feed_forward_proj": "gated-gelu", "tie_word_embeddings": false}"#,
    )
}

/// A decoder of a family with one layer.
pub fn decoder(family: &str, more: &str) -> ModelConfig {
    of_json(&format!(
        r#"{{"model_type": "{family}", "vocab_size": 29, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1,
        "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 8, "max_position_embeddings": 8,
        "initializer_range": 0.2 {more}}}"#
    ))
}

/// An encoder of a family with one layer.
fn encoder(family: &str, more: &str) -> ModelConfig {
    of_json(&format!(
        r#"{{"model_type": "{family}", "vocab_size": 29, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1,
        "num_attention_heads": 2, "max_position_embeddings": 8, "initializer_range": 0.2 {more}}}"#
    ))
}

/// The smallest models whose parts are those of all families.
fn families() -> Vec<(&'static str, ModelConfig)> {
    let scaled = r#", "residual_multiplier": 0.5, "embedding_multiplier": 3.0, "logits_scaling": 2.0"#;
    vec![
        ("GPT-2", gpt2()),
        ("Llama", llama()),
        ("T5", t5()),
        ("Gemma 3", decoder("gemma3_text", r#", "sliding_window": 3"#)),
        ("Gemma 2", decoder("gemma2", r#", "attn_logit_softcapping": 1.5, "final_logit_softcapping": 2.0"#)),
        ("OLMo 2", decoder("olmo2", "")),
        (
            "OLMoE",
            decoder(
                "olmoe",
                r#", "num_experts": 3, "num_experts_per_tok": 2, "output_router_logits": true, "router_aux_loss_coef": 0.5"#,
            ),
        ),
        ("gpt-oss", decoder("gpt_oss", r#", "num_local_experts": 3, "num_experts_per_tok": 2, "sliding_window": 3"#)),
        ("Phi-3", decoder("phi3", r#", "resid_pdrop": 0.1"#)),
        ("Granite", decoder("granite", scaled)),
        ("BERT", encoder("bert", r#", "type_vocab_size": 2"#)),
        ("ModernBERT", encoder("modernbert", r#", "local_attention": 4, "global_attn_every_n_layers": 1"#)),
    ]
}

impl Run {
    pub fn of(model: ModelConfig) -> Self {
        let target_len = model.takes_pairs().then_some(6);
        let shape = TrainShape {
            micro_batch: 2,
            seq_len: 8,
            target_len,
            accumulates: true,
            head_chunk: 8,
            objective: Objective {
                contrastive: Contrastive { negatives: usize::from(model.is_encoder()), ..Contrastive::default() },
                ..Objective::default()
            },
            ..TrainShape::default()
        };
        Self { model, shape, levers: Levers::default(), pace: SHORT }
    }

    pub fn steps_made(self, steps: u64) -> Self {
        Self { pace: Pace { steps, ..self.pace }, ..self }
    }

    pub fn levers(self, levers: Levers) -> Self {
        Self { levers, ..self }
    }

    /// The graph and its plan for a device and a processor with one worker.
    pub fn plan(&self, device: Target) -> (Graph, Plan) {
        let mut graph = build_training(&self.model, &Optimizer::default(), &self.shape).expect("a valid model");
        self.levers.pull(&mut graph).expect("compatible levers");
        let host = Target::Cpu { threads: 1 };
        let plan = Plan { micro_batch: self.shape.micro_batch, ..lay_out(&graph, &Targets { device, host }) };
        assert_eq!(validate(&plan), Ok(()));
        (graph, plan)
    }

    /// Runs steps of two micro-batches each: the losses, and the final weights.
    pub fn train(&self, device: &mut dyn Device, on: Target) -> Result<LossesAndWeights, DeviceError> {
        let (graph, plan) = self.plan(on);
        train(device, &graph, &plan, self.pace)
    }

    /// The same on a device that the plan is loaded on.
    pub fn steps(&self, device: &mut dyn Device, graph: &Graph, plan: &Plan) -> Result<LossesAndWeights, DeviceError> {
        steps(device, graph, plan, self.pace)
    }

    /// Trains a step by each plan, which the device exchanges. A plan that is refused for lack of room is skipped, and the one
    /// before it continues. Also returns the device's resident bytes after each step.
    pub fn exchanging(
        &self,
        device: &mut dyn Device,
        plans: &[(Graph, Plan)],
    ) -> Result<(LossesAndWeights, Vec<Option<u64>>), DeviceError> {
        let (graph, mut loaded) = (&plans[0].0, &plans[0].1);
        device.load(loaded)?;
        start_weights(device, graph, loaded)?;
        let (mut losses, mut resident) = (vec![], vec![]);
        for ((_, next), step) in plans.iter().zip(1..) {
            if step > 1 {
                assert!(next.keeps_places_of(loaded) && device.can_exchange(loaded, next));
                match device.exchange(loaded, next) {
                    Ok(()) => loaded = next,
                    Err(DeviceError::NoRoom { .. }) => {}
                    Err(error) => return Err(error),
                }
            }
            losses.push(one_step(device, loaded, self.pace, step)?);
            resident.push(device.resident_bytes());
        }
        finish_update(device, loaded, self.pace, self.pace.steps)?;
        Ok(((losses, weights(device, graph, loaded)?), resident))
    }

    pub fn on_processor(&self) -> (Vec<f32>, Vec<f32>) {
        self.train(&mut CpuDevice::new(), Target::Cpu { threads: 1 }).expect("the processor trains")
    }
}

fn train(device: &mut dyn Device, graph: &Graph, plan: &Plan, pace: Pace) -> Result<LossesAndWeights, DeviceError> {
    device.load(plan)?;
    steps(device, graph, plan, pace)
}

fn steps(device: &mut dyn Device, graph: &Graph, plan: &Plan, pace: Pace) -> Result<LossesAndWeights, DeviceError> {
    start_weights(device, graph, plan)?;
    let losses = (1..=pace.steps).map(|step| one_step(device, plan, pace, step)).collect::<Result<_, _>>()?;
    finish_update(device, plan, pace, pace.steps)?;
    Ok((losses, weights(device, graph, plan)?))
}

/// Makes the host's part of the update of a step, if there is one.
fn finish_update(device: &mut dyn Device, plan: &Plan, pace: Pace, step: u64) -> Result<(), DeviceError> {
    let scalars = scalars(pace, step, 0);
    let run = |_| run_program(device, plan, ProgramKind::HostUpdate, &scalars.followed_by(&scalars));
    plan.program(ProgramKind::HostUpdate).map_or(Ok(()), run)
}

/// Runs a step of two micro-batches, after the host's part of the update before it. Returns its loss.
fn one_step(device: &mut dyn Device, plan: &Plan, pace: Pace, step: u64) -> Result<f32, DeviceError> {
    let continues = step > 1 && plan.program(ProgramKind::HostUpdateAndMicroStep).is_some();
    let first = if continues { ProgramKind::HostUpdateAndMicroStep } else { ProgramKind::MicroStep };
    for (number, program) in [first, ProgramKind::MicroStepAdd].into_iter().enumerate() {
        feed(device, plan, program, step * 2 + number as u64)?;
        let last = scalars(pace, step - 1, 0);
        run_program(device, plan, program, &last.followed_by(&scalars(pace, step, number as u64)))?;
    }
    let loss = plan.program(ProgramKind::MicroStepAdd).expect("accumulates").ports.loss.expect("a loss");
    let mut value = [0.0f32];
    device.read(plan, loss, bytemuck::cast_slice_mut(&mut value))?;
    if plan.program(ProgramKind::Update).is_some() {
        run_program(device, plan, ProgramKind::Update, &scalars(pace, step, 0))?;
    }
    Ok(value[0])
}

/// All parameters, in single precision.
fn weights(device: &dyn Device, graph: &Graph, plan: &Plan) -> Result<Vec<f32>, DeviceError> {
    let mut weights = Vec::new();
    for parameter in &graph.parameters {
        let master = parameter.master();
        let bytes = device.view(plan, master)?;
        let remainder = parameter.training.as_ref().and_then(|t| t.remainder);
        let single = match remainder {
            Some(remainder) => joined(&bytes, &device.view(plan, remainder)?).into(),
            None => converted(&bytes, plan[master].dtype(), DType::F32),
        };
        weights.extend(single.chunks_exact(4).map(|four| f32::from_le_bytes(four.try_into().expect("four bytes"))));
    }
    Ok(weights)
}

fn scalars(pace: Pace, step: u64, micro: u64) -> Scalars {
    Scalars {
        seed: SEED,
        step,
        update: step,
        learning_rate: pace.learning_rate,
        first_sample: (step * 2 + micro) * 2,
        loss_scale: 1.0 / 32.0,
        ..Scalars::default()
    }
}

/// Initial values as the model specifies, each by its own number.
fn start_weights(device: &mut dyn Device, graph: &Graph, plan: &Plan) -> Result<(), DeviceError> {
    for (index, parameter) in graph.parameters.iter().enumerate() {
        let elements = plan[parameter.tensor].ty.elements();
        let values = match parameter.init {
            Init::Zeros => vec![0.0; elements],
            Init::Ones => vec![1.0; elements],
            Init::Copy(_) => unreachable!("the model has no adapters"),
            Init::Normal(deviation) => {
                let pairs = (0..).flat_map(|i| normal_pair([SEED as u32, 0], index as u32, i));
                pairs.take(elements).map(|x| x * deviation).collect::<Vec<f32>>()
            }
        };
        let master = Some(parameter.master()).filter(|master| *master != parameter.tensor);
        for tensor in [Some(parameter.tensor), master].into_iter().flatten() {
            let bytes = converted(bytemuck::cast_slice(&values), DType::F32, plan[tensor].dtype());
            device.write(plan, tensor, &bytes)?;
        }
        if let Some(remainder) = parameter.training.as_ref().and_then(|t| t.remainder) {
            device.write(plan, remainder, &remainders(bytemuck::cast_slice(&values), DType::F32))?;
        }
    }
    Ok(())
}

/// Random tokens.
fn feed(device: &mut dyn Device, plan: &Plan, program: ProgramKind, batch: u64) -> Result<(), DeviceError> {
    let ports = plan.program(program).expect("a program of the plan").ports.clone();
    let mut write = |port: Option<TensorId>, id: &dyn Fn(u32) -> i32| match port {
        None => Ok(()),
        Some(port) => {
            let ids = (0..plan[port].ty.elements() as u32).map(id).collect::<Vec<_>>();
            device.write(plan, port, bytemuck::cast_slice(&ids))
        }
    };
    let token = |stream: u32| move |i| (philox([i, stream, batch as u32, 0], [SEED as u32, 0])[0] % 29) as i32;
    write(ports.tokens, &token(0))?;
    write(ports.decoder_tokens, &token(1))?;
    write(ports.targets, &token(2))?;
    write(ports.segments, &|_| 1)?;
    write(ports.decoder_segments, &|_| 1)?;
    write(ports.positions, &|i| (i % 8) as i32)
}

/// The largest difference, relative to the values' size.
pub fn distance(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    let scale = b.iter().fold(0.0f32, |most, x| most.max(x.abs()));
    a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max) / scale
}

/// Fifty steps, in which rounding errors grow. Takes minutes on the stand-in.
#[test]
#[ignore = "takes minutes"]
fn fifty_steps_of_every_family_equal_those_of_the_processor() {
    let machine = CudaMachine::of("");
    for (name, model) in families() {
        let run = Run { pace: Pace { steps: 50, learning_rate: 1e-3 }, ..Run::of(model) };
        let mut device = machine.device(CudaOptions::default()).expect("a card");
        let (losses, _) = run.train(&mut device, CARD).unwrap_or_else(|error| panic!("{name}: {error}"));
        let (expected, _) = run.on_processor();
        assert!(distance(&losses, &expected) < 1e-4, "{name}: {losses:?}, not {expected:?}");
    }
}

#[test]
fn every_family_trains_as_on_the_processor() {
    let machine = CudaMachine::of("");
    for (name, model) in families() {
        let run = Run::of(model);
        let mut device = machine.device(CudaOptions::default()).expect("a card");
        let (losses, weights) = run.train(&mut device, CARD).unwrap_or_else(|error| panic!("{name}: {error}"));
        let (expected_losses, expected_weights) = run.on_processor();
        assert!(distance(&losses, &expected_losses) < 1e-4, "{name}: {losses:?}, not {expected_losses:?}");
        // AdamW's first steps have the same size for any gradient, so a sign that rounding decides moves a weight.
        assert!(distance(&weights, &expected_weights) < 2e-2, "{name}: {}", distance(&weights, &expected_weights));
        assert!(losses[1] < losses[0] + 0.5 && losses.iter().all(|loss| loss.is_finite()), "{name}: {losses:?}");
    }
}

#[test]
fn invariant_5_levers_and_ways_to_run_change_no_bit() {
    let plain = Run::of(gpt2());
    let machine = CudaMachine::of("");
    let mut device = machine.device(CudaOptions::default()).expect("a card");
    let expected = plain.train(&mut device, CARD).expect("trains");
    drop(device);
    let recompute = Levers { recompute: Recompute::all(Level::Block), ..Levers::default() };
    let sent = Levers { activation_offload: 1, ..Levers::default() };
    for (levers, description, graphs) in [
        (sent, "execution=late", true),
        (Levers { activation_offload: 1, ..recompute }, "order=backward", false),
        (Levers::default(), "order=backward", true),
        (Levers::default(), "execution=late", false),
        (recompute, "mapping=0", true),
    ] {
        machine.reset(description);
        let options = CudaOptions { graphs, ..CudaOptions::default() };
        let mut device = machine.device(options).expect("a card");
        let result = plain.clone().levers(levers).train(&mut device, CARD).expect("trains");
        assert_eq!(result, expected, "{description}, {levers:?}");
    }
}

/// A card on which each node takes long.
fn slow() -> Machine {
    Machine::of_rates(Rates { node_s: 3.0, ..Rates::guess(1) })
}

/// Where the system ends long kernels, launches that are predicted to take long are cut.
#[test]
fn cut_launches_change_no_bit() {
    let machine = CudaMachine::of("");
    for (name, model) in families().into_iter().filter(|(name, _)| ["GPT-2", "T5", "OLMoE"].contains(name)) {
        let run = Run::of(model);
        let train = |description: &str| {
            machine.reset(description);
            let mut device = machine.device(CudaOptions::default()).expect("a card");
            device.set_speed(&slow());
            (run.train(&mut device, CARD).expect("trains"), machine.calls("cuLaunchKernel"))
        };
        let (whole, launches) = train("");
        let (cut, more_launches) = train("display=1;order=backward");
        assert_eq!(cut, whole, "{name}");
        assert!(more_launches > launches || !machine.driver().is_stand_in(), "{name}: {more_launches} launches");
    }
}

/// Consecutive updates are one launch, and so are the norms of several gradients. A limit of launches keeps updates apart.
#[test]
fn joined_updates_change_no_bit() {
    let machine = CudaMachine::of("");
    for precision in [Precision::Fp32, Precision::Bf16] {
        let run = Run::of(three_blocks()).steps_made(1).levers(Levers { precision, ..Levers::default() });
        let (_, plan) = run.plan(CARD);
        let update = plan.program(ProgramKind::Update).expect("an update");
        let updates = update.steps.iter().filter(|step| matches!(step.op, Op::ParameterUpdate(_))).count() as u64;
        let train = |description: &str| {
            machine.reset(description);
            let mut device = machine.device(CudaOptions { graphs: false, ..CudaOptions::default() }).expect("a card");
            let result = run.train(&mut device, CARD).expect("trains");
            assert_eq!(device.memory().arenas.map(|_, arena| arena.touched_bytes), plan.arenas(), "{description}");
            (result, machine.calls("cuLaunchKernel"))
        };
        let (apart, launches) = train("display=1");
        let (joined, fewer) = train("execution=late;order=backward");
        assert_eq!(joined, apart, "{precision:?}");
        assert!(updates > 20, "{updates}");
        if machine.driver().is_stand_in() {
            // Launches of twenty updates each.
            assert_eq!(launches - fewer, updates - updates.div_ceil(20), "{precision:?}: {launches}, {fewer} launches");
        }
    }
}

#[test]
fn invariant_5_levers_and_ways_to_run_change_no_bit_in_tf32() {
    const TF32: CudaOptions = CudaOptions { graphs: true, tf32: true, autotune: false };
    let plain = Run::of(gpt2());
    let machine = CudaMachine::of("");
    let single = plain.train(&mut machine.device(CudaOptions::default()).expect("a card"), CARD).expect("trains");
    let expected = plain.train(&mut machine.device(TF32).expect("a card"), CARD).expect("trains");
    assert_ne!(expected.0, single.0, "losses in TF32 are rounded differently");
    assert!(distance(&expected.0, &single.0) < 2e-3, "{:?}, not {:?}", expected.0, single.0);
    let recompute = Levers { recompute: Recompute::all(Level::Block), ..Levers::default() };
    for (levers, description, graphs) in
        [(Levers::default(), "execution=late", false), (recompute, "order=backward", true)]
    {
        machine.reset(description);
        let mut device = machine.device(CudaOptions { graphs, ..TF32 }).expect("a card");
        let result = plain.clone().levers(levers).train(&mut device, CARD).expect("trains");
        assert_eq!(result, expected, "{description}, {levers:?}");
    }
}

#[test]
fn an_offloaded_optimizer_trains_as_one_on_the_card() {
    let machine = CudaMachine::of("execution=late");
    let levers = Levers { optimizer_offload: 0.5, ..Levers::default() };
    let run = Run::of(gpt2()).levers(levers);
    let mut device = machine.device(CudaOptions::default()).expect("a card");
    let (losses, weights) = run.train(&mut device, CARD).expect("trains");
    let (expected_losses, expected_weights) = Run::of(gpt2()).on_processor();
    assert!(distance(&losses, &expected_losses) < 1e-4, "{losses:?}, not {expected_losses:?}");
    assert!(distance(&weights, &expected_weights) < 2e-2);
    let memory = device.memory();
    let (_, plan) = run.plan(CARD);
    assert_eq!(memory.arenas.map(|_, arena| arena.touched_bytes), plan.arenas());
}

/// Blocks that pass tiles of four rows through their feed-forward layers train as with all rows at a time, to rounding, and to
/// the bit with any other levers.
#[test]
fn invariant_5_levers_tiles_of_the_sequence_train_as_all_of_it() {
    let machine = CudaMachine::of("");
    for (name, model) in [("Llama", llama()), ("T5", t5()), ("OLMo 2", decoder("olmo2", ""))] {
        let whole = Run::of(model);
        let shape = TrainShape { sequence_tile: Some(4), ..whole.shape.clone() };
        let tiled = Run { shape, ..whole.clone() };
        let (graph, plan) = tiled.plan(CARD);
        let nodes = graph.programs.iter().flat_map(|program| &program.nodes);
        let joined = nodes.filter(|node| matches!(node.op, Op::ByRows(_) | Op::ByRowsGrad(_))).count();
        // In both programs of a micro-batch: one in the forward pass, and one in the backward pass.
        assert_eq!(joined > 0, name != "T5", "{name}");
        let of = |run: &Run| {
            machine.reset("");
            let mut device = machine.device(CudaOptions::default()).expect("a card");
            let result = run.train(&mut device, CARD).expect("trains");
            (result, device.memory().arenas.map(|_, arena| arena.touched_bytes))
        };
        let ((losses, weights), memory) = of(&tiled);
        assert_eq!(memory, plan.arenas(), "{name}");
        let ((expected_losses, expected_weights), _) = of(&whole);
        assert!(distance(&losses, &expected_losses) < 1e-4, "{name}: {losses:?}, not {expected_losses:?}");
        assert!(distance(&weights, &expected_weights) < 2e-2, "{name}");
        let levers = Levers { recompute: Recompute::all(Level::Block), activation_offload: 1, ..Levers::default() };
        let (with_levers, _) = of(&tiled.levers(levers));
        assert_eq!(with_levers, (losses, weights), "{name}");
    }
}

/// Three blocks, so that one is copied while the next is computed.
fn three_blocks() -> ModelConfig {
    match gpt2() {
        ModelConfig::Gpt2(config) => ModelConfig::Gpt2(Gpt2Config { n_layer: 3, ..config }),
        other => other,
    }
}

#[test]
fn activations_that_wait_on_the_host_change_no_bit() {
    let machine = CudaMachine::of("execution=late");
    let run = |activation_offload| Run::of(three_blocks()).levers(Levers { activation_offload, ..Levers::default() });
    let mut device = machine.device(CudaOptions::default()).expect("a card");
    let expected = run(0).train(&mut device, CARD).expect("trains");
    drop(device);
    for blocks in [1, 2, 3] {
        machine.reset("execution=late");
        let mut device = machine.device(CudaOptions::default()).expect("a card");
        assert_eq!(run(blocks).train(&mut device, CARD).expect("trains"), expected, "{blocks} blocks");
        let memory = device.memory();
        let (_, plan) = run(blocks).plan(CARD);
        assert_eq!(memory.arenas.map(|_, arena| arena.touched_bytes), plan.arenas());
        assert!(plan.host().0 > 0);
    }
}

/// The same updates by the same host, wherever the weights are between passes.
#[test]
fn weights_that_rest_on_the_host_change_no_bit() {
    let machine = CudaMachine::of("execution=late");
    for precision in [Precision::Fp32, Precision::Bf16] {
        let run = |weight_offload, recompute| {
            let recompute = Recompute::all(recompute);
            let levers = Levers { precision, recompute, optimizer_offload: 1.0, weight_offload, ..Levers::default() };
            Run::of(three_blocks()).levers(levers)
        };
        let mut expected = None;
        for (part, level) in [(0.0, Level::None), (0.5, Level::None), (1.0, Level::Block)] {
            machine.reset("execution=late");
            let mut device = machine.device(CudaOptions::default()).expect("a card");
            let found = run(part, level).train(&mut device, CARD).expect("trains");
            assert_eq!(expected.get_or_insert_with(|| found.clone()), &found, "{precision:?}, {part} of the weights");
            let (_, plan) = run(part, level).plan(CARD);
            assert_eq!(device.memory().arenas.map(|_, arena| arena.touched_bytes), plan.arenas());
        }
    }
}

#[test]
fn half_precision_trains_about_as_well() {
    let machine = CudaMachine::of("");
    let (expected, _) = Run::of(gpt2()).on_processor();
    for precision in [Precision::Bf16, Precision::Fp16] {
        let run = Run::of(gpt2()).levers(Levers { precision, ..Levers::default() });
        let mut device = machine.device(CudaOptions::default()).expect("a card");
        let (losses, _) = run.train(&mut device, CARD).expect("trains");
        assert!(distance(&losses, &expected) < 2e-2, "{precision:?}: {losses:?}, not {expected:?}");
    }
}

#[test]
fn every_wait_of_an_offloaded_step_is_needed() {
    needs_its_waits(gpt2(), Levers { optimizer_offload: 1.0, ..Levers::default() });
}

#[test]
fn every_wait_of_a_step_with_offloaded_activations_is_needed() {
    needs_its_waits(three_blocks(), Levers { activation_offload: 3, ..Levers::default() });
}

#[test]
fn every_wait_of_a_step_with_weights_on_the_host_is_needed() {
    needs_its_waits(three_blocks(), Levers { weight_offload: 1.0, ..Levers::default() });
}

fn needs_its_waits(model: ModelConfig, levers: Levers) {
    let Some(machine) = CudaMachine::stand_in("") else { return };
    let shape = TrainShape { micro_batch: 1, seq_len: 4, head_chunk: 4, ..Run::of(gpt2()).shape };
    let run = Run { shape, ..Run::of(model) }.levers(levers);
    let (graph, plan) = run.plan(CARD);
    let waits = without_a_wait(&plan);
    assert!(waits.len() > 20, "{} waits", waits.len());
    // Every seventh, to limit the test's time.
    let (mut awaits, mut idle) = (0, Vec::new());
    for (damaged, what) in waits.into_iter().step_by(7) {
        machine.reset("");
        let mut device = machine.device(CudaOptions { graphs: false, ..CudaOptions::default() }).expect("a card");
        let is_await = what.starts_with("await_transfer");
        awaits += usize::from(is_await);
        if train(&mut device, &graph, &damaged, SHORT).is_ok() {
            assert!(is_await, "{what}");
            idle.push(what);
        }
    }
    // What takes the place of a tensor that was sent may wait for more than that.
    assert!(2 * idle.len() <= awaits, "of {awaits} awaits: {idle:?}");
}
