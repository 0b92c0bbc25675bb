//! A decoder's attention: GPT-2's with one layer for queries, keys and values, and Llama's with rotary positions.

use super::norm::Norm;
use super::{Source, last, sinks};
use crate::modules::linear::Linear;
use crate::modules::loader::Loader;
use crate::modules::parts::{Options, linear};
use crate::modules::rotation;
use crate::ops::{self, Sdpa};
use crate::runtime::{DType, Rt, Tensor};
use plimsoll_graph::models::description::{self, AttentionInputs};
use plimsoll_trainers::Attention;

pub(super) struct AttentionLayers {
    description: description::Attention,
    /// One layer, or the layers of queries, keys and values.
    inputs: Vec<Linear>,
    output: Linear,
    /// Norms of queries and keys.
    norms: Option<[Norm; 2]>,
    sinks: Option<Tensor>,
    rate: f32,
    residual_rate: Option<f32>,
    kernel: Attention,
    /// Whether kernels receive keys and values with fewer heads than queries if they have no mask.
    groups_heads: bool,
    source: Source,
    /// Whether Liger's kernels rotate queries and keys.
    liger: bool,
}

/// Repeats keys or values (B, K, T, D) for the heads that share them: (B, H, T, D).
fn repeat_kv(x: &Tensor, times: u64) -> Tensor {
    if times == 1 {
        return x.clone();
    }
    let [batch, heads, length, channels] = [x.size(0), x.size(1), x.size(2), x.size(3)];
    let expanded = x.unsqueeze(2).expand(&[batch, heads, times, length, channels]);
    expanded.reshape(&[batch, heads * times, length, channels])
}

/// A soft limit in pointwise ops: `tanh(x / cap) * cap`.
pub(super) fn capped(mut x: Tensor) -> Tensor {
    x = x.scale();
    x = x.activation_by_result("tanh");
    x.scale()
}

impl AttentionLayers {
    pub fn load(
        loader: &Loader,
        path: &str,
        block: &description::Block,
        source: &Source,
        liger: bool,
        options: &Options,
    ) -> Self {
        let description = block.attention.clone();
        let sinks = sinks::load(loader, path, &description);
        let inputs = || description.inputs.layers().iter().map(|layer| linear(loader, path, layer)).collect();
        let output = || linear(loader, path, &description.output);
        let (inputs, output) = match source.declares_output_first {
            true => {
                let output = output();
                (inputs(), output)
            }
            false => (inputs(), output()),
        };
        let norms = description.norms.map(|norms| {
            let [of_queries, of_keys] = norms.channels(&description).map(|channels| channels as u64);
            [(norms.queries, of_queries), (norms.keys, of_keys)]
                .map(|(norm, channels)| Norm::load(loader, path, &norm, channels, source))
        });
        Self {
            inputs,
            output,
            norms,
            sinks,
            rate: options.rate(description.dropout),
            residual_rate: block.residual_dropout.map(|rate| options.rate(rate)),
            kernel: options.attention,
            groups_heads: options.groups_heads,
            source: *source,
            liger,
            description,
        }
    }

