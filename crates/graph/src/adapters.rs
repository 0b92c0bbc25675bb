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
//! An embedding is a linear layer of one-hot rows: t is a row of Aᵀ, and is never dropped. If its weight is also that of the
//! output head, the head does not have the adapter, as in PEFT.
//!
//! Not here: which layers get adapters (`adapter_targets.rs`), magnitudes of their weights (`magnitudes.rs`), and noise
//! on embeddings (`noise.rs`).

use crate::magnitudes::{AdaptedWeight, Magnitudes};
use crate::models::{Caches, EncoderWeights, Inputs, Mode, ModelConfig, Weights};
use crate::noise::{Noise, SITES};
use crate::ops::{ColumnScale, Dropout, DropoutKey, Embedding, Linear, LinearAdd, Op, Scale, WeightLayout};
use crate::{DType, Graph, GraphError, Init, Node, Parameter, ProgramBuilder, Role, Storage, StoredPiece, TensorId};
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

/// A linear layer or an embedding that can have an adapter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LinearLayer {
    /// The name of its weight in the graph.
    pub weight: String,
    /// Its name in the model's files. Several layers of the graph may be parts of one layer there.
    pub module: String,
    /// Number of its inputs.
    pub inputs: usize,
    /// Number of its outputs; of the whole layer in the files if this is a part of it.
    pub outputs: usize,
    /// The layout of its weight.
    pub layout: WeightLayout,
    /// Whether it is the embedding of tokens, whose weight is (inputs, outputs).
    pub is_embedding: bool,
}

impl LinearLayer {
    /// The names of an adapter's matrices in a file of adapters, A (rank, inputs) and B (outputs, rank), as PEFT writes them.
    pub fn matrices(&self) -> [String; 2] {
        let path = format!("{ADAPTER_PREFIX}{}", self.module);
        match self.is_embedding {
            true => ["A", "B"].map(|letter| format!("{path}.lora_embedding_{letter}")),
            false => ["A", "B"].map(|letter| format!("{path}.lora_{letter}{WEIGHT}")),
        }
    }
}

impl LinearLayer {
    /// The name of an adapter's magnitudes in a file of adapters, as PEFT writes it.
    pub fn magnitudes(&self) -> String {
        format!("{ADAPTER_PREFIX}{}{MAGNITUDES}", self.module)
    }
}

/// The end of the name of an adapter's magnitudes.
pub(crate) const MAGNITUDES: &str = ".lora_magnitude_vector";

/// The end of a weight's name.
const WEIGHT: &str = ".weight";

/// The start of the name of every tensor in a file of adapters, as PEFT writes it.
pub const ADAPTER_PREFIX: &str = "base_model.model.";

/// Whether a parameter is the second matrix of an adapter, or has one dimension: LoRA+ has another learning rate for them.
pub(crate) fn is_second(graph: &Graph, parameter: &Parameter) -> bool {
    let tensor = &graph[parameter.tensor];
    tensor.name.contains(".lora_B.") || tensor.ty.shape.len() == 1
}

/// The sites of adapters' dropout follow those of the model's own.
const FIRST_SITE: u32 = SITES / 2;

/// A parameter's tensor in the model's files, if it is in one: its name, its shape, and the parameter's first element.
fn place(graph: &Graph, parameter: &Parameter) -> Option<(String, Vec<usize>, usize)> {
    match parameter.stored.as_slice() {
        [] => Some((graph[parameter.tensor].name.to_string(), graph[parameter.tensor].ty.shape.to_vec(), 0)),
        [StoredPiece { tensor, shape, from, .. }] => Some((tensor.to_string(), shape.clone(), *from)),
        _ => None,
    }
}

