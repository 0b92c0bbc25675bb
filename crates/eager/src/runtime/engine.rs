//! The backward pass: the order of the nodes, and the accumulation of gradients.
//! Not here: what a node computes (`ops/`). Source: PyTorch's `torch/csrc/autograd/engine.cpp`, `input_buffer.cpp`,
//! `accumulate_grad.h`.
//!
//! Among the nodes with complete gradients, the one recorded last runs first; leaves run before all nodes.

use super::tensor::{Edge, Gradients, Leaf, Node};
use super::{Rt, Tensor};
use crate::ops;
use crate::usage::Kind;
use rustc_hash::{FxHashMap, FxHashSet};
use std::collections::BinaryHeap;
use std::rc::Rc;

/// A node or a leaf with complete gradients; greater ones run first.
struct Ready {
    sequence: u64,
    target: Edge,
    gradients: Gradients,
}

impl PartialEq for Ready {
    fn eq(&self, other: &Self) -> bool {
        self.sequence == other.sequence
    }
}
impl Eq for Ready {}
impl PartialOrd for Ready {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Ready {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.sequence.cmp(&other.sequence)
    }
}

/// The address of an edge's target, which identifies it.
type Key = *const u8;

fn key(edge: &Edge) -> Key {
    match edge {
        Edge::Node(node, _) => Rc::as_ptr(node).cast(),
        Edge::Leaf(leaf) => Rc::as_ptr(leaf).cast(),
    }
}

/// Runs the backward pass from tensors with their gradients.
pub(crate) fn backward(rt: &Rt, roots: Vec<(Edge, Tensor)>) {
    let mut waiting = dependencies(roots.iter().map(|(edge, _)| edge));
    let mut buffers: FxHashMap<Key, Gradients> = FxHashMap::default();
    let mut ready = BinaryHeap::new();
    let outer = rt.in_backward.replace(true);
    rt.with_grad(false, || {
        for (edge, gradient) in roots {
            deliver(rt, edge, Some(gradient), &mut buffers, &mut waiting, &mut ready, false);
        }
        while let Some(Ready { target, gradients, .. }) = ready.pop() {
            match target {
                Edge::Leaf(leaf) => accumulate(rt, &leaf, gradients),
                Edge::Node(node, _) => {
                    for (edge, gradient) in run(rt, &node, gradients) {
                        deliver(rt, edge, gradient, &mut buffers, &mut waiting, &mut ready, true);
                    }
                }
            }
        }
    });
    rt.in_backward.set(outer);
}

/// The number of edges that lead to each node and leaf.
fn dependencies<'a>(roots: impl Iterator<Item = &'a Edge>) -> FxHashMap<Key, usize> {
    let mut counts = FxHashMap::default();
    let mut seen = FxHashSet::default();
    let mut open = roots.cloned().collect::<Vec<_>>();
    while let Some(edge) = open.pop() {
        let Edge::Node(node, _) = &edge else { continue };
        if !seen.insert(key(&edge)) {
            continue;
        }
        for next in node.next.borrow().iter().flatten() {
            *counts.entry(key(next)).or_insert(0) += 1;
            open.push(next.clone());
        }
    }
    counts
}

/// Adds a gradient to those of its target, which becomes ready with the last one.
fn deliver(
    rt: &Rt,
    edge: Edge,
    gradient: Option<Tensor>,
    buffers: &mut FxHashMap<Key, Gradients>,
    waiting: &mut FxHashMap<Key, usize>,
    ready: &mut BinaryHeap<Ready>,
    counts: bool,
) {
    let key = key(&edge);
    let (outputs, input, sequence) = match &edge {
        Edge::Node(node, input) => (node.outputs, *input, node.sequence),
        Edge::Leaf(_) => (1, 0, u64::MAX),
    };
    let buffer = buffers.entry(key).or_insert_with(|| (0..outputs).map(|_| None).collect());
    if let Some(gradient) = gradient {
        let sum = match buffer[input].take() {
            None => gradient,
            Some(old) => sum(rt, old, gradient),
        };
        buffer[input] = Some(sum);
    }
    let left = match waiting.get_mut(&key) {
        Some(left) if counts => {
            *left -= 1;
            *left
        }
        left => left.map_or(0, |left| *left),
    };
    if left == 0
        && let Some(gradients) = buffers.remove(&key)
    {
        ready.push(Ready { sequence, target: edge, gradients });
    }
}

/// Adds two gradients, in the memory of one that has no other references.
fn sum(rt: &Rt, old: Tensor, new: Tensor) -> Tensor {
    if old.is_unshared() && old.is_dense() && !old.is_fused() {
        return old;
    }
    if new.is_unshared() && new.is_dense() && !new.is_fused() {
        return new;
    }
    Tensor::new(rt, old.shape(), old.dtype().promote(new.dtype()), "sum of gradients")
}

/// Runs a node. Returns the gradients of its inputs with their edges, and frees the tensors that it saved.
fn run(rt: &Rt, node: &Rc<Node>, gradients: Gradients) -> Vec<(Edge, Option<Tensor>)> {
    let next = node.next.take();
    let formula = node.formula.take();
    let held = rt.held.take();
    // A node without any gradient computes nothing, but later nodes wait for it.
    let results = match formula.filter(|_| gradients.iter().any(Option::is_some)) {
        None => next.iter().map(|_| None).collect(),
        Some(formula) => {
            let needs = next.iter().map(Option::is_some).collect::<Vec<_>>();
            rt.trace.borrow_mut().enter_full(node.module.clone());
            let around = rt.fusion.begin(&gradients.iter().flatten().collect::<Vec<_>>());
            let results = formula(rt, &gradients, &needs);
            rt.fusion.end(around);
            rt.trace.borrow_mut().leave();
            results
        }
    };
    assert_eq!(results.len(), next.len(), "{} returns a gradient per input", node.name);
    let pairs = next.into_iter().zip(results).zip(&node.inputs);
    let with_way = pairs.filter_map(|((edge, result), (shape, dtype))| {
        let result = result.map(|result| reduced_to(result, shape, *dtype));
        edge.map(|edge| (edge, result))
    });
    let results = with_way.collect::<Vec<_>>();
    for (edge, _) in &results {
        if let Edge::Leaf(leaf) = edge {
            rt.keep_with_graph(leaf.clone());
        }
    }
    drop(gradients);
    drop(rt.held.replace(held));
    results
}

/// A gradient reduced to the shape of its target, in the target's type.
fn reduced_to(mut gradient: Tensor, shape: &[u64], dtype: super::DType) -> Tensor {
    if gradient.shape() != shape {
        gradient = ops::sum_to(&gradient, shape);
    }
    if gradient.dtype() == dtype { gradient } else { ops::cast_values(&gradient, dtype) }
}

/// Accumulates a leaf's gradient: takes the first one if it has no other reference, and adds others in place.
fn accumulate(rt: &Rt, leaf: &Rc<Leaf>, mut gradients: Gradients) {
    let Some(gradient) = gradients.remove(0) else { return };
    let before = leaf.grad.borrow_mut().take();
    let kept = match before {
        Some(before) => before,
        None if !gradient.is_fused() && gradient.is_only_reference() && leaf.has_layout_of(&gradient) => {
            gradient.detach()
        }
        None => Tensor::new(rt, gradient.shape(), gradient.dtype(), "copy of a gradient"),
    };
    kept.mark(Kind::Gradient);
    drop(gradient);
    *leaf.grad.borrow_mut() = Some(kept);
    let hook = leaf.hook.borrow().clone();
    if let Some(hook) = hook {
        hook(leaf);
    }
}
