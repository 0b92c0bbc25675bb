//! The parts of a [`description`](super::description) as nodes of a graph: parameters and forward passes.

use super::Mode;
use super::description::{
    Attention, AttentionInputs, Experts, FeedForward, Gate, Inner, Linear, Norm, NormFormula, Table,
};
use crate::ops::{
    self, ATTENTION_ROWS, CachedAttention, Dropout, DropoutKey, ExactGelu, Gated, Gelu, LayerNorm, Relu, RmsNorm,
};
use crate::ops::{Combine, Dispatch, ExpertLinear, Rotary, Route, Scale, WeightLayout};
use crate::{Graph, GraphError, Init, ProgramBuilder, StoredPiece, TensorId};
use std::ops::RangeFrom;

/// The dropout sites of a forward pass, numbered.
#[derive(Debug)]
pub(super) struct Dropouts {
    sites: RangeFrom<u32>,
    /// Whether the pass is one of training.
    draws: bool,
}

/// Largest number of sites of a forward pass; a second pass uses the numbers after it and so draws other bits.
const SITES: u32 = 1 << 20;

impl Dropouts {
    pub(super) fn new(mode: Mode) -> Self {
        match mode {
            Mode::Train { draw } => Self { sites: draw * SITES.., draws: true },
            Mode::Evaluate | Mode::Cached => Self { sites: 0.., draws: false },
        }
    }

    /// The next site's key; `None` if the rate is zero. Each call takes a site, so that no site depends on other rates.
    fn key(&mut self, rate: f32) -> Option<DropoutKey> {
        let site = self.sites.next().expect("the range is infinite");
        (self.draws && rate > 0.0).then_some(DropoutKey { rate, site })
    }

    /// x with dropout, or x itself. Without a rate the call takes no site.
    pub(super) fn apply(
        &mut self,
        builder: &mut ProgramBuilder,
        x: TensorId,
        rate: Option<f32>,
    ) -> Result<TensorId, GraphError> {
        match rate.and_then(|rate| self.key(rate)) {
            Some(key) => builder.apply(Dropout { key }, &[x]),
            None => Ok(x),
        }
    }
}

/// Declares a table with rows of `width` channels.
pub(super) fn declare_table(graph: &mut Graph, table: &Table, width: usize) -> TensorId {
    graph.parameter(format!("{}.weight", table.name), &[table.rows, width], Init::Normal(table.deviation), true)
}

/// x times a factor, or x itself without one.
pub(super) fn scaled(builder: &mut ProgramBuilder, x: TensorId, factor: Option<f32>) -> Result<TensorId, GraphError> {
    factor.map_or(Ok(x), |factor| builder.apply(Scale { factor }, &[x]))
}

/// A norm's parameters: its weight, and its bias if it has one.
#[derive(Debug, Clone)]
pub(super) struct NormWeights {
    norm: Norm,
    ids: Vec<TensorId>,
}

impl NormWeights {
    /// `path` is that of the norm's parent module; empty for a norm of the whole model.
    pub(super) fn declare(graph: &mut Graph, path: &str, norm: Norm, width: usize) -> Self {
        let name = join(path, norm.name);
        let init = if norm.formula == NormFormula::OffsetRms { Init::Zeros } else { Init::Ones };
        let mut ids = vec![graph.parameter(format!("{name}.weight"), &[width], init, false)];
        if norm.formula == (NormFormula::Layer { bias: true }) {
            ids.push(graph.parameter(format!("{name}.bias"), &[width], Init::Zeros, false));
        }
        Self { norm, ids }
    }

    pub(super) fn apply(&self, builder: &mut ProgramBuilder, x: TensorId) -> Result<TensorId, GraphError> {
        let (eps, inputs) = (self.norm.epsilon, [&[x], self.ids.as_slice()].concat());
        Ok(match self.norm.formula {
            NormFormula::Rms => builder.push(RmsNorm { eps, unit_offset: false }, &inputs)?[0],
            NormFormula::OffsetRms => builder.push(RmsNorm { eps, unit_offset: true }, &inputs)?[0],
            NormFormula::Layer { bias } => builder.push(LayerNorm { eps, bias }, &inputs)?[0],
        })
    }
}

/// A linear layer's parameters: its weight, and its bias if it has one.
#[derive(Debug, Clone)]
pub(super) struct LinearWeights {
    op: ops::Linear,
    ids: Vec<TensorId>,
}

