//! Settles where nodes run once tensors rest in several memories, and puts in the transfers that this needs.
//!
//! A node runs in the memory of what it updates: optimizers where their moments rest, the gradient of a table of embeddings, to
//! which few rows are added, where the optimizer is, everything else on the device. An operand in another memory is sent
//! before, a result is sent after. `overlap.rs` then orders the nodes so that transfers run while others compute.

use super::offload::sent;
use super::overlap::{overlap, reorder};
use super::room::use_room;
use plimsoll_graph::ops::Home;
use plimsoll_graph::{Access, Graph, MemoryId, Node, Op, Pass, Role, Storage, TensorId};
use rustc_hash::FxHashMap;
use smallvec::smallvec;

/// Rewrites all programs of a graph that touch tensors on the host.
pub fn settle(graph: &mut Graph) {
    for index in 0..graph.programs.len() {
        let touched = graph.programs[index].nodes.iter().flat_map(|n| n.inputs.iter().chain(&n.outputs));
        if touched.copied().all(|id| graph[id].memory == MemoryId::DEVICE) {
            continue;
        }
        let nodes = std::mem::take(&mut graph.programs[index].nodes);
        let mut settled = Settled {
            graph,
            nodes: Vec::with_capacity(nodes.len()),
            sent: FxHashMap::default(),
            of_block: FxHashMap::default(),
            block: None,
        };
        for node in nodes {
            settled.take(node);
        }
        let nodes = settled.nodes;
        let nodes = reduced_early(graph, nodes);
        let nodes = without_unread_transfers(graph, index, nodes);
        graph.programs[index].nodes = overlap(graph, nodes);
        use_room(graph, index);
    }
}

struct Settled<'g> {
    graph: &'g mut Graph,
    nodes: Vec<Node>,
    /// Single numbers that are in another memory too: sent there, or made there.
    sent: FxHashMap<(TensorId, MemoryId), TensorId>,
    /// Weights that the block's pass has fetched already.
    of_block: FxHashMap<TensorId, TensorId>,
    /// That block, and whether it is passed forward.
    block: Option<(u32, bool)>,
}

