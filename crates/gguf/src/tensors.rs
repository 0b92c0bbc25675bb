//! The tensors of a model's file: llama.cpp's names, and which numbers of the model's files they have.
//! Source of the names: `MODEL_TENSORS` and `TENSOR_NAMES` of the package `gguf`, `constants.py`.

use crate::architecture::Architecture;
use crate::tensor::{Order, Piece, Tensor};
use plimsoll_graph::models::Description;
use plimsoll_graph::models::description::{
    Attention, AttentionInputs, Block, Decoder, Encoder, EncoderDecoder, Experts, FeedForward, Gate, HeadNorms, Inner,
    Linear, Norm, NormFormula, RotaryPositions, Stack,
};
use plimsoll_graph::ops::{RopeScaling, WeightLayout, inverse_frequencies};

/// A linear layer of the file.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Layer {
    /// Its path in the file, without `.weight`.
    pub(crate) name: String,
    /// Its path in the model's files; of a layer of all experts with `*` for the expert.
    pub(crate) module: String,
    /// Number of experts that have such a layer, each with a tensor in the model's files; `None` if it is not of experts.
    pub(crate) experts: Option<usize>,
    /// The order of its outputs.
    pub(crate) order: Order,
    /// The factor that its weight has there.
    pub(crate) scale: f32,
}

impl Layer {
    /// A layer whose weight is as in the model's files.
    fn new(name: &str, module: String) -> Self {
        Self { name: name.to_owned(), module, experts: None, order: Order::Rows, scale: 1.0 }
    }
}

/// The tensors of a model and its linear layers.
#[derive(Debug, Default)]
pub(crate) struct Tensors {
    pub(crate) all: Vec<Tensor>,
    pub(crate) layers: Vec<Layer>,
}

impl Tensors {
    pub(crate) fn of(architecture: &Architecture, model: &Description) -> Self {
        let mut tensors = Self::default();
        match model {
            Description::Decoder(decoder) => tensors.decoder(architecture, decoder),
            Description::EncoderDecoder(model) => tensors.encoder_decoder(model),
            Description::Encoder(encoder) => tensors.encoder(encoder),
        }
        tensors
    }

    fn decoder(&mut self, architecture: &Architecture, model: &Decoder) {
        let width = model.width;
        self.table("token_embd", model.tokens.name, [model.tokens.rows, width]);
        if let Some(positions) = model.positions {
            self.table("position_embd", positions.name, [positions.rows, width]);
        }
        self.factors(architecture, model);
        for (layer, block) in model.blocks.iter().enumerate() {
            self.block(architecture, &format!("blk.{layer}"), &format!("{}.{layer}", model.block_list), block, width);
        }
        self.norm("output_norm", "", &model.last_norm, width);
        if let Some(head) = model.head {
            self.head(head.name, [head.rows, width], 1.0);
        }
    }

    /// Divisors of the rotary frequencies, where llama.cpp takes them from a tensor.
    fn factors(&mut self, architecture: &Architecture, model: &Decoder) {
        let Some(rotary) = model.blocks.iter().find_map(|block| block.attention.rotary.as_ref()) else { return };
        match (&rotary.scaling.scaling, &rotary.scaling.longer) {
            (scaling @ RopeScaling::Llama3 { .. }, _) if architecture.has_rope_factors => {
                self.all.push(Tensor::given("rope_freqs.weight", divisors(rotary, scaling)));
            }
            (RopeScaling::LongRope { factors: short, .. }, Some((_, RopeScaling::LongRope { factors: long, .. }))) => {
                self.all.push(Tensor::given("rope_factors_long.weight", long.clone()));
                self.all.push(Tensor::given("rope_factors_short.weight", short.clone()));
            }
            _ => {}
        }
    }

    fn block(&mut self, architecture: &Architecture, to: &str, from: &str, block: &Block, width: usize) {
        let before_feed_forward = if architecture.is_gpt_oss() { "post_attention_norm" } else { "ffn_norm" };
        for (name, norm) in [
            ("attn_norm", &block.attention_norms.before),
            ("post_attention_norm", &block.attention_norms.after),
            (before_feed_forward, &block.feed_forward_norms.before),
            ("post_ffw_norm", &block.feed_forward_norms.after),
        ] {
            if let Some(norm) = norm {
                self.norm(&format!("{to}.{name}"), from, norm, width);
            }
        }
        self.attention([to, "attn_", "output"], from, &block.attention, architecture.pairs_neighbors);
        self.feed_forward(to, from, &block.feed_forward);
    }

