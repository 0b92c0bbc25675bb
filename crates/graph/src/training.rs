//! Builds the programs of a run from a model, an optimizer and a shape: `micro_step`, `update`, `evaluate`, `prefill`,
//! `sample` and `encode`, all with the same parameters.
//! Not here: the programs that compute the vectors of texts (`embedding.rs`).

use crate::adaptable::ADAPTER_PREFIX;
use crate::adapters::{Adapted, Adapters, is_second};
use crate::models::{Caches, EncoderWeights, Inputs, Mode, ModelConfig, NO_HEAD, keys};
use crate::noise::Noise;
use crate::ops::{
    Add, ContrastiveLoss, GradClip, GradNorm, GradientFormat, HeadLogProbs, HeadLoss, PairedHeadLoss, ParameterUpdate,
    Pool, Pooling, PreferenceKind, PreferenceLoss, REWARDS, Route, RouterLoss, SoftCap, StateFormat, TakeRow,
    WeightFormat,
};
use crate::optimizers::Optimizer;
use crate::row_tiles::tile_rows;
use crate::{
    DType, Graph, GraphError, Lengths, Op, Parameter, Pass, ProgramBuilder, ProgramKind, ProgramName, Role, Storage,
    TensorId, TensorType, differentiate,
};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeSet, HashMap};

/// Terms of the loss in addition to the targets' mean cross-entropy.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Objective {
    /// The part of each target that is spread over the whole vocabulary. Source: Szegedy et al. 2016, section 7.
    pub label_smoothing: f32,
    /// Weight of the divergence between two dropout draws; each sample then passes through the model twice. Source:
    /// Liang et al. 2021.
    pub r_drop: Option<f32>,
    /// Alpha of the uniform noise that is added to the embeddings of tokens in training. Source: Jain et al. 2023.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub embedding_noise: Option<f32>,
    /// The loss of encoders, which have no targets.
    #[serde(default)]
    pub contrastive: Contrastive,
    /// The loss of preferences, which replaces that of targets; `label_smoothing` then is the part of preferences that is
    /// taken to be wrong.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preferences: Option<Preferences>,
}

impl Objective {
    /// Rows of tokens of a sample: two if it has a chosen and a rejected answer.
    pub fn rows_of_sample(&self) -> usize {
        if self.preferences.is_some_and(|preferences| preferences.kind.is_paired()) { 2 } else { 1 }
    }

    /// Whether each step runs `evaluate` for each of its micro-batches first, to estimate the reference point.
    pub fn has_reference_point(&self) -> bool {
        self.preferences.is_some_and(|preferences| preferences.kind.has_reference_point())
    }
}

/// A loss that compares two answers to a prompt, as in DPO (Rafailov et al. 2023) or ORPO (Hong et al. 2024). The reference, if
/// the loss has one, is the model without its adapters.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Preferences {
    /// The loss of an example.
    pub kind: PreferenceKind,
    /// How much deviation from the reference costs, above zero; without a reference, the weight of the odds.
    pub beta: f32,
}

impl Default for Preferences {
    /// As `DPOConfig` of TRL.
    fn default() -> Self {
        Self { kind: PreferenceKind::Sigmoid, beta: 0.1 }
    }
}

/// The loss of encoders: the vectors of two texts that belong together are more similar than those of other texts of the
/// batch.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Contrastive {
    /// Factor of the cosines of vectors.
    pub scale: f32,
    /// The tokens that a vector is made of.
    pub pooling: Pooling,
    /// Hard negatives of each sample, which are candidates of all anchors.
    #[serde(default)]
    pub negatives: usize,
}

impl Default for Contrastive {
    /// As `MultipleNegativesRankingLoss` of sentence-transformers.
    fn default() -> Self {
        Self { scale: 20.0, pooling: Pooling::Mean, negatives: 0 }
    }
}

