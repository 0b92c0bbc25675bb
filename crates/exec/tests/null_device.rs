//! The measured high-water mark is the planned peak, to the byte: ten thousand random plans on the null device, in the
//! order in which a run would use their programs. And the null device refuses damaged plans.

use plimsoll_exec::cases::Noise;
use plimsoll_exec::{ArenaUse, Device, DeviceError, MemoryReport, NullDevice, Order, run_program};
use plimsoll_graph::models::{FeedForwardProjection, Gpt2Config, ModelConfig, T5Config};
use plimsoll_graph::ops::{GradientFormat, PreferenceKind, StateFormat};
use plimsoll_graph::optimizers::Rule;
use plimsoll_graph::{
    Adapter, AdapterSettings, Adapters, Contrastive, LayerRole, Lengths, MemoryId, Objective, Optimizer, Preferences,
    Products, ProgramKind, ProgramName, Scalars, Storage, Targets, TensorId, TrainShape, WeightCodes, build_training,
};
use plimsoll_plan::{
    Average, Budget, Level, LeverRequest, Levers, Machine, NodeSet, Plan, PlanViolation, Precision, Queue, Rates,
    Recompute, Region, Request, SequenceTile, card, divisors, lay_out, search, validate,
};
use plimsoll_units::Bytes;
use rayon::iter::{IntoParallelIterator, ParallelExtend, ParallelIterator};
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet, HashSet};

/// A random request for a run.
#[derive(Debug, Clone)]
struct Case {
    model: ModelConfig,
    optimizer: Optimizer,
    shape: TrainShape,
    accumulation: usize,
    levers: Levers,
    targets: Targets,
}

/// A number in [low, high].
fn between(noise: &mut Noise, low: usize, high: usize) -> usize {
    low + noise.below(high - low + 1)
}

/// `value` or `None`, at random.
fn perhaps<T>(noise: &mut Noise, value: T) -> Option<T> {
    (noise.unit() < 0.5).then_some(value)
}

/// Any of the parameters except one.
fn random_frozen(noise: &mut Noise, model: &ModelConfig) -> BTreeSet<String> {
    let mut names = model.parameter_names();
    names.swap_remove(noise.below(names.len()));
    let part = noise.unit();
    names.into_iter().filter(|_| noise.unit() < part).collect()
}

/// Random levers. If parameters are updated in the backward pass, clipping is turned off.
fn random_levers(noise: &mut Noise, one_micro_batch: bool, optimizer: &mut Optimizer) -> Levers {
    let chosen = Level::Chosen(NodeSet::of_places(u64::from(noise.word())));
    let levels = [Level::None, Level::Cheap, Level::Attention, Level::Block, chosen];
    let precision = [Precision::Fp32, Precision::Bf16, Precision::Fp16, Precision::Bf16Pure][noise.below(4)];
    let update_in_backward = one_micro_batch && !precision.scales_gradients() && noise.unit() < 0.5;
    if update_in_backward {
        optimizer.grad_clip = None;
    }
    let memory = [MemoryId::DEVICE, MemoryId::HOST][noise.below(2)];
    let fraction = noise.unit();
    // Half of the plans in bf16 multiply in 8 bits.
    let precision = if precision == Precision::Bf16 && fraction < 0.5 { Precision::Fp8 } else { precision };
    Levers {
        attention_rows: [1, 4, 64][noise.below(3)],
        precision,
        base_weights: None,
        sequence_tile: None,
        optimizer_state: [StateFormat::F32, StateFormat::Bf16, StateFormat::Blockwise8][noise.below(3)],
        gradients: GradientFormat::F32,
        average: perhaps(noise, Average { decay: 0.9, memory }),
        recompute: Recompute { blocks: noise.below(4), first: levels[noise.below(5)], rest: levels[noise.below(5)] },
        activation_offload: noise.below(6).saturating_sub(1),
        update_in_backward,
        optimizer_offload: [0.0, 0.5, 1.0, fraction][noise.below(4)],
        weight_offload: 0.0,
        host_update_at_end: fraction < 0.25,
    }
}

