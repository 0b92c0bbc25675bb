//! When tensors that rest in another memory leave the device and come back: what was sent is held as late, and what is
//! fetched comes as early, as the program's peak on the device stays what it is.
//!
//! ```text
//!   live  │      ╱╲__╱╲      peak
//!         │    ╱‾       ‾╲
//!         │ ╱‾‾           ‾‾╲
//!         └──────────────────
//!           hold ►     ◄ fetch
//! ```
//!
//! Activations (`activation_offload.rs`) and what optimizers on the host need (`use_room`) move by this one mechanism.

use super::overlap::{computes, fetched_by_a_block, fetches, reorder, sends, sent_by_a_block};
use crate::lifetimes::lifetimes;
use plimsoll_graph::{Graph, MemoryId, Node, Op, Program, Role, Storage, TensorId};
use rustc_hash::FxHashSet;
use std::ops::Range;

/// A tensor on the device, where it may be for longer than nodes need it.
pub(super) struct Stay {
    pub(super) bytes: u64,
    /// The nodes that need it there.
    pub(super) needed: Range<usize>,
    /// If it is fetched: the first node before which it can be.
    pub(super) since: usize,
    /// Bytes that may move at the same time, these included.
    pub(super) window: u64,
    /// Bytes below the peak that it leaves free, so that others can be packed around it.
    pub(super) spared: u64,
}

/// Bytes on the device at each node of a program.
pub(super) struct Room {
    live: Vec<u64>,
    peak: u64,
    /// The part of them that is on its way.
    moving: Vec<u64>,
}

impl Room {
    /// The room of a program, without the bytes that are absent. The scratch of attention and of an output head is not known
    /// yet, and left out.
    pub(super) fn new(graph: &Graph, program: &Program, absent: impl Iterator<Item = Absent>) -> Self {
        let nodes = program.nodes.len();
        let mut changes = vec![0_i64; nodes + 3];
        let mut add = |ticks: Range<usize>, bytes: i64| {
            changes[ticks.start] += bytes;
            changes[ticks.end] -= bytes;
        };
        let buffers = lifetimes(graph, program, |_| 0).buffers.into_iter();
        for buffer in buffers.filter(|buffer| buffer.memory == MemoryId::DEVICE) {
            add(buffer.lower as usize..buffer.upper as usize, buffer.bytes as i64);
        }
        absent.for_each(|Absent { ticks, bytes }| add(ticks, -(bytes as i64)));
        let sums = changes.into_iter().scan(0, |live, change| {
            *live += change;
            Some(*live as u64)
        });
        let live = sums.skip(1).take(nodes).collect::<Vec<_>>();
        Self { peak: live.iter().copied().max().unwrap_or(0), moving: vec![0; nodes], live }
    }

    /// Holds each tensor for as long as there is room and `may_stay` accepts the node, the last one first, and none longer
    /// than the one sent after it. `may_stay` is called with the index of the stay and of the node, once there is room.
    /// Returns the node before which each leaves.
    pub(super) fn hold(&mut self, stays: &[Stay], mut may_stay: impl FnMut(usize, usize) -> bool) -> Vec<usize> {
        let mut ends = vec![0; stays.len()];
        let mut limit = self.live.len();
        for (index, stay) in stays.iter().enumerate().rev() {
            let mut end = stay.needed.end;
            while end < limit && self.has(end, stay) && may_stay(index, end) {
                self.occupy(end, stay.bytes);
                end += 1;
            }
            (ends[index], limit) = (end, end);
        }
        ends
    }