impl LinearWeights {
    /// `path` is that of the layer's parent module.
    pub(super) fn declare(graph: &mut Graph, path: &str, layer: &Linear) -> Self {
        let name = join(path, layer.name);
        let mut ids =
            vec![graph.parameter(format!("{name}.weight"), &layer.extents(), Init::Normal(layer.deviation), true)];
        if layer.bias {
            ids.push(graph.parameter(format!("{name}.bias"), &[layer.outputs], Init::Zeros, false));
        }
        Self { op: ops::Linear { layout: layer.layout, bias: layer.bias }, ids }
    }

    /// The parameters of consecutive parts of a layer's outputs, each as a layer of its own: (the part's name, its
    /// outputs). `path` is that of the layer's parent module; the weight has the layout `OutIn`.
    fn declare_parts(graph: &mut Graph, path: &str, layer: &Linear, parts: &[(&str, usize)]) -> Vec<Self> {
        let name = join(path, layer.name);
        let mut first = 0;
        let declared = parts.iter().map(|&(part, outputs)| {
            let mut declare = |kind: &str, shape: &[usize], init, decay| {
                let of_row = shape[1..].iter().product::<usize>();
                let piece = StoredPiece {
                    tensor: format!("{name}.{kind}").into(),
                    shape: [&[layer.outputs], &shape[1..]].concat(),
                    from: first * of_row,
                    at: 0,
                    elements: outputs * of_row,
                    transposed: None,
                };
                graph.pieces(format!("{name}.{kind}:{part}"), shape, init, decay, vec![piece])
            };
            let mut ids = vec![declare("weight", &[outputs, layer.inputs], Init::Normal(layer.deviation), true)];
            if layer.bias {
                ids.push(declare("bias", &[outputs], Init::Zeros, false));
            }
            first += outputs;
            Self { op: ops::Linear { layout: WeightLayout::OutIn, bias: layer.bias }, ids }
        });
        declared.collect()
    }

    /// The parameters of a layer of each expert, in one tensor per kind. `list` is the path of the list of experts.
    fn declare_experts(graph: &mut Graph, list: &str, layer: &Linear, experts: &Experts) -> Self {
        if experts.stacked {
            Self::stack(graph, list, layer, experts.count)
        } else {
            Self::gather(graph, list, layer, experts.count)
        }
    }

    /// The same, where files have the same tensors.
    fn stack(graph: &mut Graph, list: &str, layer: &Linear, experts: usize) -> Self {
        let (name, [rows, columns]) = (join(list, layer.name), layer.extents());
        let mut ids = vec![graph.parameter(&*name, &[experts, rows, columns], Init::Normal(layer.deviation), true)];
        if layer.bias {
            ids.push(graph.parameter(format!("{name}_bias"), &[experts, layer.outputs], Init::Zeros, false));
        }
        Self { op: ops::Linear { layout: layer.layout, bias: layer.bias }, ids }
    }

    /// The same, where files have a tensor for each expert; the weight has the layout `OutIn`.
    fn gather(graph: &mut Graph, list: &str, layer: &Linear, experts: usize) -> Self {
        let mut declare = |kind: &str, shape: &[usize], init, decay| {
            let elements = shape.iter().product();
            let pieces = (0..experts).map(|expert| StoredPiece {
                tensor: format!("{list}.{expert}.{}.{kind}", layer.name).into(),
                shape: shape.to_vec(),
                from: 0,
                at: expert * elements,
                elements,
                transposed: None,
            });
            let name = format!("{list}.{}.{kind}", layer.name);
            graph.pieces(name, &[&[experts], shape].concat(), init, decay, pieces.collect())
        };
        let weight = [layer.outputs, layer.inputs];
        let mut ids = vec![declare("weight", &weight, Init::Normal(layer.deviation), true)];
        if layer.bias {
            ids.push(declare("bias", &[layer.outputs], Init::Zeros, false));
        }
        Self { op: ops::Linear { layout: WeightLayout::OutIn, bias: layer.bias }, ids }
    }

    /// Rows (1, R, I), sorted by expert, each times its expert's weight: (1, R, O).
    fn apply_by_expert(
        &self,
        builder: &mut ProgramBuilder,
        rows: TensorId,
        bounds: TensorId,
    ) -> Result<TensorId, GraphError> {
        let ops::Linear { layout, bias } = self.op;
        let mut inputs = vec![rows, self.ids[0], bounds];
        inputs.extend(&self.ids[1..]);
        builder.apply(ExpertLinear { layout, bias }, &inputs)
    }

