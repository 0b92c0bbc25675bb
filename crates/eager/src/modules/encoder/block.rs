//! An encoder's block: BERT's with norms after each part, and ModernBERT's with norms before each part.

use crate::modules::linear::Linear;
use crate::modules::loader::Loader;
use crate::modules::parts::{Options, activated, linear, new_gelu};
use crate::modules::rotation;
use crate::ops::{self, Sdpa};
use crate::runtime::{DType, Rt, Tensor};
use plimsoll_graph::models::description::{self, EncoderBlock, Inner, NormFormula};
use plimsoll_trainers::Attention;

/// LayerNorm, with or without a bias.
pub(super) struct LayerNorm {
    name: &'static str,
    weight: Tensor,
    bias: Option<Tensor>,
}

impl LayerNorm {
    /// `path` is the block's; empty for a norm of the whole model.
    pub fn load(loader: &Loader, path: &str, norm: &description::Norm, width: u64) -> Self {
        let name = if path.is_empty() { norm.name.to_owned() } else { format!("{path}.{}", norm.name) };
        let weight = loader.parameter(&format!("{name}.weight"), &[width]);
        let has_bias = norm.formula == NormFormula::Layer { bias: true };
        let bias = has_bias.then(|| loader.parameter(&format!("{name}.bias"), &[width]));
        Self { name: norm.name, weight, bias }
    }

    pub fn forward(&self, rt: &Rt, x: &Tensor) -> Tensor {
        rt.module(self.name, || self.apply(x))
    }

    /// The same within the running module.
    pub fn apply(&self, x: &Tensor) -> Tensor {
        ops::layer_norm(x, &self.weight, self.bias.as_ref())
    }
}

pub(super) struct Block {
    description: EncoderBlock,
    /// The norms of attention and of the feed-forward layer.
    norms: [Option<LayerNorm>; 2],
    /// The layers of queries, keys and values, or one layer.
    inputs: Vec<Linear>,
    output: Linear,
    up: Linear,
    down: Linear,
    norms_follow_sums: bool,
    options: Options,
}

impl Block {
    /// Loads the parameters in the order of the class's modules.
    pub fn load(
        loader: &Loader,
        path: &str,
        block: &EncoderBlock,
        encoder: &description::Encoder,
        options: &Options,
    ) -> Self {
        let width = encoder.width as u64;
        let norm = |norm: &description::Norm| LayerNorm::load(loader, path, norm, width);
        let layer = |layer: &description::Linear| linear(loader, path, layer);
        let attention = || {
            let inputs = block.attention.inputs.layers().iter().map(layer).collect::<Vec<_>>();
            (inputs, layer(&block.attention.output))
        };
        let feed = || (layer(&block.feed_forward.inner.layers()[0]), layer(&block.feed_forward.down));
        let of_attention = || block.attention_norm.as_ref().map(norm);
        let (norms, (inputs, output), (up, down)) = match encoder.norms_follow_sums {
            true => {
                let attention = attention();
                let first = of_attention();
                let feed = feed();
                ([first, Some(norm(&block.feed_forward_norm))], attention, feed)
            }
            false => {
                let first = of_attention();
                let attention = attention();
                let second = norm(&block.feed_forward_norm);
                ([first, Some(second)], attention, feed())
            }
        };
        let (norms_follow_sums, options, description) = (encoder.norms_follow_sums, options.clone(), block.clone());
        Self { description, norms, inputs, output, up, down, norms_follow_sums, options }
    }

    /// Whether attention has a window.
    pub fn is_windowed(&self) -> bool {
        self.description.attention.window.is_some()
    }

    /// (B, T, C) -> (B, T, C). `angles`: cosines and sines (1, T, D) of rotary positions.
    pub fn forward(&self, rt: &Rt, x: &Tensor, angles: Option<&[Tensor; 2]>, mask: Option<&Tensor>) -> Tensor {
        let norm = |index: usize, x: &Tensor| {
            let norm: &Option<LayerNorm> = &self.norms[index];
            norm.as_ref().map_or_else(|| x.clone(), |norm| norm.forward(rt, x))
        };
        let attend = |x: &Tensor| rt.module("attention", || self.attend(rt, x, angles, mask));
        if self.norms_follow_sums {
            let (mut attended, _weights) = attend(x);
            attended = norm(0, &self.attended(rt, &attended).add(x));
            let inner = self.inner(rt, &attended);
            let mut fed = self.down.forward(rt, "output", &inner);
            fed = fed.dropout(self.options.rate(self.description.feed_forward_dropout.unwrap_or(0.0)));
            return norm(1, &fed.add(&attended));
        }
        let (attended, _weights) = {
            let normed = norm(0, x);
            attend(&normed)
        };
        let x = x.add(&attended);
        let fed = {
            let normed = norm(1, &x);
            rt.module("mlp", || self.feed_gated(rt, &normed))
        };
        x.add(&fed)
    }

