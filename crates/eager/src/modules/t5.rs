//! T5 of transformers: `models/t5/modeling_t5.py`.

use super::linear::Linear;
use super::loader::Loader;
use super::parts::{Model, Options, Outputs, linear, new_gelu, tokens};
use super::source::Source;
use crate::ops::{self, Sdpa};
use crate::runtime::{DType, Rt, Tensor, checkpoint};
use crate::usage::Kind;
use plimsoll_graph::models::description::{self, EncoderDecoder, Table};
use plimsoll_trainers::{Attention, Checkpointing, Run};
use std::rc::Rc;

struct Attending {
    norm: Tensor,
    /// The layers of queries, keys, values and output.
    layers: Vec<Linear>,
    /// The table of relative positions, in the first block of a stack.
    bias: Option<Tensor>,
    heads: u64,
    channels: u64,
    rate: f32,
    kernel: Attention,
    /// Whether a token attends only to itself and earlier tokens.
    causal: bool,
    /// Whether a zero bias has a gradient, which checkpointing requires.
    zeros_learn: bool,
}

struct Feeding {
    norm: Tensor,
    /// One layer, or a gate and the layer that it multiplies.
    inner: Vec<Linear>,
    outer: Linear,
    rate: f32,
}

struct Block {
    own: Attending,
    /// Cross-attention to the encoder's result.
    cross: Option<Attending>,
    feed: Feeding,
}

struct Stack {
    name: &'static str,
    blocks: Vec<Rc<Block>>,
    norm: Tensor,
}

struct T5 {
    shared: Tensor,
    head: Linear,
    stacks: [Stack; 2],
    scales: bool,
    rate: f32,
    target: u64,
    options: Options,
    trained: Vec<Tensor>,
}

/// T5's norm: x (B, T, C), weight (C,) -> (B, T, C). It multiplies in single precision; the result is in single
/// precision if the weight is.
fn norm(weight: &Tensor, x: &Tensor) -> Tensor {
    let mut variance = x.to(DType::F32);
    variance = variance.pow();
    variance = variance.mean_last();
    let shifted = variance.shift();
    let scale = shifted.rsqrt();
    drop(shifted);
    let mut x = x.mul(&scale);
    drop(scale);
    if weight.dtype().is_half() {
        x = x.to(weight.dtype());
    }
    weight.mul(&x)
}

impl Attending {
    /// (B, T, C) -> (B, T, C); the position bias, computed if none is given; and the probabilities if they are
    /// computed.
    fn forward(
        &self,
        rt: &Rt,
        x: &Tensor,
        source: Option<&Tensor>,
        mask: Option<&Tensor>,
        bias: Option<&Tensor>,
    ) -> (Tensor, Tensor, Option<Tensor>) {
        let name = if source.is_some() { "EncDecAttention" } else { "SelfAttention" };
        let normed = rt.module("layer_norm", || norm(&self.norm, x));
        let (attended, bias, weights) = rt.module(name, || self.attend(rt, &normed, source, mask, bias));
        (x.add(&attended.dropout(self.rate)), bias, weights)
    }

    fn attend(
        &self,
        rt: &Rt,
        x: &Tensor,
        source: Option<&Tensor>,
        mask: Option<&Tensor>,
        bias: Option<&Tensor>,
    ) -> (Tensor, Tensor, Option<Tensor>) {
        let [batch, length] = [x.size(0), x.size(1)];
        let project = |index: usize, name, x: &Tensor| {
            let projected = self.layers[index].forward(rt, name, x);
            projected.view(&[batch, x.size(1), self.heads, self.channels]).transpose(1, 2)
        };
        let source = source.unwrap_or(x);
        let (q, k, v) = (project(0, "q", x), project(1, "k", source), project(2, "v", source));
        let bias = match (bias, &self.bias) {
            (Some(bias), _) => bias.clone(),
            (None, Some(table)) => compute_bias(table, length, source.size(1), self.causal),
            (None, None) => {
                let zeros = Tensor::new(rt, &[1, self.heads, length, source.size(1)], q.dtype(), "zeros");
                if self.zeros_learn { zeros.into_leaf() } else { zeros }
            }
        };
        let (mut attended, weights) = match self.kernel {
            Attention::Eager => {
                let mut weights = q.matmul(&k.transpose(2, 3));
                weights = weights.scale();
                weights = weights.add(&bias);
                if let Some(mask) = mask {
                    weights = weights.add(mask);
                }
                weights = weights.softmax(None);
                weights = weights.dropout(self.rate);
                (weights.matmul(&v).transpose(1, 2).contiguous(), Some(weights))
            }
            Attention::Sdpa | Attention::Efficient | Attention::Flash2 => {
                let mask = if self.causal { causal_bias(&bias) } else { bias.contiguous() };
                let is_efficient = self.kernel == Attention::Efficient;
                let options = Sdpa { causal: false, dropout: self.rate, is_efficient };
                let attended = ops::scaled_dot_product_attention(&q, &k, &v, Some(&mask), options);
                (attended.transpose(1, 2).contiguous(), None)
            }
        };
        attended = attended.reshape(&[batch, length, self.heads * self.channels]).contiguous();
        (self.layers[3].forward(rt, "o", &attended), bias, weights)
    }
}