    /// Fetches each tensor as early as there is room and `may_stay` accepts the node, and none earlier than the one before
    /// it. What was held has left by then. Returns the node before which each comes.
    pub(super) fn fetch(&mut self, stays: &[Stay], mut may_stay: impl FnMut(usize, usize) -> bool) -> Vec<usize> {
        self.moving.fill(0);
        let mut begins = Vec::with_capacity(stays.len());
        for (index, stay) in stays.iter().enumerate() {
            let limit = stay.since.max(begins.last().copied().unwrap_or(0));
            let mut begin = stay.needed.start;
            while begin > limit && self.has(begin - 1, stay) && may_stay(index, begin - 1) {
                begin -= 1;
                self.occupy(begin, stay.bytes);
            }
            stay.needed.clone().for_each(|node| self.moving[node] += stay.bytes);
            begins.push(begin);
        }
        begins
    }

    fn has(&self, node: usize, stay: &Stay) -> bool {
        self.live[node] + stay.bytes + stay.spared <= self.peak && self.moving[node] + stay.bytes <= stay.window
    }

    fn occupy(&mut self, node: usize, bytes: u64) {
        self.live[node] += bytes;
        self.moving[node] += bytes;
    }
}

/// Bytes that leave the device for some ticks of lifetimes.
pub(super) struct Absent {
    pub(super) ticks: Range<usize>,
    pub(super) bytes: u64,
}

/// Awaits what a program sends from the device as late as there is room for it, and fetches what is sent to the device as
/// early: through as many blocks as have that many bytes together, and weights while the block before theirs is computed.
pub(super) fn use_room(graph: &mut Graph, index: usize) {
    let program = &graph.programs[index];
    let of_block = sent_by_a_block(graph, &program.nodes);
    let Transfers { awaited, fetched, are_weights } = transfers(graph, &program.nodes, of_block);
    if awaited.is_empty() && fetched.is_empty() {
        return;
    }
    let begun = blocks_begun(graph, &program.nodes);
    let is_near = |stay: &Stay, further: u64, from: usize, to: usize| {
        begun[to] - begun[from] <= stay.bytes / of_block.max(1) + further
    };
    let mut room = Room::new(graph, program, std::iter::empty());
    let ends = room.hold(&awaited, |index, node| is_near(&awaited[index], 0, awaited[index].needed.end - 1, node));
    let begins = room.fetch(&fetched, |index, node| {
        is_near(&fetched[index], u64::from(are_weights[index]), node, fetched[index].needed.start)
    });
    let mut issues = (0..begun.len()).map(|node| Issue { before: node, is_itself: true, node }).collect::<Vec<_>>();
    let moved = awaited.iter().map(|stay| stay.needed.end - 1).zip(ends);
    for (node, before) in moved.chain(fetched.iter().map(|stay| stay.needed.start).zip(begins)) {
        issues[node] = Issue { before, is_itself: false, node };
    }
    issues.sort_unstable();
    reorder(&mut graph.programs[index].nodes, issues.into_iter().map(|issue| issue.node));
}

/// When a node is issued.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Issue {
    /// The node before which it is, and after all others that are before that.
    before: usize,
    /// Whether that is itself, which comes last.
    is_itself: bool,
    node: usize,
}

/// How many blocks the device has begun at each node.
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

/// Stays that end when a transfer from the device is awaited, and those that begin with a transfer to it.
#[derive(Default)]
struct Transfers {
    /// Each is needed up to the node that awaits it.
    awaited: Vec<Stay>,
    /// Each is needed from right after the node that fetches it.
    fetched: Vec<Stay>,
    /// Which of those are weights.
    are_weights: Vec<bool>,
}

