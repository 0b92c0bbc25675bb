//! The programs of a run: how a model, an optimizer and a shape become `micro_step`, `update`, `evaluate`, `prefill`
//! and `sample`, all on the same parameters.

use crate::models::{Declared, Mode, ModelConfig};
use crate::ops::{AdamW, GradClip, GradNorm, HeadLoss, Linear, StateFormat, TakeRow, WeightLayout};
use crate::{DType, Graph, GraphError, ProgramBuilder, Role, Storage, TensorId, TensorType, differentiate};
use serde::{Deserialize, Serialize};

/// The optimizer's constants. The learning rate changes from step to step and is not among them.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Optimizer {
    /// Decay of the first moment.
    pub beta1: f32,
    /// Decay of the second moment.
    pub beta2: f32,
    /// Added to the root of the second moment.
    pub eps: f32,
    /// Decoupled weight decay, off norms and biases.
    pub weight_decay: f32,
    /// Largest norm of all gradients together; none: gradients are not clipped.
    pub grad_clip: Option<f32>,
}

impl Default for Optimizer {
    fn default() -> Self {
        Self { beta1: 0.9, beta2: 0.95, eps: 1e-8, weight_decay: 0.1, grad_clip: Some(1.0) }
    }
}

/// The shape of a training run's programs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct TrainShape {
    /// Samples that pass through the model at a time.
    pub micro_batch: usize,
    /// Tokens of a sample.
    pub seq_len: usize,
    /// Whether a step has more than one micro-batch.
    pub accumulates: bool,
    /// Rows whose logits the head holds at a time.
    pub head_chunk: usize,
    /// Whether held-out loss is computed.
    pub evaluates: bool,
    /// Tokens that a prompt is read at a time, if text is sampled.
    pub sample_prefill: Option<usize>,
}

/// A graph that trains. Errors: `TooLong`, `BadConfig`.
pub fn build_training(model: &ModelConfig, optimizer: &Optimizer, shape: &TrainShape) -> Result<Graph, GraphError> {
    model.validate()?;
    if shape.seq_len > model.max_positions() {
        let positions = model.max_positions();
        return Err(GraphError::TooLong { name: "the model".into(), seq_len: shape.seq_len, positions });
    }
    let mut graph = Graph::default();
    let declared = model.declare(&mut graph);
    graph.declare_training_state();
    let loss = graph.tensor("loss", TensorType::f32(&[1]), Role::Staging, Storage::Persistent);
    add_micro_step(&mut graph, model, &declared, shape, loss, false)?;
    if shape.accumulates {
        add_micro_step(&mut graph, model, &declared, shape, loss, true)?;
    }
    add_update(&mut graph, optimizer)?;
    if shape.evaluates {
        add_evaluate(&mut graph, model, &declared, shape)?;
    }
    if let Some(prefill) = shape.sample_prefill {
        add_sampling(&mut graph, model, &declared, prefill)?;
    }
    Ok(graph)
}

/// A graph that only writes text: weights, caches, and the programs `prefill` and `sample`. Errors: `BadConfig`.
pub fn build_sampling(model: &ModelConfig, prefill: usize) -> Result<Graph, GraphError> {
    model.validate()?;
    let mut graph = Graph::default();
    let declared = model.declare(&mut graph);
    add_sampling(&mut graph, model, &declared, prefill)?;
    Ok(graph)
}

fn add_micro_step(
    graph: &mut Graph,
    model: &ModelConfig,
    declared: &Declared,
    shape: &TrainShape,
    loss: TensorId,
    accumulate: bool,
) -> Result<(), GraphError> {
    let mut builder = ProgramBuilder::new(graph);
    forward_to_loss(&mut builder, model, declared, shape, loss, Mode::Train)?;
    differentiate(&mut builder, &[(loss, None)], accumulate)?;
    builder.finish(if accumulate { "micro_step_add" } else { "micro_step" });
    Ok(())
}

