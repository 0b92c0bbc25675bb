//! Low-rank adapters (LoRA, Hu et al. 2021): small trained matrices that are added to the frozen weights of linear
//! layers and embeddings. A rewrite of a forward pass, before its gradient is built: ops, kernels and models do not know of it.
//!
//! ```text
//!   x ─┬───────────────────────────────► linear W ─► base ─┐
//!      └─► (dropout) ─► linear A ─► scale ─► t ──► linear_add B ─► y
//! ```
//!
//! t is computed before the base, so that the backward pass adds A's part of the gradient of x in place. The sum in y
//! is in place too, so that an adapter needs no second tensor of the size of x or y.
//! An embedding is a linear layer of one-hot rows: t is a row of Aᵀ, and is never dropped. The output head is not a linear
//! layer in training: its ops take t and B, and add their product to each chunk of logits (`ops/head.rs`). An embedding and
//! a head that share a weight have adapters of their own, as in PEFT. Each expert has an adapter of its own: the products are
//! those of the rows of each expert, with A and B of three dimensions.
//!
//! Not here: which layers can have adapters (`adaptable.rs`), which get them (`adapter_targets.rs`), their parameters and files
//! (`adapter_parameters.rs`, `adapter_file.rs`), magnitudes of their
//! weights (`magnitudes.rs`), and noise on embeddings (`noise.rs`).

use crate::adaptable::LayerRole;
use crate::magnitudes::{AdaptedWeight, Magnitudes};
use crate::models::{Caches, EncoderWeights, Inputs, Mode, ModelConfig, Weights};
use crate::noise::{Noise, SITES};
use crate::ops::{
    Add, ColumnScale, Dropout, DropoutKey, Embedding, ExpertLinear, Linear, LinearAdd, Op, Scale, WeightLayout,
};
use crate::{Graph, GraphError, Node, Parameter, ProgramBuilder, Role, Storage, TensorId};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// The adapters of a model.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Adapters {
    /// By the layer's name in the model's files, such as `model.layers.0.self_attn.q_proj`.
    pub layers: BTreeMap<String, Adapter>,
    /// The part of the adapters' inputs that is dropped in training, in [0, 1).
    pub dropout: f32,
    /// Names of parameters of the model that are trained whole. All others are frozen.
    pub saved: BTreeSet<String>,
    /// Whether each layer's magnitudes are trained, too (DoRA, `magnitudes.rs`).
    #[serde(default)]
    pub has_magnitudes: bool,
}

/// The adapter of a linear layer.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Adapter {
    /// Columns of the first matrix and rows of the second.
    pub rank: usize,
    /// Factor of the adapter's result.
    pub scale: f32,
}

/// Whether a parameter is the second matrix of an adapter, or has one dimension: LoRA+ has another learning rate for them.
pub(crate) fn is_second(graph: &Graph, parameter: &Parameter) -> bool {
    let tensor = &graph[parameter.tensor];
    tensor.name.contains(".lora_B.") || tensor.ty.shape.len() == 1
}

/// The product of the rows of each expert with one of its adapter's matrices.
const OF_EXPERTS: ExpertLinear = ExpertLinear { layout: WeightLayout::OutIn, bias: false };

/// The sites of adapters' dropout follow those of the model's own.
const FIRST_SITE: u32 = SITES / 2;

/// A model in a graph, with its adapters if it has any.
#[derive(Debug, Clone)]
pub(crate) struct Adapted {
    weights: Weights,
    dropout: f32,
    noise: Option<Noise>,
    /// By the weight of the layer, except for the output head.
    of: HashMap<TensorId, Matrices>,
    /// That of the output head.
    head: Option<Matrices>,
}

/// An adapter's parameters.
#[derive(Debug, Clone, Copy)]
struct Matrices {
    down: TensorId,
    up: TensorId,
    scale: f32,
    site: u32,
    magnitudes: Option<Magnitudes>,
}