fn random_gpt2(noise: &mut Noise, positions: usize) -> ModelConfig {
    let n_head = between(noise, 1, 4);
    let head_size = between(noise, 4usize.div_ceil(n_head), 64 / n_head);
    let mut rate = || perhaps(noise, 0.1).unwrap_or(0.0);
    let [attn_pdrop, embd_pdrop, resid_pdrop] = [rate(), rate(), rate()];
    let inner = between(noise, 1, 200);
    ModelConfig::Gpt2(Gpt2Config {
        vocab_size: between(noise, 2, 300),
        n_positions: positions,
        n_embd: n_head * head_size,
        n_layer: between(noise, 1, 4),
        n_head,
        n_inner: perhaps(noise, inner),
        attn_pdrop,
        embd_pdrop,
        resid_pdrop,
        layer_norm_epsilon: 1e-5,
        initializer_range: 0.02,
        bias: noise.unit() < 0.5,
    })
}

/// A decoder of any family: of each, what it adds to Llama.
fn random_decoder(noise: &mut Noise, positions: usize) -> ModelConfig {
    let kv_heads = between(noise, 1, 2);
    let families = [
        "llama",
        "mistral",
        "qwen2",
        "qwen3",
        "gemma2",
        "gemma3_text",
        "phi3",
        "smollm3",
        "olmo2",
        "granite",
        "olmoe",
        "qwen3_moe",
        "gpt_oss",
    ];
    let family = families[noise.below(families.len())];
    let has_biases = ["llama", "smollm3", "granite"].contains(&family) && noise.unit() < 0.5;
    let has_experts = ["olmoe", "qwen3_moe", "gpt_oss"].contains(&family);
    let file = json!({
        "model_type": family,
        "attention_bias": has_biases,
        "mlp_bias": has_biases,
        "vocab_size": between(noise, 2, 300),
        "hidden_size": between(noise, 4, 64),
        "intermediate_size": between(noise, 1, 150),
        "num_hidden_layers": between(noise, 1, 4),
        "num_attention_heads": kv_heads * between(noise, 1, 3),
        "num_key_value_heads": kv_heads,
        "head_dim": 2 * between(noise, 1, 12),
        "max_position_embeddings": positions,
        "tie_word_embeddings": noise.unit() < 0.5,
        "attention_dropout": perhaps(noise, 0.1).unwrap_or(0.0),
        "num_experts": if has_experts { between(noise, 1, 5) } else { 0 },
        "num_experts_per_tok": 1,
        "output_router_logits": has_experts && noise.unit() < 0.5,
        "moe_intermediate_size": 7,
        "sliding_window": (kv_heads == 2).then_some(positions / 2 + 1),
    });
    ModelConfig::from_json(&file.to_string()).expect("a decoder")
}

fn random_t5(noise: &mut Noise) -> ModelConfig {
    ModelConfig::T5(T5Config {
        is_multilingual: false,
        vocab_size: between(noise, 2, 300),
        d_model: between(noise, 4, 64),
        d_kv: between(noise, 1, 20),
        d_ff: between(noise, 1, 100),
        num_layers: between(noise, 1, 2),
        num_decoder_layers: between(noise, 1, 2),
        num_heads: between(noise, 1, 4),
        relative_attention_num_buckets: 8,
        relative_attention_max_distance: 20,
        dropout_rate: perhaps(noise, 0.1).unwrap_or(0.0),
        layer_norm_epsilon: 1e-6,
        initializer_factor: 1.0,
        feed_forward_proj: [FeedForwardProjection::Relu, FeedForwardProjection::GatedGelu][noise.below(2)],
        tie_word_embeddings: noise.unit() < 0.5,
        scale_decoder_outputs: noise.unit() < 0.5,
        pad_token_id: 0,
        eos_token_id: 1,
        decoder_start_token_id: 0,
    })
}

/// An encoder of either family.
fn random_encoder(noise: &mut Noise, positions: usize) -> ModelConfig {
    let (family, heads) = (["bert", "modernbert"][noise.below(2)], between(noise, 1, 3));
    let file = json!({
        "model_type": family,
        "vocab_size": between(noise, 2, 300),
        "hidden_size": 2 * heads * between(noise, 1, 10),
        "intermediate_size": between(noise, 1, 150),
        "num_hidden_layers": between(noise, 1, 4),
        "num_attention_heads": heads,
        "max_position_embeddings": positions,
        "hidden_dropout_prob": perhaps(noise, 0.1).unwrap_or(0.0),
        "mlp_dropout": perhaps(noise, 0.1).unwrap_or(0.0),
        "local_attention": between(noise, 2, positions.max(2)),
    });
    ModelConfig::from_json(&file.to_string()).expect("an encoder")
}

/// Shorter lengths than these.
fn random_buckets(noise: &mut Noise, longest: Lengths) -> Vec<Lengths> {
    let shorter = |_| Lengths {
        tokens: between(noise, 1, longest.tokens),
        target: longest.target.map(|target| between(noise, 1, target)),
    };
    let mut buckets = (0..2).map(shorter).filter(|b| *b != longest).collect::<Vec<_>>();
    buckets.dedup();
    buckets
}

