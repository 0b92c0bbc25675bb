//! DeepSpeed's ZeRO, stages 1 and 2: weights are stored flat in the compute type; each card has a part of them in
//! single precision with its state, and its part of the gradients (stage 2) or all of them (stage 1).
//! Source: DeepSpeed 0.19, `runtime/zero/stage_1_and_2.py`.
//!
//! ```text
//!   gradient ─► bucket ─► flattened copy ─► sum over cards ─► this card's part ─► single precision ─► update
//! ```

use super::{Bound, Division, elements, flat, has_weights, taken_gradient};
use crate::optimizers::Stepper;
use crate::runtime::{DType, Rt, Tensor};
use crate::usage::Kind;
use plimsoll_graph::models::ModelConfig;
use plimsoll_trainers::{Buffers, Elements, Run};
use std::cell::{Cell, RefCell};
use std::rc::Rc;

/// Sizes of DeepSpeed's buffers in elements.
pub(super) struct Sizes {
    pub reduce: u64,
    pub prefetch: u64,
    pub persistent: u64,
    pub reuse: u64,
    pub overlaps: bool,
}

/// The given sizes, or DeepSpeed's defaults if they are unknown. The lower bound uses the value of `auto` in Hugging
/// Face's trainer, the upper bound two buckets.
/// Source: DeepSpeed's `zero/config.py`; `trainer_config_finalize` of transformers' `integrations/deepspeed.py`.
pub(super) fn sizes(model: &ModelConfig, given: Buffers, bound: Bound) -> Sizes {
    let channels = model.width() as u64;
    let square = channels * channels;
    let size = |given: Elements, auto: u64, default: u64| match given {
        Elements::Of(elements) => elements,
        Elements::Auto => auto,
        Elements::Unknown if bound == Bound::Least => auto.min(default),
        Elements::Unknown => default,
    };
    Sizes {
        reduce: size(given.reduce, square, 500_000_000),
        prefetch: size(given.prefetch, square / 10 * 9, 50_000_000),
        persistent: size(given.persistent, 10 * channels, 100_000),
        reuse: size(given.reuse, 1_000_000_000, 1_000_000_000),
        overlaps: given.overlaps.unwrap_or(bound == Bound::Most),
    }
}

struct Zero {
    rt: std::rc::Weak<crate::runtime::Runtime>,
    trained: Vec<Tensor>,
    /// All weights in one tensor; `None` if parameters have their own memory, as adapters do.
    #[expect(dead_code, reason = "it is stored only to hold its memory")]
    weights: Option<Tensor>,
    /// The card's part in single precision; `None` if the host has it.
    master: Option<Tensor>,
    stage: u8,
    bucket_elements: u64,
    /// Whether sums overlap with the backward pass, which needs two buckets.
    overlaps: bool,
    /// Elements of each card's part.
    part: u64,
    buckets: RefCell<Vec<Tensor>>,
    filled: Cell<u64>,
    /// Indices of the parameters whose gradients are in the bucket.
    waiting: RefCell<Vec<usize>>,
    /// The whole gradients of this card's part, including those of earlier micro-batches.
    own: RefCell<Option<Tensor>>,
    sum: RefCell<Option<Tensor>>,
    /// A staging buffer for transfers of gradients to the host, with the size of the largest gradient.
    #[expect(dead_code, reason = "it is stored only to hold its memory")]
    staging: Option<Tensor>,
    is_last: Cell<bool>,
}

pub(super) fn build(
    rt: &Rt,
    model: &ModelConfig,
    run: &Run,
    trained: &[Tensor],
    stage: u8,
    bound: Bound,
) -> Rc<dyn Division> {
    // Each half of a pair of cards starts at a multiple of four bytes.
    let all = elements(trained).next_multiple_of(2 * run.cards);
    let part = all / run.cards;
    let dtype = trained[0].dtype();
    let weights = has_weights(run).then(|| {
        let weights = flat(rt, all, dtype, "flatten_dense_tensors_aligned");
        weights.mark(Kind::Weight);
        weights
    });
    let is_offloaded = run.offload.optimizer;
    let master = (!is_offloaded).then(|| {
        let cloned = flat(rt, part, dtype, "clone");
        let master = if dtype == DType::F32 { cloned } else { flat(rt, part, DType::F32, "_to_copy") };
        master.mark(Kind::Weight);
        // Zeros replace the gradients once.
        drop(flat(rt, part, DType::F32, "zeros"));
        master.into_leaf()
    });
    let largest = trained.iter().map(Tensor::elements).max().unwrap_or(0);
    let staging = is_offloaded.then(|| {
        let staging = flat(rt, largest, dtype, "zeros");
        staging.mark(Kind::Bucket);
        staging
    });
    let sizes = sizes(model, run.buffers, bound);
    let zero = Rc::new(Zero {
        rt: Rc::downgrade(rt),
        trained: trained.to_vec(),
        weights,
        master,
        stage,
        bucket_elements: sizes.reduce,
        overlaps: sizes.overlaps,
        part,
        buckets: RefCell::default(),
        filled: Cell::new(0),
        waiting: RefCell::default(),
        own: RefCell::default(),
        sum: RefCell::default(),
        staging,
        is_last: Cell::new(true),
    });
    for (index, parameter) in trained.iter().enumerate() {
        let zero = Rc::downgrade(&zero);
        let hook = move |_: &_| zero.upgrade().into_iter().for_each(|zero| zero.arrive(index));
        parameter.leaf().into_iter().for_each(|leaf| *leaf.hook.borrow_mut() = Some(Rc::new(hook.clone())));
    }
    zero
}