    /// Attention's result (B, T, C), in BERT before the last layer, and the probabilities of eager attention.
    fn attend(
        &self,
        rt: &Rt,
        x: &Tensor,
        angles: Option<&[Tensor; 2]>,
        mask: Option<&Tensor>,
    ) -> (Tensor, Option<Tensor>) {
        let attention = &self.description.attention;
        let (batch, length, heads) = (x.size(0), x.size(1), attention.heads as u64);
        let head_size = attention.head_size as u64;
        let [mut q, mut k, v] = self.project(rt, x);
        if let Some(angles) = angles {
            [q, k] = rotation::rotated_upcast([&q, &k], angles);
        }
        let rate = self.options.rate(attention.dropout);
        let (mut attended, weights) = match self.options.attention {
            Attention::Eager => {
                let mut weights = q.matmul(&k.transpose(2, 3));
                weights = weights.scale();
                if let Some(mask) = mask {
                    weights = weights.add(mask);
                }
                // ModernBERT's softmax is in single precision.
                weights = match angles {
                    None => weights.softmax(None),
                    Some(_) => weights.softmax(Some(DType::F32)).to(q.dtype()),
                };
                weights = weights.dropout(rate);
                (weights.matmul(&v).transpose(1, 2).contiguous(), Some(weights))
            }
            Attention::Sdpa | Attention::Efficient | Attention::Flash2 => {
                let is_efficient = self.options.attention == Attention::Efficient;
                let kernel = Sdpa { causal: false, dropout: rate, is_efficient };
                let attended = ops::scaled_dot_product_attention(&q, &k, &v, mask, kernel);
                (attended.transpose(1, 2).contiguous(), None)
            }
        };
        attended = attended.reshape(&[batch, length, heads * head_size]).contiguous();
        if !self.norms_follow_sums {
            attended = self.attended(rt, &attended);
        }
        (attended, weights)
    }

    /// Attention's last layer, of which ModernBERT's attention is the module, and its dropout.
    fn attended(&self, rt: &Rt, x: &Tensor) -> Tensor {
        let projected = self.output.forward(rt, "output", x);
        projected.dropout(self.options.rate(self.description.attention_dropout.unwrap_or(0.0)))
    }

    /// Queries, keys and values of each head: (B, H, T, D).
    fn project(&self, rt: &Rt, x: &Tensor) -> [Tensor; 3] {
        let attention = &self.description.attention;
        let shape = [x.size(0), x.size(1), attention.heads as u64, attention.head_size as u64];
        match &self.inputs[..] {
            [packed] => {
                let all = packed.forward(rt, "Wqkv", x).view(&[shape[0], shape[1], 3, shape[2], shape[3]]);
                let parts = all.split(3, 2);
                [0, 1, 2].map(|index| parts[index].view(&shape).transpose(1, 2))
            }
            layers => [0, 1, 2].map(|index| {
                let name = attention.inputs.layers()[index].name;
                layers[index].forward(rt, name, x).view(&shape).transpose(1, 2)
            }),
        }
    }

    /// BERT's layer up and its activation: (B, T, C) -> (B, T, F).
    fn inner(&self, rt: &Rt, x: &Tensor) -> Tensor {
        let mut inner = self.up.forward(rt, "intermediate", x);
        inner = match self.description.feed_forward.inner {
            Inner::Gelu(_) => new_gelu(&inner),
            Inner::Relu(_) => inner.activation_by_result("relu"),
            _ => inner.activation("gelu"),
        };
        inner
    }

    /// ModernBERT's feed-forward layer: (B, T, C) -> (B, T, C).
    fn feed_gated(&self, rt: &Rt, x: &Tensor) -> Tensor {
        let halves = self.up.forward(rt, "Wi", x).split(2, -1);
        let Inner::Gated { activation, .. } = self.description.feed_forward.inner else {
            unreachable!("ModernBERT's layer is gated");
        };
        let mut product = activated(&halves[0], activation);
        product = product.mul(&halves[1]);
        product = product.dropout(self.options.rate(self.description.feed_forward.dropout.unwrap_or(0.0)));
        self.down.forward(rt, "Wo", &product)
    }
}