    pub(super) fn apply(&self, builder: &mut ProgramBuilder, x: TensorId) -> Result<TensorId, GraphError> {
        builder.apply(self.op, &[&[x], self.ids.as_slice()].concat())
    }

    /// Writes the result to existing tensors.
    pub(super) fn apply_into(
        &self,
        builder: &mut ProgramBuilder,
        x: TensorId,
        into: TensorId,
    ) -> Result<(), GraphError> {
        builder.push_into(self.op, &[&[x], self.ids.as_slice()].concat(), &[Some(into)]).map(drop)
    }
}

/// Attention's parameters.
#[derive(Debug, Clone)]
pub(super) struct AttentionWeights {
    attention: Attention,
    /// One layer, or the layers of queries, keys and values.
    pub(super) inputs: Vec<LinearWeights>,
    output: LinearWeights,
    sinks: Option<TensorId>,
    /// The norms of queries and keys.
    norms: Option<[NormWeights; 2]>,
}

/// Inputs of attention in addition to queries, keys and values.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Attended {
    /// The table of relative positions.
    pub(super) bias_table: Option<TensorId>,
    /// Segments of the queries and of the keys.
    pub(super) segments: Option<[TensorId; 2]>,
    /// The caches: they have the keys and values of earlier tokens, and receive those of the new ones.
    pub(super) cache: Option<[TensorId; 2]>,
}

impl AttentionWeights {
    /// `path` is that of attention's parent module.
    pub(super) fn declare(graph: &mut Graph, path: &str, attention: &Attention) -> Self {
        let Attention { heads, kv_heads, head_size, .. } = *attention;
        let inputs = match &attention.inputs {
            AttentionInputs::Packed(layer) if !attention.attends_packed() => {
                let parts = [("queries", heads), ("keys", kv_heads), ("values", kv_heads)];
                let parts = parts.map(|(name, heads)| (name, heads * head_size));
                LinearWeights::declare_parts(graph, path, layer, &parts)
            }
            inputs => inputs.layers().iter().map(|layer| LinearWeights::declare(graph, path, layer)).collect(),
        };
        let output = LinearWeights::declare(graph, path, &attention.output);
        let sinks = attention
            .sinks
            .map(|sinks| graph.parameter(join(path, sinks.name), &[heads], Init::Normal(sinks.deviation), false));
        let norms = attention.norms.map(|norms| {
            let [of_queries, of_keys] = norms.channels(attention);
            [(norms.queries, of_queries), (norms.keys, of_keys)]
                .map(|(norm, channels)| NormWeights::declare(graph, path, norm, channels))
        });
        Self { attention: attention.clone(), inputs, output, sinks, norms }
    }

    /// Queries of `x` with keys and values of `source`, or all in one tensor: the operands of [`Self::attend`].
    /// `cache`: the caches of keys and values; the tokens follow those in them.
    pub(super) fn streams(
        &self,
        builder: &mut ProgramBuilder,
        x: TensorId,
        source: TensorId,
        cache: Option<[TensorId; 2]>,
    ) -> Result<Vec<TensorId>, GraphError> {
        let layers = self.inputs.iter().enumerate();
        let mut streams = layers
            .map(|(index, layer)| layer.apply(builder, if index == 0 { x } else { source }))
            .collect::<Result<Vec<_>, _>>()?;
        for (norm, stream) in self.norms.iter().flatten().zip(&mut streams) {
            *stream = norm.apply(builder, *stream)?;
        }
        if let Some(rotary) = &self.attention.rotary {
            let longest = builder.graph[cache.map_or(x, |[keys, _]| keys)].ty.shape[1];
            let rotary = Rotary {
                head_size: self.attention.head_size,
                rotated: rotary.rotated,
                base: rotary.base,
                scaling: rotary.scaling.at(longest).clone(),
                inverse: false,
                offset: cache.is_some(),
            };
            for stream in &mut streams[..2] {
                *stream = builder.apply(rotary.clone(), &[*stream])?;
            }
        }
        Ok(streams)
    }

