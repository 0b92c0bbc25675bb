//! Activation checkpointing: results of the forward pass that are computed anew in the backward pass rather than kept.
//!
//! ```text
//!   up ──► gelu ──► down                     forward
//!   █████████████████████████████████ up     kept either way: gelu's gradient needs it
//!            ███████                 gelu    dies after its last use in the forward pass,
//!                          ███       gelu'   and is made again for the gradient of `down`
//! ```

use graph::{Graph, Node, Pass, Program, Storage, TensorId};
use serde::{Deserialize, Serialize};
use std::collections::{HashMap, HashSet};

/// What is computed anew.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Recompute {
    /// Nothing.
    None,
    /// Results of ops that cost memory traffic and no matrix product, where their operands are kept anyway.
    Cheap,
}

/// Rewrites every program that has a backward pass.
pub fn recompute(graph: &mut Graph, level: Recompute) {
    if level == Recompute::None {
        return;
    }
    for index in 0..graph.programs.len() {
        let program = std::mem::replace(
            &mut graph.programs[index],
            Program { name: String::new(), nodes: Vec::new(), ports: graph::Ports::default() },
        );
        let nodes = rewrite(graph, &program.nodes);
        graph.programs[index] = Program { nodes, ..program };
    }
}

fn rewrite(graph: &mut Graph, nodes: &[Node]) -> Vec<Node> {
    let candidates = candidates(graph, nodes);
    let mut again = HashMap::<TensorId, TensorId>::new();
    let mut rewritten = Vec::with_capacity(nodes.len() + candidates.len());
    for node in nodes {
        let mut node = node.clone();
        if node.pass == Pass::Backward {
            for input in &mut node.inputs {
                let Some(&maker) = candidates.get(input) else { continue };
                if !again.contains_key(input) {
                    let copy = copy_of(graph, &nodes[maker]);
                    again.insert(*input, copy.outputs[0]);
                    rewritten.push(copy);
                }
                *input = again[input];
            }
        }
        rewritten.push(node);
    }
    rewritten
}

/// The first results of cheap forward nodes that are used in both passes and whose operands the backward pass needs
/// anyway, each with the index of the node that makes it.
fn candidates(graph: &Graph, nodes: &[Node]) -> HashMap<TensorId, usize> {
    let used_in = |pass: Pass| {
        nodes.iter().filter(|n| n.pass == pass).flat_map(|n| n.inputs.iter().copied()).collect::<HashSet<_>>()
    };
    let (forward, backward) = (used_in(Pass::Forward), used_in(Pass::Backward));
    let of_cheap = nodes.iter().enumerate().filter(|(_, n)| n.pass == Pass::Forward && n.op.is_cheap());
    let makers = of_cheap.map(|(index, n)| (n.outputs[0], index)).collect::<HashMap<_, _>>();
    let is_kept =
        |id: &TensorId| graph[*id].storage != Storage::Transient || (backward.contains(id) && !makers.contains_key(id));
    let worthwhile = |id: TensorId, maker: usize| {
        forward.contains(&id) && backward.contains(&id) && nodes[maker].inputs.iter().all(is_kept)
    };
    makers.iter().map(|(&id, &maker)| (id, maker)).filter(|&(id, maker)| worthwhile(id, maker)).collect()
}

/// The same op on the same operands, with results of its own.
fn copy_of(graph: &mut Graph, node: &Node) -> Node {
    let outputs = node.outputs.iter().map(|&id| {
        let original = graph[id].clone();
        graph.tensor(format!("{}/again", original.name), original.ty, original.role, original.storage)
    });
    Node { outputs: outputs.collect(), pass: Pass::Recompute, ..node.clone() }
}