/// The shape of a training run's programs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TrainShape {
    /// Number of samples that pass through the model at a time.
    pub micro_batch: usize,
    /// Tokens per sample; tokens per source if the model has an encoder.
    pub seq_len: usize,
    /// Largest number of tokens of the decoder; required if the model has an encoder.
    pub target_len: Option<usize>,
    /// Shorter sequence lengths with their own programs.
    pub buckets: Vec<Lengths>,
    /// Whether a row contains several documents, which do not attend to each other.
    pub packed: bool,
    /// Whether a step has more than one micro-batch.
    pub accumulates: bool,
    /// Rows of logits that the head computes at a time.
    pub head_chunk: usize,
    /// Terms of the loss.
    pub objective: Objective,
    /// Whether the held-out loss is computed.
    pub evaluates: bool,
    /// Tokens of a prompt per run of `prefill`; `None` if no text is sampled.
    pub sample_prefill: Option<usize>,
    /// Names of the frozen parameters.
    pub frozen: BTreeSet<String>,
    /// Rows that blocks pass through their feed-forward layers at a time; `None`: all.
    pub sequence_tile: Option<usize>,
    /// The adapters, if only they are trained and all other parameters are frozen.
    pub adapters: Option<Adapters>,
    /// How gradients are kept until the update.
    #[serde(default)]
    pub gradients: GradientFormat,
}

impl Default for TrainShape {
    /// One sample of one token in one micro-batch.
    fn default() -> Self {
        Self {
            micro_batch: 1,
            seq_len: 1,
            target_len: None,
            buckets: vec![],
            packed: false,
            accumulates: false,
            head_chunk: 1,
            objective: Objective::default(),
            evaluates: false,
            sample_prefill: None,
            frozen: BTreeSet::new(),
            sequence_tile: None,
            adapters: None,
            gradients: GradientFormat::F32,
        }
    }
}

/// The shape of the programs that generate text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SampleShape {
    /// Number of prompts completed at a time.
    pub rows: usize,
    /// Tokens of a prompt per run of `prefill`.
    pub prefill: usize,
    /// Largest number of tokens of prompt and answer together; of the answer alone if the model has an encoder.
    pub capacity: usize,
    /// Largest number of tokens of a source if the model has an encoder.
    pub source: usize,
}

/// Builds a graph for training. Errors: `TooLong`, `BadConfig`, `UnknownParameter`, `NothingTrained`, `DropsRows`.
pub fn build_training(model: &ModelConfig, optimizer: &Optimizer, shape: &TrainShape) -> Result<Graph, GraphError> {
    model.validate()?;
    model.check_length(shape.seq_len.max(shape.target_len.unwrap_or(1)))?;
    let mut graph = Graph::default();
    let weights = Adapted::declare(&mut graph, model, shape.adapters.as_ref())?;
    let longest = Lengths { tokens: shape.seq_len, target: shape.target_len };
    let weights = weights.with_noise(shape.objective.embedding_noise.map(|alpha| Noise { alpha, longest }));
    let saved = shape.adapters.iter().flat_map(|adapters| &adapters.saved);
    if let Some(unknown) =
        shape.frozen.iter().chain(saved).find(|name| !graph.parameters.iter().any(|p| *graph[p.tensor].name == **name))
    {
        return Err(GraphError::UnknownParameter { name: unknown.clone() });
    }
    graph.declare_training_state(optimizer.rule.moments(), shape.gradients, &frozen(&graph, shape));
    if graph.trained_parameter_count() == 0 {
        return Err(GraphError::NothingTrained { parameters: graph.parameters.len() });
    }
    let mut staged = |name: &str| graph.tensor(name, TensorType::f32(&[1]), Role::Staging, Storage::Persistent);
    let terms = weights.balance().map(|coefficient| Terms {
        coefficient,
        of_targets: staged("loss_of_targets"),
        of_routers: staged("loss_of_routers"),
    });
    let losses = Losses { total: staged("loss"), terms };
    let evaluates = shape.evaluates || shape.objective.has_reference_point();
    let held_out_loss = evaluates.then(|| staged("held_out_loss"));
    let mut rewards = |name: &str| {
        let ty = TensorType::f32(&[REWARDS]);
        shape.objective.preferences.map(|_| graph.tensor(name, ty, Role::Staging, Storage::Persistent))
    };
    let rewards = [rewards("rewards"), rewards("held_out_rewards").filter(|_| evaluates)];
    let run = Run { model, weights: &weights, shape, rewards };
    for (number, &lengths) in [longest].iter().chain(&shape.buckets).enumerate() {
        let name = |kind| ProgramName { kind, lengths: (number > 0).then_some(lengths) };
        run.add_micro_step(&mut graph, lengths, &losses, name(ProgramKind::MicroStep))?;
        if shape.accumulates {
            run.add_micro_step(&mut graph, lengths, &losses, name(ProgramKind::MicroStepAdd))?;
        }
        if let Some(loss) = held_out_loss {
            run.add_evaluate(&mut graph, lengths, loss, name(ProgramKind::Evaluate))?;
        }
    }
    add_update(&mut graph, optimizer)?;
    if let Some(prefill) = shape.sample_prefill.filter(|_| !model.is_encoder()) {
        let capacity = shape.target_len.unwrap_or(shape.seq_len).min(MOST_SAMPLED);
        let shape = SampleShape { rows: 1, prefill, capacity, source: shape.seq_len };
        add_sampling(&mut graph, model, &weights, &shape)?;
    }
    Ok(graph)
}

