//! DeepSpeed's ZeRO, stage 3: of each parameter a card keeps a part, in the compute type and in single precision, with
//! its state and its part of the gradient. Whole parameters are gathered block by block, and kept if they are used
//! again soon. This is an approximation: DeepSpeed gathers module by module.
//! Source: DeepSpeed 0.19, `runtime/zero/stage3.py`, `partition_parameters.py`, `partitioned_param_coordinator.py`.

use super::fsdp::by_block;
use super::units::Units;
use super::zero::{Sizes, sizes};
use super::{Bound, Division, flat, taken_gradient};
use crate::optimizers::Stepper;
use crate::runtime::{DType, Place, Rt, Tensor};
use crate::usage::Kind;
use plimsoll_graph::models::ModelConfig;
use plimsoll_trainers::Run;
use std::cell::{Cell, RefCell};
use std::rc::Rc;

/// Elements per update of the optimizer: the default of `sub_group_size`.
const SUB_GROUP: u64 = 1_000_000_000;

/// Parameters that are gathered together.
struct Unit {
    elements: u64,
    whole: RefCell<Option<Tensor>>,
}

struct Zero3 {
    rt: std::rc::Weak<crate::runtime::Runtime>,
    trained: Vec<Tensor>,
    units: Vec<Unit>,
    /// Parameters before the blocks and after them.
    front: Unit,
    back: Unit,
    /// Permanent tensors: parts of parameters, gradients and the optimizer's weights, the bucket, whole small
    /// parameters.
    _kept: Vec<Tensor>,
    master: Vec<Tensor>,
    dtype: DType,
    bound: Bound,
    cards: u64,
    next: Cell<usize>,
    sizes: Sizes,
    filled: Cell<u64>,
    /// Parameters that were prefetched.
    ahead: RefCell<Option<Tensor>>,
    /// Whether DeepSpeed knows the order of modules, which it records in the first step.
    is_traced: Cell<bool>,
}

fn unit(parameters: &[Tensor], persistent: u64) -> Unit {
    let elements = parameters.iter().map(Tensor::elements).filter(|elements| *elements >= persistent).sum();
    Unit { elements, whole: RefCell::default() }
}

fn kept(rt: &Rt, elements: u64, dtype: DType, op: &'static str, kind: Kind) -> Tensor {
    let tensor = flat(rt, elements, dtype, op);
    tensor.mark(kind);
    tensor
}

pub(super) fn build(rt: &Rt, model: &ModelConfig, run: &Run, trained: &[Tensor], bound: Bound) -> Rc<dyn Division> {
    let dtype = trained[0].dtype();
    let part = trained.iter().map(|parameter| parameter.elements().div_ceil(run.cards)).sum::<u64>();
    let sizes = sizes(model, run.buffers, bound);
    let small = trained.iter().map(Tensor::elements).filter(|elements| *elements < sizes.persistent).sum::<u64>();
    let mut all = vec![kept(rt, small, dtype, "persistent parameters", Kind::Weight)];
    if !run.offload.weights {
        all.push(kept(rt, part, dtype, "partitioned parameters", Kind::Weight));
    }
    all.push(kept(rt, sizes.reduce, dtype, "ipg_bucket", Kind::Bucket));
    let mut master = vec![];
    if !(run.offload.optimizer || run.offload.weights) {
        all.push(kept(rt, part, dtype, "grad_partitions_flat_buffer", Kind::Gradient));
        let mut left = part;
        while left > 0 {
            let elements = left.min(SUB_GROUP);
            master.push(kept(rt, elements, DType::F32, "fp32_partitioned_groups_flat", Kind::Weight).into_leaf());
            left -= elements;
        }
    }
    let (rest, blocks) = by_block(trained);
    let name = |parameter: &Tensor| parameter.leaf().map(|leaf| leaf.name.borrow().clone()).unwrap_or_default();
    let (front, mut back): (Vec<_>, Vec<_>) =
        rest.into_iter().partition(|parameter| parameter.leaf().is_some_and(|leaf| leaf.is_table.get()));
    if !trained.iter().any(|parameter| name(parameter).starts_with("lm_head")) {
        // A tied head is the token embedding, the first parameter.
        back.extend(front.first().cloned());
    }
    let zero = Rc::new(Zero3 {
        rt: Rc::downgrade(rt),
        trained: trained.to_vec(),
        units: blocks.iter().map(|block| unit(block, sizes.persistent)).collect(),
        front: unit(&front, sizes.persistent),
        back: unit(&back, sizes.persistent),
        _kept: all,
        master,
        dtype,
        bound,
        cards: run.cards,
        next: Cell::new(0),
        sizes,
        filled: Cell::new(0),
        ahead: RefCell::default(),
        is_traced: Cell::new(false),
    });
    for (index, parameter) in trained.iter().enumerate() {
        let zero = Rc::downgrade(&zero);
        let hook = move |_: &_| zero.upgrade().into_iter().for_each(|zero| zero.arrive(index));
        parameter.leaf().into_iter().for_each(|leaf| *leaf.hook.borrow_mut() = Some(Rc::new(hook.clone())));
    }
    *rt.units.borrow_mut() = Some(zero.clone());
    zero
}

