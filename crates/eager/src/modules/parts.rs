//! Code that several families share: options from a run, and functions.
//! Not here: parameters (`loader.rs`), linear layers (`linear.rs`).

use super::linear::Linear;
use super::loader::Loader;
use super::source::Source;
use crate::ops::{self, GroupedProduct};
use crate::runtime::{DType, Rt, Tensor};
use crate::usage::Kind;
use crate::versions;
use plimsoll_graph::models::description;
use plimsoll_graph::ops::{Activation, WeightLayout};
use plimsoll_trainers::{Attention, Checkpointing, Loss, Method, Run};

/// A model that can be trained.
pub(crate) trait Model {
    /// Creates a micro-batch: tokens, and labels if they differ from the tokens.
    fn inputs(&self, rt: &Rt) -> Vec<Tensor>;

    /// Runs the forward pass of a micro-batch.
    fn outputs(&self, rt: &Rt, inputs: &[Tensor]) -> Outputs;

    /// The trained parameters, in the optimizer's order.
    fn trained(&self) -> &[Tensor];
}

/// What the model's `forward` returns.
pub(crate) struct Outputs {
    pub loss: Tensor,
    /// The other tensors, such as logits.
    pub others: Vec<Tensor>,
}

/// The options of a run that modules use.
#[derive(Debug, Clone)]
pub(crate) struct Options {
    pub attention: Attention,
    pub checkpointing: Checkpointing,
    pub dropout: bool,
    pub micro_batch: u64,
    pub length: u64,
    /// Whether attention kernels receive keys and values with fewer heads than queries if they have no mask.
    pub groups_heads: bool,
    /// The function that computes experts.
    pub experts: GroupedProduct,
    /// Whether PyTorch's kernels receive a mask that separates documents.
    pub masks_documents: bool,
    /// Whether the loop passes no mask of tokens.
    pub omits_mask: bool,
    /// Whether embeddings need a gradient although their table does not.
    inputs_learn: bool,
}

impl Options {
    pub fn new(rt: &Rt, run: &Run, source: &Source) -> Self {
        // transformers' hook on embeddings, without which a re-entrant block has no gradient:
        // `_activation_checkpointing_enable` of `modeling_utils.py`. It has no effect if the table is trained.
        let inputs_learn = run.method != Method::Full && run.checkpointing != Checkpointing::Off;
        let experts = match versions::has_grouped_products(&run.libraries, rt.gpu.compute_capability) {
            true => GroupedProduct::Torch,
            false => GroupedProduct::Loop,
        };
        Self {
            experts,
            attention: source.attention(run),
            checkpointing: run.checkpointing,
            dropout: run.dropout,
            micro_batch: run.micro_batch,
            length: run.seq_len,
            groups_heads: versions::groups_heads(&run.libraries) && run.attention != Attention::Efficient,
            masks_documents: versions::masks_documents(run),
            omits_mask: run.custom_loop.omits_mask,
            inputs_learn,
        }
    }

    /// A dropout rate of the model's config; 0 if the run disables dropout.
    pub fn rate(&self, rate: f32) -> f32 {
        if self.dropout { rate } else { 0.0 }
    }

    /// Embeddings as the input of the first block.
    pub fn embedded(&self, embeddings: Tensor) -> Tensor {
        if self.inputs_learn { embeddings.into_leaf() } else { embeddings }
    }
}

/// Loads a linear layer of the module at `path` from its description.
pub(crate) fn linear(loader: &Loader, path: &str, layer: &description::Linear) -> Linear {
    let name = format!("{path}.{}", layer.name);
    let (inputs, outputs) = (layer.inputs as u64, layer.outputs as u64);
    match layer.layout {
        WeightLayout::InOut => Linear::load_conv1d(loader, &name, inputs, outputs),
        WeightLayout::OutIn => Linear::load(loader, &name, inputs, outputs, layer.bias),
    }
}

/// An activation as one of PyTorch's functions.
pub(crate) fn activated(x: &Tensor, activation: Activation) -> Tensor {
    match activation {
        Activation::Silu => x.activation("silu"),
        Activation::Gelu | Activation::GeluTanh => x.activation("gelu"),
        Activation::Relu => x.activation_by_result("relu"),
    }
}