fn add_evaluate(
    graph: &mut Graph,
    model: &ModelConfig,
    declared: &Declared,
    shape: &TrainShape,
) -> Result<(), GraphError> {
    let loss = graph.tensor("held_out_loss", TensorType::f32(&[1]), Role::Staging, Storage::Persistent);
    let mut builder = ProgramBuilder::new(graph);
    forward_to_loss(&mut builder, model, declared, shape, loss, Mode::Evaluate)?;
    builder.finish("evaluate");
    Ok(())
}

fn forward_to_loss(
    builder: &mut ProgramBuilder,
    model: &ModelConfig,
    declared: &Declared,
    shape: &TrainShape,
    loss: TensorId,
    mode: Mode,
) -> Result<(), GraphError> {
    let extents = [shape.micro_batch, shape.seq_len];
    let tokens = builder.input("tokens", &extents, DType::I32);
    let targets = builder.input("targets", &extents, DType::I32);
    let hidden = model.forward(builder, declared, tokens, mode, &[])?;
    let op = HeadLoss { chunk: shape.head_chunk, smoothing: 0.0 };
    builder.push_into(op, &[hidden, declared.head(), targets], &[Some(loss)])?;
    (builder.ports.tokens, builder.ports.targets, builder.ports.loss) = (Some(tokens), Some(targets), Some(loss));
    Ok(())
}

fn add_update(graph: &mut Graph, optimizer: &Optimizer) -> Result<(), GraphError> {
    let norm = graph.tensor("grad_norm", TensorType::f32(&[1]), Role::Staging, Storage::Persistent);
    let parameters = graph.parameters.clone();
    let gradients = parameters.iter().filter_map(|p| Some(p.training.as_ref()?.gradient)).collect::<Vec<_>>();
    let mut builder = ProgramBuilder::new(graph);
    builder.push_into(GradNorm, &gradients, &[Some(norm)])?;
    let factor = builder.apply(GradClip { max_norm: optimizer.grad_clip }, &[norm])?;
    for (parameter, site) in parameters.iter().zip(0..) {
        let Some(training) = &parameter.training else { continue };
        let Optimizer { beta1, beta2, eps, weight_decay, .. } = *optimizer;
        let weight_decay = if parameter.decay { weight_decay } else { 0.0 };
        let op =
            AdamW { beta1, beta2, eps, weight_decay, rate: 1.0, weight: DType::F32, state: StateFormat::F32, site };
        let outputs = [&[parameter.tensor], &training.state[..]].concat();
        let outputs = outputs.into_iter().map(Some).collect::<Vec<_>>();
        builder.push_into(op, &[training.gradient, factor], &outputs)?;
    }
    builder.ports.grad_norm = Some(norm);
    builder.finish("update");
    Ok(())
}

fn add_sampling(graph: &mut Graph, model: &ModelConfig, declared: &Declared, prefill: usize) -> Result<(), GraphError> {
    let mut caches = Vec::new();
    for (layer, shapes) in model.cache_shapes(model.max_positions()).into_iter().enumerate() {
        let mut index = 0;
        caches.push(shapes.map(|shape| {
            let name = format!("h{layer}/{}_cache", ["key", "value"][index]);
            index += 1;
            graph.tensor(name, TensorType::f32(&shape), Role::Activation, Storage::Carried)
        }));
    }
    for (name, rows) in [("prefill", prefill.min(model.max_positions())), ("sample", 1)] {
        let mut builder = ProgramBuilder::new(graph);
        let tokens = builder.input("tokens", &[1, rows], DType::I32);
        let hidden = model.forward(&mut builder, declared, tokens, Mode::Cached, &caches)?;
        let last = builder.apply(TakeRow, &[hidden])?;
        let head = Linear { layout: WeightLayout::OutIn, bias: false };
        let logits = builder.apply(head, &[last, declared.head()])?;
        (builder.ports.tokens, builder.ports.logits) = (Some(tokens), Some(logits));
        builder.finish(name);
    }
    Ok(())
}
