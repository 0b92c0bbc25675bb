//! Distributed data parallel: each card has all weights, and gradients are summed in buckets.
//! Source: `torch/nn/parallel/distributed.py`, `torch/csrc/distributed/c10d/reducer.cpp`, `comm.cpp`.

use super::{Division, clear, flat, host, update};
use crate::optimizers::Stepper;
use crate::runtime::{DType, Place, Rt, Tensor};
use crate::usage::Kind;
use plimsoll_trainers::Run;
use plimsoll_units::Bytes;
use std::cell::{Cell, RefCell};
use std::rc::Rc;

/// Size of the first bucket of gradients. Source: `kDefaultFirstBucketBytes`.
const FIRST: u64 = 1 << 20;
/// Size of the buffers in which one card sends its weights to the others, once. Source: `broadcast_bucket_size`.
const BROADCAST: u64 = 250 << 20;
/// Number of these buffers in flight. Source: `broadcast_coalesced`.
const IN_FLIGHT: usize = 2;

struct Ddp {
    trained: Vec<Tensor>,
    bucket: u64,
    views: bool,
    /// Buckets with a copy of all gradients.
    buckets: RefCell<Vec<Tensor>>,
    /// Parameters in the order in which their gradients arrived, until the buckets are rebuilt in that order.
    arrived: RefCell<Vec<usize>>,
    is_rebuilt: Cell<bool>,
    /// Whether this micro-batch's gradients are sent.
    is_last: Cell<bool>,
    /// Whether the optimizer is in the host's memory.
    is_offloaded: bool,
}

/// Groups tensors until each group reaches its limit of bytes: the first limit is for the first group, the last for all
/// others. Source: `compute_bucket_assignment_by_size`.
fn groups(sizes: &[u64], limits: &[u64]) -> Vec<u64> {
    let mut limits = limits.iter().copied();
    let (mut limit, mut groups, mut open) = (limits.next().unwrap_or(u64::MAX), vec![], 0);
    for size in sizes {
        open += size;
        if open >= limit {
            groups.push(std::mem::take(&mut open));
            limit = limits.next().unwrap_or(limit);
        }
    }
    groups.extend((open > 0).then_some(open));
    groups
}

fn bytes(tensor: &Tensor) -> u64 {
    tensor.elements() * tensor.dtype().bytes()
}

pub(super) fn build(rt: &Rt, run: &Run, trained: &[Tensor], bucket: Bytes, views: bool) -> Rc<dyn Division> {
    broadcast(rt, trained);
    let ddp = Rc::new(Ddp {
        trained: trained.to_vec(),
        bucket: bucket.0,
        views,
        buckets: RefCell::default(),
        arrived: RefCell::default(),
        is_rebuilt: Cell::new(false),
        is_last: Cell::new(true),
        is_offloaded: run.offload.optimizer,
    });
    ddp.make_buckets(rt, &(0..trained.len()).collect::<Vec<_>>());
    for (index, parameter) in trained.iter().enumerate() {
        let ddp = Rc::downgrade(&ddp);
        let hook = move |_: &_| ddp.upgrade().into_iter().for_each(|ddp| ddp.arrive(index));
        parameter.leaf().into_iter().for_each(|leaf| *leaf.hook.borrow_mut() = Some(Rc::new(hook.clone())));
    }
    ddp
}

/// Sends weights through buffers, so that all cards start with the same ones.
fn broadcast(rt: &Rt, trained: &[Tensor]) {
    let sizes = trained.iter().map(bytes).collect::<Vec<_>>();
    let mut sent = std::collections::VecDeque::new();
    for size in groups(&sizes, &[BROADCAST]) {
        if sent.len() == IN_FLIGHT {
            drop(sent.pop_front());
        }
        let buffer = flat(rt, size, DType::U8, "_broadcast_coalesced");
        buffer.mark(Kind::Bucket);
        sent.push_back(buffer);
    }
}

impl Ddp {
    fn make_buckets(&self, rt: &Rt, order: &[usize]) {
        self.buckets.borrow_mut().clear();
        let sizes = order.iter().map(|index| bytes(&self.trained[*index])).collect::<Vec<_>>();
        let bucket = |size: u64| {
            let bucket = flat(rt, size, DType::U8, "bucket");
            bucket.mark(Kind::Bucket);
            bucket
        };
        let new = groups(&sizes, &[FIRST.min(self.bucket), self.bucket]).into_iter().map(bucket);
        self.buckets.borrow_mut().extend(new);
    }

    fn arrive(&self, index: usize) {
        if !self.is_rebuilt.get() && !self.arrived.borrow().contains(&index) {
            self.arrived.borrow_mut().push(index);
        }
        let leaf = self.trained[index].leaf().filter(|_| self.views && self.is_last.get());
        if let Some(leaf) = leaf {
            // The gradient is copied to its place in the bucket, and becomes a view of it.
            let own = leaf.grad.borrow_mut().take();
            let view = |own: &Tensor| Tensor::place(own.rt(), own.shape(), own.dtype(), "bucket_view", Place::Host);
            let view = own.as_ref().map(view);
            *leaf.grad.borrow_mut() = view;
        }
    }
}

impl Division for Ddp {
    fn begin(&self, rt: &Rt, is_last: bool) {
        self.is_last.set(is_last);
        let order = self.arrived.take();
        if order.len() == self.trained.len() && !self.is_rebuilt.replace(true) {
            self.make_buckets(rt, &order);
        }
    }

    fn update(&self, rt: &Rt, optimizer: &mut dyn Stepper, clips: bool) {
        if self.is_offloaded {
            host::update(rt, &self.trained, clips);
            clear(&self.trained);
        } else {
            update(rt, &self.trained, optimizer, clips);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Results of `_compute_bucket_assignment_by_size` of PyTorch 2.15 for the same sizes.
    #[test]
    fn a_bucket_ends_with_the_tensor_that_reaches_its_limit() {
        assert_eq!(groups(&[400, 400, 400, 4000, 10], &[1000, 2000]), [1200, 4000, 10]);
        assert_eq!(groups(&[5, 5, 5], &[1]), [5, 5, 5]);
        assert!(groups(&[], &[1]).is_empty());
    }
}
