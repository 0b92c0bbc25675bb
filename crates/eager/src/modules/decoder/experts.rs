//! A mixture of experts: the router, and the experts' layers as one tensor each.
//! Source: `grouped_mm_experts_forward` of transformers 5.24's `integrations/moe.py`, the default implementation, and the
//! routers of the families' modeling files. Not here: the loss on the balance of experts (`balance.rs`).
//!
//! Each token has K rows, whichever experts it goes to, and all rows are computed together. No storage depends on the
//! routing, so none is assumed.
//!
//! ```text
//!   x (N, C) ─► router ─► K experts of each token ─► rows sorted by expert (N·K, C) ─► up, activation, down ─► (N·K, C)
//!                                                      ─► times the router's weights, in the tokens' order ─► sum (N, C)
//! ```

use crate::modules::loader::Loader;
use crate::modules::merged::Merged;
use crate::modules::parts::activated;
use crate::modules::source::{Router, Source};
use crate::ops::{self, GroupedProduct};
use crate::runtime::{DType, Rt, Tensor};
use plimsoll_graph::models::description::{self, FeedForward, Inner};

pub(super) struct Experts {
    experts: description::Experts,
    inner: Inner,
    router: Merged,
    router_bias: Option<Tensor>,
    /// Up to the inner width, and down: the weight of all experts, and its bias (E, outputs).
    layers: [(Merged, Option<Tensor>); 2],
    formula: Router,
    product: GroupedProduct,
}

/// What the experts compute for a batch.
pub(super) struct Routed {
    /// (B, T, C).
    pub result: Tensor,
    /// The router's results for each expert, if the loss needs them: (N, E).
    pub logits: Option<Tensor>,
    /// The weights of each token's experts: (N, K).
    pub scores: Tensor,
}

impl Experts {
    pub fn load(loader: &Loader, path: &str, feed: &FeedForward, source: &Source, product: GroupedProduct) -> Self {
        let experts = feed.experts.expect("only called for experts");
        let count = experts.count as u64;
        // Files have other names and tensors in some families; these are the modules' names.
        let path = format!("{path}.mlp");
        let router = || {
            let name = format!("{path}.{}", super::last(experts.router.name));
            let inputs = experts.router.inputs as u64;
            let mut weight = Merged::new(loader.parameter(&format!("{name}.weight"), &[count, inputs]));
            let bias = experts.router.bias.then(|| loader.parameter(&format!("{name}.bias"), &[count]));
            if let Some(rank) = loader.added_to_parameter(&path, source.expert_layers.router) {
                weight.adapt(loader, &name, rank, [inputs, count]);
            }
            (weight, bias)
        };
        let layers = || {
            let up = feed.inner.layers();
            let outputs = up.iter().map(|layer| layer.outputs as u64).sum::<u64>();
            let both = [("gate_up_proj", up[0], outputs), ("down_proj", feed.down, feed.down.outputs as u64)];
            let mut layers = both.map(|(name, layer, outputs)| {
                let inputs = layer.inputs as u64;
                let shape = if experts.stacked { [count, inputs, outputs] } else { [count, outputs, inputs] };
                let weight = loader.parameter(&format!("{path}.experts.{name}"), &shape);
                let bias = || loader.parameter(&format!("{path}.experts.{name}_bias"), &[count, outputs]);
                (Merged::new(weight), layer.bias.then(bias))
            });
            let names = [source.expert_layers.up, source.expert_layers.down];
            for ((layer, (name, of, outputs)), targets) in layers.iter_mut().zip(both).zip(names) {
                if let Some(rank) = loader.added_to_parameter(&path, targets) {
                    layer.0.adapt(loader, &format!("{path}.experts.{name}"), rank, [of.inputs as u64, outputs]);
                }
            }
            layers
        };
        let ((router, router_bias), layers) = match source.declares_experts_first {
            true => {
                let layers = layers();
                (router(), layers)
            }
            false => (router(), layers()),
        };
        Self { experts, inner: feed.inner, router, router_bias, layers, formula: source.router, product }
    }

    /// x: (B, T, C).
    pub fn forward(&self, rt: &Rt, x: &Tensor) -> Routed {
        let shape = x.shape().to_vec();
        let x = x.view(&[shape[0] * shape[1], shape[2]]);
        let [logits, scores, chosen] = rt.module(super::last(self.experts.router.name), || self.route(&x));
        let result = rt.module("experts", || self.compute(rt, &x, &chosen, &scores));
        let logits = self.experts.balance.map(|_| logits);
        Routed { result: result.view(&shape), logits, scores }
    }