/// GELU's tanh approximation in pointwise ops: `0.5 x (1 + tanh(c (x + 0.044715 x³)))`.
pub(crate) fn new_gelu(x: &Tensor) -> Tensor {
    let half = x.scale();
    let mut inner = x.pow();
    inner = inner.scale();
    inner = x.add(&inner);
    inner = inner.scale();
    inner = inner.activation_by_result("tanh");
    inner = inner.shift();
    half.mul(&inner)
}

/// Integers that the loop created before the step: (B, T).
pub(crate) fn tokens(rt: &Rt, rows: u64, length: u64, op: &'static str) -> Tensor {
    let tokens = Tensor::new(rt, &[rows, length], DType::I64, op);
    tokens.mark(Kind::Input);
    tokens
}

/// Positions (1, T): a range plus the length of the cache.
pub(crate) fn positions(rt: &Rt, length: u64) -> Tensor {
    let counted = Tensor::new(rt, &[length], DType::I64, "arange");
    counted.shift().view(&[1, length])
}

/// Mean loss of logits (B, T, V) and labels (B, T): transformers' causal loss, in single precision.
pub(crate) fn causal_loss(logits: &Tensor, labels: &Tensor) -> Tensor {
    let upcast = logits.to(DType::F32);
    let [_padded, shifted] = ops::pad_labels(labels);
    let vocabulary = upcast.size(-1);
    let flat = upcast.view(&[upcast.elements() / vocabulary, vocabulary]);
    drop(upcast);
    ops::cross_entropy(&flat, &shifted)
}

/// Mean loss of hidden states (B, T, C), the head and labels (B, T), with the run's loss function. A loss without
/// logits uses only the head's weight (V, C). `changed`: the model's own functions of logits.
pub(crate) fn headed_loss(
    rt: &Rt,
    how: Loss,
    hidden: &Tensor,
    head: &Linear,
    labels: &Tensor,
    changed: &dyn Fn(Tensor) -> Tensor,
) -> Outputs {
    let without_logits = |loss| Outputs { loss, others: vec![] };
    match how {
        Loss::Plain => {
            let logits = changed(head.forward(rt, "lm_head", hidden));
            logits.mark(Kind::Logits);
            let loss = rt.module("loss", || causal_loss(&logits, labels));
            Outputs { loss, others: vec![logits] }
        }
        Loss::Liger => {
            let loss = || ops::liger::fused_linear_cross_entropy(hidden, head.weight(), labels);
            without_logits(rt.module("loss", loss))
        }
        Loss::CutCrossEntropy => {
            without_logits(rt.module("loss", || ops::cut_cross_entropy(hidden, head.weight(), labels)))
        }
    }
}

/// The keys that each query attends to: booleans (1, 1, T, T). Source: `sdpa_mask` of transformers' `masking_utils.py`.
pub(crate) fn attended_keys(embedded: &Tensor, windowed: bool) -> Tensor {
    let (rt, batch, length) = (embedded.rt(), embedded.size(0), embedded.size(1));
    let counted = |count| Tensor::new(rt, &[count], DType::I64, "arange");
    let batches = counted(batch);
    let places = [(); 2].map(|()| counted(length).shift());
    let compared = |op| Tensor::new(rt, &[1, 1, length, length], DType::Bool, op);
    let within = windowed.then(|| {
        let first = places[0].shift();
        let after = compared("gt");
        drop(first);
        after.empty_like(DType::Bool, "bitwise_and")
    });
    let earlier = compared("le");
    let seen = match &within {
        Some(within) => within.empty_like(DType::Bool, "bitwise_and"),
        None => earlier.clone(),
    };
    drop((batches, places));
    seen.mark(Kind::Input);
    seen
}

/// The mask of eager attention: (B, 1, T, T) in the hidden states' type.
pub(crate) fn causal_mask(embedded: &Tensor, windowed: bool) -> Tensor {
    let (rt, batch, length) = (embedded.rt(), embedded.size(0), embedded.size(1));
    let _seen = attended_keys(embedded, windowed);
    let mask = Tensor::new(rt, &[batch, 1, length, length], embedded.dtype(), "where");
    mask.mark(Kind::Input);
    mask
}