/// Adapters of some of the model's linear layers; `None` if there are none.
fn random_adapters(noise: &mut Noise, model: &ModelConfig) -> Option<Adapters> {
    let mut layers = model.adaptable_layers().expect("a valid model");
    layers.retain(|_| noise.unit() < 0.6);
    let dropout = perhaps(noise, 0.1).unwrap_or(0.0);
    let has_magnitudes = noise.unit() < 0.5;
    let layers = layers.into_iter().filter(|layer| !(has_magnitudes && layer.role.lacks_magnitudes().is_some()));
    // The order of an expert's rows depends on the micro-batch.
    let layers = layers.filter(|layer| !(dropout > 0.0 && matches!(layer.role, LayerRole::Experts(_)))).map(|layer| {
        let rank = between(noise, 1, layer.inputs.min(layer.outputs).min(8));
        (layer.module, Adapter { rank, scale: 0.5 })
    });
    let layers = layers.collect::<BTreeMap<_, _>>();
    (!layers.is_empty()).then_some(Adapters { layers, dropout, saved: BTreeSet::new(), has_magnitudes })
}

impl Case {
    fn random(noise: &mut Noise) -> Self {
        let n_positions = between(noise, 1, 48);
        let model = match noise.below(5) {
            0 => random_decoder(noise, n_positions),
            1 => random_t5(noise),
            2 => random_encoder(noise, n_positions),
            _ => random_gpt2(noise, n_positions),
        };
        let (micro_batch, seq_len) = (between(noise, 1, 5), between(noise, 1, n_positions));
        let is_encoder = model.is_encoder();
        let target_len = model.takes_pairs().then(|| between(noise, 1, if is_encoder { n_positions } else { 30 }));
        let longest = Lengths { tokens: seq_len, target: target_len };
        let (accumulation, prefill) = (between(noise, 1, 3), between(noise, 1, n_positions + 8));
        // The samples of a step are each other's negatives.
        let accumulation = if is_encoder { 1 } else { accumulation };
        let contrastive = Contrastive { negatives: noise.below(3) * usize::from(is_encoder), ..Contrastive::default() };
        let mut shape = TrainShape {
            micro_batch,
            seq_len,
            accumulates: accumulation > 1,
            head_chunk: between(noise, 1, micro_batch * seq_len + 3),
            evaluates: noise.unit() < 0.5,
            sample_prefill: perhaps(noise, prefill),
            target_len,
            buckets: if noise.unit() < 0.3 { random_buckets(noise, longest) } else { vec![] },
            packed: noise.unit() < 0.3 && !is_encoder,
            objective: Objective {
                label_smoothing: perhaps(noise, 0.1).filter(|_| !is_encoder).unwrap_or(0.0),
                r_drop: (noise.unit() < 0.2 && !is_encoder).then_some(1.0),
                embedding_noise: (noise.unit() < 0.3).then_some(5.0),
                contrastive,
                preferences: None,
            },
            frozen: if noise.unit() < 0.3 { random_frozen(noise, &model) } else { BTreeSet::new() },
            sequence_tile: if noise.unit() < 0.3 { Some(between(noise, 1, 40)) } else { None },
            adapters: if noise.unit() < 0.3 { random_adapters(noise, &model) } else { None },
            gradients: GradientFormat::F32,
        };
        let has_reference = shape.adapters.as_ref().is_some_and(|adapters| adapters.saved.is_empty());
        if has_reference && !model.takes_pairs() && noise.unit() < 0.5 {
            let single = PreferenceKind::Single { liked: 1.0, disliked: 1.0, has_reference_point: true };
            let kind = if seq_len.is_multiple_of(2) { PreferenceKind::Sigmoid } else { single };
            shape.objective.preferences = Some(Preferences { kind, ..Preferences::default() });
        } else if !model.takes_pairs() && seq_len.is_multiple_of(4) {
            shape.objective.preferences = Some(Preferences { kind: PreferenceKind::Orpo, ..Preferences::default() });
            shape.objective.label_smoothing = 0.0;
        }
        let rules = Rule::all();
        let rule = rules[noise.below(rules.len())];
        let mut optimizer = Optimizer { rule, grad_clip: perhaps(noise, 1.0), ..Optimizer::default() };
        let mut levers = random_levers(noise, accumulation == 1, &mut optimizer);
        let threads = between(noise, 1, 8);
        let targets = [
            Targets::cpu(threads),
            Targets::cuda((8, 6), threads),
            Targets::cuda((9, 0), threads).multiplying_by(Products::CublasLt),
        ][noise.below(3)];
        let part = noise.unit();
        levers.weight_offload = [0.0, 0.0, part, 1.0][noise.below(4)];
        shape.gradients = [GradientFormat::F32, GradientFormat::F32, GradientFormat::Bf16][noise.below(3)];
        Self { model, optimizer, shape, accumulation, levers, targets }
    }

