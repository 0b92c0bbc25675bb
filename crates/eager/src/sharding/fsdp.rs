//! Fully sharded data parallel with one unit per transformer block and one for the rest. A card keeps a part of each
//! unit's flat parameter, and has all of it while the unit runs.
//! Source: `torch/distributed/fsdp/_flat_param.py`, `_runtime_utils.py`; accelerate wraps the model's blocks.
//!
//! ```text
//!   forward:   gather block 1 ─► run it ─► gather block 2, free block 1 ─► …
//!   backward:  gather block n ─► run it ─► flatten its gradients, free its weights ─► part of their sum ─► …
//! ```

use super::units::Units;
use super::{Bound, Division, elements, flat, host, taken_gradient, update};
use crate::optimizers::Stepper;
use crate::runtime::{DType, Rt, Tensor};
use crate::usage::Kind;
use plimsoll_trainers::{Precision, Run};
use std::cell::{Cell, RefCell};
use std::rc::Rc;

struct Unit {
    parameters: Vec<Tensor>,
    elements: u64,
    /// The card's part, which the optimizer updates; `None` if it is on the host.
    shard: Option<Tensor>,
    /// The whole parameter, while the unit runs.
    whole: RefCell<Option<Tensor>>,
    /// Flat gradients of micro-batches that are not sent yet.
    gradient: RefCell<Option<Tensor>>,
    /// Number of parameters whose gradients arrived in this backward pass.
    arrived: Cell<usize>,
}

struct Fsdp {
    rt: std::rc::Weak<crate::runtime::Runtime>,
    /// The first unit has the parameters outside blocks.
    units: Vec<Unit>,
    shards: Vec<Tensor>,
    cards: u64,
    /// Type in which the optimizer updates.
    dtype: DType,
    bound: Bound,
    next: Cell<usize>,
    is_last: Cell<bool>,
    /// Tensors that other streams still use.
    lingering: RefCell<Vec<Tensor>>,
}

/// The name up to the block's number, such as `model.layers.3`; `None` outside blocks.
pub(super) fn block_of(name: &str) -> Option<&str> {
    let mut end = 0;
    for part in name.split('.') {
        let is_number = !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
        end += part.len();
        if is_number {
            return Some(&name[..end]);
        }
        end += 1;
    }
    None
}

/// The parameters outside blocks, and those of each block in the model's order.
pub(super) fn by_block(trained: &[Tensor]) -> (Vec<Tensor>, Vec<Vec<Tensor>>) {
    let (mut rest, mut blocks): (Vec<Tensor>, Vec<(String, Vec<Tensor>)>) = (vec![], vec![]);
    for parameter in trained {
        let name = parameter.leaf().map(|leaf| leaf.name.borrow().clone());
        match name.as_deref().and_then(block_of) {
            None => rest.push(parameter.clone()),
            Some(block) => match blocks.last_mut().filter(|(last, _)| last == block) {
                Some((_, parameters)) => parameters.push(parameter.clone()),
                None => blocks.push((block.to_owned(), vec![parameter.clone()])),
            },
        }
    }
    (rest, blocks.into_iter().map(|(_, parameters)| parameters).collect())
}

pub(super) fn build(rt: &Rt, run: &Run, trained: &[Tensor], bound: Bound) -> Rc<dyn Division> {
    let is_mixed = matches!(run.precision, Precision::AmpBf16 | Precision::AmpFp16);
    let dtype = if is_mixed { DType::F32 } else { trained[0].dtype() };
    // FSDP has one setting: it offloads weights, gradients and state together.
    let is_offloaded = run.offload.weights || run.offload.optimizer;
    let (rest, blocks) = by_block(trained);
    let unit = |parameters: Vec<Tensor>| {
        let elements = elements(&parameters);
        let shard = (!is_offloaded).then(|| {
            let shard = flat(rt, elements.div_ceil(run.cards), dtype, "parameter").into_leaf();
            shard.mark(Kind::Weight);
            shard
        });
        let (whole, gradient, arrived) = (RefCell::default(), RefCell::default(), Cell::new(0));
        Unit { parameters, elements, shard, whole, gradient, arrived }
    };
    let units = std::iter::once(rest).chain(blocks).map(unit).collect::<Vec<_>>();
    let fsdp = Rc::new(Fsdp {
        rt: Rc::downgrade(rt),
        shards: units.iter().filter_map(|unit| unit.shard.clone()).collect(),
        units,
        cards: run.cards,
        dtype,
        bound,
        next: Cell::new(1),
        is_last: Cell::new(true),
        lingering: RefCell::default(),
    });
    for (index, unit) in fsdp.units.iter().enumerate() {
        for parameter in &unit.parameters {
            let fsdp = Rc::downgrade(&fsdp);
            let hook = move |_: &_| fsdp.upgrade().into_iter().for_each(|fsdp| fsdp.arrive(index));
            parameter.leaf().into_iter().for_each(|leaf| *leaf.hook.borrow_mut() = Some(Rc::new(hook.clone())));
        }
    }
    *rt.units.borrow_mut() = Some(fsdp.clone());
    fsdp
}