/// Most tokens of a sample's context in a training run: caches for longer ones would take more memory than training does.
const MOST_SAMPLED: usize = 4096;

/// The names of the parameters that are not trained.
fn frozen(graph: &Graph, shape: &TrainShape) -> BTreeSet<String> {
    let Some(adapters) = &shape.adapters else { return shape.frozen.clone() };
    let names = graph.parameters.iter().map(|parameter| graph[parameter.tensor].name.to_string());
    let of_base = names.filter(|name| !name.starts_with(ADAPTER_PREFIX) && !adapters.saved.contains(name));
    of_base.chain(shape.frozen.iter().cloned()).collect()
}

/// Builds a graph for text generation only: weights, caches, and the programs `sample` and `prefill` or `encode`.
/// Errors: `BadConfig`, `UnknownParameter`.
pub fn build_sampling(
    model: &ModelConfig,
    adapters: Option<&Adapters>,
    shape: &SampleShape,
) -> Result<Graph, GraphError> {
    model.validate()?;
    if model.is_encoder() {
        return Err(keys::bad(
            "model_type",
            format!("is `{}`, which continues no text: {NO_HEAD}", model.model_type()),
        ));
    }
    let mut graph = Graph::default();
    let weights = Adapted::declare(&mut graph, model, adapters)?;
    add_sampling(&mut graph, model, &weights, shape)?;
    Ok(graph)
}

/// The loss of a step, over the micro-batches so far.
struct Losses {
    total: TensorId,
    /// Its two terms, if there are routers whose balance is trained. Otherwise the loss is that of the targets.
    terms: Option<Terms>,
}

/// The loss of the targets, and the loss on the balance of experts.
#[derive(Clone, Copy)]
struct Terms {
    /// Factor of the second one.
    coefficient: f32,
    of_targets: TensorId,
    of_routers: TensorId,
}

/// Appends the loss on the balance of experts of all layers.
fn add_router_loss(builder: &mut ProgramBuilder, terms: &Terms, accumulate: bool) -> Result<(), GraphError> {
    let routes = builder.nodes.iter().filter_map(|node| match node.op {
        Op::Route(Route { experts_per_token, sums: true, .. }) => {
            Some((experts_per_token, node.outputs[4], node.outputs[3]))
        }
        _ => None,
    });
    let routes = routes.collect::<Vec<_>>();
    let experts_per_token = routes.first().map_or(0, |(experts_per_token, ..)| *experts_per_token);
    let (sums, bounds) = routes.iter().map(|&(_, sums, bounds)| (sums, bounds)).unzip::<_, _, Vec<_>, Vec<_>>();
    let op = RouterLoss { coefficient: terms.coefficient, experts_per_token, accumulate };
    builder.push_into(op, &[sums, bounds].concat(), &[Some(terms.of_routers), None]).map(drop)
}

/// A model in training.
struct Run<'a> {
    model: &'a ModelConfig,
    weights: &'a Adapted,
    shape: &'a TrainShape,
    /// The rewards of a step, and of held-out examples, if the run is trained on preferences.
    rewards: [Option<TensorId>; 2],
}