impl ModelConfig {
    /// The layers that can have adapters, in the order of the parameters: the embedding of tokens of models without an encoder,
    /// and all linear layers except routers of experts, the experts themselves and the output head. Errors: `BadConfig`.
    pub fn adaptable_layers(&self) -> Result<Vec<LinearLayer>, GraphError> {
        self.validate()?;
        let mut graph = Graph::default();
        let weights = self.declare(&mut graph);
        let mut builder = ProgramBuilder::new(&mut graph);
        let mut input = |name: &str| builder.input(name, &[1, 1], DType::I32);
        let [tokens, segments] = [input("tokens"), input("segments")];
        if let Weights::Encoder(encoder) = &weights {
            encoder.forward(&mut builder, "text", [tokens, segments], Mode::Evaluate)?;
        } else {
            let decoder = self.decoder_start().map(|_| [input("decoder_tokens"), input("decoder_segments")]);
            let inputs = Inputs { tokens, positions: None, segments: decoder.map(|_| segments), decoder };
            weights.forward(&mut builder, &inputs, Mode::Evaluate, &Caches::default())?;
        }
        let nodes = builder.nodes;
        let routed = nodes.iter().filter(|node| matches!(node.op, Op::Route(_))).flat_map(|node| node.inputs.clone());
        let routed = routed.collect::<BTreeSet<_>>();
        let mut layouts = HashMap::new();
        for node in &nodes {
            if let (Op::Linear(linear), false) = (&node.op, routed.contains(&node.outputs[0])) {
                layouts.insert(node.inputs[1], linear.layout);
            }
        }
        let is_decoder = matches!(&weights, Weights::Decoder(_));
        let embeds = |node: &&Node| is_decoder && matches!(node.op, Op::Embedding(_)) && node.inputs[0] == tokens;
        let embedding = nodes.iter().find(embeds).map(|node| node.inputs[1]);
        layouts.extend(embedding.map(|table| (table, WeightLayout::InOut)));
        let layers = graph.parameters.iter().filter_map(|parameter| {
            let &layout = layouts.get(&parameter.tensor)?;
            let (name, shape, _) = place(&graph, parameter)?;
            let (inputs, outputs) = match layout {
                WeightLayout::InOut => (shape[0], shape[1]),
                WeightLayout::OutIn => (shape[1], shape[0]),
            };
            let weight = graph[parameter.tensor].name.to_string();
            let is_embedding = embedding == Some(parameter.tensor);
            let module = name.strip_suffix(WEIGHT)?.to_owned();
            Some(LinearLayer { weight, module, inputs, outputs, layout, is_embedding })
        });
        Ok(layers.collect())
    }
}