/// A bias with the smallest number where a token may not attend.
fn causal_bias(bias: &Tensor) -> Tensor {
    let rt = bias.rt();
    let counted = [bias.size(2), bias.size(3)].map(|count| Tensor::new(rt, &[count], DType::I64, "arange"));
    let allowed = Tensor::new(rt, &[1, 1, bias.size(2), bias.size(3)], DType::Bool, "ge");
    drop(counted);
    bias.select(&allowed).contiguous()
}

/// The bias of relative positions (1, H, T, S) from a table (buckets, H).
fn compute_bias(table: &Tensor, length: u64, keys: u64, causal: bool) -> Tensor {
    let rt = table.rt();
    let new = |dtype, op| Tensor::new(rt, &[length, keys], dtype, op);
    let mut own = Tensor::new(rt, &[length], DType::I64, "arange");
    own = own.shift();
    let others = Tensor::new(rt, &[keys], DType::I64, "arange");
    let relative = new(DType::I64, "sub");
    let bucket = buckets(&relative, causal);
    let values = ops::embedding(table, &bucket);
    drop((bucket, own, others));
    values.transpose(0, 2).transpose(1, 2).unsqueeze(0)
}

/// Buckets of distances (T, S): linear for small distances, logarithmic for large ones.
fn buckets(relative: &Tensor, causal: bool) -> Tensor {
    let like = |dtype, op| relative.empty_like(dtype, op);
    let (side, distance) = match causal {
        false => {
            let mut side = like(DType::Bool, "gt");
            side = side.to(DType::I64);
            side = side.scale();
            side = side.shift();
            (Some(side), like(DType::I64, "abs"))
        }
        true => {
            let zeros = like(DType::I64, "zeros_like");
            let least = like(DType::I64, "minimum");
            drop(zeros);
            (None, least.neg())
        }
    };
    let near = like(DType::Bool, "lt");
    let mut far = distance.to(DType::F32);
    for op in ["div", "log", "div", "mul"] {
        far = like(DType::F32, op);
    }
    far = far.to(DType::I64);
    let shifted = far.shift();
    drop(far);
    let most = like(DType::I64, "full_like");
    let far = like(DType::I64, "minimum");
    drop((shifted, most));
    let chosen = like(DType::I64, "where");
    // The second addition is in place; the first, to the number zero, creates a tensor.
    let buckets = side.unwrap_or_else(|| chosen.shift());
    drop((far, near));
    buckets
}

impl Feeding {
    fn forward(&self, rt: &Rt, x: &Tensor) -> Tensor {
        let mut fed = rt.module("layer_norm", || norm(&self.norm, x));
        fed = rt.module("DenseReluDense", || self.feed(rt, &fed));
        x.add(&fed.dropout(self.rate))
    }

    fn feed(&self, rt: &Rt, x: &Tensor) -> Tensor {
        let (mut inner, _factors) = match &self.inner[..] {
            [gate, up] => {
                let gate = gate.forward(rt, "wi_0", x);
                let gated = rt.module("act", || new_gelu(&gate));
                drop(gate);
                let up = up.forward(rt, "wi_1", x);
                (gated.mul(&up), Some([gated, up]))
            }
            layers => {
                let inner = layers[0].forward(rt, "wi", x);
                (rt.module("act", || inner.activation_by_result("relu")), None)
            }
        };
        inner = inner.dropout(self.rate);
        inner = inner.to(self.outer.dtype().unwrap_or(inner.dtype()));
        self.outer.forward(rt, "wo", &inner)
    }
}

