//! Activation offload: what the backward pass will read of some blocks travels to the host's memory in the forward pass and
//! comes back in time.
//!
//! ```text
//!   forward     block 1 | block 2 | block 3 | block 4        backward   4 | 3 | 2 | 1
//!   to host             ‾‾ 1 ‾‾‾‾‾          ‾‾ 3 ‾‾‾‾
//!   to device                                                 ‾‾ 3 ‾‾     ‾‾ 1 ‾‾
//! ```
//!
//! What is sent is held until the next block that is sent is done, and fetched as the backward pass comes to that block: two
//! staging buffers each way, each as large as a block's activations. What is recomputed is not kept, and so not sent. Not
//! here: how many blocks are sent where that is left open (`fastest.rs`).

use super::offload::sent;
use super::{Alternative, Lever, LeverRequest, Levers};
use crate::budget::Budget;
use crate::candidates::Settings;
use crate::request::Request;
use plimsoll_graph::ops::AwaitTransfer;
use plimsoll_graph::{Graph, Node, Pass, Place, Storage, TensorId, TensorIds};
use plimsoll_units::Seconds;
use std::collections::BTreeSet;

/// What is smaller than this part of the largest activation of its block stays: a transfer of its own costs more than it
/// frees.
const SMALL: u64 = 32;

/// The number of blocks that a part of them is, rounded up.
pub(crate) fn blocks_of(part: f64, blocks: usize) -> usize {
    // A product that rounding put above a whole number is meant to be that number.
    const ROUNDING: f64 = 1e-9;
    ((part * blocks as f64 - ROUNDING).ceil().max(0.0) as usize).min(blocks)
}

/// Blocks in the order in which they are sent: however many are, they lie far apart, so that the link is busy all the time,
/// and one more is sent beside the same ones. The last block, which is needed the soonest, comes last.
fn in_order(blocks: usize) -> Vec<usize> {
    let unused_bits = blocks.next_power_of_two().leading_zeros() + 1;
    let mut order = (0..blocks).collect::<Vec<_>>();
    order.sort_by_key(|block| block.reverse_bits() >> unused_bits.min(usize::BITS - 1));
    order
}

/// Sends what the forward pass keeps of so many blocks to the host, in every program that has a backward pass.
pub fn activation_offload(graph: &mut Graph, blocks: usize) {
    if blocks == 0 {
        return;
    }
    for index in 0..graph.programs.len() {
        let nodes = std::mem::take(&mut graph.programs[index].nodes);
        let is_sent = sent_away(graph, &nodes, blocks);
        graph.programs[index].nodes = rewrite(graph, nodes, &is_sent);
    }
}

/// Which tensors are sent: what a block makes in its forward pass and blocks read later. What lies between them, such as an output
/// head, reads the last block's result at once.
fn sent_away(graph: &Graph, nodes: &[Node], blocks: usize) -> Vec<bool> {
    let mut is_read = vec![false; graph.tensors.len()];
    let later = || nodes.iter().filter(|node| node.pass != Pass::Forward);
    for is_in_block in [true, false] {
        for id in later().filter(|node| node.block.is_some() == is_in_block).flat_map(|node| &node.inputs) {
            is_read[id.index()] = is_in_block;
        }
    }
    let all = nodes.iter().filter_map(|node| node.block).max().map_or(0, |last| last as usize + 1);
    let mut is_chosen = vec![false; all];
    in_order(all).into_iter().take(blocks).for_each(|block| is_chosen[block] = true);
    let mut largest = vec![0; all];
    let mut kept = Vec::new();
    for node in nodes.iter().filter(|node| node.pass == Pass::Forward) {
        let Some(block) = node.block.map(|block| block as usize).filter(|&block| is_chosen[block]) else { continue };
        for &id in &node.outputs {
            if is_read[id.index()] && graph[id].storage == Storage::Transient {
                let bytes = graph[id].ty.bytes().0;
                largest[block] = bytes.max(largest[block]);
                kept.push((id, block, bytes));
            }
        }
    }
    let mut is_sent = vec![false; graph.tensors.len()];
    for (id, block, bytes) in kept {
        is_sent[id.index()] = bytes > largest[block] / SMALL;
    }
    is_sent
}

/// A tensor on its way.
struct Sent {
    from: TensorId,
    host: TensorId,
    /// The node that made it, whose block those have that move it.
    maker: Node,
    /// The next block of which something is sent.
    next: Option<u32>,
}

impl Sent {
    /// Whether it is held no longer where a node follows: the next that was sent has had as long.
    fn is_done_before(&self, node: &Node) -> bool {
        match (node.pass, node.block) {
            // A forward pass that begins again is another one's.
            (Pass::Forward, Some(block)) => {
                Some(block) < self.maker.block || self.next.is_some_and(|next| block > next)
            }
            (Pass::Forward, None) => false,
            (_, block) => block.is_some() || self.next.is_some(),
        }
    }

    /// Whether the backward pass, which is at this node, is on its way to it from the next that was sent.
    fn is_next_after(&self, node: &Node) -> bool {
        node.block > self.maker.block && self.next.is_none_or(|next| node.block <= Some(next))
    }

    /// The same bytes from one memory to the other.
    fn moved(&self, from: TensorId, to: TensorId) -> Node {
        sent(&self.maker, from, to)
    }
}