    fn plan(&self) -> Plan {
        let mut graph = build_training(&self.model, &self.optimizer, &self.shape).expect("a valid model");
        self.levers.pull(&mut graph).expect("compatible levers");
        let global_batch = self.shape.micro_batch * self.accumulation;
        Plan {
            micro_batch: self.shape.micro_batch,
            accumulation: self.accumulation,
            global_batch,
            seq_len: self.shape.seq_len,
            target_len: self.shape.target_len,
            ..lay_out(&graph, &self.targets)
        }
    }

    /// The same run with any micro-batch that fits `budget`.
    fn request(&self, budget: Bytes) -> Request {
        Request {
            optimizer: self.optimizer,
            global_batch: self.shape.micro_batch * self.accumulation,
            micro_batch: None,
            seq_len: self.shape.seq_len,
            budget: Budget::apart(budget, Bytes::gib(1)),
            levers: LeverRequest {
                precision: self.levers.precision,
                base_weights: self.levers.base_weights,
                optimizer_state: Some(self.levers.optimizer_state),
                gradients: Some(self.shape.gradients),
                average: self.levers.average,
                sequence_tile: Some(self.shape.sequence_tile.map_or(SequenceTile::Off, SequenceTile::Rows)),
                recompute: Some(Recompute {
                    blocks: self.levers.recompute.blocks.min(self.model.blocks()),
                    ..self.levers.recompute
                }),
                activation_offload: Some(
                    self.levers.activation_offload.min(self.model.blocks()) as f64 / self.model.blocks() as f64,
                ),
                optimizer_offload: Some(self.levers.optimizer_offload),
                weight_offload: Some(self.levers.weight_offload),
                update_in_backward: None,
                head_chunk: Some(self.shape.head_chunk),
                attention_rows: Some(self.levers.attention_rows),
            },
            evaluates: self.shape.evaluates,
            sample_prefill: self.shape.sample_prefill,
            target_len: self.shape.target_len,
            buckets: self.shape.buckets.clone(),
            packed: self.shape.packed,
            objective: self.shape.objective,
            // The reference of preferences is the model without adapters.
            adapters: self.shape.adapters.clone().filter(|_| self.shape.objective.preferences.is_some()),
            ..Request::new(
                self.model.clone(),
                self.targets,
                Machine::of_rates(Rates::guess(self.targets.host.threads())),
            )
        }
    }
}

/// The longest samples of Llama-3.1-8B over NF4 that the manual's table has for cards of 8 to 24 GB.
#[test]
fn invariant_3_exact_the_longest_contexts_of_the_manual_measure_what_was_planned() {
    let model = ModelConfig::preset("llama-3.1-8b").expect("a preset");
    let settings = AdapterSettings { rank: 32, alpha: 64.0, ..AdapterSettings::default() };
    let adapters = Adapters::of(&model, &settings).expect("layers that can have adapters");
    let machine = Machine::of_rates(Rates::of_card(card("3060").expect("a known card")));
    for (device, host, seq_len) in
        [(7.0, 16.0, 18_240), (11.0, 24.0, 79_616), (14.875, 32.0, 131_072), (22.9, 48.0, 131_072)]
    {
        let [device, host] = [device, host].map(|gib: f64| Bytes((gib * Bytes::gib(1).as_f64()) as u64));
        let request = Request {
            seq_len,
            adapters: Some(adapters.clone()),
            budget: Budget::apart(device, host),
            levers: LeverRequest {
                precision: Precision::Bf16,
                base_weights: Some(WeightCodes::Nf4),
                sequence_tile: Some(SequenceTile::Rows(2048)),
                ..LeverRequest::default()
            },
            evaluates: true,
            sample_prefill: Some(16),
            ..Request::new(model.clone(), Targets::cuda((8, 6), 4), machine.clone())
        };
        let Ok(found) = search(&request).expect("a sensible request") else { panic!("{seq_len} tokens do not fit") };
        assert_exact_in(&found.plan, &orders(&found.plan)[..1], &seq_len);
    }
}

