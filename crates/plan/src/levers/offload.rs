//! Optimizer offload: gradients, master weights and moments of some parameters live in the host's memory and are
//! updated there; the device keeps the weights that it computes with.
//!
//! ```text
//!   device   weight ─────► backward ─► gradient'          weight ◄─────────────┐
//!                                        │ transfer                            │ transfer
//!   host                               gradient ─► adamw ─► master ─► (cast) ──┘
//! ```

use graph::ops::Transfer;
use graph::{Graph, Node, Op, Role, Space, Storage, TensorId};

/// Moves the optimizer of the first parameters, so many that they hold at least `fraction` of all elements, to the
/// host. The nodes' operands are then in two memories; `settle` puts the transfers in.
pub fn offload(graph: &mut Graph, fraction: f64) {
    let wanted = fraction * graph.parameter_count() as f64;
    let mut moved = 0.0;
    for index in 0..graph.parameters.len() {
        if moved >= wanted {
            return;
        }
        moved += graph[graph.parameters[index].tensor].ty.elements() as f64;
        move_parameter(graph, index);
    }
}

fn move_parameter(graph: &mut Graph, index: usize) {
    let weight = graph.parameters[index].tensor;
    let Some(mut training) = graph.parameters[index].training.clone() else { return };
    let has_master = training.master.is_some();
    let master = training.master.unwrap_or_else(|| {
        let copy = graph[weight].clone();
        graph.tensor(format!("{}.master", copy.name), copy.ty, Role::Optimizer, Storage::Persistent)
    });
    training.master = Some(master);
    for id in [training.gradient, master].into_iter().chain(training.state.iter().copied()) {
        graph[id].space = Space::Host;
    }
    graph.parameters[index].training = Some(training);
    if has_master {
        return;
    }
    // The optimizer's nodes work on the master now, and the weights follow it.
    for program in &mut graph.programs {
        let mut nodes = Vec::with_capacity(program.nodes.len() + 1);
        for mut node in std::mem::take(&mut program.nodes) {
            let is_update = matches!(node.op, Op::AdamW(_)) && node.outputs[0] == weight;
            if is_update || matches!(node.op, Op::MovingAverage(_)) {
                node.inputs.iter_mut().chain(&mut node.outputs).filter(|id| **id == weight).for_each(|id| *id = master);
            }
            let back = is_update.then(|| sent(&node, master, weight));
            nodes.push(node);
            nodes.extend(back);
        }
        program.nodes = nodes;
    }
}

/// A transfer beside a node.
pub(super) fn sent(beside: &Node, from: TensorId, to: TensorId) -> Node {
    Node { op: Transfer.into(), inputs: vec![from], outputs: vec![to], block: beside.block, pass: beside.pass }
}