impl Adapted {
    /// Declares the parameters. Errors: `NoAdapter` if a layer can't have an adapter, `NoMagnitudes` if it can't have these,
    /// `TwoAdapters` if a layer of experts has one in each layout of files.
    pub(crate) fn declare(
        graph: &mut Graph,
        model: &ModelConfig,
        adapters: Option<&Adapters>,
    ) -> Result<Self, GraphError> {
        let weights = model.declare(graph);
        let Some(adapters) = adapters else {
            return Ok(Self { weights, dropout: 0.0, noise: None, of: HashMap::new(), head: None });
        };
        let mut known = model.adaptable_layers()?;
        if adapters.layers.keys().any(|name| !known.iter().any(|layer| layer.module == *name)) {
            known.extend(model.fused_layers()?);
        }
        for name in adapters.layers.keys() {
            if !known.iter().any(|layer| layer.module == *name) {
                return Err(GraphError::NoAdapter { module: name.clone() });
            }
        }
        let (mut of, mut head) = (HashMap::new(), None);
        let mut downs = HashMap::new();
        for layer in known {
            let Some(&Adapter { rank, scale }) = adapters.layers.get(&layer.module) else { continue };
            let next = u32::try_from(downs.len()).expect("a model has fewer than 2^32 layers");
            let (down, site) = *downs
                .entry(layer.module.clone())
                .or_insert_with(|| (adapters.declare_down(graph, &layer, rank), next));
            let parameter = graph.parameters.iter().find(|p| *graph[p.tensor].name == *layer.weight);
            let parameter = parameter.expect("layers are parameters").clone();
            let up = adapters.declare_up(graph, &parameter, &layer, rank);
            let magnitudes = match adapters.has_magnitudes {
                true => Some(adapters.declare_magnitudes(graph, &parameter, &layer)?),
                false => None,
            };
            let matrices = Matrices { down, up, scale, site: FIRST_SITE + site, magnitudes };
            match layer.role {
                LayerRole::Head => head = Some(matrices),
                LayerRole::Embedding | LayerRole::Inner | LayerRole::Experts(_) => {
                    if of.insert(parameter.tensor, matrices).is_some() {
                        return Err(GraphError::TwoAdapters { module: layer.module });
                    }
                }
            }
        }
        Ok(Self { weights, dropout: adapters.dropout, noise: None, of, head })
    }

    /// The same with noise that is added to the embeddings of tokens in training.
    pub(crate) fn with_noise(self, noise: Option<Noise>) -> Self {
        Self { noise, ..self }
    }

    /// The model, if it is an encoder. Its passes are adapted by [`Self::adapt`].
    pub(crate) fn encoder(&self) -> Option<&EncoderWeights> {
        if let Weights::Encoder(encoder) = &self.weights { Some(encoder) } else { None }
    }

    /// Factor of the loss on the balance of experts; `None` if it is not trained.
    pub(crate) fn balance(&self) -> Option<f32> {
        self.weights.balance()
    }

    /// Whether the output head has an adapter.
    pub(crate) fn adapts_head(&self) -> bool {
        self.head.is_some()
    }

    /// The operands of an op of the output head, from the hidden states and the mode of each pass; appends t of its adapter.
    pub(crate) fn head_operands(
        &self,
        builder: &mut ProgramBuilder,
        passes: &[(TensorId, Mode)],
        targets: TensorId,
    ) -> Result<Vec<TensorId>, GraphError> {
        let mut operands = passes.iter().map(|(hidden, _)| *hidden).collect::<Vec<_>>();
        operands.extend([self.weights.head(), targets]);
        if let Some(matrices) = &self.head {
            for &(hidden, mode) in passes {
                operands.push(self.low_of_head(builder, hidden, matrices, mode)?);
            }
            operands.push(matrices.up);
        }
        Ok(operands)
    }

    /// The operands of an op of the output head without its adapter.
    pub(crate) fn reference_operands(&self, hidden: TensorId, targets: TensorId) -> [TensorId; 3] {
        [hidden, self.weights.head(), targets]
    }

    /// Appends the logits of hidden states (B, 1, C) in sampling, before a cap.
    pub(crate) fn logits(&self, builder: &mut ProgramBuilder, hidden: TensorId) -> Result<TensorId, GraphError> {
        let head = Linear { layout: WeightLayout::OutIn, bias: false };
        let base = builder.apply(head, &[hidden, self.weights.head()])?;
        let Some(matrices) = &self.head else { return Ok(base) };
        let low = self.low_of_head(builder, hidden, matrices, Mode::Cached)?;
        builder.apply(LinearAdd { layout: WeightLayout::OutIn }, &[base, low, matrices.up])
    }

    fn low_of_head(
        &self,
        builder: &mut ProgramBuilder,
        hidden: TensorId,
        matrices: &Matrices,
        mode: Mode,
    ) -> Result<TensorId, GraphError> {
        let (outer, block) = builder.current_scope();
        builder.scope("head/adapter", None);
        let kept = self.dropped(builder, hidden, matrices, mode)?;
        let low = low(builder, kept, None, matrices)?;
        builder.scope(outer, block);
        Ok(low)
    }

    /// Soft limit of the logits.
    pub(crate) fn logit_cap(&self) -> Option<f32> {
        self.weights.logit_cap()
    }