impl Block {
    /// `inputs`: hidden states; the biases of both attentions if they exist; the encoder's result.
    fn forward(&self, rt: &Rt, inputs: &Inputs, mask: Option<&Tensor>) -> Vec<Tensor> {
        // Blocks keep the probabilities of their last attention until they end.
        let (mut x, bias, mut _weights) =
            rt.module("layer.0", || self.own.forward(rt, &inputs.hidden, None, mask, inputs.bias.as_ref()));
        x = clamped(x);
        let mut results = vec![bias];
        if let (Some(cross), Some(source)) = (&self.cross, &inputs.source) {
            let attend = || cross.forward(rt, &x, Some(source), None, inputs.cross_bias.as_ref());
            let (attended, bias, others) = rt.module("layer.1", attend);
            _weights = others;
            x = clamped(attended);
            results.push(bias);
        }
        x = rt.module(if self.cross.is_some() { "layer.2" } else { "layer.1" }, || self.feed.forward(rt, &x));
        results.insert(0, clamped(x));
        results
    }
}

/// Arguments of a block.
struct Inputs {
    hidden: Tensor,
    bias: Option<Tensor>,
    source: Option<Tensor>,
    cross_bias: Option<Tensor>,
}

impl Inputs {
    /// The tensors as a list, for checkpointing, which finds them among a block's arguments.
    fn list(&self) -> Vec<Tensor> {
        [Some(&self.hidden), self.bias.as_ref(), self.source.as_ref(), self.cross_bias.as_ref()]
            .into_iter()
            .flatten()
            .cloned()
            .collect()
    }

    /// Which arguments exist in addition to the hidden states, in the order of `list`.
    fn others(&self) -> [bool; 3] {
        [self.bias.is_some(), self.source.is_some(), self.cross_bias.is_some()]
    }

    /// The inputs from tensors in the order of `list`.
    fn of(tensors: &[Tensor], others: [bool; 3]) -> Self {
        let mut next = tensors.iter().cloned();
        let mut take = |is_there: bool| if is_there { next.next() } else { None };
        let hidden = take(true).expect("the first tensor is the hidden states");
        let [bias, source, cross_bias] = others.map(take);
        Self { hidden, bias, source, cross_bias }
    }
}

/// Clamps hidden states in fp16 to prevent overflow.
fn clamped(x: Tensor) -> Tensor {
    if x.dtype() != DType::F16 {
        return x;
    }
    drop(x.empty_like(DType::Bool, "isinf"));
    x.clamp()
}

impl Stack {
    fn forward(&self, rt: &Rt, model: &T5, ids: &Tensor, source: Option<&Tensor>) -> Tensor {
        let embedded = rt.module("embed_tokens", || model.options.embedded(ops::embedding(&model.shared, ids)));
        let eager = model.options.attention == Attention::Eager;
        let mask = (eager && source.is_some()).then(|| super::parts::causal_mask(&embedded, false));
        let mut inputs =
            Inputs { hidden: embedded.dropout(model.rate), bias: None, source: source.cloned(), cross_bias: None };
        for (index, block) in self.blocks.iter().enumerate() {
            let name = format!("block.{index}");
            let (block, rt_, mask) = (block.clone(), rt.clone(), mask.clone());
            let (list, others) = (inputs.list(), inputs.others());
            let run = Rc::new(move |tensors: &[Tensor]| {
                rt_.module(&name, || block.forward(&rt_, &Inputs::of(tensors, others), mask.as_ref()))
            });
            let mut results = checkpoint(rt, model.options.checkpointing, &list, run).into_iter();
            let hidden = results.next().expect("blocks return hidden states");
            inputs = Inputs { hidden, bias: results.next(), source: source.cloned(), cross_bias: results.next() };
        }
        let normed = rt.module("final_layer_norm", || norm(&self.norm, &inputs.hidden));
        normed.dropout(model.rate)
    }
}

