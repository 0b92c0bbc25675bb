//! Lets transfers run while other nodes compute, by the order in which nodes are issued. Queues run in order, so a
//! transfer overlaps with what was issued before it and is not waited for until something needs its result:
//!
//! ```text
//!   fetches ahead      fetch 1 | fetch 2, use 1 | fetch 3, use 2 | use 3
//!   results deferred   make 1, send 1 | make 2, send 2, host 1 | make 3, send 3, host 2 | host 3
//!   held until sent    … send 1 | … send 2, await 1 | … send 3, await 2 | await 3
//! ```
//!
//! Each leaves two staging buffers in use each way, whatever the model's size: one that is filled, one that is read. Where the
//! device has room, what is sent is held longer and what is fetched comes earlier (`room.rs`): as many bytes as a block has and
//! while that block is computed, or the blocks that have as many bytes as a larger tensor. Gradients come in bursts, which the
//! link then carries while the next ones are computed.

use plimsoll_graph::ops::AwaitTransfer;
use plimsoll_graph::{Access, Graph, MemoryId, Node, Op, Pass, Role, Storage, TensorId, TensorIds};
use rustc_hash::{FxHashMap, FxHashSet};

/// Orders the settled nodes of a program.
pub(super) fn overlap(graph: &Graph, nodes: Vec<Node>) -> Vec<Node> {
    held_until_sent(graph, results_deferred(graph, fetches_ahead(graph, nodes)))
}

/// Whether a node moves a tensor, and not a single number, to another memory. Activations are left out:
/// `activation_offload.rs` has placed their transfers.
fn moves(graph: &Graph, node: &Node) -> bool {
    let is_tensor = |id: TensorId| graph[id].ty.elements() > 1 && graph[id].role != Role::Activation;
    matches!(node.op, Op::Transfer(_)) && is_tensor(node.outputs[0])
}

/// Whether a node moves a tensor to the device.
pub(super) fn fetches(graph: &Graph, node: &Node) -> bool {
    moves(graph, node) && graph[node.outputs[0]].memory == MemoryId::DEVICE
}

/// Whether a node moves a tensor from the device to another memory.
pub(super) fn sends(graph: &Graph, node: &Node) -> bool {
    moves(graph, node) && graph[node.outputs[0]].memory != MemoryId::DEVICE
}

fn reads(node: &Node, id: TensorId) -> bool {
    node.inputs.contains(&id)
        || node.outputs.iter().enumerate().any(|(i, o)| *o == id && node.op.access(i) == Access::ReadWrite)
}

/// What is fetched for a node is on its way while the node before it that needed a fetch still computes.
fn fetches_ahead(graph: &Graph, mut nodes: Vec<Node>) -> Vec<Node> {
    // Indices, which are cheaper to move than nodes.
    let mut order = Vec::<usize>::with_capacity(nodes.len());
    let mut last_fetch = 0;
    let mut last_fetched = None;
    for (index, node) in nodes.iter().enumerate() {
        let is_fetch = fetches(graph, node) && graph[node.outputs[0]].storage == Storage::Transient;
        if !is_fetch {
            order.push(index);
            continue;
        }
        let source = node.inputs[0];
        let needed = last_fetched.replace(node.outputs[0]);
        let since = &order[last_fetch..];
        let user = needed.and_then(|id| since.iter().position(|&n| reads(&nodes[n], id))).unwrap_or(since.len());
        let made = since[user..].iter().rposition(|&n| nodes[n].outputs.contains(&source)).map_or(0, |at| at + 1);
        last_fetch += user + made;
        order.insert(last_fetch, index);
    }
    reorder(&mut nodes, order.into_iter());
    nodes
}

/// Puts nodes in this order of their indices, each of which is in it once.
pub(super) fn reorder(nodes: &mut Vec<Node>, order: impl Iterator<Item = usize>) {
    let taken = || Node {
        op: AwaitTransfer.into(),
        inputs: TensorIds::new(),
        outputs: TensorIds::new(),
        block: None,
        pass: Pass::Forward,
    };
    *nodes = order.map(|index| std::mem::replace(&mut nodes[index], taken())).collect();
}

/// What the host computes from what it was sent, and what is sent back of that, is issued when the next tensor is on
/// its way to the host, or where something else needs it.
fn results_deferred(graph: &Graph, nodes: Vec<Node>) -> Vec<Node> {
    let mut ordered = Vec::with_capacity(nodes.len());
    let mut deferred = Deferred::default();
    for node in nodes {
        if deferred.conflicts(&node) && !deferred.takes(graph, &node) {
            ordered.append(&mut deferred.issue());
        }
        if sends(graph, &node) {
            ordered.push(node);
            ordered.append(&mut deferred.issue());
        } else if deferred.takes(graph, &node) {
            deferred.push(node);
        } else {
            ordered.push(node);
        }
    }
    ordered.append(&mut deferred.issue());
    ordered
}

