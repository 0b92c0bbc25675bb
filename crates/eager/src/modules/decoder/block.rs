//! A decoder's block: norms, attention, the feed-forward layer.

use super::attention::AttentionLayers;
use super::experts::{Experts, Routed};
use super::norm::Norm;
use super::{Code, Source, last};
use crate::modules::linear::Linear;
use crate::modules::loader::Loader;
use crate::modules::parts::{Options, activated, linear, new_gelu};
use crate::ops;
use crate::runtime::{Rt, Tensor};
use plimsoll_graph::models::description::{self, Gate, Inner};
use plimsoll_graph::ops::Activation;

pub(super) struct Block {
    description: description::Block,
    /// Before and after attention, before and after the feed-forward layer.
    norms: [Option<Norm>; 4],
    attention: AttentionLayers,
    feed: Feed,
    residual_rate: Option<f32>,
    /// Whether results are multiplied by a number before they are added to the residual stream.
    is_scaled: bool,
    /// Whether the router's weights live until the end of the block.
    returns_scores: bool,
    code: Code,
    /// Whether Liger's kernels replace norms, activations and rotations.
    liger: bool,
}

enum Feed {
    /// The layers up to the inner width, the gate first, and the layer down.
    Dense(Vec<Linear>),
    Experts(Box<Experts>),
}

/// What a block returns.
pub(super) struct Passed {
    /// (B, T, C).
    pub result: Tensor,
    /// The router's logits (N, E), if the loss needs them.
    pub router_logits: Option<Tensor>,
}

/// What a feed-forward layer returns.
struct Fed {
    result: Tensor,
    router_logits: Option<Tensor>,
    /// The router's weights.
    scores: Option<Tensor>,
}

impl Block {
    /// Loads the parameters in the order of the class's modules.
    pub fn load(
        loader: &Loader,
        path: &str,
        block: &description::Block,
        source: &Source,
        width: u64,
        liger: bool,
        options: &Options,
    ) -> Self {
        let all = [&block.attention_norms, &block.feed_forward_norms].map(|norms| [norms.before, norms.after]);
        let load = |norms: [Option<description::Norm>; 2]| {
            norms.map(|norm| norm.map(|norm| Norm::load(loader, path, &norm, width, source)))
        };
        let attention = || AttentionLayers::load(loader, path, block, source, liger, options);
        let mlp = || {
            let feed_forward = &block.feed_forward;
            if feed_forward.experts.is_some() {
                return Feed::Experts(Box::new(Experts::load(loader, path, feed_forward, source, options.experts)));
            }
            let layers = feed_forward.inner.layers().iter().chain([&feed_forward.down]);
            Feed::Dense(layers.map(|layer| linear(loader, path, layer)).collect())
        };
        let ([[before, after], [before_mlp, after_mlp]], attention, feed) = match source.code {
            Code::Gpt2 => {
                let first = load(all[0]);
                let attention = attention();
                ([first, load(all[1])], attention, mlp())
            }
            Code::Llama => {
                let (attention, mlp) = (attention(), mlp());
                (all.map(load), attention, mlp)
            }
        };
        let norms = [before, after, before_mlp, after_mlp];
        let residual_rate = block.residual_dropout.map(|rate| options.rate(rate));
        let is_scaled = source.has_multipliers || block.residual_scale.is_some();
        let description = block.clone();
        Self {
            description,
            norms,
            attention,
            feed,
            residual_rate,
            is_scaled,
            returns_scores: source.returns_scores,
            code: source.code,
            liger,
        }
    }

    /// Whether attention has a sliding window.
    pub fn is_windowed(&self) -> bool {
        self.description.attention.window.is_some()
    }