/// Everything that a run executes of the plan, its queues in this order: steps, an evaluation, generation, and the next step.
fn rehearse(plan: &Plan, order: Order) -> Result<MemoryReport, DeviceError> {
    let mut device = NullDevice::with_order(order);
    device.load(plan)?;
    for id in tensors(plan, Storage::Persistent) {
        device.write(plan, id, &[])?;
    }
    let step_of = |first| {
        [
            (ProgramKind::Evaluate, if plan.has_reference_point() { plan.accumulation } else { 0 }),
            (first, 1),
            (ProgramKind::MicroStepAdd, plan.accumulation - 1),
            (ProgramKind::Update, 1),
        ]
    };
    let step = &step_of(ProgramKind::MicroStep)[..];
    let next_step = &step_of(ProgramKind::HostUpdateAndMicroStep)[..];
    let has_host_update = plan.program(ProgramKind::HostUpdate).is_some();
    let between_steps: &[_] = &[
        (ProgramKind::HostUpdate, 1),
        (ProgramKind::Evaluate, 1),
        (ProgramKind::EvaluateAverage, 1),
        (ProgramKind::Encode, 1),
        (ProgramKind::Prefill, 1),
        (ProgramKind::Sample, 3),
    ];
    for phase in [step, if has_host_update { next_step } else { &[] }, between_steps, step, &between_steps[..1]] {
        for &(kind, times) in phase {
            // Including the ones for shorter sequences, in turn.
            let of_it = plan.programs.iter().filter(|p| p.name.kind == kind);
            for program in of_it.map(|p| p.name) {
                (0..times).try_for_each(|_| feed_run_fetch(&mut device, plan, program))?;
            }
        }
        tensors(plan, Storage::Persistent).try_for_each(|id| device.read(plan, id, &mut []))?;
    }
    Ok(device.memory())
}

/// The orders of a plan's queues: one if there is one queue.
fn orders(plan: &Plan) -> &'static [Order] {
    const ALL: &[Order] = &[Order::Issued, Order::Eager, Order::Late];
    let mut steps = plan.programs.iter().flat_map(|p| &p.steps);
    if steps.all(|step| plan.queue(step) == Queue::Device) { &ALL[..1] } else { ALL }
}

/// The run in all orders. Returns the first error.
fn rehearse_in_all_orders(plan: &Plan) -> Result<(), DeviceError> {
    orders(plan).iter().try_for_each(|&order| rehearse(plan, order).map(drop))
}

/// Runs a program as the host would. The caches must survive a program that uses them.
fn feed_run_fetch(device: &mut NullDevice, plan: &Plan, program: ProgramName) -> Result<(), DeviceError> {
    let planned = plan.program(program).expect("a program of the plan");
    planned.ports.fed().try_for_each(|id| device.write(plan, id, &[]))?;
    run_program(device, plan, program, &Scalars::default())?;
    // The caches of the tokens written so far, not the ones of a source that is only read.
    let written = planned.steps.iter().flat_map(|s| &s.outputs).copied().collect::<HashSet<_>>();
    let caches = tensors(plan, Storage::Carried).filter(|id| written.contains(id));
    planned.ports.fetched().chain(caches).try_for_each(|id| device.read(plan, id, &mut []))
}

fn tensors(plan: &Plan, storage: Storage) -> impl Iterator<Item = TensorId> {
    (0..plan.tensors.len() as u32).map(TensorId).filter(move |&id| plan[id].storage == storage)
}

fn assert_exact(plan: &Plan, about: &dyn std::fmt::Debug) {
    assert_exact_in(plan, orders(plan), about);
}

fn assert_exact_in(plan: &Plan, orders: &[Order], about: &dyn std::fmt::Debug) {
    assert_eq!(validate(plan), Ok(()), "{about:?}");
    let planned = MemoryReport {
        arenas: plan.arenas().map(|_, &bytes| ArenaUse { reserved_bytes: bytes, touched_bytes: bytes }),
        allocations: 1,
    };
    for &order in orders {
        let measured = rehearse(plan, order).unwrap_or_else(|error| panic!("{error}, {order:?}: {about:?}"));
        assert_eq!(measured, planned, "{order:?}: {about:?}");
    }
}