impl Run<'_> {
    fn add_micro_step(
        &self,
        graph: &mut Graph,
        lengths: Lengths,
        losses: &Losses,
        name: ProgramName,
    ) -> Result<(), GraphError> {
        let loss = losses.terms.map_or(losses.total, |terms| terms.of_targets);
        let accumulate = name.kind == ProgramKind::MicroStepAdd;
        let mut builder = ProgramBuilder::new(graph);
        if let Some(encoder) = self.weights.encoder() {
            self.add_similarities(&mut builder, encoder, lengths, loss, |draw| Mode::Train { draw })?;
            self.tile_rows(&mut builder);
            differentiate(&mut builder, &[(loss, None)], accumulate)?;
            builder.finish(name);
            return Ok(());
        }
        let inputs = self.inputs(&mut builder, lengths);
        let caches = Caches::default();
        if let ([Some(rewards), _], Some(preferences)) = (self.rewards, self.shape.objective.preferences) {
            let mode = Mode::Train { draw: 0 };
            self.add_preferences(&mut builder, &inputs, &preferences, [loss, rewards], mode)?;
            builder.ports.loss = Some(losses.total);
            return self.add_gradients(builder, losses, loss, name);
        }
        let Objective { label_smoothing: smoothing, r_drop, .. } = self.shape.objective;
        let passes = (0..if r_drop.is_some() { 2 } else { 1 }).map(|draw| {
            let mode = Mode::Train { draw };
            Ok((self.weights.forward(&mut builder, &inputs, mode, &caches)?, mode))
        });
        let passes = passes.collect::<Result<Vec<_>, GraphError>>()?;
        let targets = builder.ports.targets.expect("training has targets");
        let operands = self.weights.head_operands(&mut builder, &passes, targets)?;
        let (chunk, cap, adapter) = (self.shape.head_chunk, self.weights.logit_cap(), self.weights.adapts_head());
        let op: Op = match r_drop {
            Some(alpha) => PairedHeadLoss { chunk, alpha, smoothing, cap, adapter }.into(),
            None => HeadLoss { chunk, smoothing, cap, adapter }.into(),
        };
        builder.push_into(op, &operands, &[Some(loss)])?;
        builder.ports.loss = Some(losses.total);
        self.add_gradients(builder, losses, loss, name)
    }

    /// Appends the loss on the balance of experts, if there is one, and the gradients, and finishes the program. `loss`: that
    /// of the targets.
    fn add_gradients(
        &self,
        mut builder: ProgramBuilder,
        losses: &Losses,
        loss: TensorId,
        name: ProgramName,
    ) -> Result<(), GraphError> {
        let accumulate = name.kind == ProgramKind::MicroStepAdd;
        let mut roots = vec![(loss, None)];
        if let Some(terms) = &losses.terms {
            add_router_loss(&mut builder, terms, accumulate)?;
            roots.push((terms.of_routers, None));
        }
        self.tile_rows(&mut builder);
        differentiate(&mut builder, &roots, accumulate)?;
        if let Some(Terms { of_targets, of_routers, .. }) = losses.terms {
            builder.scope("loss", None);
            builder.push_into(Add, &[of_targets, of_routers], &[Some(losses.total)])?;
        }
        builder.finish(name);
        Ok(())
    }

    fn add_evaluate(
        &self,
        graph: &mut Graph,
        lengths: Lengths,
        loss: TensorId,
        name: ProgramName,
    ) -> Result<(), GraphError> {
        let mut builder = ProgramBuilder::new(graph);
        if let Some(encoder) = self.weights.encoder() {
            self.add_similarities(&mut builder, encoder, lengths, loss, |_| Mode::Evaluate)?;
            self.tile_rows(&mut builder);
            builder.finish(name);
            return Ok(());
        }
        let inputs = self.inputs(&mut builder, lengths);
        if let ([_, Some(rewards)], Some(preferences)) = (self.rewards, self.shape.objective.preferences) {
            self.add_preferences(&mut builder, &inputs, &preferences, [loss, rewards], Mode::Evaluate)?;
            builder.ports.loss = Some(loss);
            self.tile_rows(&mut builder);
            builder.finish(name);
            return Ok(());
        }
        let hidden = self.weights.forward(&mut builder, &inputs, Mode::Evaluate, &Caches::default())?;
        let targets = builder.ports.targets.expect("evaluation has targets");
        let operands = self.weights.head_operands(&mut builder, &[(hidden, Mode::Evaluate)], targets)?;
        let (cap, adapter) = (self.weights.logit_cap(), self.weights.adapts_head());
        let op = HeadLoss { chunk: self.shape.head_chunk, smoothing: 0.0, cap, adapter };
        builder.push_into(op, &operands, &[Some(loss)])?;
        builder.ports.loss = Some(loss);
        self.tile_rows(&mut builder);
        builder.finish(name);
        Ok(())
    }

    /// Lets the forward pass so far work through rows tile by tile, where that is wanted.
    fn tile_rows(&self, builder: &mut ProgramBuilder) {
        if let Some(rows) = self.shape.sequence_tile {
            tile_rows(builder, rows);
        }
    }

    /// Appends both passes of an encoder, through the anchors and through their candidates, and their loss. The ports of
    /// the decoder are those of the candidates: first the positives of all samples, then their first negatives, and so
    /// on. Each sample that is present has a target.
    fn add_similarities(
        &self,
        builder: &mut ProgramBuilder,
        encoder: &EncoderWeights,
        lengths: Lengths,
        loss: TensorId,
        mode: impl Fn(u32) -> Mode,
    ) -> Result<(), GraphError> {
        let Contrastive { scale, pooling, negatives } = self.shape.objective.contrastive;
        let rows = self.shape.micro_batch;
        let mut input = |name: &str, shape: &[usize]| builder.input(name, shape, DType::I32);
        let mut texts =
            |of: &str, shape: [usize; 2]| ["tokens", "segments"].map(|kind| input(&format!("{of}{kind}"), &shape));
        let anchors = texts("", [rows, lengths.tokens]);
        let others = texts("decoder_", [rows * (1 + negatives), lengths.target.unwrap_or(lengths.tokens)]);
        let present = input("targets", &[rows]);
        let mut pooled = [anchors, others];
        for ((texts, side), draw) in pooled.iter_mut().zip(["anchor", "candidate"]).zip(0..) {
            let first = builder.nodes.len();
            let hidden = encoder.forward(builder, side, *texts, mode(draw))?;
            let tokens = if draw == 0 { [Some(texts[0]), None] } else { [None, Some(texts[0])] };
            self.weights.adapt(builder, first, tokens, mode(draw))?;
            texts[0] = builder.apply(Pool { pooling }, &[hidden, texts[1]])?;
        }
        builder.scope("similarity", None);
        let inputs = [pooled[0][0], pooled[1][0], present];
        builder.push_into(ContrastiveLoss { scale }, &inputs, &[Some(loss)])?;
        let ports = &mut builder.ports;
        ([ports.tokens, ports.segments], ports.targets) = (anchors.map(Some), Some(present));
        [ports.decoder_tokens, ports.decoder_segments] = others.map(Some);
        ports.loss = Some(loss);
        Ok(())
    }

    /// Appends the passes of the reference, if the loss has one, and of the policy, and the loss of preferences with its rewards.
    /// Rows 2i and 2i+1 have the chosen and the rejected answer of example i, with the answers' tokens as targets, and if
    /// prompts are trained on, the tokens of the prompt as targets of the second group. A single answer has a row, with
    /// targets of the second group if it is disliked.
    fn add_preferences(
        &self,
        builder: &mut ProgramBuilder,
        inputs: &Inputs,
        preferences: &Preferences,
        results: [TensorId; 2],
        mode: Mode,
    ) -> Result<(), GraphError> {
        let targets = builder.ports.targets.expect("the inputs have targets");
        let Preferences { kind, beta } = *preferences;
        let (chunk, cap) = (self.shape.head_chunk, self.weights.logit_cap());
        let op = HeadLogProbs { chunk, cap, split: kind.trains_prompts(), adapter: false };
        let reference = match kind.has_reference() {
            true => {
                let before = self.weights.forward_reference(builder, inputs)?;
                builder.scope("reference", None);
                Some(builder.apply(op, &self.weights.reference_operands(before, targets))?)
            }
            false => None,
        };
        let hidden = self.weights.forward(builder, inputs, mode, &Caches::default())?;
        builder.scope("policy", None);
        let operands = self.weights.head_operands(builder, &[(hidden, mode)], targets)?;
        let policy = builder.apply(HeadLogProbs { adapter: self.weights.adapts_head(), ..op }, &operands)?;
        let loss = PreferenceLoss { kind, beta, smoothing: self.shape.objective.label_smoothing };
        let operands = [Some(policy), reference, Some(targets)].into_iter().flatten().collect::<Vec<_>>();
        builder.push_into(loss, &operands, &results.map(Some))?;
        builder.ports.rewards = Some(results[1]);
        Ok(())
    }

    /// Declares the ports that the host fills for a micro-batch.
    fn inputs(&self, builder: &mut ProgramBuilder, lengths: Lengths) -> Inputs {
        let rows = self.shape.micro_batch * self.shape.objective.rows_of_sample();
        let mut input = |name: &str, tokens: usize| builder.input(name, &[rows, tokens], DType::I32);
        let tokens = input("tokens", lengths.tokens);
        let packed = self.shape.packed;
        let positions = (packed && self.model.has_position_table()).then(|| input("positions", lengths.tokens));
        let segments = (packed || lengths.target.is_some()).then(|| input("segments", lengths.tokens));
        let decoder = lengths.target.map(|length| [input("decoder_tokens", length), input("decoder_segments", length)]);
        let targets = input("targets", lengths.target.unwrap_or(lengths.tokens));
        builder.ports.targets = Some(targets);
        let inputs = Inputs { tokens, positions, segments, decoder };
        feed(builder, &inputs);
        inputs
    }
}

