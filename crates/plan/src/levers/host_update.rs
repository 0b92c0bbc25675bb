//! The host's part of an update, while the next step begins. The weights of a block are needed when the next forward pass comes
//! to it, so those updates are nodes of the program that begins the next step, in the order in which it needs them:
//!
//! ```text
//!   device    … backward, norm ┃ forward 0 | forward 1 | forward 2 | …
//!   host                       ┃ update 0 | update 1 | update 2 | …
//!   programs         of a step ┃ host_update_and_micro_step of the next
//! ```
//!
//! Nothing is delayed by a step: each forward pass uses the weights that all updates before it have made. Before anything else
//! reads the weights (a checkpoint, an evaluation), `host_update` makes these updates by itself. Until then their gradients and
//! the factor that clips them must stay, also in a step of a single micro-batch; both are on the host.

use super::copies::Copies;
use super::offload::sent;
use plimsoll_graph::{Graph, MemoryId, Node, Pass, Ports, Program, ProgramKind, Role, Storage, TensorId, TensorType};
use rustc_hash::{FxHashMap, FxHashSet};

/// Takes the updates of tensors on the host out of the programs of a step, and adds the programs that make them. Steps that
/// begin with an estimate, which needs all weights, stay as they are, and so do those whose averages are on the device: it has no
/// room for weights on their way there while it computes.
/// `has_first`: whether the programs of a run's first step, and of its last update, are kept.
pub(super) fn host_update(graph: &mut Graph, has_first: bool) {
    if !may_update_later(graph) {
        return;
    }
    let mut moved = Vec::new();
    let mut factor = None;
    for index in 0..graph.programs.len() {
        let nodes = std::mem::take(&mut graph.programs[index].nodes);
        let (mut stay, updates) = split(graph, nodes);
        if let Some(first) = updates.iter().find_map(|node| Some(node.inputs[node.op.update()?.factor])) {
            let of_host = *factor.get_or_insert_with(|| {
                let id = graph.tensor("factor/host", TensorType::f32(&[1]), Role::Staging, Storage::Persistent);
                graph[id].memory = MemoryId::HOST;
                id
            });
            keep_factor(&mut stay, first, of_host);
            let kept = keep_gradients(graph, &mut stay, &updates);
            // All programs have the same updates, each of transients of its own.
            moved = updates;
            for node in &mut moved {
                node.pass = Pass::HostUpdate;
                for input in &mut node.inputs {
                    *input = if *input == first { of_host } else { *kept.get(input).unwrap_or(input) };
                }
            }
        }
        graph.programs[index].nodes = stay;
    }
    if moved.is_empty() {
        return;
    }
    for index in 0..graph.programs.len() {
        if graph.programs[index].name.kind != ProgramKind::MicroStep {
            continue;
        }
        let mut next = index;
        if has_first {
            next = graph.programs.len();
            let copy = Copies::default().program(graph, graph.programs[index].clone());
            graph.programs.push(copy);
        }
        let nodes = std::mem::take(&mut graph.programs[next].nodes);
        graph.programs[next].nodes = ahead_of_their_use(graph, &moved, nodes);
        graph.programs[next].name.kind = ProgramKind::HostUpdateAndMicroStep;
    }
    if has_first {
        let name = ProgramKind::HostUpdate.into();
        graph.programs.push(Program { name, nodes: moved, ports: Ports::default() });
    }
}

/// Whether steps can begin before the host's updates.
pub(crate) fn may_update_later(graph: &Graph) -> bool {
    let mut averages = graph.parameters.iter().filter_map(|parameter| parameter.training.as_ref()?.average);
    !graph.has_reference_point() && averages.all(|average| graph[average].memory != MemoryId::DEVICE)
}