/// The model with its parameters.
pub(super) fn load(loader: &Loader, model: EncoderDecoder, source: &Source, run: &Run) -> Box<dyn Model> {
    let options = Options::new(loader.rt(), run, source);
    let width = model.width as u64;
    let rate = options.rate(model.dropout);
    let attending =
        |path: &str, attention: &description::Attention, norm: &description::Norm, table: Option<&Table>| {
            let layers = attention.inputs.layers().iter().chain([&attention.output]);
            let layers = layers.map(|layer| linear(loader, path, layer)).collect();
            let heads = attention.heads as u64;
            let bias = table.map(|table| loader.table(&format!("{}.weight", table.name), &[table.rows as u64, heads]));
            Attending {
                norm: loader.parameter(&format!("{path}.{}.weight", norm.name), &[width]),
                layers,
                bias,
                heads,
                channels: attention.head_size as u64,
                rate,
                kernel: options.attention,
                causal: attention.causal,
                zeros_learn: options.checkpointing != Checkpointing::Off,
            }
        };
    let feeding = |path: &str, feed_forward: &description::FeedForward, norm: &description::Norm| {
        let inner = feed_forward.inner.layers().iter().map(|layer| linear(loader, path, layer)).collect();
        let down = feed_forward.down;
        // transformers never quantizes this layer: `_keep_in_fp32_modules`.
        let name = format!("{path}.{}", down.name);
        let outer = Linear::load_whole(loader, &name, down.inputs as u64, down.outputs as u64, false);
        Feeding { norm: loader.parameter(&format!("{path}.{}.weight", norm.name), &[width]), inner, outer, rate }
    };
    let stack = |stack: &description::Stack| {
        let block = |layer: usize| {
            let table = (layer == 0).then_some(&stack.bias_table);
            let own = attending(&stack.part(layer, 0), &stack.own, &stack.norm, table);
            let cross =
                stack.source.as_ref().map(|attention| attending(&stack.part(layer, 1), attention, &stack.norm, None));
            let feed = feeding(&stack.part(layer, stack.last_part()), &stack.feed_forward, &stack.norm);
            Rc::new(Block { own, cross, feed })
        };
        let blocks = (0..stack.layers).map(block).collect();
        let norm = loader.parameter(&format!("{}.weight", stack.last_norm.name), &[width]);
        Stack { name: stack.name, blocks, norm }
    };
    let shared = loader.table(&format!("{}.weight", model.tokens.name), &[model.vocab_size as u64, width]);
    let stacks = model.stacks().map(stack);
    let head = match &model.head {
        None => shared.clone(),
        Some(head) => loader.parameter(&format!("{}.weight", head.name), &[head.rows as u64, width]),
    };
    let head = Linear::head(loader, head);
    let target = run.target_len.unwrap_or(run.seq_len);
    let scales = model.head_scale.is_some();
    Box::new(T5 { shared, head, stacks, scales, rate, target, options, trained: loader.trained() })
}

impl Model for T5 {
    fn inputs(&self, rt: &Rt) -> Vec<Tensor> {
        let new = |length, op| tokens(rt, self.options.micro_batch, length, op);
        vec![new(self.options.length, "input_ids"), new(self.target, "labels")]
    }

    fn outputs(&self, rt: &Rt, inputs: &[Tensor]) -> Outputs {
        let (ids, labels) = (&inputs[0], &inputs[1]);
        let [encoder, decoder] = &self.stacks;
        let encoded = rt.module(encoder.name, || encoder.forward(rt, self, ids, None));
        let shifted = tokens(rt, self.options.micro_batch, self.target, "new_zeros");
        drop(tokens(rt, self.options.micro_batch, self.target - 1, "clone"));
        drop(shifted.empty_like(DType::Bool, "eq"));
        let decoded = rt.module(decoder.name, || decoder.forward(rt, self, &shifted, Some(&encoded)));
        let decoded = if self.scales { decoded.scale() } else { decoded };
        let logits = self.head.forward(rt, "lm_head", &decoded);
        logits.mark(Kind::Logits);
        let rows = self.options.micro_batch * self.target;
        let vocabulary = logits.size(-1);
        let flat = || ops::cross_entropy(&logits.view(&[rows, vocabulary]), &labels.view(&[rows]));
        let loss = rt.module("loss", flat);
        Outputs { loss, others: vec![logits, encoded] }
    }

    fn trained(&self) -> &[Tensor] {
        &self.trained
    }
}