/// Registers a forward pass's inputs as ports.
fn feed(builder: &mut ProgramBuilder, inputs: &Inputs) {
    let ports = &mut builder.ports;
    (ports.tokens, ports.positions, ports.segments) = (Some(inputs.tokens), inputs.positions, inputs.segments);
    ports.decoder_tokens = inputs.decoder.map(|[tokens, _]| tokens);
    ports.decoder_segments = inputs.decoder.map(|[_, segments]| segments);
}

fn add_update(graph: &mut Graph, optimizer: &Optimizer) -> Result<(), GraphError> {
    let norm = graph.tensor("grad_norm", TensorType::f32(&[1]), Role::Staging, Storage::Persistent);
    let parameters = graph.parameters.clone();
    let gradients = parameters.iter().filter_map(|p| Some(p.training.as_ref()?.gradient)).collect::<Vec<_>>();
    let depths = depths(graph);
    let is_adapted = parameters.iter().any(|parameter| graph[parameter.tensor].name.starts_with(ADAPTER_PREFIX));
    let adapter_rate = |graph: &Graph, parameter: &Parameter| match is_adapted && is_second(graph, parameter) {
        true => optimizer.lora_plus,
        false => 1.0,
    };
    let mut builder = ProgramBuilder::new(graph);
    builder.begin(Pass::Update);
    builder.push_into(GradNorm, &gradients, &[Some(norm)])?;
    let factor = builder.apply(GradClip { max_norm: optimizer.grad_clip }, &[norm])?;
    for (parameter, site) in parameters.iter().zip(0..) {
        let Some(training) = &parameter.training else { continue };
        let op = ParameterUpdate {
            rule: optimizer.rule,
            weight_decay: if parameter.decay { optimizer.weight_decay } else { 0.0 },
            rate: optimizer.layer_decay.powi(depths[&parameter.tensor]) * adapter_rate(builder.graph, parameter),
            weight: WeightFormat::F32,
            state: StateFormat::F32,
            site,
        };
        let outputs = [&[parameter.tensor], &training.state[..]].concat();
        let outputs = outputs.into_iter().map(Some).collect::<Vec<_>>();
        builder.push_into(op, &[training.gradient, factor], &outputs)?;
    }
    builder.ports.grad_norm = Some(norm);
    builder.finish(ProgramKind::Update);
    Ok(())
}