    /// (B, T, C) -> (B, T, C). `angles`: cosines and sines (1, T, D) of rotary positions.
    pub fn forward(&self, rt: &Rt, x: &Tensor, angles: Option<&[Tensor; 2]>, mask: Option<&Tensor>) -> Passed {
        let of_parts = [&self.description.attention_norms, &self.description.feed_forward_norms];
        let names = of_parts.map(|norms| [norms.before, norms.after]);
        let norm = |index: usize, x: &Tensor| match (&self.norms[index], names.as_flattened()[index]) {
            (Some(norm), Some(named)) => rt.module(named.name, || norm.forward(x, self.liger)),
            _ => x.clone(),
        };
        let attend =
            |normed: &Tensor| rt.module(self.attention.module(), || self.attention.forward(rt, normed, angles, mask));
        let feed = |normed: &Tensor| rt.module("mlp", || self.feed(rt, normed));
        let normed = norm(0, x);
        match self.code {
            Code::Gpt2 => {
                let attended = attend(&normed).0;
                let x = attended.add(x);
                drop(normed);
                let normed = norm(2, &x);
                let fed = feed(&normed).result;
                Passed { result: x.add(&fed), router_logits: None }
            }
            Code::Llama => {
                let (mut attended, mut _kept) = attend(&normed);
                drop(normed);
                attended = norm(1, &attended);
                let x = self.sum(x, &attended);
                drop(attended);
                let normed = norm(2, &x);
                let Fed { mut result, router_logits, scores } = feed(&normed);
                if self.returns_scores {
                    _kept = scores;
                }
                drop(normed);
                result = norm(3, &result);
                Passed { result: self.sum(&x, &result), router_logits }
            }
        }
    }

    /// The residual stream plus a part's result, with the block's dropout and factor, if it has these.
    fn sum(&self, x: &Tensor, result: &Tensor) -> Tensor {
        let mut result = self.residual_rate.map_or_else(|| result.clone(), |rate| result.dropout(rate));
        if self.is_scaled {
            result = result.scale();
        }
        x.add(&result)
    }

    fn feed(&self, rt: &Rt, x: &Tensor) -> Fed {
        match &self.feed {
            Feed::Dense(layers) => {
                let result = self.feed_dense(rt, layers, x);
                Fed { result, router_logits: None, scores: None }
            }
            Feed::Experts(experts) => {
                let Routed { result, logits, scores } = experts.forward(rt, x);
                Fed { result, router_logits: logits, scores: self.returns_scores.then_some(scores) }
            }
        }
    }

    fn feed_dense(&self, rt: &Rt, mlp: &[Linear], x: &Tensor) -> Tensor {
        let feed_forward = &self.description.feed_forward;
        let layers = feed_forward.inner.layers().iter().chain([&feed_forward.down]);
        let names = layers.map(|layer| last(layer.name)).collect::<Vec<_>>();
        let apply = |index: usize, x: &Tensor| mlp[index].forward(rt, names[index], x);
        match &feed_forward.inner {
            Inner::Gelu(_) => {
                let mut x = apply(0, x);
                x = rt.module("act", || new_gelu(&x));
                x = apply(1, &x);
                self.residual_rate.map_or_else(|| x.clone(), |rate| x.dropout(rate))
            }
            Inner::ExactGelu(_) => {
                let mut x = apply(0, x);
                x = rt.module("act", || x.activation("gelu"));
                apply(1, &x)
            }
            Inner::Relu(_) => {
                let mut x = apply(0, x);
                x = rt.module("act", || x.activation_by_result("relu"));
                apply(1, &x)
            }
            Inner::ClampedSwiglu { .. } => unreachable!("only experts have it"),
            Inner::Gated { activation, layers: Gate::Packed(_) } => {
                // Both views of the layer's result live until the end.
                let halves = apply(0, x).split(2, -1);
                let gated = rt.module("activation_fn", || activated(&halves[0], *activation));
                let product = halves[1].mul(&gated);
                drop(gated);
                apply(1, &product)
            }
            Inner::Gated { activation: Activation::Silu, .. } if self.liger => {
                let product = ops::liger::silu_mul(&apply(0, x), &apply(1, x));
                apply(2, &product)
            }
            Inner::Gated { activation, .. } => {
                let gated = {
                    let gate = apply(0, x);
                    rt.module("act_fn", || activated(&gate, *activation))
                };
                let product = gated.mul(&apply(1, x));
                drop(gated);
                apply(2, &product)
            }
        }
    }
}