fn bucket(rt: &Rt, elements: u64, dtype: DType, op: &'static str) -> Tensor {
    let bucket = flat(rt, elements, dtype, op);
    bucket.mark(Kind::Bucket);
    bucket
}

impl Fsdp {
    fn padded(&self, unit: &Unit) -> u64 {
        unit.elements.next_multiple_of(self.cards)
    }

    /// Gathers a unit's weights unless they are present.
    fn gather(&self, rt: &Rt, index: usize) {
        let unit = &self.units[index];
        if unit.whole.borrow().is_some() {
            return;
        }
        let dtype = unit.parameters[0].dtype();
        // The part is cast first, or comes from the host.
        let is_own = unit.shard.is_some() && dtype == self.dtype;
        let part = (!is_own).then(|| bucket(rt, self.padded(unit) / self.cards, dtype, "_mp_shard"));
        let whole = bucket(rt, self.padded(unit), dtype, "all_gather");
        drop(part);
        *unit.whole.borrow_mut() = Some(whole);
    }

    /// Drops a tensor. If transfers overlap with computation, another stream still reads it while the next unit is
    /// gathered.
    fn linger(&self, tensor: Option<Tensor>) {
        let last = std::mem::replace(&mut *self.lingering.borrow_mut(), tensor.into_iter().collect());
        drop(last);
        if self.bound == Bound::Least {
            self.lingering.borrow_mut().clear();
        }
    }

    /// Handles a parameter's complete gradient: the last one of a unit flattens all of them, and the card keeps a part
    /// of their sum over the cards.
    fn arrive(&self, index: usize) {
        let (unit, Some(rt)) = (&self.units[index], self.rt.upgrade()) else { return };
        unit.arrived.set(unit.arrived.get() + 1);
        if unit.arrived.get() < unit.parameters.len() {
            return;
        }
        unit.arrived.set(0);
        let dtype = unit.parameters[0].dtype();
        let new = flat(&rt, unit.elements, dtype, "cat");
        new.mark(Kind::Gradient);
        unit.parameters.iter().for_each(|parameter| drop(taken_gradient(parameter)));
        // Gradients of earlier micro-batches are added to in place.
        let before = unit.gradient.take();
        let all = before.unwrap_or(new);
        let weights = unit.whole.take();
        if !self.is_last.get() {
            *unit.gradient.borrow_mut() = Some(all);
            self.linger(weights);
            return;
        }
        let is_padded = self.padded(unit) != unit.elements;
        let padded = is_padded.then(|| bucket(&rt, self.padded(unit), dtype, "constant_pad_nd"));
        let part = flat(&rt, self.padded(unit) / self.cards, dtype, "reduce_scatter");
        let part = if dtype == self.dtype { part } else { flat(&rt, part.elements(), self.dtype, "_to_copy") };
        part.mark(Kind::Gradient);
        drop(padded);
        self.linger(weights);
        if self.bound == Bound::Most {
            self.lingering.borrow_mut().push(all);
        }
        if let Some(leaf) = unit.shard.as_ref().and_then(Tensor::leaf) {
            *leaf.grad.borrow_mut() = Some(part);
        }
    }
}

impl Units for Fsdp {
    fn enter(&self, rt: &Rt) -> usize {
        let index = self.next.get().min(self.units.len() - 1);
        self.next.set(index + 1);
        self.gather(rt, index);
        self.lingering.borrow_mut().clear();
        index
    }

    fn leave(&self, _: &Rt, index: usize) {
        self.linger(self.units[index].whole.take());
    }

    fn before_backward(&self, rt: &Rt, index: usize) {
        self.gather(rt, index);
        // With `BACKWARD_PRE` the next unit's weights are gathered early.
        if self.bound == Bound::Most && index > 1 {
            self.gather(rt, index - 1);
        }
    }
}

impl Division for Fsdp {
    fn begin(&self, rt: &Rt, is_last: bool) {
        self.next.set(1);
        self.is_last.set(is_last);
        // The unit outside blocks stays from the forward pass to the end of the backward pass.
        self.gather(rt, 0);
    }

    fn end(&self, _: &Rt, _is_last: bool) {
        self.lingering.borrow_mut().clear();
        self.units.iter().for_each(|unit| drop(unit.whole.take()));
    }

    fn update(&self, rt: &Rt, optimizer: &mut dyn Stepper, clips: bool) {
        if self.shards.is_empty() {
            host::update(rt, &self.shards, clips);
        } else {
            update(rt, &self.shards, optimizer, clips);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_found_by_their_numbers() {
        assert_eq!(block_of("model.layers.12.self_attn.q_proj.weight"), Some("model.layers.12"));
        assert_eq!(block_of("encoder.block.0.layer.1.layer_norm.weight"), Some("encoder.block.0"));
        assert_eq!(block_of("model.embed_tokens.weight"), None);
    }
}