    /// The module's name.
    pub fn module(&self) -> &'static str {
        self.description.output.name.split('.').next().unwrap_or_default()
    }

    /// (B, T, C) -> (B, T, C), and the probabilities if the block keeps them until its end.
    pub fn forward(
        &self,
        rt: &Rt,
        x: &Tensor,
        angles: Option<&[Tensor; 2]>,
        mask: Option<&Tensor>,
    ) -> (Tensor, Option<Tensor>) {
        match self.description.inputs {
            AttentionInputs::Packed(_) if self.description.rotary.is_none() => (self.attend_packed(rt, x, mask), None),
            _ => self.attend(rt, x, angles, mask),
        }
    }

    /// Source: `GPT2Attention`.
    fn attend_packed(&self, rt: &Rt, x: &Tensor, mask: Option<&Tensor>) -> Tensor {
        let [batch, length, channels] = [x.size(0), x.size(1), x.size(2)];
        let heads = self.description.heads as u64;
        let projected = self.inputs[0].forward(rt, last(self.description.inputs.layers()[0].name), x);
        let head = |part: &Tensor| part.view(&[batch, length, heads, channels / heads]).transpose(1, 2);
        let parts = projected.split(3, 2);
        drop(projected);
        let [q, k, v] = [&parts[0], &parts[1], &parts[2]].map(head);
        drop(parts);
        // Eager attention also returns its probabilities.
        let (mut attended, _weights) = match self.kernel {
            Attention::Eager => {
                let mut weights = q.matmul(&k.transpose(-1, -2)).scale();
                if let Some(mask) = mask {
                    weights = weights.add(mask);
                }
                weights = weights.softmax(None);
                weights = weights.to(v.dtype());
                weights = weights.dropout(self.rate);
                (weights.matmul(&v).transpose(1, 2), Some(weights))
            }
            Attention::Sdpa | Attention::Efficient | Attention::Flash2 => {
                let attended = ops::scaled_dot_product_attention(&q, &k, &v, mask, self.kernel());
                (attended.transpose(1, 2).contiguous(), None)
            }
        };
        attended = attended.reshape(&[batch, length, channels]).contiguous();
        let projected = self.output.forward(rt, last(self.description.output.name), &attended);
        drop(attended);
        self.residual_rate.map_or_else(|| projected.clone(), |rate| projected.dropout(rate))
    }

    /// Source: `LlamaAttention`.
    fn attend(
        &self,
        rt: &Rt,
        x: &Tensor,
        angles: Option<&[Tensor; 2]>,
        mask: Option<&Tensor>,
    ) -> (Tensor, Option<Tensor>) {
        let [batch, length] = [x.size(0), x.size(1)];
        let [mut q, mut k, v] = self.project(rt, x);
        let [queries, keys, channels] = [q.size(1), k.size(1), q.size(3)];
        if let Some(angles) = angles.filter(|_| self.description.rotary.is_some()) {
            (q, k) = rotation::rotated([&q, &k], angles, &self.source, self.liger).into();
        }
        let times = queries / keys;
        let (mut attended, weights) = match self.kernel {
            Attention::Eager => {
                let (k, v) = (repeat_kv(&k, times), repeat_kv(&v, times));
                let mut weights = q.matmul(&k.transpose(2, 3));
                weights = weights.scale();
                if self.description.cap.is_some() {
                    weights = capped(weights);
                }
                if let Some(mask) = mask {
                    weights = weights.add(mask);
                }
                let mut _kept = vec![];
                weights = match &self.sinks {
                    None => {
                        weights = weights.softmax(Some(DType::F32)).to(q.dtype());
                        weights.dropout(self.rate)
                    }
                    Some(sinks) => {
                        let probabilities;
                        (probabilities, _kept) = sinks::probabilities(&weights, sinks, self.rate);
                        probabilities.to(v.dtype())
                    }
                };
                (weights.matmul(&v).transpose(1, 2).contiguous(), Some(weights))
            }
            Attention::Sdpa | Attention::Efficient | Attention::Flash2 => {
                // With a mask, PyTorch's kernels need as many key heads as query heads: `use_gqa_in_sdpa` of
                // transformers. FlashAttention 2 has no mask.
                let is_grouped = mask.is_none() && (self.groups_heads || self.kernel == Attention::Flash2);
                let times = if is_grouped { 1 } else { times };
                let (k, v) = (repeat_kv(&k, times), repeat_kv(&v, times));
                let attended = ops::scaled_dot_product_attention(&q, &k, &v, mask, self.kernel());
                (attended.transpose(1, 2).contiguous(), None)
            }
        };
        attended = attended.reshape(&[batch, length, queries * channels]).contiguous();
        (self.output.forward(rt, last(self.description.output.name), &attended), weights)
    }

    /// The options of attention kernels.
    fn kernel(&self) -> Sdpa {
        Sdpa { causal: true, dropout: self.rate, is_efficient: self.kernel == Attention::Efficient }
    }

    /// Queries, keys and values of each head: (B, H, T, D).
    fn project(&self, rt: &Rt, x: &Tensor) -> [Tensor; 3] {
        const ALL: [usize; 3] = [0, 1, 2];
        let description::Attention { heads, kv_heads, head_size, .. } = self.description;
        let heads = [heads, kv_heads, kv_heads].map(|heads| heads as u64);
        let split = |index: usize, x: &Tensor| x.view(&[x.size(0), x.size(1), heads[index], head_size as u64]);
        let name = |index: usize| last(self.description.inputs.layers()[index].name);
        let layer = |index: usize| self.inputs[index].forward(rt, name(index), x);
        match (self.description.inputs, self.description.norms) {
            (AttentionInputs::Packed(_), _) => {
                let packed = layer(0);
                let parts = heads.map(|heads| packed.narrow(-1, heads * head_size as u64));
                ALL.map(|index| split(index, &parts[index]).transpose(1, 2))
            }
            (_, Some(norms)) if !norms.each_head => {
                let all = ALL.map(|index| self.normalize(rt, index, layer(index)));
                ALL.map(|index| split(index, &all[index]).transpose(1, 2))
            }
            _ if self.source.normalizes_transposed => {
                let [q, k, v] = ALL.map(|index| split(index, &layer(index)).transpose(1, 2));
                [self.normalize(rt, 0, q), self.normalize(rt, 1, k), v]
            }
            _ => ALL.map(|index| self.normalize(rt, index, split(index, &layer(index))).transpose(1, 2)),
        }
    }

    /// Queries (0) or keys (1) after their norm, if there is one. Values (2) have none.
    fn normalize(&self, rt: &Rt, index: usize, x: Tensor) -> Tensor {
        match (&self.norms, self.description.norms) {
            (Some(norms), Some(named)) if index < norms.len() => {
                let name = last([named.queries, named.keys][index].name);
                rt.module(name, || norms[index].forward(&x, self.liger))
            }
            _ => x,
        }
    }
}