    /// Appends the forward pass up to the input of the output head: (B, T, C).
    pub(crate) fn forward(
        &self,
        builder: &mut ProgramBuilder,
        inputs: &Inputs,
        mode: Mode,
        caches: &Caches,
    ) -> Result<TensorId, GraphError> {
        let first = builder.nodes.len();
        let hidden = self.weights.forward(builder, inputs, mode, caches)?;
        let of_decoder = inputs.decoder.map(|[tokens, _]| tokens);
        self.adapt(builder, first, [Some(inputs.tokens), of_decoder], mode)?;
        Ok(hidden)
    }

    /// The same without adapters and dropout: what the model computed before it was trained.
    pub(crate) fn forward_reference(
        &self,
        builder: &mut ProgramBuilder,
        inputs: &Inputs,
    ) -> Result<TensorId, GraphError> {
        self.weights.forward(builder, inputs, Mode::Evaluate, &Caches::default())
    }

    /// Appends the encoder, if there is one; it fills the caches of the source.
    pub(crate) fn cache_source(
        &self,
        builder: &mut ProgramBuilder,
        inputs: &Inputs,
        caches: &Caches,
    ) -> Result<(), GraphError> {
        let first = builder.nodes.len();
        self.weights.cache_source(builder, inputs, caches)?;
        self.adapt_layers(builder, first, Mode::Cached)
    }

    /// Adds the adapters to the linear layers among the nodes from `first` on, and in training noise to the embeddings of
    /// these tokens, of sources and of targets. A layer keeps the tensor of its result.
    pub(crate) fn adapt(
        &self,
        builder: &mut ProgramBuilder,
        first: usize,
        tokens: [Option<TensorId>; 2],
        mode: Mode,
    ) -> Result<(), GraphError> {
        let embedding = |tokens: Option<TensorId>| {
            let reads = |node: &&Node| matches!(node.op, Op::Embedding(_)) && Some(node.inputs[0]) == tokens;
            builder.nodes[first..].iter().find(reads).map(|node| node.outputs[0])
        };
        let embedded = tokens.map(embedding);
        self.adapt_layers(builder, first, mode)?;
        match (self.noise, mode) {
            (Some(noise), Mode::Train { draw }) => noise.add(builder, first, embedded, draw),
            _ => Ok(()),
        }
    }

    /// Adds the adapters only.
    pub(crate) fn adapt_layers(
        &self,
        builder: &mut ProgramBuilder,
        first: usize,
        mode: Mode,
    ) -> Result<(), GraphError> {
        if self.of.is_empty() {
            return Ok(());
        }
        let (outer, block) = builder.current_scope();
        let (mut dropped, mut inner, mut norms) = (HashMap::new(), HashMap::new(), HashMap::new());
        let nodes = builder.nodes.split_off(first);
        for (index, node) in nodes.iter().enumerate() {
            // Norms are no rows, so that they come before all nodes of their block that may be joined into tiles of rows.
            if index == 0 || node.block != nodes[index - 1].block {
                let of_block = nodes[index..].iter().take_while(|other| other.block == node.block);
                for (layer, matrices) in of_block.filter_map(|layer| Some((layer, self.matrices_of(layer)?))) {
                    self.push_norm(builder, layer, &matrices, &mut norms)?;
                }
            }
            let Some(matrices) = self.matrices_of(node) else {
                builder.nodes.push(node.clone());
                continue;
            };
            let mut node = node.clone();
            let (x, y) = (node.inputs[0], node.outputs[0]);
            let bounds = matches!(node.op, Op::ExpertLinear(_)).then(|| node.inputs[2]);
            let name = builder.graph[y].name.clone();
            builder.scope(format!("{name}/adapter"), node.block);
            if bounds.is_some() && self.drops(mode) {
                let weight = &builder.graph[node.inputs[1]].name;
                let layer = weight.strip_suffix(".weight").unwrap_or(weight).to_owned();
                return Err(GraphError::DropsRows { layer });
            }
            let kept = match (&node.op, dropped.get(&(x, matrices.site))) {
                (Op::Embedding(_), _) => x,
                (_, Some(&kept)) => kept,
                _ => self.dropped(builder, x, &matrices, mode)?,
            };
            dropped.insert((x, matrices.site), kept);
            let t = match inner.get(&(x, matrices.down)) {
                Some(&t) => t,
                None => {
                    let t = match node.op {
                        Op::Embedding(_) => {
                            let rows = builder.apply(Embedding, &[x, matrices.down])?;
                            builder.apply(Scale { factor: matrices.scale }, &[rows])?
                        }
                        _ => low(builder, kept, bounds, &matrices)?,
                    };
                    inner.insert((x, matrices.down), t);
                    t
                }
            };
            let ty = builder.graph[y].ty.clone();
            let base = builder.graph.tensor(format!("{name}/base"), ty, Role::Activation, Storage::Transient);
            node.outputs[0] = base;
            if let Some(bounds) = bounds {
                builder.nodes.push(node);
                let product = builder.apply(OF_EXPERTS, &[t, matrices.up, bounds])?;
                builder.push_into(Add, &[base, product], &[Some(y)])?;
                continue;
            }
            let add = LinearAdd { layout: WeightLayout::OutIn };
            let Some(magnitudes) = matrices.magnitudes else {
                builder.nodes.push(node);
                builder.push_into(add, &[base, t, matrices.up], &[Some(y)])?;
                continue;
            };
            let weight = node.inputs[1];
            let norm = norms[&(weight, node.block)];
            let bias = without_bias(&mut node);
            // With dropout, y = W (x - x') + m (W x' + s·B·A x') / norm + bias, where x' is what dropout leaves of x.
            let rest = match kept == x {
                true => None,
                false => {
                    let negative = builder.apply(Scale { factor: -1.0 }, &[kept])?;
                    let rest = builder.apply(Add, &[x, negative])?;
                    Some(builder.apply(node.op.clone(), &[rest, weight])?)
                }
            };
            node.inputs[0] = kept;
            builder.nodes.push(node);
            let sum = builder.apply(add, &[base, t, matrices.up])?;
            let operands = [sum, magnitudes.vector, norm].into_iter().chain(bias).collect::<Vec<_>>();
            let scale = ColumnScale { bias: bias.is_some() };
            match rest {
                None => drop(builder.push_into(scale, &operands, &[Some(y)])?),
                Some(rest) => {
                    let scaled = builder.apply(scale, &operands)?;
                    builder.push_into(Add, &[rest, scaled], &[Some(y)])?;
                }
            }
        }
        builder.scope(outer, block);
        Ok(())
    }