    /// The result of attention, to be added to the residual stream: (B, T, C).
    pub(super) fn attend(
        &self,
        builder: &mut ProgramBuilder,
        streams: &[TensorId],
        attended: Attended,
        dropouts: &mut Dropouts,
    ) -> Result<TensorId, GraphError> {
        let Attention { heads, kv_heads, causal, window, scale, cap, bias, .. } = self.attention;
        let packed = self.attention.attends_packed();
        let dropout = dropouts.key(self.attention.dropout);
        let inputs = streams.iter().copied().chain(attended.bias_table).chain(self.sinks).collect::<Vec<_>>();
        let has_sinks = self.sinks.is_some();
        let y = if let Some([keys, values]) = attended.cache {
            let capacity = builder.graph[keys].ty.shape[1];
            let op = CachedAttention { heads, kv_heads, packed, window, scale, cap, bias, has_sinks, capacity };
            builder.push_into(op, &inputs, &[None, Some(keys), Some(values)])?[0]
        } else {
            let op = ops::Attention {
                heads,
                kv_heads,
                packed,
                causal,
                window,
                scale,
                cap,
                bias,
                has_sinks,
                segmented: attended.segments.is_some(),
                dropout,
                rows: ATTENTION_ROWS,
            };
            let segments = attended.segments.iter().flatten().copied();
            builder.push(op, &inputs.into_iter().chain(segments).collect::<Vec<_>>())?[0]
        };
        self.output.apply(builder, y)
    }
}

/// A feed-forward layer's parameters.
#[derive(Debug, Clone)]
pub(super) struct FeedForwardWeights {
    feed_forward: FeedForward,
    /// The layer that chooses the experts, if there are any.
    router: Option<LinearWeights>,
    inner: Vec<LinearWeights>,
    down: LinearWeights,
}

impl FeedForwardWeights {
    /// `path` is that of the layer's parent module.
    pub(super) fn declare(graph: &mut Graph, path: &str, feed_forward: &FeedForward) -> Self {
        let FeedForward { inner, down, experts, .. } = feed_forward;
        let router = experts.map(|experts| LinearWeights::declare(graph, path, &experts.router));
        let mut declare = |layer: &Linear| match experts {
            None => LinearWeights::declare(graph, path, layer),
            Some(experts) => LinearWeights::declare_experts(graph, &join(path, experts.list), layer, experts),
        };
        let inner = match inner {
            Inner::Gated { layers: Gate::Packed(layer), .. } => {
                let outputs = layer.outputs / 2;
                LinearWeights::declare_parts(graph, path, layer, &[("gate", outputs), ("up", outputs)])
            }
            inner => inner.layers().iter().map(&mut declare).collect(),
        };
        let down = match experts {
            None => LinearWeights::declare(graph, path, down),
            Some(experts) => LinearWeights::declare_experts(graph, &join(path, experts.list), down, experts),
        };
        Self { feed_forward: *feed_forward, router, inner, down }
    }

    pub(super) fn apply(
        &self,
        builder: &mut ProgramBuilder,
        x: TensorId,
        dropouts: &mut Dropouts,
    ) -> Result<TensorId, GraphError> {
        let (Some(router), Some(experts)) = (&self.router, self.feed_forward.experts) else {
            let inner = self.inner.iter().map(|layer| layer.apply(builder, x)).collect::<Result<Vec<_>, _>>()?;
            let inner = self.activate(builder, &inner)?;
            let inner = dropouts.apply(builder, inner, self.feed_forward.dropout)?;
            return self.down.apply(builder, inner);
        };
        let logits = router.apply(builder, x)?;
        let sums = dropouts.draws && experts.balance.is_some();
        let route = Route { experts_per_token: experts.chosen, normalized: experts.normalized, sums };
        let [weights, _, places, bounds] = builder.push(route, &[logits])?[..4] else {
            unreachable!("a router has at least four results")
        };
        let rows = builder.apply(Dispatch { weighted: false }, &[x, places])?;
        let layers = self.inner.iter();
        let inner = layers.map(|layer| layer.apply_by_expert(builder, rows, bounds)).collect::<Result<Vec<_>, _>>()?;
        let inner = self.activate(builder, &inner)?;
        let rows = self.down.apply_by_expert(builder, inner, bounds)?;
        builder.apply(Combine { weighted: true }, &[rows, places, weights])
    }

    fn activate(&self, builder: &mut ProgramBuilder, inner: &[TensorId]) -> Result<TensorId, GraphError> {
        match self.feed_forward.inner {
            Inner::Gelu(_) => builder.apply(Gelu, inner),
            Inner::ExactGelu(_) => builder.apply(ExactGelu, inner),
            Inner::Relu(_) => builder.apply(Relu, inner),
            Inner::Gated { activation, .. } => builder.apply(Gated { activation }, inner),
            Inner::ClampedSwiglu { activation, .. } => builder.apply(activation, inner),
        }
    }
}

fn join(path: &str, name: &str) -> String {
    if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") }
}