fn transfers(graph: &Graph, nodes: &[Node], of_block: u64) -> Transfers {
    // The node after the last that writes each tensor.
    let (mut after, mut on_the_way) = (vec![0; graph.tensors.len()], FxHashSet::default());
    let mut transfers = Transfers::default();
    let weights_of_block = fetched_by_a_block(graph, nodes);
    for (index, node) in nodes.iter().enumerate() {
        let is_transient =
            |id: TensorId| graph[id].storage == Storage::Transient && graph[id].memory == MemoryId::DEVICE;
        let stay = |id: TensorId, needed, since| {
            let bytes = graph[id].ty.bytes().0;
            let (of_block, spared) = match graph[id].role {
                Role::Weight => (of_block.max(weights_of_block), bytes),
                _ => (of_block, 0),
            };
            Stay { bytes, needed, since, window: of_block.max(bytes), spared }
        };
        if let (Op::AwaitTransfer(_), Some(&id)) = (&node.op, node.inputs.first()) {
            if is_transient(id) && on_the_way.contains(&id) {
                transfers.awaited.push(stay(id, index..index + 1, index));
            }
        } else if fetches(graph, node) && is_transient(node.outputs[0]) {
            transfers.fetched.push(stay(node.outputs[0], index..index, after[node.inputs[0].index()]));
            transfers.are_weights.push(graph[node.outputs[0]].role == Role::Weight);
        } else if sends(graph, node) {
            on_the_way.insert(node.inputs[0]);
        }
        node.outputs.iter().for_each(|output| after[output.index()] = index + 1);
    }
    transfers
}

#[cfg(test)]
mod tests {
    use super::*;

    fn room(live: &[u64]) -> Room {
        Room { live: live.to_vec(), peak: live.iter().copied().max().unwrap_or(0), moving: vec![0; live.len()] }
    }

    fn stay(bytes: u64, needed: Range<usize>, window: u64) -> Stay {
        Stay { bytes, needed, since: 1, window, spared: 0 }
    }

    #[test]
    fn what_is_held_leaves_before_the_peak_and_before_what_is_sent_after_it() {
        let live = [2, 1, 1, 3, 1, 1, 3];
        // The second stops before node 6, at which the peak is; the first, before node 3, and never overtakes the second.
        let held = [stay(1, 0..1, 9), stay(2, 4..5, 9)];
        assert_eq!(room(&live).hold(&held, |_, _| true), [3, 6]);
        assert_eq!(room(&live).hold(&[stay(1, 4..5, 9), stay(1, 4..6, 9)], |_, _| true), [6, 6]);
        // The second is refused at node 3, so the first leaves there too.
        let refused = |index, node| index == 0 || node < 3;
        assert_eq!(room(&[9, 0, 0, 0, 0]).hold(&[stay(1, 0..1, 9), stay(1, 1..2, 9)], refused), [3, 3]);
        // More than the peak leaves room for is not held at all, nor what the caller refuses.
        assert_eq!(room(&live).hold(&[stay(3, 0..1, 9)], |_, _| true), [1]);
        assert_eq!(room(&live).hold(&held, |index, _| index == 1), [1, 6]);
    }

    #[test]
    fn what_is_fetched_comes_after_what_is_fetched_before_it_and_after_what_makes_it() {
        let live = [1, 1, 3, 1, 1, 1];
        assert_eq!(room(&live).fetch(&[stay(1, 2..3, 9), stay(2, 5..6, 9)], |_, _| true), [1, 3]);
        assert_eq!(room(&live).fetch(&[stay(1, 5..6, 9), stay(1, 5..6, 9)], |_, _| true), [3, 3]);
        assert_eq!(room(&live).fetch(&[stay(1, 5..6, 9)], |_, node| node > 3), [4]);
    }

    #[test]
    fn no_more_moves_at_once_than_the_window() {
        let live = [0, 0, 0, 0, 9];
        // One is on its way from node 2 on, so that the other, for which there is room, has to leave before.
        assert_eq!(room(&live).hold(&[stay(2, 0..1, 3), stay(2, 1..2, 3)], |_, _| true), [2, 4]);
        assert_eq!(room(&live).hold(&[stay(2, 0..1, 4), stay(2, 1..2, 4)], |_, _| true), [4, 4]);
        // What is needed on the device counts as moving until then.
        assert_eq!(room(&live).fetch(&[stay(2, 1..4, 3), stay(2, 4..5, 3)], |_, _| true), [1, 4]);
    }
}