    /// The adapter of the layer that a node computes.
    fn matrices_of(&self, node: &Node) -> Option<Matrices> {
        match node.op {
            Op::Linear(_) | Op::Embedding(_) | Op::ExpertLinear(_) => self.of.get(&node.inputs[1]).copied(),
            _ => None,
        }
    }

    /// Appends the norm of a layer's adapted weight, if it has magnitudes and its block does not have the norm yet.
    fn push_norm(
        &self,
        builder: &mut ProgramBuilder,
        layer: &Node,
        matrices: &Matrices,
        norms: &mut HashMap<(TensorId, Option<u32>), TensorId>,
    ) -> Result<(), GraphError> {
        let &Matrices { down, up, scale, magnitudes: Some(magnitudes), .. } = matrices else { return Ok(()) };
        let weight = layer.inputs[1];
        if norms.contains_key(&(weight, layer.block)) {
            return Ok(());
        }
        let name = builder.graph[layer.outputs[0]].name.clone();
        builder.scope(format!("{name}/adapter"), layer.block);
        let norm = magnitudes.push_norm(builder, &AdaptedWeight { weight, down, up, scale })?;
        norms.insert((weight, layer.block), norm);
        Ok(())
    }

    /// Whether inputs of adapters are dropped.
    fn drops(&self, mode: Mode) -> bool {
        self.dropout > 0.0 && matches!(mode, Mode::Train { .. })
    }

    /// Appends dropout of an adapter's input, if there is any.
    fn dropped(
        &self,
        builder: &mut ProgramBuilder,
        x: TensorId,
        matrices: &Matrices,
        mode: Mode,
    ) -> Result<TensorId, GraphError> {
        match mode {
            Mode::Train { draw } if self.dropout > 0.0 => {
                let key = DropoutKey { rate: self.dropout, site: draw * SITES + matrices.site };
                builder.apply(Dropout { key }, &[x])
            }
            _ => Ok(x),
        }
    }
}

/// Appends t = s·A x. `bounds`: those of the rows of each expert, if each has an A.
fn low(
    builder: &mut ProgramBuilder,
    x: TensorId,
    bounds: Option<TensorId>,
    matrices: &Matrices,
) -> Result<TensorId, GraphError> {
    let projected = match bounds {
        Some(bounds) => builder.apply(OF_EXPERTS, &[x, matrices.down, bounds])?,
        None => builder.apply(Linear { layout: WeightLayout::OutIn, bias: false }, &[x, matrices.down])?,
    };
    builder.apply(Scale { factor: matrices.scale }, &[projected])
}

/// Takes the bias of a linear layer.
fn without_bias(node: &mut Node) -> Option<TensorId> {
    match &mut node.op {
        Op::Linear(linear) if linear.bias => {
            linear.bias = false;
            node.inputs.pop()
        }
        _ => None,
    }
}
