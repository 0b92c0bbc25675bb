//! What the families share: parameters, and modules that several have.

use crate::estimate::Kind;
use crate::ops;
use crate::runtime::{DType, Place, Rt, Tensor};
use plimsoll_trainers::{Attention, Checkpointing, Loss, Precision, Run};
use std::cell::RefCell;
use std::rc::Rc;

/// A model that can be trained.
pub(crate) trait Model {
    /// A micro-batch: tokens, and labels where those are others.
    fn inputs(&self, rt: &Rt) -> Vec<Tensor>;

    /// A forward pass of a micro-batch: its loss.
    fn loss(&self, rt: &Rt, inputs: &[Tensor]) -> Tensor;

    /// Parameters that are trained, in the order that the optimizer has them.
    fn trained(&self) -> &[Tensor];
}

/// What modules ask of a run.
#[derive(Debug, Clone)]
pub(crate) struct Options {
    pub attention: Attention,
    pub checkpointing: Checkpointing,
    pub loss: Loss,
    pub dropout: bool,
    pub weights: DType,
    pub micro_batch: u64,
    pub length: u64,
}

impl Options {
    pub fn new(run: &Run) -> Self {
        let weights = match run.precision {
            Precision::PureBf16 => DType::BF16,
            Precision::PureFp16 => DType::F16,
            Precision::Fp32 | Precision::AmpBf16 | Precision::AmpFp16 => DType::F32,
        };
        Self {
            attention: run.attention,
            checkpointing: run.checkpointing,
            loss: run.loss,
            dropout: run.dropout,
            weights,
            micro_batch: run.micro_batch,
            length: run.seq_len,
        }
    }

    /// A rate of the model's settings, where dropout is on.
    pub fn rate(&self, rate: f32) -> f32 {
        if self.dropout { rate } else { 0.0 }
    }
}

/// Makes parameters, in the order of the model's modules.
pub(crate) struct Loader {
    rt: Rt,
    dtype: DType,
    trained: RefCell<Vec<Tensor>>,
}

impl Loader {
    pub fn new(rt: &Rt, dtype: DType) -> Self {
        Self { rt: rt.clone(), dtype, trained: RefCell::default() }
    }

    /// A parameter that is trained.
    pub fn parameter(&self, name: &str, shape: &[u64]) -> Tensor {
        let place = if self.rt.has_flat_weights.get() { Place::Host } else { Place::Card };
        let new = || Tensor::place(&self.rt, shape, self.dtype, "parameter", place);
        let parameter = self.rt.module(name, new).into_leaf();
        parameter.mark(Kind::Weight);
        parameter.leaf().into_iter().for_each(|leaf| *leaf.name.borrow_mut() = Rc::from(name));
        self.trained.borrow_mut().push(parameter.clone());
        parameter
    }

    /// The weight of an embedding: (V, C).
    pub fn table(&self, name: &str, shape: &[u64; 2]) -> Tensor {
        let table = self.parameter(name, shape);
        table.leaf().into_iter().for_each(|leaf| leaf.is_table.set(true));
        table
    }

    /// All that were made.
    pub fn trained(self) -> Vec<Tensor> {
        self.trained.into_inner()
    }
}

/// A linear layer, whose weight is (outputs, inputs).
pub(crate) struct Linear {
    pub weight: Tensor,
    pub bias: Option<Tensor>,
}

impl Linear {
    pub fn load(loader: &Loader, name: &str, inputs: u64, outputs: u64, bias: bool) -> Self {
        let weight = loader.parameter(&format!("{name}.weight"), &[outputs, inputs]);
        Self { weight, bias: bias.then(|| loader.parameter(&format!("{name}.bias"), &[outputs])) }
    }

    /// (…, inputs) -> (…, outputs).
    pub fn forward(&self, rt: &Rt, name: &str, x: &Tensor) -> Tensor {
        rt.module(name, || x.linear(&self.weight, self.bias.as_ref()))
    }
}

/// The tangent's approximation of GELU in pointwise ops: `0.5 x (1 + tanh(c (x + 0.044715 x³)))`.
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

/// Integers that the loop made before the step: (B, T).
pub(crate) fn tokens(rt: &Rt, rows: u64, length: u64, op: &'static str) -> Tensor {
    let tokens = Tensor::new(rt, &[rows, length], DType::I64, op);
    tokens.mark(Kind::Input);
    tokens
}

/// Positions (1, T): counted, and moved by what a cache has.
pub(crate) fn positions(rt: &Rt, length: u64) -> Tensor {
    let counted = Tensor::new(rt, &[length], DType::I64, "arange");
    counted.shift().view(&[1, length])
}

/// Logits (B, T, V) and labels (B, T) to a mean loss: transformers' causal one, in single precision.
pub(crate) fn causal_loss(logits: &Tensor, labels: &Tensor) -> Tensor {
    let upcast = logits.to(DType::F32);
    let [_padded, shifted] = ops::pad_labels(labels);
    let vocabulary = upcast.size(-1);
    let flat = upcast.view(&[upcast.elements() / vocabulary, vocabulary]);
    drop(upcast);
    ops::cross_entropy(&flat, &shifted)
}

/// Hidden states (B, T, C), the head's weight (V, C) and labels (B, T) to a mean loss, as the run asks for.
pub(crate) fn headed_loss(rt: &Rt, how: Loss, hidden: &Tensor, weight: &Tensor, labels: &Tensor) -> Tensor {
    match how {
        Loss::Plain => {
            let logits = rt.module("lm_head", || hidden.linear(weight, None));
            logits.mark(Kind::Logits);
            rt.module("loss", || causal_loss(&logits, labels))
        }
        Loss::Liger => rt.module("loss", || ops::liger::fused_linear_cross_entropy(hidden, weight, labels)),
        Loss::CutCrossEntropy => rt.module("loss", || ops::cut_cross_entropy(hidden, weight, labels)),
    }
}

/// The mask of eager attention: (B, 1, T, T) in the hidden states' type.
pub(crate) fn causal_mask(embedded: &Tensor) -> Tensor {
    let (rt, batch, length) = (embedded.rt(), embedded.size(0), embedded.size(1));
    let counted = |count| Tensor::new(rt, &[count], DType::I64, "arange");
    let batches = counted(batch);
    let places = [(); 2].map(|()| counted(length).shift());
    let allowed = Tensor::new(rt, &[1, 1, length, length], DType::Bool, "le");
    drop((batches, places));
    allowed.mark(Kind::Input);
    let mask = Tensor::new(rt, &[batch, 1, length, length], embedded.dtype(), "where");
    mask.mark(Kind::Input);
    mask
}