impl Zero3 {
    fn bucket(&self, rt: &Rt, elements: u64, op: &'static str) -> Tensor {
        kept(rt, elements, self.dtype, op, Kind::Bucket)
    }

    /// Gathers parameters: the parts of all cards arrive in a buffer, from which each parameter is assembled.
    fn gather(&self, rt: &Rt, unit: &Unit) {
        if unit.whole.borrow().is_some() {
            return;
        }
        let ahead = self.ahead.take();
        let buffer = self.bucket(rt, unit.elements.min(self.sizes.prefetch), "all_gather");
        let whole = self.bucket(rt, unit.elements, "cat");
        drop((buffer, ahead));
        *unit.whole.borrow_mut() = Some(whole);
    }

    /// Prefetches some of the next parameters unless they are present.
    fn prefetch(&self, rt: &Rt, unit: Option<&Unit>) {
        let Some(unit) = unit.filter(|unit| self.bound != Bound::Least && unit.whole.borrow().is_none()) else {
            return;
        };
        *self.ahead.borrow_mut() = Some(self.bucket(rt, unit.elements.min(self.sizes.prefetch), "all_gather"));
    }

    /// Whether a block's parameters are kept because the backward pass uses them soon.
    fn is_kept(&self, index: usize) -> bool {
        let later = self.units[index + 1..].iter().map(|unit| unit.elements).sum::<u64>();
        // The distance to the head and back.
        self.is_traced.get() && 2 * (later + self.back.elements) < self.sizes.reuse
    }

    /// Puts a gradient into the bucket. The bucket's sum over the cards is added to this card's part.
    fn arrive(&self, index: usize) {
        let Some(rt) = self.rt.upgrade() else { return };
        let elements = self.trained[index].elements();
        if self.filled.get() + elements > self.sizes.reduce {
            self.reduce(&rt);
        }
        self.filled.set(self.filled.get() + elements);
        if elements > self.sizes.reduce {
            // It is larger than the bucket and sent separately.
            self.reduce(&rt);
        }
        drop(taken_gradient(&self.trained[index]));
    }

    fn reduce(&self, rt: &Rt) {
        let filled = self.filled.replace(0);
        if filled > 0 {
            drop(self.bucket(rt, filled, "reduce_scatter_coalesced"));
        }
    }
}

impl Units for Zero3 {
    fn enter(&self, rt: &Rt) -> usize {
        let index = self.next.get().min(self.units.len() - 1);
        self.next.set(index + 1);
        if 2 * (elements_of(&self.units) + self.back.elements) >= self.sizes.reuse || !self.is_traced.get() {
            drop(self.front.whole.take());
        }
        self.gather(rt, &self.units[index]);
        self.prefetch(rt, self.units.get(index + 1));
        index
    }

    fn leave(&self, rt: &Rt, index: usize) {
        if !self.is_kept(index) {
            drop(self.units[index].whole.take());
        }
        if index + 1 == self.units.len() {
            self.gather(rt, &self.back);
        }
    }

    fn before_backward(&self, rt: &Rt, index: usize) {
        if index + 1 == self.units.len() {
            drop(self.back.whole.take());
        }
        if let Some(last) = self.units.get(index + 1) {
            drop(last.whole.take());
        }
        self.gather(rt, &self.units[index]);
        self.prefetch(rt, index.checked_sub(1).map(|next| &self.units[next]));
    }
}

fn elements_of(units: &[Unit]) -> u64 {
    units.iter().map(|unit| unit.elements).sum()
}

impl Division for Zero3 {
    fn begin(&self, rt: &Rt, _is_last: bool) {
        self.next.set(0);
        self.gather(rt, &self.front);
    }

    fn end(&self, rt: &Rt, _is_last: bool) {
        self.reduce(rt);
        drop(self.ahead.take());
        for unit in self.units.iter().chain([&self.front, &self.back]) {
            drop(unit.whole.take());
        }
        self.is_traced.set(true);
    }

    fn update(&self, rt: &Rt, optimizer: &mut dyn Stepper, _clips: bool) {
        if self.master.is_empty() {
            return;
        }
        let largest = self.trained.iter().map(Tensor::elements).max().unwrap_or(0);
        // The norm of each part is computed in double precision.
        drop(flat(rt, 2 * largest.div_ceil(self.cards), DType::F32, "_to_copy"));
        // The optimizer converts the gradients of one sub-group at a time to single precision; the first sub-group is
        // the largest.
        let first = self.master[0].elements();
        let copy = self.bucket(rt, first, "_flatten_dense_tensors");
        for (index, master) in self.master.iter().enumerate() {
            let place = if index == 0 { Place::Card } else { Place::Host };
            let gradient = Tensor::place(rt, master.shape(), DType::F32, "_to_copy", place);
            gradient.mark(Kind::Gradient);
            if let Some(leaf) = master.leaf() {
                *leaf.grad.borrow_mut() = Some(gradient);
            }
        }
        drop(copy);
        optimizer.step(rt, &self.master);
        self.master.iter().for_each(|master| drop(taken_gradient(master)));
    }
}
