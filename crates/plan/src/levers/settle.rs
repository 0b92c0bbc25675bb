//! Settles where nodes run once tensors lie in two memories, and puts in the transfers that this takes.
//!
//! A node runs where what it updates lies: optimizers beside their moments, everything else on the device. An operand
//! that lies elsewhere is sent over first, a result is sent on after. What was sent stays until the next transfer the
//! same way is on its way too, so that a device which copies while it computes always has one copy in flight: two
//! staging buffers, whatever the model's size.

use super::offload::sent;
use graph::ops::{AwaitTransfer, Home};
use graph::{Access, Graph, Node, Op, Role, Space, Storage, TensorId};
use std::collections::HashMap;

/// Rewrites all programs of a graph. Without tensors on the host it changes nothing.
pub fn settle(graph: &mut Graph) {
    if graph.tensors.iter().all(|t| t.space == Space::Device) {
        return;
    }
    for index in 0..graph.programs.len() {
        let nodes = std::mem::take(&mut graph.programs[index].nodes);
        let mut settled = Settled { graph, nodes: Vec::with_capacity(nodes.len()), sent: HashMap::new() };
        for node in nodes {
            settled.take(node);
        }
        let nodes = settled.nodes;
        graph.programs[index].nodes = stagger(graph, nodes);
    }
}

struct Settled<'g> {
    graph: &'g mut Graph,
    nodes: Vec<Node>,
    /// Single numbers that were sent over already.
    sent: HashMap<(TensorId, Space), TensorId>,
}

impl Settled<'_> {
    fn take(&mut self, mut node: Node) {
        if matches!(node.op, Op::Transfer(_)) {
            self.nodes.push(node);
            return;
        }
        let space = self.runs_in(&node);
        if node.op.home() == Home::EachOperand && space == Space::Device {
            self.reduce_on_the_host(&mut node);
        }
        for index in 0..node.inputs.len() {
            node.inputs[index] = self.operand(&node, node.inputs[index], space);
        }
        let mut results = Vec::new();
        for index in 0..node.outputs.len() {
            let output = node.outputs[index];
            if self.graph[output].space == space {
                continue;
            }
            let staged = self.staged(output, space);
            if node.op.access(index) == Access::ReadWrite {
                self.nodes.push(sent(&node, output, staged));
            }
            node.outputs[index] = staged;
            results.push(sent(&node, staged, output));
        }
        self.nodes.push(node);
        self.nodes.extend(results);
    }

    fn runs_in(&self, node: &Node) -> Space {
        let space = |id: TensorId| self.graph[id].space;
        match node.op.home() {
            Home::Device => Space::Device,
            Home::Result => space(node.outputs[0]),
            Home::Operands | Home::EachOperand => {
                let on_host = node.inputs.iter().all(|&id| space(id) == Space::Host);
                if on_host { Space::Host } else { Space::Device }
            }
        }
    }

    /// Reduces those operands that lie on the host there, and hands the node what comes of each.
    fn reduce_on_the_host(&mut self, node: &mut Node) {
        for index in 0..node.inputs.len() {
            let operand = self.graph[node.inputs[index]].clone();
            if operand.space == Space::Device {
                continue;
            }
            let types = node.op.infer(&[&operand.ty]).expect("an op of each operand takes one");
            let outputs = types.into_iter().map(|ty| {
                let name = format!("{}.{}", operand.name, node.op.name());
                let part = self.graph.tensor(name, ty, Role::Staging, Storage::Transient);
                self.graph[part].space = Space::Host;
                part
            });
            let part = Node { inputs: vec![node.inputs[index]], outputs: outputs.collect(), ..node.clone() };
            node.inputs[index] = part.outputs[0];
            self.nodes.push(part);
        }
    }

    /// The operand where the node can read it.
    fn operand(&mut self, node: &Node, operand: TensorId, space: Space) -> TensorId {
        if self.graph[operand].space == space {
            return operand;
        }
        if let Some(&there) = self.sent.get(&(operand, space)) {
            return there;
        }
        let staged = self.staged(operand, space);
        self.nodes.push(sent(node, operand, staged));
        // A number may stay for all who ask for it; tensors are sent anew, since room is what this is about.
        let is_constant = self.graph[operand].storage == Storage::Transient;
        if self.graph[operand].ty.elements() == 1 && is_constant {
            self.sent.insert((operand, space), staged);
        }
        staged
    }

    /// A place for a tensor's bytes in the other memory.
    fn staged(&mut self, original: TensorId, space: Space) -> TensorId {
        let tensor = self.graph[original].clone();
        let name = match space {
            Space::Device => format!("{}/device", tensor.name),
            Space::Host => format!("{}/host", tensor.name),
        };
        let staged = self.graph.tensor(name, tensor.ty, tensor.role, Storage::Transient);
        self.graph[staged].space = space;
        staged
    }
}

/// Lets what was sent stay until the next transfer the same way was begun.
fn stagger(graph: &Graph, nodes: Vec<Node>) -> Vec<Node> {
    let mut staggered = Vec::with_capacity(2 * nodes.len());
    let mut in_flight = [None::<Node>, None];
    for node in nodes {
        let is_transfer = matches!(node.op, Op::Transfer(_));
        let from = is_transfer.then(|| &graph[node.inputs[0]]);
        let awaited = from.filter(|from| from.storage == Storage::Transient && from.ty.elements() > 1).map(|from| {
            let op = AwaitTransfer.into();
            let await_node = Node { op, outputs: Vec::new(), ..node.clone() };
            in_flight[from.space as usize].replace(await_node)
        });
        staggered.push(node);
        staggered.extend(awaited.flatten());
    }
    staggered.extend(in_flight.into_iter().flatten());
    staggered
}
