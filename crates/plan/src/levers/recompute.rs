//! Activation checkpointing: results of the forward pass that are computed anew in the backward pass rather than kept.
//!
//! ```text
//!   up ──► gelu ──► down                     forward
//!   █████████████████████████████████ up     kept either way: gelu's gradient needs it
//!            ███████                 gelu    dies after its last use in the forward pass,
//!                          ███       gelu'   and is made again for the gradient of `down`
//! ```

use graph::{Graph, Node, Op, Pass, Storage, TensorId};
use serde::{Deserialize, Serialize};
use std::collections::{HashMap, HashSet};

/// What is computed anew in a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Level {
    /// Nothing.
    None,
    /// Results of ops that cost memory traffic and no matrix product, where their operands are kept anyway.
    Cheap,
    /// These, and attention with what it takes in.
    Attention,
    /// Everything but the block's input.
    Block,
}

/// The level of each block: one for the first so many, another for the rest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Recompute {
    /// Blocks, counted from the first, that are at the level `first`.
    pub blocks: usize,
    /// Their level.
    pub first: Level,
    /// The level of all others.
    pub rest: Level,
}

impl Recompute {
    /// The same level everywhere.
    pub const fn all(level: Level) -> Self {
        Self { blocks: 0, first: level, rest: level }
    }

    fn level(self, block: Option<u32>) -> Level {
        match block {
            Some(block) if (block as usize) < self.blocks => self.first,
            Some(_) => self.rest,
            // Outside the blocks there is no block's input to go back to.
            None => self.first.max(self.rest).min(Level::Cheap),
        }
    }
}

/// From nothing to everything in so many blocks, a block at a time. Each makes again what the one before it does, and
/// more.
pub fn recompute_ladder(blocks: usize) -> Vec<Recompute> {
    let mut ladder = vec![Recompute::all(Level::None)];
    for (first, rest) in
        [(Level::Cheap, Level::None), (Level::Attention, Level::Cheap), (Level::Block, Level::Attention)]
    {
        ladder.extend((1..blocks).map(|blocks| Recompute { blocks, first, rest }));
        ladder.push(Recompute::all(first));
    }
    ladder
}

/// Rewrites every program that has a backward pass.
pub fn recompute(graph: &mut Graph, levels: Recompute) {
    for index in 0..graph.programs.len() {
        let nodes = std::mem::take(&mut graph.programs[index].nodes);
        let remade = remade(graph, &nodes, levels);
        graph.programs[index].nodes = rewrite(graph, nodes, &remade);
    }
}

/// Makes copies of what the backward pass needs where it first needs it.
fn rewrite(graph: &mut Graph, nodes: Vec<Node>, remade: &HashMap<TensorId, usize>) -> Vec<Node> {
    let mut copies = HashMap::<TensorId, TensorId>::new();
    let mut rewritten = Vec::with_capacity(nodes.len() + remade.len());
    for node in &nodes {
        let mut node = node.clone();
        if node.pass == Pass::Backward {
            for input in &mut node.inputs {
                if let Some(&maker) = remade.get(input) {
                    make_again(graph, &nodes, remade, maker, &mut copies, &mut rewritten);
                    *input = copies[input];
                }
            }
        }
        rewritten.push(node);
    }
    rewritten
}

/// Appends a copy of node `maker`, after copies of those that its operands come from, unless there is one already.
fn make_again(
    graph: &mut Graph,
    nodes: &[Node],
    remade: &HashMap<TensorId, usize>,
    maker: usize,
    copies: &mut HashMap<TensorId, TensorId>,
    rewritten: &mut Vec<Node>,
) {
    let original = &nodes[maker];
    if copies.contains_key(&original.outputs[0]) {
        return;
    }
    let inputs = original.inputs.iter().map(|input| match remade.get(input) {
        Some(&earlier) => {
            make_again(graph, nodes, remade, earlier, copies, rewritten);
            copies[input]
        }
        None => *input,
    });
    let inputs = inputs.collect();
    let outputs = original.outputs.iter().map(|&id| {
        let tensor = graph[id].clone();
        let copy = graph.tensor(format!("{}/again", tensor.name), tensor.ty, tensor.role, tensor.storage);
        copies.insert(id, copy);
        copy
    });
    let outputs = outputs.collect();
    rewritten.push(Node { inputs, outputs, pass: Pass::Recompute, ..original.clone() });
}

/// The tensors that are made again, each with the index of the forward node that makes it.
fn remade(graph: &Graph, nodes: &[Node], levels: Recompute) -> HashMap<TensorId, usize> {
    let forward = nodes.iter().enumerate().filter(|(_, n)| n.pass == Pass::Forward);
    let mut needed = HashSet::new();
    let mut used_forward = HashSet::new();
    let mut used_in = HashMap::<TensorId, HashSet<Option<u32>>>::new();
    let mut feeds_attention = HashSet::new();
    for node in nodes {
        if node.pass == Pass::Forward {
            used_forward.extend(node.inputs.iter().copied());
            for &input in &node.inputs {
                used_in.entry(input).or_default().insert(node.block);
            }
            if matches!(node.op, Op::Attention(_)) {
                feeds_attention.extend(node.inputs.iter().copied());
            }
        } else {
            needed.extend(node.inputs.iter().copied());
        }
    }
    let allowed = |node: &Node| match levels.level(node.block) {
        Level::None => false,
        Level::Cheap => node.op.is_cheap(),
        Level::Attention => {
            let around = node.outputs.iter().any(|id| feeds_attention.contains(id));
            node.op.is_cheap() || matches!(node.op, Op::Attention(_)) || around
        }
        Level::Block => true,
    };
    // What another block takes in is kept: it is that block's input.
    let leaves =
        |node: &Node, id: &TensorId| used_in.get(id).is_some_and(|users| users.iter().any(|b| *b != node.block));
    let mut makers = HashSet::new();
    for (index, node) in forward.filter(|(_, node)| allowed(node)) {
        let kept = node.outputs.iter().any(|id| leaves(node, id) || graph[*id].storage != Storage::Transient);
        let in_both = node.outputs.iter().any(|id| used_forward.contains(id) && needed.contains(id));
        if !kept && (in_both || levels.level(node.block) > Level::Cheap) {
            makers.insert(index);
        }
    }
    // Where only some results are made again, it must not cost the keeping of operands that nobody else needs.
    loop {
        let made = tensors_of(nodes, &makers);
        let is_there =
            |id: &TensorId| graph[*id].storage != Storage::Transient || made.contains_key(id) || needed.contains(id);
        let wasteful = |&index: &usize| {
            let node: &Node = &nodes[index];
            levels.level(node.block) < Level::Block && !node.inputs.iter().all(is_there)
        };
        let wasted = makers.iter().copied().filter(wasteful).collect::<Vec<_>>();
        if wasted.is_empty() {
            return made;
        }
        makers.retain(|index| !wasted.contains(index));
    }
}

fn tensors_of(nodes: &[Node], makers: &HashSet<usize>) -> HashMap<TensorId, usize> {
    makers.iter().flat_map(|&index| nodes[index].outputs.iter().map(move |&id| (id, index))).collect()
}
