//! What the families share: parameters, and modules that several have.

use crate::estimate::Kind;
use crate::ops;
use crate::runtime::{DType, Rt, Tensor};
use plimsoll_trainers::{Attention, Checkpointing, Precision, Run};
use std::cell::RefCell;

/// A model that can be trained.
pub(crate) trait Model {
    /// A forward pass of a micro-batch: its loss.
    fn loss(&self, rt: &Rt) -> Tensor;

    /// Parameters that are trained, in the order that the optimizer has them.
    fn trained(&self) -> &[Tensor];
}

/// What modules ask of a run.
#[derive(Debug, Clone)]
pub(crate) struct Options {
    pub attention: Attention,
    pub checkpointing: Checkpointing,
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
        let parameter = self.rt.module(name, || Tensor::new(&self.rt, shape, self.dtype, "parameter")).into_leaf();
        parameter.mark(Kind::Weight);
        self.trained.borrow_mut().push(parameter.clone());
        parameter
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

/// Integers that the loop made before the step: (B, T).
pub(crate) fn tokens(rt: &Rt, rows: u64, length: u64, op: &'static str) -> Tensor {
    let tokens = Tensor::new(rt, &[rows, length], DType::I64, op);
    tokens.mark(Kind::Input);
    tokens
}

/// Logits (B, T, V) and labels (B, T) to a mean loss: transformers' causal one, in single precision.
pub(crate) fn causal_loss(logits: &Tensor, labels: &Tensor) -> Tensor {
    let upcast = logits.to(DType::F32);
    let shifted = ops::pad_labels(labels);
    let vocabulary = upcast.size(-1);
    let flat = upcast.view(&[upcast.elements() / vocabulary, vocabulary]);
    drop(upcast);
    ops::cross_entropy(&flat, &shifted)
}

/// The mask of eager attention: (B, 1, T, T) in the hidden states' type.
pub(crate) fn causal_mask(embedded: &Tensor) -> Tensor {
    let (batch, length) = (embedded.size(0), embedded.size(1));
    Tensor::new(embedded.rt(), &[batch, 1, length, length], embedded.dtype(), "causal mask")
}