    /// `to`: the block's path in the file, the beginning of the names, and the name of the layer after the heads.
    fn attention(&mut self, to: [&str; 3], from: &str, attention: &Attention, pairs_neighbors: bool) {
        let [block, prefix, output] = to;
        let name = |part: &str| format!("{block}.{prefix}{part}");
        match &attention.inputs {
            AttentionInputs::Packed(layer) => self.linear(&name("qkv"), from, layer, &Order::Rows),
            AttentionInputs::Separate(layers) => {
                for (part, layer) in ["q", "k", "v"].into_iter().zip(layers) {
                    let rotates = pairs_neighbors && part != "v";
                    let order = if rotates { Order::Pairs { head: attention.head_size } } else { Order::Rows };
                    self.linear(&name(part), from, layer, &order);
                }
            }
        }
        self.linear(&name(output), from, &attention.output, &Order::Rows);
        if let Some(norms) = &attention.norms {
            self.head_norms(block, from, norms, norms.channels(attention));
        }
        if let Some(sinks) = attention.sinks {
            let stored = join(from, sinks.name);
            self.all.push(Tensor::whole(format!("{block}.attn_sinks.weight"), stored, &[attention.heads]));
        }
    }

    fn head_norms(&mut self, to: &str, from: &str, norms: &HeadNorms, channels: [usize; 2]) {
        let both = [("attn_q_norm", &norms.queries), ("attn_k_norm", &norms.keys)];
        for ((name, norm), channels) in both.into_iter().zip(channels) {
            self.norm(&format!("{to}.{name}"), from, norm, channels);
        }
    }

    fn feed_forward(&mut self, to: &str, from: &str, part: &FeedForward) {
        if let Some(experts) = &part.experts {
            return self.experts(to, from, part, experts);
        }
        let up = format!("{to}.ffn_up");
        match &part.inner {
            Inner::Gated { layers: Gate::Separate([gate, layer]), .. } => {
                self.linear(&format!("{to}.ffn_gate"), from, gate, &Order::Rows);
                self.linear(&up, from, layer, &Order::Rows);
            }
            inner => self.linear(&up, from, &inner.layers()[0], &Order::Rows),
        }
        self.linear(&format!("{to}.ffn_down"), from, &part.down, &Order::Rows);
    }

    fn experts(&mut self, to: &str, from: &str, part: &FeedForward, experts: &Experts) {
        self.linear(&format!("{to}.ffn_gate_inp"), from, &experts.router, &Order::Rows);
        let (list, name) = (join(from, experts.list), |part: &str| format!("{to}.ffn_{part}_exps"));
        match &part.inner {
            Inner::ClampedSwiglu { layer, .. } => {
                let inner = layer.outputs / 2;
                for (first, part) in ["gate", "up"].into_iter().enumerate() {
                    self.stacked(&name(part), &list, layer, experts.count, [first, 2, inner]);
                }
                self.stacked(&name("down"), &list, &part.down, experts.count, [0, 1, part.down.outputs]);
            }
            inner => {
                let layers = inner.layers().iter().chain([&part.down]);
                for (part, layer) in ["gate", "up", "down"].into_iter().zip(layers) {
                    self.gathered(&name(part), &list, layer, experts.count);
                }
            }
        }
    }

    /// A layer of all experts, each of which has a tensor in the model's files.
    fn gathered(&mut self, name: &str, list: &str, layer: &Linear, count: usize) {
        let piece = |expert| Piece::whole(format!("{list}.{expert}.{}.weight", layer.name), layer.outputs);
        let shape = vec![count, layer.outputs, layer.inputs];
        self.all.push(Tensor { name: format!("{name}.weight"), shape, pieces: (0..count).map(piece).collect() });
        let module = format!("{list}.*.{}", layer.name);
        self.layers.push(Layer { experts: Some(count), ..Layer::new(name, module) });
    }

    /// Outputs of a layer of all experts that is one tensor (E, I, O) in the model's files: `outputs` of them, `step` apart,
    /// from `first` on.
    fn stacked(&mut self, name: &str, list: &str, layer: &Linear, count: usize, [first, step, outputs]: [usize; 3]) {
        let stored = join(list, layer.name);
        let piece = |expert| Piece {
            from: expert * layer.inputs * layer.outputs,
            order: Order::Columns { stride: layer.outputs, first, step },
            ..Piece::whole(&stored, outputs)
        };
        let shape = vec![count, outputs, layer.inputs];
        self.all.push(Tensor { name: format!("{name}.weight"), shape, pieces: (0..count).map(piece).collect() });
        if layer.bias {
            let bias = Tensor::whole(format!("{name}.bias"), format!("{stored}_bias"), &[count, outputs]);
            self.all.push(bias.ordered(&Order::Columns { stride: step, first, step: layer.outputs }));
        }
    }

    fn encoder_decoder(&mut self, model: &EncoderDecoder) {
        let embedding = [model.tokens.rows, model.width];
        self.table("token_embd", model.tokens.name, embedding);
        for (name, stack) in [("enc", &model.encoder), ("dec", &model.decoder)] {
            self.stack(name, stack, model.width);
        }
        // llama.cpp does not scale the head's input, so that the head is.
        let head = model.head.map_or(model.tokens.name, |head| head.name);
        if model.head.is_some() || model.head_scale.is_some() {
            self.head(head, [model.vocab_size, model.width], model.head_scale.unwrap_or(1.0));
        }
    }