/// The nodes that stay in a program, and the updates of tensors on the host with what follows from them.
fn split(graph: &Graph, nodes: Vec<Node>) -> (Vec<Node>, Vec<Node>) {
    let mut written = FxHashSet::default();
    let mut is_moved = |node: &Node| {
        let updates_on_host = |weight: usize| graph[node.outputs[weight]].memory != MemoryId::DEVICE;
        let is_moved = node.op.update().is_some_and(|update| updates_on_host(update.weight))
            || node.pass == Pass::Update && node.inputs.iter().any(|input| written.contains(input));
        if is_moved {
            written.extend(node.outputs.iter().copied());
        }
        is_moved
    };
    let (moved, stay) = nodes.into_iter().partition(|node| is_moved(node));
    (stay, moved)
}

/// Sends the factor of gradients to the host as soon as it is there.
fn keep_factor(nodes: &mut Vec<Node>, factor: TensorId, of_host: TensorId) {
    let made = nodes.iter().position(|node| node.outputs.contains(&factor)).expect("a program makes what it reads");
    let kept = sent(&nodes[made], factor, of_host);
    nodes.insert(made + 1, kept);
}

/// Makes the gradients of these updates persistent, and one tensor for all programs. Returns what takes the place of which.
fn keep_gradients(graph: &mut Graph, nodes: &mut [Node], updates: &[Node]) -> FxHashMap<TensorId, TensorId> {
    let trained =
        graph.parameters.iter().filter_map(|p| Some([(p.tensor, p), (p.master(), p)]).filter(|_| p.training.is_some()));
    let gradients = trained.flatten().filter_map(|(id, p)| Some((id, p.training.as_ref()?.gradient)));
    let gradients = gradients.collect::<FxHashMap<_, _>>();
    let of_update = |node: &Node| {
        let update = node.op.update()?;
        Some((node.inputs[update.gradient], gradients[&node.outputs[update.weight]]))
    };
    let kept = updates.iter().filter_map(of_update).collect::<FxHashMap<_, _>>();
    for id in nodes.iter_mut().flat_map(|node| node.inputs.iter_mut().chain(&mut node.outputs)) {
        *id = *kept.get(id).unwrap_or(id);
    }
    kept.values().for_each(|gradient| graph[*gradient].storage = Storage::Persistent);
    kept
}

/// Puts each update before the block that precedes the first one that needs its weight: then that can be fetched while the
/// preceding block computes.
fn ahead_of_their_use(graph: &Graph, updates: &[Node], nodes: Vec<Node>) -> Vec<Node> {
    let mut first_use = FxHashMap::default();
    for (index, node) in nodes.iter().enumerate().rev() {
        first_use.extend(node.inputs.iter().map(|input| (*input, index)));
    }
    let weights = graph.parameters.iter().flat_map(|p| [(p.tensor, p.tensor), (p.master(), p.tensor)]);
    let weights = weights.collect::<FxHashMap<_, _>>();
    let blocks = (0..nodes.len()).filter(|&index| index == 0 || nodes[index].block != nodes[index - 1].block);
    let blocks = blocks.collect::<Vec<_>>();
    let updates = updates.chunk_by(|_, next| next.op.update().is_none()).map(|of_weight| {
        let update = of_weight[0].op.update().expect("what follows an update is with it");
        let weight = weights[&of_weight[0].outputs[update.weight]];
        (first_use.get(&weight).copied().unwrap_or(nodes.len()), of_weight)
    });
    let mut updates = updates.collect::<Vec<_>>();
    updates.sort_by_key(|(first_use, _)| *first_use);
    let mut updates = updates.into_iter().peekable();
    let mut ordered = Vec::new();
    for (index, node) in nodes.into_iter().enumerate() {
        if blocks.binary_search(&index).is_ok() {
            // Where the block after the next begins.
            let next = blocks.partition_point(|&begin| begin <= index) + 1;
            let end = blocks.get(next).copied().unwrap_or(usize::MAX);
            while let Some((_, of_weight)) = updates.next_if(|(first_use, _)| *first_use < end) {
                ordered.extend_from_slice(of_weight);
            }
        }
        ordered.push(node);
    }
    ordered.extend(updates.flat_map(|(_, of_weight)| of_weight.iter().cloned()));
    ordered
}
