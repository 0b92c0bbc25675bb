//! The backward pass: which node runs when, and where gradients are added up.
//! Not here: what a node computes (`ops/`). Source: PyTorch's `torch/csrc/autograd/engine.cpp`, `input_buffer.cpp`,
//! `accumulate_grad.h`.
//!
//! Of the nodes whose gradients are complete, the one that was recorded last runs first; leaves run before all nodes.

use super::tensor::{Edge, Gradients, Leaf, Node};
use super::{Rt, Tensor};
use crate::ops;
use crate::usage::Kind;
use rustc_hash::{FxHashMap, FxHashSet};
use std::collections::BinaryHeap;
use std::rc::Rc;

/// A node or a leaf whose gradients are complete; greater ones run first.
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

/// Edges are distinguished by their targets.
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

/// How many edges of the graph lead to each node and leaf.
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

/// Adds a gradient to what its target has, which becomes ready with the last of them.
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

/// The sum of two gradients, in the memory of one without other references.
fn sum(rt: &Rt, old: Tensor, new: Tensor) -> Tensor {
    if old.is_unshared() && old.is_dense() && !old.is_fused() {
        return old;
    }
    if new.is_unshared() && new.is_dense() && !new.is_fused() {
        return new;
    }
    Tensor::new(rt, old.shape(), old.dtype().promote(new.dtype()), "sum of gradients")
}

/// Runs a node. Returns gradients with their ways; what it saved is free afterwards.
fn run(rt: &Rt, node: &Rc<Node>, gradients: Gradients) -> Vec<(Edge, Option<Tensor>)> {
    let next = node.next.take();
    let formula = node.formula.take();
    let held = rt.held.take();
    // Without any gradient a node has nothing to do, but those behind it wait for it.
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
    assert_eq!(results.len(), next.len(), "{} has a gradient for each input", node.name);
    let pairs = next.into_iter().zip(results).zip(&node.inputs);
    let with_way = pairs.filter_map(|((edge, result), (shape, dtype))| {
        let result = result.map(|result| brought_to(result, shape, *dtype));
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

/// A gradient summed over what was broadcast, in the type of what it belongs to.
fn brought_to(gradient: Tensor, shape: &[u64], dtype: super::DType) -> Tensor {
    let gradient = if gradient.shape() == shape { gradient } else { ops::sum_to(&gradient, shape) };
    if gradient.dtype() == dtype { gradient } else { ops::cast_values(&gradient, dtype) }
}

/// Keeps a leaf's gradient: the first is taken as it is if there is no other reference, others are added in place.
fn accumulate(rt: &Rt, leaf: &Rc<Leaf>, mut gradients: Gradients) {
    let Some(gradient) = gradients.remove(0) else { return };
    let before = leaf.grad.borrow_mut().take();
    let kept = match before {
        Some(before) => before,
        None if !gradient.is_fused() && gradient.is_only_reference() && leaf.is_laid_out_like(&gradient) => {
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
