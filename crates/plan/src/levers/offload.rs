//! Optimizer offload: gradients, master weights and moments of some parameters live in the host's memory and are
//! updated there; the device keeps the weights that it computes with.
//!
//! ```text
//!   device   weight ─────► backward ─► gradient'          weight ◄─────────────┐
//!                                        │ transfer                            │ transfer
//!   host                               gradient ─► adamw ─► master ─► (cast) ──┘
//! ```

use graph::ops::Transfer;
use graph::{Graph, Node, Op, Role, Space, Storage, TensorId, Training};
use std::collections::HashMap;

/// Moves the optimizer of the first parameters, so many that they hold at least `fraction` of all elements, to the
/// host. The nodes' operands are then in two memories; `settle` puts the transfers in.
pub fn offload(graph: &mut Graph, fraction: f64) {
    let wanted = fraction * graph.parameter_count() as f64;
    let mut moved = 0.0;
    // Weights that had no master behind them, and the one that they get.
    let mut masters = HashMap::new();
    for index in 0..graph.parameters.len() {
        if moved >= wanted {
            break;
        }
        let weight = graph.parameters[index].tensor;
        moved += graph[weight].ty.elements() as f64;
        let Some(mut training) = graph.parameters[index].training.clone() else { continue };
        let master = *training.master.get_or_insert_with(|| {
            let copy = graph[weight].clone();
            let master = graph.tensor(format!("{}.master", copy.name), copy.ty, Role::Optimizer, Storage::Persistent);
            masters.insert(weight, master);
            master
        });
        let gradients = gradients_of(graph, weight, &training);
        for id in gradients.into_iter().chain([master]).chain(training.state.iter().copied()) {
            graph[id].space = Space::Host;
        }
        graph.parameters[index].training = Some(training);
    }
    for program in &mut graph.programs {
        let mut nodes = Vec::with_capacity(program.nodes.len() + masters.len());
        for node in std::mem::take(&mut program.nodes) {
            follow_master(node, &masters, &mut nodes);
        }
        program.nodes = nodes;
    }
}

/// A parameter's gradient, and those that stand for it in programs of their own.
fn gradients_of(graph: &Graph, weight: TensorId, training: &Training) -> Vec<TensorId> {
    let written = [Some(weight), training.master];
    let updates = graph.programs.iter().flat_map(|p| &p.nodes).filter(|n| matches!(n.op, Op::AdamW(_)));
    let of_it = updates.filter(|n| written.contains(&n.outputs.first().copied())).map(|n| n.inputs[0]);
    of_it.chain([training.gradient]).collect()
}

/// The optimizer's nodes work on the master, and the weights follow it.
fn follow_master(mut node: Node, masters: &HashMap<TensorId, TensorId>, nodes: &mut Vec<Node>) {
    let (input, output) = (node.inputs.first().copied(), node.outputs.first().copied());
    match node.op {
        Op::AdamW(_) => {
            let weight = output.expect("an update has results");
            let master = masters.get(&weight).copied();
            node.outputs[0] = master.unwrap_or(weight);
            let back = master.map(|master| sent(&node, master, weight));
            nodes.push(node);
            nodes.extend(back);
        }
        Op::MovingAverage(_) => {
            let weight = input.expect("an average has operands");
            node.inputs[0] = masters.get(&weight).copied().unwrap_or(weight);
            nodes.push(node);
        }
        _ => nodes.push(node),
    }
}

/// A transfer beside a node.
pub(super) fn sent(beside: &Node, from: TensorId, to: TensorId) -> Node {
    Node { op: Transfer.into(), inputs: vec![from], outputs: vec![to], block: beside.block, pass: beside.pass }
}