#[test]
fn invariant_3_exact_ten_thousand_random_plans_measure_what_was_planned() {
    (0..10_000).into_par_iter().for_each(|seed| {
        let case = Case::random(&mut Noise::new(seed));
        let plan = case.plan();
        // One order each, in turn, to have time for this many plans.
        let orders = orders(&plan);
        assert_exact_in(&plan, &orders[seed as usize % orders.len()..][..1], &(seed, &case));
    });
}
/// Relevant budgets for a run: around the exact peak of each micro-batch, and between them.
fn random_budget(peaks: &[(usize, Bytes)], noise: &mut Noise) -> Bytes {
    let sizes = || peaks.iter().map(|(_, peak)| *peak);
    let (low, high) = (sizes().min().expect("a peak"), sizes().max().expect("a peak"));
    let exact = peaks[noise.below(peaks.len())].1;
    let between = Bytes((low.0 as f64 * 0.9 + noise.unit() * (high.0 as f64 * 1.1 - low.0 as f64 * 0.9)) as u64);
    [exact, exact - Bytes(1), between][noise.below(3)]
}

#[test]
fn invariant_6_random_budgets_are_met_to_the_byte_or_refused_with_what_is_short() {
    (0..500).into_par_iter().for_each(|seed| {
        let mut noise = Noise::new(100_000 + seed);
        let case = Case::random(&mut noise);
        let about = (seed, &case);
        let everything = case.request(Bytes::gib(1));
        let of_micro_batch = |micro_batch: usize| {
            let fixed = Request { micro_batch: Some(micro_batch), ..everything.clone() };
            search(&fixed).expect("a valid request").expect("a gibibyte is enough")
        };
        // A step of an encoder is one micro-batch: its texts are each other's negatives.
        let micro_batches = match case.model.is_encoder() {
            true => vec![everything.global_batch],
            false => divisors(everything.global_batch),
        };
        let founds = micro_batches.into_iter().map(of_micro_batch).collect::<Vec<_>>();
        let peaks = founds.iter().map(|f| (f.plan.micro_batch, f.plan.peak())).collect::<Vec<_>>();
        let budget = random_budget(&peaks, &mut noise);
        let answer = search(&case.request(budget)).expect("a valid request");
        let fitting = founds.iter().filter(|f| f.plan.peak() <= budget);
        match (answer, fitting.min_by(|a, b| a.step.0.total_cmp(&b.step.0))) {
            (Ok(found), fastest) if fastest.is_none_or(|fastest| found.step.0 < fastest.step.0) => {
                // With a smaller budget, an arena may be packed a little tighter.
                let is_chosen = |(micro_batch, _): &&(usize, Bytes)| *micro_batch == found.plan.micro_batch;
                let least = peaks.iter().find(is_chosen).expect("a divisor").1;
                assert!(
                    (least - budget).0 <= least.0 / 1000 && found.plan.peak() <= budget,
                    "{budget}, {peaks:?}: {about:?}"
                );
                assert_exact(&found.plan, &about);
            }
            (Ok(found), Some(fastest)) => {
                assert_eq!(found.step, fastest.step, "{budget}: {about:?}");
                let chosen = peaks.iter().position(|(d, _)| *d == found.plan.micro_batch).expect("a divisor");
                assert_eq!(found.plan.peak(), peaks[chosen].1, "{budget}: {about:?}");
                assert_eq!(found.next_larger, peaks.get(chosen + 1).copied(), "{budget}: {about:?}");
                assert_eq!(found.plan.budget().device().0, budget.0);
                assert_exact(&found.plan, &about);
            }
            (Err(misfit), None) => {
                // The smallest peak need not be that of one sample: a single micro-batch accumulates no gradients.
                let least = peaks.iter().map(|(_, peak)| *peak).min().expect("one divides everything");
                assert_eq!((misfit.plan.peak(), misfit.short[MemoryId::DEVICE]), (least, least - budget), "{about:?}");
                assert!(misfit.nearest.iter().all(|n| n.peak <= budget), "{:?}: {about:?}", misfit.nearest);
                let enough = search(&case.request(budget + misfit.short[MemoryId::DEVICE])).expect("a valid request");
                assert_exact(&enough.expect("the shortfall was added").plan, &about);
            }
            (Ok(_), None) => unreachable!("the first arm has it"),
            (Err(_), Some(_)) => panic!("{budget}: refused, but one fits of {peaks:?}: {about:?}"),
        }
    });
}