/// A model in a graph, with its adapters if it has any.
#[derive(Debug, Clone)]
pub(crate) struct Adapted {
    weights: Weights,
    dropout: f32,
    noise: Option<Noise>,
    /// By the weight of the layer.
    of: HashMap<TensorId, Matrices>,
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
    /// Declares the parameters. Errors: `NoAdapter` if a layer can't have an adapter, `NoMagnitudes` if it can't have these.
    pub(crate) fn declare(
        graph: &mut Graph,
        model: &ModelConfig,
        adapters: Option<&Adapters>,
    ) -> Result<Self, GraphError> {
        let weights = model.declare(graph);
        let Some(adapters) = adapters else {
            return Ok(Self { weights, dropout: 0.0, noise: None, of: HashMap::new() });
        };
        let known = model.adaptable_layers()?;
        for name in adapters.layers.keys() {
            if !known.iter().any(|layer| layer.module == *name) {
                return Err(GraphError::NoAdapter { module: name.clone() });
            }
        }
        let mut of = HashMap::new();
        let mut downs = HashMap::new();
        for layer in known {
            let Some(&Adapter { rank, scale }) = adapters.layers.get(&layer.module) else { continue };
            let next = u32::try_from(downs.len()).expect("a model has fewer than 2^32 layers");
            let (down, site) =
                *downs.entry(layer.module.clone()).or_insert_with(|| (declare_down(graph, &layer, rank), next));
            let parameter = graph.parameters.iter().find(|p| *graph[p.tensor].name == *layer.weight);
            let parameter = parameter.expect("layers are parameters").clone();
            let up = declare_up(graph, &parameter, &layer, rank);
            let magnitudes = match adapters.has_magnitudes {
                true => Some(declare_magnitudes(graph, &parameter, &layer, &adapters.saved)?),
                false => None,
            };
            of.insert(parameter.tensor, Matrices { down, up, scale, site: FIRST_SITE + site, magnitudes });
        }
        Ok(Self { weights, dropout: adapters.dropout, noise: None, of })
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

    /// The head's weight (V, C).
    pub(crate) fn head(&self) -> TensorId {
        self.weights.head()
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
        let (mut inner, mut norms) = (HashMap::new(), HashMap::new());
        for mut node in builder.nodes.split_off(first) {
            let found = match node.op {
                Op::Linear(_) | Op::Embedding(_) => self.of.get(&node.inputs[1]).copied(),
                _ => None,
            };
            let Some(matrices) = found else {
                builder.nodes.push(node);
                continue;
            };
            let (x, y) = (node.inputs[0], node.outputs[0]);
            let name = builder.graph[y].name.clone();
            builder.scope(format!("{name}/adapter"), node.block);
            let t = match inner.get(&(x, matrices.down)) {
                Some(&t) => t,
                None => {
                    let t = match node.op {
                        Op::Embedding(_) => builder.apply(Embedding, &[x, matrices.down])?,
                        _ => self.inner(builder, x, &matrices, mode)?,
                    };
                    let t = builder.apply(Scale { factor: matrices.scale }, &[t])?;
                    inner.insert((x, matrices.down), t);
                    t
                }
            };
            let ty = builder.graph[y].ty.clone();
            let base = builder.graph.tensor(format!("{name}/base"), ty, Role::Activation, Storage::Transient);
            node.outputs[0] = base;
            let add = LinearAdd { layout: WeightLayout::OutIn };
            let Some(magnitudes) = matrices.magnitudes else {
                builder.nodes.push(node);
                builder.push_into(add, &[base, t, matrices.up], &[Some(y)])?;
                continue;
            };
            let weight = node.inputs[1];
            let norm = match norms.get(&(weight, node.block)) {
                Some(&norm) => norm,
                None => {
                    let Matrices { down, up, scale, .. } = matrices;
                    let norm = magnitudes.push_norm(builder, &AdaptedWeight { weight, down, up, scale })?;
                    norms.insert((weight, node.block), norm);
                    norm
                }
            };
            let bias = without_bias(&mut node);
            builder.nodes.push(node);
            let sum = builder.apply(add, &[base, t, matrices.up])?;
            let operands = [sum, magnitudes.vector, norm].into_iter().chain(bias).collect::<Vec<_>>();
            builder.push_into(ColumnScale { bias: bias.is_some() }, &operands, &[Some(y)])?;
        }
        builder.scope(outer, block);
        Ok(())
    }

    /// A x, of x after dropout.
    fn inner(
        &self,
        builder: &mut ProgramBuilder,
        x: TensorId,
        matrices: &Matrices,
        mode: Mode,
    ) -> Result<TensorId, GraphError> {
        let x = match mode {
            Mode::Train { draw } if self.dropout > 0.0 => {
                let key = DropoutKey { rate: self.dropout, site: draw * SITES + matrices.site };
                builder.apply(Dropout { key }, &[x])?
            }
            _ => x,
        };
        builder.apply(Linear { layout: WeightLayout::OutIn, bias: false }, &[x, matrices.down])
    }
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

/// Declares the first matrix (rank, inputs); that of an embedding is transposed.
fn declare_down(graph: &mut Graph, layer: &LinearLayer, rank: usize) -> TensorId {
    let ([name, _], shape) = (layer.matrices(), [rank, layer.inputs]);
    if !layer.is_embedding {
        // PEFT draws A uniformly within 1/√inputs; this has the same variance.
        let init = Init::Normal((3.0 * layer.inputs as f32).sqrt().recip());
        return graph.parameter(name, &shape, init, true);
    }
    let elements = rank * layer.inputs;
    let tensor = name.as_str().into();
    let piece = StoredPiece { tensor, shape: shape.to_vec(), from: 0, at: 0, elements, is_transposed: true };
    graph.pieces(name, &[layer.inputs, rank], Init::Zeros, true, vec![piece])
}

/// Declares the second matrix (outputs, rank). If the layer is a part of a layer in the files, so is the matrix.
fn declare_up(graph: &mut Graph, parameter: &Parameter, layer: &LinearLayer, rank: usize) -> TensorId {
    let [_, path] = layer.matrices();
    if layer.is_embedding {
        // The first matrix is zero.
        return graph.parameter(path, &[layer.outputs, rank], Init::Normal(1.0), true);
    }
    let (_, whole, from) = place(graph, parameter).expect("the layer is in one tensor");
    if parameter.stored.is_empty() {
        return graph.parameter(path, &[layer.outputs, rank], Init::Zeros, true);
    }
    let own = graph[parameter.tensor].ty.shape[0];
    let piece = StoredPiece {
        tensor: path.as_str().into(),
        shape: vec![layer.outputs, rank],
        from: from / whole[1] * rank,
        at: 0,
        elements: own * rank,
        is_transposed: false,
    };
    graph.pieces(part_name(graph, parameter, &path), &[own, rank], Init::Zeros, true, vec![piece])
}

/// The name of a tensor of an adapter for a part of a layer.
fn part_name(graph: &Graph, parameter: &Parameter, path: &str) -> String {
    let name = &graph[parameter.tensor].name;
    let part = name.rsplit_once(':').map_or("part", |(_, part)| part);
    format!("{path}:{part}")
}

/// Declares the magnitudes of a layer. If it is a part of a layer in the files, so are they. Errors: `NoMagnitudes`.
fn declare_magnitudes(
    graph: &mut Graph,
    parameter: &Parameter,
    layer: &LinearLayer,
    saved: &BTreeSet<String>,
) -> Result<Magnitudes, GraphError> {
    let refused = |because| GraphError::NoMagnitudes { module: layer.module.clone(), because };
    let path = layer.magnitudes();
    if layer.is_embedding {
        return Err(refused("it is an embedding"));
    }
    if saved.contains(&layer.weight) {
        return Err(refused("its weight is trained whole"));
    }
    let (_, whole, from) = place(graph, parameter).expect("the layer is in one tensor");
    if parameter.stored.is_empty() {
        return Ok(Magnitudes::declare(graph, parameter.tensor, layer.layout, path, vec![]));
    }
    let piece = StoredPiece {
        tensor: path.as_str().into(),
        shape: vec![layer.outputs],
        from: from / whole[1],
        at: 0,
        elements: graph[parameter.tensor].ty.shape[0],
        is_transposed: false,
    };
    let name = part_name(graph, parameter, &path);
    Ok(Magnitudes::declare(graph, parameter.tensor, layer.layout, name, vec![piece]))
}