    /// x (N, C) -> the router's logits (N, E), the weights of each token's experts (N, K), and their indices (N, K).
    fn route(&self, x: &Tensor) -> [Tensor; 3] {
        let router = self.router.activate();
        let weight = router.weight();
        let logits = x.linear(&weight, self.router_bias.as_ref());
        let count = self.experts.chosen as u64;
        let of_all = match self.formula {
            Router::ChosenSoftmax => {
                let [values, chosen] = ops::topk(&logits, count);
                let scores = values.softmax(Some(values.dtype()));
                return [logits, scores, chosen];
            }
            Router::Softmax | Router::SoftmaxCast => logits.softmax(Some(DType::F32)),
        };
        let [mut scores, chosen] = ops::topk(&of_all, count);
        if self.experts.normalized {
            let sum = scores.sum_over(-1, true);
            scores = scores.div_in_place(&sum);
        }
        if self.formula == Router::SoftmaxCast {
            scores = scores.to(logits.dtype());
        }
        [logits, scores, chosen]
    }

    /// x (N, C) and the weights and indices of each token's experts (N, K) -> (N, C).
    fn compute(&self, rt: &Rt, x: &Tensor, chosen: &Tensor, scores: &Tensor) -> Tensor {
        let (tokens, width, rows) = (x.size(0), x.size(1), chosen.elements());
        // The adapter of the last layer encloses that of the first.
        let down = self.layers[1].0.activate();
        let up = self.layers[0].0.activate();
        let scores = scores.reshape(&[rows]);
        let [experts, order] = ops::sort(&chosen.view(&[rows]));
        let sorted = ops::index(x, &order.empty_like(DType::I64, "floor_divide"));
        let sorted_scores = ops::index(&scores, &order);
        let counted = Tensor::new(rt, &[rows], DType::I32, "_to_copy");
        let counts = Tensor::new(rt, &[self.experts.count as u64], DType::I32, "histc");
        let ends = counts.empty_like(DType::I32, "cumsum");
        let [bias_up, bias_down] = [&self.layers[0].1, &self.layers[1].1];
        // Sums with adapters live until the end.
        let weight_up = up.weight();
        let mut bias = bias_up.as_ref().map(|bias| ops::index(bias, &experts));
        let mut x = self.product(&sorted, &weight_up, bias.as_ref(), &ends);
        x = self.gated(&x);
        let weight_down = down.weight();
        if let Some(of_down) = bias_down {
            bias = Some(ops::index(of_down, &experts));
        }
        x = self.product(&x, &weight_down, bias.as_ref(), &ends);
        let mut weighted = x.mul(&sorted_scores.unsqueeze(1));
        let inverse = order.empty_like(DType::I64, "empty_like");
        drop(order.empty_like(DType::I64, "arange"));
        weighted = ops::index(&weighted, &inverse);
        let sum = weighted.view(&[tokens, self.experts.chosen as u64, width]).sum_over(1, false);
        let result = sum.to(sorted.dtype());
        drop((counted, counts));
        result
    }

    /// The layer of each row's expert. x: (S, inputs), weight: that of all experts, bias: (S, outputs) -> (S, outputs).
    fn product(&self, x: &Tensor, weight: &Tensor, bias: Option<&Tensor>, ends: &Tensor) -> Tensor {
        let turned = if self.experts.stacked { weight.clone() } else { weight.transpose(1, 2) };
        let product = ops::grouped_mm(x, &turned, ends, self.product);
        match bias {
            Some(bias) => product.add_in_place(bias),
            None => product,
        }
    }

    /// The activation, of rows with the gates and what they multiply: (S, 2F) -> (S, F).
    fn gated(&self, x: &Tensor) -> Tensor {
        match self.inner {
            Inner::Gated { activation, .. } => {
                let halves = x.split(2, -1);
                activated(&halves[0], activation).mul(&halves[1])
            }
            _ => clamped_swiglu(x),
        }
    }
}

/// Source: `GptOssExperts._apply_gate`.
fn clamped_swiglu(x: &Tensor) -> Tensor {
    let [mut gate, mut up] = [x.every_second(), x.every_second()];
    gate = gate.clamp_to(false);
    up = up.clamp_to(true);
    let glu = {
        let mut opened = gate.scale();
        opened = opened.activation_by_result("sigmoid");
        gate.mul(&opened)
    };
    up.shift().mul(&glu)
}