/// A plan with everything: accumulation, evaluation, sampling, dropout, and a part of the optimizer on the host.
fn whole_plan(offload: f64) -> Plan {
    let mut case = Case::random(&mut Noise::new(0));
    let ModelConfig::Gpt2(model) = random_gpt2(&mut Noise::new(0), 16) else { unreachable!("a GPT-2") };
    case.model = ModelConfig::Gpt2(Gpt2Config {
        n_layer: 2,
        n_embd: 32,
        n_head: 2,
        vocab_size: 50,
        n_positions: 16,
        bias: true,
        ..model
    });
    case.shape = TrainShape {
        seq_len: 16,
        micro_batch: 2,
        head_chunk: 16,
        evaluates: true,
        sample_prefill: Some(8),
        ..TrainShape::default()
    };
    (case.shape.accumulates, case.accumulation) = (true, 2);
    case.optimizer = Optimizer::default();
    case.levers = Levers { optimizer_offload: offload, ..Levers::default() };
    case.plan()
}

fn tensor(plan: &Plan, name: &str) -> usize {
    plan.tensors.iter().position(|t| t.name == name).unwrap_or_else(|| panic!("no tensor `{name}`"))
}

/// Moves a tensor to the address of another.
fn move_onto(plan: &mut Plan, moved: &str, onto: &str) {
    let (moved, onto) = (tensor(plan, moved), tensor(plan, onto));
    plan.tensors[moved].offset = plan.tensors[onto].offset;
}

/// The first step of `micro_step` that has scratch.
fn scratch_of(plan: &mut Plan) -> (&mut Region, TensorId) {
    let step = plan.programs[0].steps.iter_mut().find(|s| s.scratch.is_some()).expect("attention has scratch");
    (step.scratch.as_mut().expect("just found"), step.inputs[0])
}

/// Damages of a plan.
type Damage = fn(&mut Plan);

#[test]
fn every_kind_of_damage_stops_the_null_device() {
    let kinds: &[(&str, Damage)] = &[
        ("two activations that wait for the backward pass", |p| move_onto(p, "h0/mlp/linear", "h1/mlp/linear")),
        ("an activation on weights", |p| move_onto(p, "h0/mlp/linear", "transformer.wte.weight")),
        ("weights on their gradient", |p| {
            move_onto(p, "transformer.ln_f.weight", "transformer.ln_f.weight.grad");
        }),
        ("a moment on another", |p| {
            move_onto(p, "transformer.wpe.weight.exp_avg", "transformer.wpe.weight.exp_avg_sq");
        }),
        ("a cache on another", |p| move_onto(p, "h0/key_cache", "h1/value_cache")),
        ("a cache on weights", |p| move_onto(p, "h0/key_cache", "transformer.wte.weight")),
        ("the loss on weights", |p| move_onto(p, "loss", "transformer.wte.weight")),
        ("scratch on an operand", |p| {
            let operand = scratch_of(p).1;
            scratch_of(p).0.offset = p[operand].offset;
        }),
        ("scratch after the end", |p| scratch_of(p).0.offset = p.peak().0),
        ("an arena that is one byte short", |p| p.memories[MemoryId::DEVICE].peak_bytes -= 1),
        ("a first step that was dropped", |p| drop(p.programs[0].steps.remove(0))),
        ("a step in the middle that was dropped", |p| drop(p.programs[0].steps.remove(4))),
        ("steps in the wrong order", |p| p.programs[0].steps.swap(3, 4)),
    ];
    assert_exact(&whole_plan(0.0), &"undamaged");
    for (kind, damage) in kinds {
        let mut plan = whole_plan(0.0);
        damage(&mut plan);
        let result = rehearse_in_all_orders(&plan);
        assert!(matches!(result, Err(DeviceError::BadStep { .. })), "{kind}: {result:?}");
        assert!(validate(&plan).is_err(), "{kind} is valid");
    }
}

/// A result may share an operand's memory only if the op declares that it consumes it.
#[test]
fn a_result_on_an_operand_that_its_op_does_not_consume_stops_the_null_device() {
    let plan = whole_plan(0.0);
    let mut tried = 0;
    for step in plan.programs.iter().flat_map(|program| &program.steps) {
        for (result, &output) in step.outputs.iter().enumerate() {
            for (operand, &input) in step.inputs.iter().enumerate() {
                let (from, to) = (&plan[input], &plan[output]);
                let transient = from.storage == Storage::Transient && to.storage == Storage::Transient;
                if !transient || from.ty != to.ty || step.op.reuse().contains(&(operand, result)) {
                    continue;
                }
                let mut damaged = plan.clone();
                damaged.tensors[output.index()].offset = from.offset;
                let stopped = rehearse_in_all_orders(&damaged);
                assert!(matches!(stopped, Err(DeviceError::BadStep { .. })), "{} on {}", to.name, from.name);
                tried += 1;
            }
        }
    }
    assert!(tried > 10, "{tried}");
}

