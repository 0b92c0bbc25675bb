//! Optimizer offload: gradients, master weights and moments of some parameters live in the host's memory and are
//! updated there; the device keeps the weights that it computes with.
//!
//! ```text
//!   device   weight ─────► backward ─► gradient'          weight ◄─────────────┐
//!                                        │ transfer                            │ transfer
//!   host                               gradient ─► adamw ─► master ─► (cast) ──┘
//! ```

use graph::ops::Transfer;
use graph::{Graph, Node, Pass, Place, Role, Storage, TensorId, Training};
use std::collections::HashMap;

/// Moves the optimizer of the first trained parameters, so many that they hold at least `fraction` of all that are
/// trained, in elements, to the host. The nodes' operands are then in two memories; `settle` puts the transfers in.
pub fn offload(graph: &mut Graph, fraction: f64) {
    let wanted = fraction * graph.trained_parameter_count() as f64;
    let mut moved = 0.0;
    // Weights that had no master behind them, and the one that they get.
    let mut masters = HashMap::new();
    for index in 0..graph.parameters.len() {
        if moved >= wanted {
            break;
        }
        let weight = graph.parameters[index].tensor;
        let Some(mut training) = graph.parameters[index].training.clone() else { continue };
        moved += graph[weight].ty.elements() as f64;
        let master = *training.master.get_or_insert_with(|| {
            let copy = graph[weight].clone();
            let master = graph.tensor(format!("{}.master", copy.name), copy.ty, Role::Optimizer, Storage::Persistent);
            masters.insert(weight, master);
            master
        });
        let gradients = gradients_of(graph, weight, &training);
        for id in gradients.into_iter().chain([master]).chain(training.state.iter().copied()) {
            graph[id].place = Place::Host;
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
    let updates = graph.programs.iter().flat_map(|p| &p.nodes).filter_map(|n| Some((n, n.op.update()?)));
    let of_it = updates.filter(|(n, update)| written.contains(&Some(n.outputs[update.weight])));
    let of_it = of_it.map(|(n, update)| n.inputs[update.gradient]);
    of_it.chain([training.gradient]).collect()
}

/// The optimizer's nodes work on the master, and the weights follow it; what else the update reads, it reads there.
fn follow_master(mut node: Node, masters: &HashMap<TensorId, TensorId>, nodes: &mut Vec<Node>) {
    if node.pass != Pass::Update {
        return nodes.push(node);
    }
    for input in &mut node.inputs {
        *input = masters.get(input).copied().unwrap_or(*input);
    }
    let back = node.op.update().and_then(|update| {
        let weight = node.outputs[update.weight];
        let master = *masters.get(&weight)?;
        node.outputs[update.weight] = master;
        Some(sent(&node, master, weight))
    });
    nodes.push(node);
    nodes.extend(back);
}

/// A transfer beside a node.
pub(super) fn sent(beside: &Node, from: TensorId, to: TensorId) -> Node {
    Node { op: Transfer.into(), inputs: vec![from], outputs: vec![to], block: beside.block, pass: beside.pass }
}