/// Sends each where it is made, and fetches it before it is read after the forward pass.
fn rewrite(graph: &mut Graph, nodes: Vec<Node>, is_sent: &[bool]) -> Vec<Node> {
    let makers = nodes.iter().filter(|node| node.outputs.iter().any(|id| is_sent[id.index()]));
    let sent_blocks = makers.filter_map(|node| node.block).collect::<BTreeSet<_>>();
    let (mut held, mut away) = (Vec::<Sent>::new(), Vec::<Sent>::new());
    let (mut back, mut is_away) = (vec![None; is_sent.len()], vec![false; is_sent.len()]);
    let mut rewritten = Vec::with_capacity(2 * nodes.len());
    for mut node in nodes {
        let done = held.extract_if(.., |sent| sent.is_done_before(&node)).collect::<Vec<_>>();
        // Who waits for the last need not wait for those that were sent before it.
        rewritten.extend(done.iter().rev().map(|sent| {
            let (op, outputs) = (AwaitTransfer.into(), TensorIds::new());
            Node { op, outputs, ..sent.moved(sent.from, sent.host) }
        }));
        done.iter().for_each(|sent| is_away[sent.from.index()] = true);
        away.extend(done);
        if node.pass == Pass::Forward {
            let made = node.outputs.iter().filter(|id| is_sent[id.index()]).map(|&from| Sent {
                from,
                host: beside(graph, from, Place::Host),
                maker: node.clone(),
                next: node.block.and_then(|block| sent_blocks.range(block + 1..).next().copied()),
            });
            let made = made.collect::<Vec<_>>();
            rewritten.push(node);
            rewritten.extend(made.iter().map(|sent| sent.moved(sent.from, sent.host)));
            held.extend(made);
            continue;
        }
        // What was made last is mostly needed first.
        let mut fetched = Vec::new();
        while let Some(sent) = away.pop_if(|sent| sent.is_next_after(&node)) {
            is_away[sent.from.index()] = false;
            fetched.push(sent);
        }
        if node.inputs.iter().any(|id| is_away.get(id.index()) == Some(&true)) {
            fetched.extend(away.extract_if(.., |sent| node.inputs.contains(&sent.from)));
        }
        for sent in fetched {
            is_away[sent.from.index()] = false;
            let device = beside(graph, sent.from, Place::Device);
            rewritten.push(Node { pass: node.pass, ..sent.moved(sent.host, device) });
            back[sent.from.index()] = Some(device);
        }
        for input in &mut node.inputs {
            *input = back.get(input.index()).copied().flatten().unwrap_or(*input);
        }
        rewritten.push(node);
    }
    rewritten
}

/// A tensor for the same bytes in a memory.
fn beside(graph: &mut Graph, id: TensorId, place: Place) -> TensorId {
    let tensor = graph[id].clone();
    let name = match place {
        Place::Host => format!("{}/host", tensor.name),
        Place::Device => format!("{}/back", tensor.name),
    };
    let beside = graph.tensor(name, tensor.ty, tensor.role, Storage::Transient);
    graph[beside].place = place;
    beside
}

pub(super) struct ActivationOffloadLever;

impl Lever for ActivationOffloadLever {
    fn name(&self) -> &'static str {
        "activation-offload"
    }

    fn describe(&self, now: &Settings, request: &Request) -> String {
        match now.levers.activation_offload {
            0 => "off".to_owned(),
            blocks => format!("{blocks} of {} blocks", request.model.blocks()),
        }
    }

    fn off(&self, now: &Settings, _: &Request) -> Settings {
        Settings { levers: Levers { activation_offload: 0, ..now.levers }, ..*now }
    }

    fn remark(&self, request: &Request, added: Seconds) -> Option<String> {
        /// Less than this is not worth a word.
        const FELT: Seconds = Seconds(1e-3);
        match request.budget {
            Budget::Shared(_) => Some("it saves nothing here, since device and host share one memory".to_owned()),
            Budget::Apart { .. } if added < FELT => None,
            Budget::Apart { .. } => {
                let ms = 1e3 * added.0;
                Some(format!("the link is too slow to hide all of its transfers, which add {ms:.0} ms to a step"))
            }
        }
    }

    /// Nothing where device and host share one memory, in which it frees nothing.
    fn further(&self, request: &Request) -> Vec<Alternative> {
        let (Some(asked), Budget::Apart { .. }) = (request.levers.activation_offload, request.budget) else {
            return Vec::new();
        };
        let all = Alternative::of_lever(self, "blocks", request, |levers| levers.activation_offload = Some(1.0));
        if asked < 1.0 { vec![all] } else { Vec::new() }
    }

    fn leave_open(&self, levers: &mut LeverRequest) -> bool {
        levers.activation_offload.take().is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_that_are_sent_lie_apart_and_the_last_comes_last() {
        assert_eq!(in_order(8), [0, 4, 2, 6, 1, 5, 3, 7]);
        assert_eq!(in_order(6), [0, 4, 2, 1, 5, 3]);
        assert_eq!((in_order(1), in_order(0)), (vec![0], vec![]));
        for blocks in 2..100 {
            let order = in_order(blocks);
            let mut first = order[..blocks.div_ceil(2)].to_vec();
            first.sort_unstable();
            assert!(first.windows(2).all(|pair| pair[1] - pair[0] <= 3), "{blocks}: {order:?}");
        }
    }

    #[test]
    fn a_part_of_the_blocks_is_so_many_and_never_none() {
        for (part, blocks, expected) in
            [(0.0, 12, 0), (0.01, 12, 1), (0.25, 12, 3), (0.3, 10, 3), (0.5, 3, 2), (1.0, 12, 12), (0.5, 0, 0)]
        {
            assert_eq!(blocks_of(part, blocks), expected, "{part} of {blocks}");
        }
    }
}