/// A count that is not measured is not reported.
#[test]
fn resident_bytes_of_a_device_without_pages_are_unknown() {
    let device = NullDevice::new();
    assert_eq!((device.resident_bytes(), device.resident_in_process_bytes()), (None, None));
}

#[test]
fn damage_in_the_hosts_arena_stops_the_null_device() {
    let grad = "transformer.wte.weight.grad";
    let kinds: &[(&str, Damage)] = &[
        ("a moment on another", |p| {
            move_onto(p, "transformer.wte.weight.exp_avg", "transformer.wte.weight.exp_avg_sq");
        }),
        ("a gradient on the next weights", |p| {
            move_onto(p, "transformer.wte.weight.grad", "transformer.wte.weight.master");
        }),
        ("an arena that is one byte short", |p| p.memories[MemoryId::HOST].peak_bytes -= 1),
        ("a gradient that is sent to nowhere", |p| {
            let grad = TensorId(tensor(p, "transformer.wte.weight.grad") as u32);
            let sends = |s: &plimsoll_plan::Step| s.outputs.contains(&grad);
            p.programs[0].steps.retain(|s| !sends(s));
            p.tensors[grad.index()].storage = Storage::Transient;
        }),
    ];
    assert_exact(&whole_plan(1.0), &"undamaged");
    assert!(whole_plan(1.0).tensors[tensor(&whole_plan(1.0), grad)].memory == MemoryId::HOST);
    for (kind, damage) in kinds {
        let mut plan = whole_plan(1.0);
        damage(&mut plan);
        let result = rehearse_in_all_orders(&plan);
        assert!(matches!(result, Err(DeviceError::BadStep { .. })), "{kind}: {result:?}");
        assert!(validate(&plan).is_err(), "{kind} is valid");
    }
}

#[test]
fn a_plan_without_any_one_of_its_waits_is_refused() {
    let (mut missed, mut waits) = (Vec::new(), 0);
    for seed in 0..2 {
        let mut case = Case::random(&mut Noise::new(300_000 + seed));
        case.targets = Targets::cuda((8, 6), 2);
        (case.levers.optimizer_offload, case.levers.activation_offload) = (0.7, 2);
        let plan = case.plan();
        let steps = plan.programs.iter().enumerate().flat_map(|(program, planned)| {
            planned.steps.iter().enumerate().map(move |(step, of_step)| (program, step, of_step.waits.len()))
        });
        let of_plan = steps.flat_map(|(program, step, waits)| (0..waits).map(move |wait| (program, step, wait)));
        let of_plan = of_plan.collect::<Vec<_>>();
        waits += of_plan.len();
        missed.par_extend(of_plan.into_par_iter().filter(|&(program, step, wait)| {
            let mut plan = plan.clone();
            plan.programs[program].steps[step].waits.remove(wait);
            let invalid = validate(&plan);
            assert!(matches!(invalid, Err(PlanViolation::Unordered { .. })), "{seed} {program} {step}: {invalid:?}");
            rehearse_in_all_orders(&plan).is_ok()
        }));
    }
    // `validate` needs every wait. Three of many orders don't need all: other waits matter in other orders only.
    assert!(waits > 100 && 2 * missed.len() < waits, "{} of {waits} waits were missed: {missed:?}", missed.len());
}

/// Two oracles that share no code: `validate` refuses every plan that the null device refuses. The reverse need not
/// hold, since an overlap of bytes that are never read again is harmless.
#[test]
fn plans_that_the_null_device_refuses_are_invalid() {
    let outcomes = (0..2000).into_par_iter().map(|seed| {
        let mut noise = Noise::new(200_000 + seed);
        let case = Case::random(&mut noise);
        let mut plan = case.plan();
        let [moved, onto] = [0; 2].map(|_| noise.below(plan.tensors.len()));
        plan.tensors[moved].offset = plan.tensors[onto].offset;
        let (refused, invalid) = (rehearse_in_all_orders(&plan), validate(&plan));
        let names = [moved, onto].map(|i| &plan.tensors[i].name);
        assert!(refused.is_ok() || invalid.is_err(), "{refused:?} with {names:?}: {seed} {case:?}");
        [invalid.is_err(), refused.is_err()].map(u32::from)
    });
    let [invalid, refused] = outcomes.reduce(|| [0; 2], |a, b| [a[0] + b[0], a[1] + b[1]]);
    assert!(10 * refused > 9 * invalid, "of {invalid} invalid plans only {refused} were refused");
}