impl Zero {
    /// Creates the buckets, at the first gradient of a backward pass.
    fn make_buckets(&self, rt: &Rt) {
        let mut buckets = self.buckets.borrow_mut();
        while buckets.len() < if self.overlaps { 2 } else { 1 } {
            let bucket = flat(rt, self.bucket_elements, self.trained[0].dtype(), "ipg_bucket");
            bucket.mark(Kind::Bucket);
            buckets.push(bucket);
        }
    }

    fn arrive(&self, index: usize) {
        let Some(rt) = self.rt.upgrade() else { return };
        self.make_buckets(&rt);
        // Stage 1 sums after the backward pass, unless sums overlap with it.
        if self.stage == 2 || (self.overlaps && self.is_last.get()) {
            self.put(&rt, index);
        }
    }

    /// Puts a gradient into the bucket; if it has no space, sums the bucket first.
    fn put(&self, rt: &Rt, index: usize) {
        let elements = self.trained[index].elements();
        if self.filled.get() + elements > self.bucket_elements {
            self.reduce(rt);
        }
        self.filled.set(self.filled.get() + elements);
        self.waiting.borrow_mut().push(index);
        // A gradient larger than the bucket stays where it is.
        if elements <= self.bucket_elements {
            drop(taken_gradient(&self.trained[index]));
        }
    }

    /// Sums the bucket over all cards, in a flat copy, and keeps this card's part.
    fn reduce(&self, rt: &Rt) {
        let filled = self.filled.replace(0);
        let waiting = self.waiting.take();
        if filled == 0 {
            return;
        }
        let dtype = self.trained[0].dtype();
        let copy = flat(rt, filled, dtype, "_flatten_dense_tensors");
        copy.mark(Kind::Bucket);
        drop(copy);
        let keeps = self.master.is_some() && waiting.iter().any(|index| self.is_own(*index));
        if keeps && self.own.borrow().is_none() {
            let own = (0..self.trained.len()).filter(|index| self.is_own(*index));
            let gradients =
                flat(rt, own.map(|index| self.trained[index].elements()).sum(), dtype, "grads_in_partition");
            gradients.mark(Kind::Gradient);
            *self.own.borrow_mut() = Some(gradients);
        }
        waiting.iter().for_each(|index| drop(taken_gradient(&self.trained[*index])));
    }

    /// Whether a part of a parameter belongs to the first card.
    fn is_own(&self, index: usize) -> bool {
        elements(&self.trained[..index]) < self.part
    }
}

impl Division for Zero {
    fn begin(&self, _: &Rt, is_last: bool) {
        self.is_last.set(is_last);
    }

    fn end(&self, rt: &Rt, is_last: bool) {
        if self.stage == 1 {
            if !is_last {
                // Whole gradients stay until the last micro-batch.
                return;
            }
            (0..self.trained.len()).filter(|index| self.has_gradient(*index)).for_each(|index| self.put(rt, index));
        }
        self.reduce(rt);
        self.buckets.borrow_mut().clear();
        // The sum of all micro-batches is kept, and later ones are added to it.
        let new = self.own.take();
        let mut sum = self.sum.borrow_mut();
        *sum = sum.take().or(new);
    }

    fn update(&self, rt: &Rt, optimizer: &mut dyn Stepper, _clips: bool) {
        let sum = self.sum.take();
        let Some(master) = &self.master else { return };
        // The norm of each gradient is computed in double precision, even without clipping.
        let own = (0..self.trained.len()).filter(|index| self.is_own(*index));
        for index in own {
            drop(flat(rt, 2 * self.trained[index].elements(), DType::F32, "_to_copy"));
        }
        let gradient = flat(rt, self.part, self.trained[0].dtype(), "_flatten_dense_tensors");
        let gradient =
            if gradient.dtype() == DType::F32 { gradient } else { flat(rt, self.part, DType::F32, "_to_copy") };
        gradient.mark(Kind::Gradient);
        drop(sum);
        if let Some(leaf) = master.leaf() {
            *leaf.grad.borrow_mut() = Some(gradient);
        }
        optimizer.step(rt, std::slice::from_ref(master));
        drop(taken_gradient(master));
    }
}

impl Zero {
    fn has_gradient(&self, index: usize) -> bool {
        self.trained[index].leaf().is_some_and(|leaf| leaf.grad.borrow().is_some())
    }
}