/// Nodes that are to be issued later, and what they touch.
#[derive(Default)]
struct Deferred {
    nodes: Vec<Node>,
    read: FxHashSet<TensorId>,
    written: FxHashSet<TensorId>,
}

impl Deferred {
    /// Nodes of the host, and transfers of what those make.
    fn takes(&self, graph: &Graph, node: &Node) -> bool {
        match node.op {
            Op::Transfer(_) => {
                graph[node.outputs[0]].memory == MemoryId::DEVICE && self.written.contains(&node.inputs[0])
            }
            _ => node.memory(graph) != MemoryId::DEVICE,
        }
    }

    /// Whether the node can't be issued before these.
    fn conflicts(&self, node: &Node) -> bool {
        let touched = node.inputs.iter().chain(&node.outputs);
        touched.clone().any(|id| self.written.contains(id)) || node.outputs.iter().any(|id| self.read.contains(id))
    }

    fn push(&mut self, node: Node) {
        self.read.extend(&node.inputs);
        self.written.extend(&node.outputs);
        self.nodes.push(node);
    }

    fn issue(&mut self) -> Vec<Node> {
        std::mem::take(self).nodes
    }
}

/// What was sent stays until the next tensor is on its way in the same direction; on the device no longer than through the block
/// that comes next, and not at all if it is larger than what a block sends.
fn held_until_sent(graph: &Graph, nodes: Vec<Node>) -> Vec<Node> {
    let of_block = sent_by_a_block(graph, &nodes);
    let mut held = Vec::with_capacity(2 * nodes.len());
    let mut in_flight = graph.memories.map(|_| None::<Held>);
    for node in nodes {
        let from_device = &mut in_flight[MemoryId::DEVICE];
        if from_device.as_mut().is_some_and(|held| held.is_over(graph, &node)) {
            held.extend(from_device.take().map(|held| held.wait));
        }
        let from =
            moves(graph, &node).then(|| &graph[node.inputs[0]]).filter(|from| from.storage == Storage::Transient);
        let Some(from) = from else {
            held.push(node);
            continue;
        };
        let wait = Node { op: AwaitTransfer.into(), outputs: TensorIds::new(), ..node.clone() };
        let before = in_flight[from.memory].replace(Held { wait, next_block: None });
        held.push(node);
        held.extend(before.map(|held| held.wait));
        if from.memory == MemoryId::DEVICE && from.ty.bytes().0 > of_block {
            held.extend(in_flight[MemoryId::DEVICE].take().map(|held| held.wait));
        }
    }
    held.extend(in_flight.into_iter().flatten().map(|held| held.wait));
    held
}

/// Whether the device computes a node.
pub(super) fn computes(graph: &Graph, node: &Node) -> bool {
    !matches!(node.op, Op::Transfer(_) | Op::AwaitTransfer(_)) && node.memory(graph) == MemoryId::DEVICE
}

/// A tensor on its way.
struct Held {
    wait: Node,
    /// The block that the device came to after the one that it was sent in.
    next_block: Option<Option<u32>>,
}

impl Held {
    /// Whether the device comes to a third block.
    fn is_over(&mut self, graph: &Graph, node: &Node) -> bool {
        computes(graph, node)
            && node.block != self.wait.block
            && *self.next_block.get_or_insert(node.block) != node.block
    }
}

/// The most bytes that a block sends from the device.
pub(super) fn sent_by_a_block(graph: &Graph, nodes: &[Node]) -> u64 {
    let is_sent = |node: &Node| sends(graph, node) && graph[node.inputs[0]].storage == Storage::Transient;
    most_of_a_pass(graph, nodes, is_sent)
}

/// The most bytes of weights that a pass through a block fetches.
pub(super) fn fetched_by_a_block(graph: &Graph, nodes: &[Node]) -> u64 {
    let is_weight = |node: &Node| fetches(graph, node) && graph[node.outputs[0]].role == Role::Weight;
    most_of_a_pass(graph, nodes, is_weight)
}

