//! A decoder's block: norms, attention, the feed-forward layer.

use super::attention::AttentionLayers;
use super::{Code, last};
use crate::modules::linear::Linear;
use crate::modules::loader::Loader;
use crate::modules::parts::{Options, linear, new_gelu};
use crate::ops;
use crate::runtime::{DType, Rt, Tensor};
use plimsoll_graph::models::description::{self, Inner, NormFormula};

pub(super) enum Norm {
    Layer { weight: Tensor, bias: Tensor },
    Rms { weight: Tensor },
}

impl Norm {
    /// `path` is the block's; empty for a norm of the whole model.
    pub fn load(loader: &Loader, path: &str, norm: &description::Norm, width: u64) -> Self {
        let name = if path.is_empty() { norm.name.to_owned() } else { format!("{path}.{}", norm.name) };
        let weight = loader.parameter(&format!("{name}.weight"), &[width]);
        match norm.formula {
            NormFormula::Rms => Self::Rms { weight },
            // LayerNorm of transformers always has a bias.
            NormFormula::Layer { .. } => {
                Self::Layer { weight, bias: loader.parameter(&format!("{name}.bias"), &[width]) }
            }
        }
    }

    pub fn forward(&self, x: &Tensor, liger: bool) -> Tensor {
        match self {
            Self::Layer { weight, bias } => ops::layer_norm(x, weight, bias),
            Self::Rms { weight } if liger => ops::liger::rms_norm(x, weight),
            Self::Rms { weight } => rms_norm(weight, x),
        }
    }
}

/// RMSNorm in single precision: x (B, T, C), weight (C,) -> (B, T, C).
fn rms_norm(weight: &Tensor, x: &Tensor) -> Tensor {
    let dtype = x.dtype();
    let mut x = x.to(DType::F32);
    let mut variance = x.pow();
    variance = variance.mean_last();
    let shifted = variance.shift();
    let scale = shifted.rsqrt();
    drop(shifted);
    x = x.mul(&scale);
    drop(scale);
    weight.mul(&x.to(dtype))
}

pub(super) struct Block {
    description: description::Block,
    norms: [Norm; 2],
    attention: AttentionLayers,
    /// The layers up to the inner width, the gate first, and the layer down.
    mlp: Vec<Linear>,
    residual_rate: Option<f32>,
    code: Code,
    /// Whether Liger's kernels replace norms, activations and rotations.
    liger: bool,
}

impl Block {
    /// Loads the parameters in the order of the class's modules.
    pub fn load(
        loader: &Loader,
        path: &str,
        block: &description::Block,
        code: Code,
        width: u64,
        liger: bool,
        options: &Options,
    ) -> Self {
        let norm = |norm| Norm::load(loader, path, norm, width);
        let attention = || AttentionLayers::load(loader, path, block, liger, options);
        let mlp = || {
            let feed_forward = &block.feed_forward;
            let layers = feed_forward.inner.layers().iter().chain([&feed_forward.down]);
            layers.map(|layer| linear(loader, path, layer)).collect()
        };
        let (norms, attention, mlp) = match code {
            Code::Gpt2 => {
                let first = norm(&block.attention_norm);
                let attention = attention();
                ([first, norm(&block.feed_forward_norm)], attention, mlp())
            }
            Code::Llama => {
                let (attention, mlp) = (attention(), mlp());
                ([norm(&block.attention_norm), norm(&block.feed_forward_norm)], attention, mlp)
            }
        };
        let residual_rate = block.residual_dropout.map(|rate| options.rate(rate));
        Self { description: *block, norms, attention, mlp, residual_rate, code, liger }
    }

    /// Whether attention has a sliding window.
    pub fn is_windowed(&self) -> bool {
        self.description.attention.window.is_some()
    }

    /// (B, T, C) -> (B, T, C). `angles`: cosines and sines (1, T, D) of rotary positions.
    pub fn forward(&self, rt: &Rt, x: &Tensor, angles: Option<&[Tensor; 2]>, mask: Option<&Tensor>) -> Tensor {
        let norms = [self.description.attention_norm.name, self.description.feed_forward_norm.name];
        let first = |x: &Tensor| rt.module(norms[0], || self.norms[0].forward(x, self.liger));
        let second = |x: &Tensor| rt.module(norms[1], || self.norms[1].forward(x, self.liger));
        let attend =
            |normed: &Tensor| rt.module(self.attention.module(), || self.attention.forward(rt, normed, angles, mask));
        let feed = |normed: &Tensor| rt.module("mlp", || self.feed(rt, normed));
        let normed = first(x);
        match self.code {
            Code::Gpt2 => {
                let attended = attend(&normed).0;
                let x = attended.add(x);
                drop(normed);
                let normed = second(&x);
                let fed = feed(&normed);
                x.add(&fed)
            }
            Code::Llama => {
                let (attended, _weights) = attend(&normed);
                drop(normed);
                let x = x.add(&attended);
                drop(attended);
                let normed = second(&x);
                let fed = feed(&normed);
                drop(normed);
                x.add(&fed)
            }
        }
    }

    fn feed(&self, rt: &Rt, x: &Tensor) -> Tensor {
        let feed_forward = &self.description.feed_forward;
        let layers = feed_forward.inner.layers().iter().chain([&feed_forward.down]);
        let names = layers.map(|layer| last(layer.name)).collect::<Vec<_>>();
        let apply = |index: usize, x: &Tensor| self.mlp[index].forward(rt, names[index], x);
        match &feed_forward.inner {
            Inner::Gelu(_) => {
                let mut x = apply(0, x);
                x = rt.module("act", || new_gelu(&x));
                x = apply(1, &x);
                self.residual_rate.map_or_else(|| x.clone(), |rate| x.dropout(rate))
            }
            Inner::Relu(_) => {
                let mut x = apply(0, x);
                x = rt.module("act", || x.activation_by_result("relu"));
                apply(1, &x)
            }
            Inner::Gated { .. } if self.liger => {
                let product = ops::liger::silu_mul(&apply(0, x), &apply(1, x));
                apply(2, &product)
            }
            Inner::Gated { .. } => {
                let gated = {
                    let gate = apply(0, x);
                    rt.module("act_fn", || gate.activation("silu"))
                };
                let product = gated.mul(&apply(1, x));
                drop(gated);
                apply(2, &product)
            }
        }
    }
}