    fn stack(&mut self, name: &str, stack: &Stack, width: usize) {
        let table = [stack.bias_table.rows, stack.own.heads];
        self.table(&format!("{name}.blk.0.attn_rel_b"), stack.bias_table.name, table);
        for layer in 0..stack.layers {
            let to = format!("{name}.blk.{layer}");
            let from = |part| stack.part(layer, part);
            self.norm(&format!("{to}.attn_norm"), &from(0), &stack.norm, width);
            self.attention([&to, "attn_", "o"], &from(0), &stack.own, false);
            if let Some(source) = &stack.source {
                self.norm(&format!("{to}.cross_attn_norm"), &from(1), &stack.norm, width);
                self.attention([&to, "cross_attn_", "o"], &from(1), source, false);
            }
            self.norm(&format!("{to}.ffn_norm"), &from(stack.last_part()), &stack.norm, width);
            self.feed_forward(&to, &from(stack.last_part()), &stack.feed_forward);
        }
        self.norm(&format!("{name}.output_norm"), "", &stack.last_norm, width);
    }

    fn encoder(&mut self, model: &Encoder) {
        let width = model.width;
        self.table("token_embd", model.tokens.name, [model.tokens.rows, width]);
        for (name, table) in [("position_embd", model.positions), ("token_types", model.token_types)] {
            if let Some(table) = table {
                self.table(name, table.name, [table.rows, width]);
            }
        }
        self.norm("token_embd_norm", "", &model.embedding_norm, width);
        let norms = match model.norms_follow_sums {
            true => ["attn_output_norm", "layer_output_norm"],
            false => ["attn_norm", "ffn_norm"],
        };
        for (layer, block) in model.blocks.iter().enumerate() {
            let (to, from) = (format!("blk.{layer}"), format!("{}.{layer}", model.block_list));
            for (name, norm) in norms.into_iter().zip([&block.attention_norm, &Some(block.feed_forward_norm)]) {
                if let Some(norm) = norm {
                    self.norm(&format!("{to}.{name}"), &from, norm, width);
                }
            }
            self.attention([&to, "attn_", "output"], &from, &block.attention, false);
            self.feed_forward(&to, &from, &block.feed_forward);
        }
        if let Some(norm) = &model.last_norm {
            self.norm("output_norm", "", norm, width);
        }
    }

    fn table(&mut self, name: &str, stored: &str, shape: [usize; 2]) {
        self.all.push(Tensor::whole(format!("{name}.weight"), format!("{stored}.weight"), &shape));
    }

    /// An output head. If its weight is that of the embedding, `stored`, its adapter has the name of a head.
    fn head(&mut self, stored: &str, shape: [usize; 2], scale: f32) {
        self.all.push(Tensor::whole("output.weight", format!("{stored}.weight"), &shape).scaled(scale));
        self.layers.push(Layer { scale, ..Layer::new("output", "lm_head".to_owned()) });
    }

    /// llama.cpp multiplies by the weight itself, so that weights to which one is added get it here.
    fn norm(&mut self, name: &str, from: &str, norm: &Norm, channels: usize) {
        let stored = join(from, norm.name);
        let mut weight = Tensor::whole(format!("{name}.weight"), format!("{stored}.weight"), &[channels]);
        weight.pieces[0].add = if norm.formula == NormFormula::OffsetRms { 1.0 } else { 0.0 };
        self.all.push(weight);
        if norm.formula == (NormFormula::Layer { bias: true }) {
            self.all.push(Tensor::whole(format!("{name}.bias"), format!("{stored}.bias"), &[channels]));
        }
    }

    fn linear(&mut self, name: &str, from: &str, layer: &Linear, order: &Order) {
        let module = join(from, layer.name);
        let weight =
            Tensor::whole(format!("{name}.weight"), format!("{module}.weight"), &[layer.outputs, layer.inputs]);
        self.all.push(match layer.layout {
            WeightLayout::OutIn => weight.ordered(order),
            WeightLayout::InOut => weight.ordered(&Order::Columns { stride: layer.outputs, first: 0, step: 1 }),
        });
        if layer.bias {
            let bias = Tensor::whole(format!("{name}.bias"), format!("{module}.bias"), &[layer.outputs]);
            self.all.push(match *order {
                Order::Pairs { head } => bias.ordered(&Order::PairsInRow { head }),
                _ => bias,
            });
        }
        self.layers.push(Layer { order: order.clone(), ..Layer::new(name, module) });
    }
}

/// The divisor of each rotary frequency.
fn divisors(rotary: &RotaryPositions, scaling: &RopeScaling) -> Vec<f32> {
    let frequencies = |scaling| inverse_frequencies(rotary.rotated, rotary.base, scaling).0;
    let (plain, scaled) = (frequencies(&RopeScaling::None), frequencies(scaling));
    plain.into_iter().zip(scaled).map(|(plain, scaled)| (plain / scaled) as f32).collect()
}

fn join(path: &str, name: &str) -> String {
    if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") }
}