/// The most bytes that these transfers move in a pass through a block.
fn most_of_a_pass(graph: &Graph, nodes: &[Node], is_counted: impl Fn(&Node) -> bool) -> u64 {
    let mut of_passes = FxHashMap::<_, u64>::default();
    for node in nodes.iter().filter(|node| is_counted(node)) {
        if let Some(block) = node.block {
            let pass = (block, node.pass == Pass::Forward);
            *of_passes.entry(pass).or_default() += graph[node.inputs[0]].ty.bytes().0;
        }
    }
    of_passes.into_values().max().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_graph::TensorType;
    use plimsoll_graph::ops::{Add, Transfer};

    /// A graph with tensors of these places, all transient, by their index.
    fn graph(places: &[MemoryId]) -> Graph {
        let mut graph = Graph::default();
        for (index, &memory) in places.iter().enumerate() {
            let id = graph.tensor(index.to_string(), TensorType::f32(&[8]), Role::Gradient, Storage::Transient);
            graph[id].memory = memory;
        }
        graph
    }

    fn node(op: impl Into<Op>, inputs: &[u32], outputs: &[u32]) -> Node {
        let ids = |ids: &[u32]| ids.iter().map(|&id| TensorId(id)).collect();
        Node { op: op.into(), inputs: ids(inputs), outputs: ids(outputs), block: None, pass: Pass::Backward }
    }

    /// Each node as its first result or operand.
    fn order(nodes: &[Node]) -> Vec<String> {
        let name = |n: &Node| match (&n.op, n.outputs.first()) {
            (Op::Transfer(_), Some(to)) => format!("send to {}", to.0),
            (Op::AwaitTransfer(_), _) => format!("await {}", n.inputs[0].0),
            (_, Some(made)) => format!("make {}", made.0),
            (_, None) => "nothing".to_owned(),
        };
        nodes.iter().map(name).collect()
    }

    #[test]
    fn the_next_fetch_is_issued_before_what_uses_the_one_before() {
        // 0 and 1 are on the host; 2 and 3 are fetched, 4 and 5 made of them.
        let graph = graph(&[
            MemoryId::HOST,
            MemoryId::HOST,
            MemoryId::DEVICE,
            MemoryId::DEVICE,
            MemoryId::DEVICE,
            MemoryId::DEVICE,
        ]);
        let nodes = vec![
            node(Transfer, &[0], &[2]),
            node(Add, &[2, 2], &[4]),
            node(Transfer, &[1], &[3]),
            node(Add, &[3, 4], &[5]),
        ];
        assert_eq!(
            order(&overlap(&graph, nodes.clone())),
            ["send to 2", "send to 3", "await 0", "make 4", "make 5", "await 1"]
        );
        // What is made meanwhile can't be fetched before.
        let made = [&nodes[..2], &[node(Add, &[0, 0], &[1])], &nodes[2..]].concat();
        assert_eq!(order(&fetches_ahead(&graph, made)), ["send to 2", "make 4", "make 1", "send to 3", "make 5"]);
    }

    #[test]
    fn what_is_sent_is_held_through_the_next_block_and_what_is_larger_than_a_block_s_is_not() {
        let graph = graph(&[MemoryId::DEVICE, MemoryId::DEVICE, MemoryId::HOST, MemoryId::HOST, MemoryId::DEVICE]);
        let of_block = |block: Option<u32>, node: Node| Node { block, ..node };
        let send = |block| of_block(block, node(Transfer, &[0], &[2]));
        let make = |block| of_block(Some(block), node(Add, &[4, 4], &[4]));
        let held = |nodes: &[Node]| order(&held_until_sent(&graph, nodes.to_vec())).join(", ");
        let through = [send(Some(3)), make(3), make(2), make(1), make(0)];
        assert_eq!(held(&through), "send to 2, make 4, make 4, await 0, make 4, make 4");
        let next = [send(Some(3)), make(2), of_block(Some(2), node(Transfer, &[1], &[3])), make(2)];
        assert_eq!(held(&next), "send to 2, make 4, send to 3, await 0, make 4, await 1");
        assert_eq!(held(&[send(None), make(3), make(2)]), "send to 2, await 0, make 4, make 4");
    }

    #[test]
    fn the_host_computes_while_the_next_tensor_is_sent_to_it() {
        // 0, 1: on the device; 2, 3: sent to the host; 4, 5: made there; 6, 7: sent back.
        let (device, host) = (MemoryId::DEVICE, MemoryId::HOST);
        let graph = graph(&[device, device, host, host, host, host, device, device]);
        let nodes = vec![
            node(Add, &[0, 0], &[0]),
            node(Transfer, &[0], &[2]),
            node(Add, &[2, 2], &[4]),
            node(Transfer, &[4], &[6]),
            node(Add, &[1, 1], &[1]),
            node(Transfer, &[1], &[3]),
            node(Add, &[3, 3], &[5]),
            node(Transfer, &[5], &[7]),
        ];
        assert_eq!(
            order(&results_deferred(&graph, nodes.clone())),
            ["make 0", "send to 2", "make 1", "send to 3", "make 4", "send to 6", "make 5", "send to 7"]
        );
        // A node that reads what was sent back is not overtaken.
        let needed = [&nodes[..4], &[node(Add, &[6, 6], &[1])], &nodes[5..]].concat();
        assert_eq!(order(&results_deferred(&graph, needed))[2..5], ["make 4", "send to 6", "make 1"]);
    }
}