impl Settled<'_> {
    fn take(&mut self, mut node: Node) {
        if matches!(node.op, Op::Transfer(_) | Op::AwaitTransfer(_)) {
            self.nodes.push(node);
            return;
        }
        let memory = self.runs_in(&node);
        if node.op.home() == Home::EachOperand && node.inputs.len() > 1 {
            self.reduce_in_place(&mut node);
        }
        for index in 0..node.inputs.len() {
            node.inputs[index] = self.operand(&node, node.inputs[index], memory);
        }
        let mut results = Vec::new();
        for index in 0..node.outputs.len() {
            let output = node.outputs[index];
            // What is written is no longer what was fetched.
            self.of_block.remove(&output);
            if self.graph[output].memory == memory {
                continue;
            }
            let staged = self.staged(output, memory);
            match node.op.access(index) {
                Access::ReadWrite => self.nodes.push(sent(&node, output, staged)),
                Access::Write if self.is_single_number(output) => drop(self.sent.insert((output, memory), staged)),
                Access::Write => {}
            }
            node.outputs[index] = staged;
            results.push(sent(&node, staged, output));
        }
        self.nodes.push(node);
        self.nodes.extend(results);
    }

    fn runs_in(&self, node: &Node) -> MemoryId {
        let memory = |id: TensorId| self.graph[id].memory;
        match node.op.home() {
            Home::Device => MemoryId::DEVICE,
            Home::Result => memory(node.outputs[0]),
            Home::Operand(index) => memory(node.inputs[index]),
            Home::Operands | Home::EachOperand => {
                let is_in = |id: TensorId, other| memory(id) == other || self.sent.contains_key(&(id, other));
                let mut others = self.graph.memories.ids().filter(|&id| id != MemoryId::DEVICE);
                let in_one = others.find(|&other| node.inputs.iter().all(|&id| is_in(id, other)));
                in_one.unwrap_or(MemoryId::DEVICE)
            }
        }
    }

    /// Reduces operands outside the device where they rest, and replaces each by its result.
    fn reduce_in_place(&mut self, node: &mut Node) {
        for index in 0..node.inputs.len() {
            let operand = self.graph[node.inputs[index]].clone();
            if operand.memory == MemoryId::DEVICE {
                continue;
            }
            let types = node.op.infer(&[&operand.ty]).expect("an op of each operand takes one");
            let outputs = types.into_iter().map(|ty| {
                let name = format!("{}.{}", operand.name, node.op.name());
                let part = self.graph.tensor(name, ty, Role::Staging, Storage::Transient);
                self.graph[part].memory = operand.memory;
                part
            });
            let part = Node { inputs: smallvec![node.inputs[index]], outputs: outputs.collect(), ..node.clone() };
            node.inputs[index] = part.outputs[0];
            self.nodes.push(part);
        }
    }

    /// The operand where the node can read it.
    fn operand(&mut self, node: &Node, operand: TensorId, memory: MemoryId) -> TensorId {
        if self.graph[operand].memory == memory {
            return operand;
        }
        if let Some(&there) = self.sent.get(&(operand, memory)) {
            return there;
        }
        if let Some(&there) = self.weights_of_block(node).and_then(|weights| weights.get(&operand)) {
            return there;
        }
        let staged = self.staged(operand, memory);
        self.nodes.push(sent(node, operand, staged));
        if self.graph[operand].role == Role::Weight && memory == MemoryId::DEVICE {
            self.weights_of_block(node).map(|weights| weights.insert(operand, staged));
        }
        // A number may stay for all who ask for it; tensors are sent once more, since room is what this is about.
        if self.is_single_number(operand) {
            self.sent.insert((operand, memory), staged);
        }
        staged
    }

    /// The weights that the pass of the node's block has fetched; `None` outside of blocks, where nodes share no weights.
    fn weights_of_block(&mut self, node: &Node) -> Option<&mut FxHashMap<TensorId, TensorId>> {
        let pass = (node.block?, node.pass == Pass::Forward);
        if self.block.replace(pass) != Some(pass) {
            self.of_block.clear();
        }
        Some(&mut self.of_block)
    }

    /// Whether it is one number that is written once in a program.
    fn is_single_number(&self, id: TensorId) -> bool {
        self.graph[id].storage == Storage::Transient && self.graph[id].ty.elements() == 1
    }

    /// A copy of a tensor in another memory. Activations count as staging there.
    fn staged(&mut self, original: TensorId, memory: MemoryId) -> TensorId {
        let tensor = self.graph[original].clone();
        let role = if tensor.role == Role::Activation { Role::Staging } else { tensor.role };
        let name = format!("{}/{memory}", tensor.name);
        let staged = self.graph.tensor(name, tensor.ty, role, Storage::Transient);
        self.graph[staged].memory = memory;
        staged
    }
}

/// Moves nodes that reduce a single operand to where it was last written, so that the host reduces while the device continues.
fn reduced_early(graph: &Graph, mut nodes: Vec<Node>) -> Vec<Node> {
    let is_reduction = |node: &Node| node.op.home() == Home::EachOperand && node.inputs.len() == 1;
    if !nodes.iter().any(is_reduction) {
        return nodes;
    }
    let mut written = vec![None; graph.tensors.len()];
    let mut order = Vec::with_capacity(nodes.len());
    for (index, node) in nodes.iter().enumerate() {
        let behind = is_reduction(node).then(|| written[node.inputs[0].index()]).flatten();
        order.push((behind.unwrap_or(index), index));
        node.outputs.iter().for_each(|output| written[output.index()] = Some(index));
    }
    order.sort_unstable();
    reorder(&mut nodes, order.into_iter().map(|(_, index)| index));
    nodes
}

/// Drops transfers whose results no node reads.
fn without_unread_transfers(graph: &Graph, program: usize, nodes: Vec<Node>) -> Vec<Node> {
    let mut read = vec![false; graph.tensors.len()];
    for id in nodes.iter().flat_map(|n| &n.inputs).copied().chain(graph.programs[program].ports.fetched()) {
        read[id.index()] = true;
    }
    let is_read = |id: &TensorId| graph[*id].storage != Storage::Transient || read[id.index()];
    nodes.into_iter().filter(|n| !matches!(n.op, Op::Transfer(_)) || n.outputs.iter().any(is_read)).collect()
}
