//! Room on the device that a program leaves: what moves may be there longer, as long as no more is live at once than has to be.
//!
//! ```text
//!   live  │      ╱╲__╱╲      most
//!         │    ╱‾       ‾╲
//!         │ ╱‾‾           ‾‾╲
//!         └──────────────────
//!           hold ►     ◄ fetch ahead
//! ```

use super::overlap::{computes, fetches, sends, sent_by_a_block};
use crate::lifetimes::lifetimes;
use plimsoll_graph::{Graph, MemoryId, Node, Op, Program, Storage, TensorId};
use rustc_hash::FxHashSet;

/// Bytes that are there at each node of a program.
pub(super) struct Room {
    live: Vec<u64>,
    most: u64,
    /// Of those that move.
    moving: Vec<u64>,
}

impl Room {
    /// Of a program on the device, `less` these bytes from one node's tick to another's. How many rows an output head and attention
    /// work with at a time is not known.
    pub(super) fn new(graph: &Graph, program: &Program, less: impl Iterator<Item = ([usize; 2], u64)>) -> Self {
        let nodes = program.nodes.len();
        let mut changes = vec![0_i64; nodes + 3];
        let mut add = |[from, to]: [usize; 2], bytes: i64| {
            changes[from] += bytes;
            changes[to] -= bytes;
        };
        let on_device = lifetimes(graph, program, |_| 0).buffers.into_iter().filter(|b| b.memory == MemoryId::DEVICE);
        on_device.for_each(|buffer| add([buffer.lower, buffer.upper].map(|time| time as usize), buffer.bytes as i64));
        less.for_each(|(ticks, bytes)| add(ticks, -(bytes as i64)));
        let sums = changes.into_iter().scan(0, |live, change| {
            *live += change;
            Some(*live as u64)
        });
        let live = sums.skip(1).take(nodes).collect::<Vec<_>>();
        Self { most: live.iter().copied().max().unwrap_or(0), moving: vec![0; nodes], live }
    }

    /// Whether so many bytes more may be there at a node, of `window` that may move.
    pub(super) fn has(&self, node: usize, bytes: u64, window: u64) -> bool {
        self.live[node] + bytes <= self.most && self.moving[node] + bytes <= window
    }

    /// Bytes that were not live there.
    pub(super) fn occupy(&mut self, node: usize, bytes: u64) {
        self.live[node] += bytes;
        self.moving[node] += bytes;
    }

    /// From here on nothing counts as moving that was put there so far; it stays live.
    fn start_over(&mut self) {
        self.moving.fill(0);
    }

    /// Bytes that are live there anyway.
    pub(super) fn moves(&mut self, node: usize, bytes: u64) {
        self.moving[node] += bytes;
    }
}

/// Awaits what a program sends from the device as late as there is room for it, and fetches what it is sent as early.
pub(super) fn use_room(graph: &mut Graph, index: usize) {
    let program = &graph.programs[index];
    let stays = stays(graph, &program.nodes);
    if !stays.is_empty() {
        let places = places(graph, program, &stays);
        let nodes = std::mem::take(&mut graph.programs[index].nodes);
        let mut ordered = places.into_iter().zip(nodes).collect::<Vec<_>>();
        ordered.sort_unstable_by_key(|(place, _)| *place);
        graph.programs[index].nodes = ordered.into_iter().map(|(_, node)| node).collect();
    }
}

/// By what to order a program's nodes: the node before which each is, for those that stay where they are itself, and its index.
fn places(graph: &Graph, program: &Program, stays: &[Stay]) -> Vec<(usize, bool, usize)> {
    let nodes = &program.nodes;
    let mut room = Room::new(graph, program, std::iter::empty());
    let of_block = sent_by_a_block(graph, nodes);
    let begun = blocks_begun(graph, nodes);
    let mut places = (0..nodes.len()).map(|index| (index, true, index)).collect::<Vec<_>>();
    let mut next = nodes.len();
    for &Stay { index, id, .. } in stays.iter().rev().filter(|stay| stay.is_sent) {
        let bytes = graph[id].ty.bytes().0;
        let (window, blocks) = (of_block.max(bytes), bytes / of_block.max(1));
        let mut awaited = index + 1;
        while awaited < next && begun[awaited] - begun[index] <= blocks && room.has(awaited, bytes, window) {
            room.occupy(awaited, bytes);
            awaited += 1;
        }
        (places[index], next) = ((awaited, false, index), awaited);
    }
    room.start_over();
    let mut before = 0;
    for &Stay { index, id, from, .. } in stays.iter().filter(|stay| !stay.is_sent) {
        let bytes = graph[id].ty.bytes().0;
        let (window, blocks) = (of_block.max(bytes), bytes / of_block.max(1));
        let mut fetched = index;
        while fetched > before.max(from)
            && begun[index] - begun[fetched - 1] <= blocks
            && room.has(fetched - 1, bytes, window)
        {
            fetched -= 1;
            room.occupy(fetched, bytes);
        }
        (places[index], before) = ((fetched, false, index), fetched);
    }
    places
}

/// To how many blocks the device came before and with each node.
fn blocks_begun(graph: &Graph, nodes: &[Node]) -> Vec<u64> {
    let (mut begun, mut block) = (0, None);
    let of_node = |node: &Node| {
        if computes(graph, node) && block.replace(node.block) != Some(node.block) {
            begun += 1;
        }
        begun
    };
    nodes.iter().map(of_node).collect()
}

/// A tensor that is on the device until it has been awaited, or since it was fetched.
struct Stay {
    /// The node that awaits or fetches it.
    index: usize,
    id: TensorId,
    is_sent: bool,
    /// Behind the node that made what is fetched.
    from: usize,
}

fn stays(graph: &Graph, nodes: &[Node]) -> Vec<Stay> {
    // Behind what made each tensor.
    let (mut behind, mut on_the_way) = (vec![0; graph.tensors.len()], FxHashSet::default());
    let mut stays = Vec::new();
    for (index, node) in nodes.iter().enumerate() {
        let is_transient =
            |id: TensorId| graph[id].storage == Storage::Transient && graph[id].memory == MemoryId::DEVICE;
        if let (Op::AwaitTransfer(_), Some(&id)) = (&node.op, node.inputs.first()) {
            if is_transient(id) && on_the_way.contains(&id) {
                stays.push(Stay { index, id, is_sent: true, from: index });
            }
        } else if fetches(graph, node) && is_transient(node.outputs[0]) {
            let from = behind[node.inputs[0].index()];
            stays.push(Stay { index, id: node.outputs[0], is_sent: false, from });
        } else if sends(graph, node) {
            on_the_way.insert(node.inputs[0]);
        }
        node.outputs.iter().for_each(|output| behind[output.index()] = index + 1);
    }
    stays
}