/// Number of blocks between each parameter's first use and the head: 0 for parameters after the last block, 1 for the
/// last block, and one more than the number of blocks for parameters before the first.
fn depths(graph: &Graph) -> HashMap<TensorId, i32> {
    let step = graph.program(ProgramKind::MicroStep).expect("a training graph has this program");
    let blocks = step.nodes.iter().filter_map(|n| n.block).max().map_or(0, |last| last as i32 + 1);
    let mut depths = HashMap::new();
    let mut begun = 0;
    for node in &step.nodes {
        let depth = match node.block {
            Some(block) => {
                begun = begun.max(block as i32 + 1);
                blocks - block as i32
            }
            None if begun == 0 => blocks + 1,
            None => blocks - begun,
        };
        for &id in &node.inputs {
            depths.entry(id).or_insert(depth);
        }
    }
    depths
}

fn add_sampling(
    graph: &mut Graph,
    model: &ModelConfig,
    weights: &Adapted,
    shape: &SampleShape,
) -> Result<(), GraphError> {
    let shapes = model.cache_shapes(shape.rows, shape.capacity.min(model.max_positions()), shape.source);
    let mut carried = |kind: &str, shapes: Vec<[Vec<usize>; 2]>| {
        let mut caches = Vec::with_capacity(shapes.len());
        for (layer, [keys, values]) in shapes.into_iter().enumerate() {
            let mut cache = |what: &str, shape: &[usize]| {
                let (name, ty) = (format!("h{layer}/{what}_{kind}"), TensorType::f32(shape));
                graph.tensor(name, ty, Role::Activation, Storage::Carried)
            };
            caches.push([cache("key", &keys), cache("value", &values)]);
        }
        caches
    };
    let caches = Caches { own: carried("cache", shapes.own), source: carried("cache_of_source", shapes.source) };
    if model.decoder_start().is_some() {
        add_encode(graph, weights, &caches, [shape.rows, shape.source])?;
        return add_next(graph, weights, &caches, ProgramKind::Sample, [shape.rows, 1], Some(shape.source));
    }
    for (kind, tokens) in [(ProgramKind::Prefill, shape.prefill.min(shape.capacity)), (ProgramKind::Sample, 1)] {
        add_next(graph, weights, &caches, kind, [shape.rows, tokens], None)?;
    }
    Ok(())
}

/// Appends the program that reads sources (B, S) and stores their keys and values.
fn add_encode(graph: &mut Graph, weights: &Adapted, caches: &Caches, extents: [usize; 2]) -> Result<(), GraphError> {
    let mut builder = ProgramBuilder::new(graph);
    let mut input = |name: &str| builder.input(name, &extents, DType::I32);
    let inputs = Inputs { tokens: input("tokens"), segments: Some(input("segments")), positions: None, decoder: None };
    feed(&mut builder, &inputs);
    weights.cache_source(&mut builder, &inputs, caches)?;
    builder.finish(ProgramKind::Encode);
    Ok(())
}

/// Appends a program that reads tokens (B, T) after the cached ones and computes the logits of the next token.
fn add_next(
    graph: &mut Graph,
    weights: &Adapted,
    caches: &Caches,
    kind: ProgramKind,
    [rows, tokens]: [usize; 2],
    source: Option<usize>,
) -> Result<(), GraphError> {
    let mut builder = ProgramBuilder::new(graph);
    let mut input = |name: &str, tokens: usize| builder.input(name, &[rows, tokens], DType::I32);
    let fed = input("tokens", tokens);
    let segments = source.map(|source| input("segments", source));
    let decoder = source.map(|_| [fed, input("decoder_segments", tokens)]);
    let inputs = Inputs { tokens: fed, positions: None, segments, decoder };
    let hidden = weights.forward(&mut builder, &inputs, Mode::Cached, caches)?;
    let last = builder.apply(TakeRow, &[hidden])?;
    let mut logits = weights.logits(&mut builder, last)?;
    if let Some(cap) = weights.logit_cap() {
        logits = builder.apply(SoftCap { cap }, &[logits])?;
    }
    builder.ports.logits = Some(logits);
    builder.ports.tokens = Some(fed);
    builder.ports.segments = segments;
    builder.ports.decoder_segments = decoder.map(|[_, segments]| segments);
    builder.finish(kind);
    Ok(())
}
