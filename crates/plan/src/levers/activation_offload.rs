//! Activation offload: what the backward pass will read of some blocks travels to the host's memory in the forward pass and
//! comes back in time.
//!
//! ```text
//!   forward     block 1 | block 2 | block 3 | block 4 | head        backward   4 | 3 | 2 | 1
//!   to host        ‾‾‾ 1 ‾‾‾‾‾‾       ‾‾‾ 3 ‾‾‾‾‾‾
//!   to device                                                                  ‾‾‾ 3 ‾‾‾
//!                                                                                      ‾‾‾ 1 ‾‾‾
//! ```
//!
//! Results are sent one by one as they are made, and come back one by one in the order in which they are needed. Each is held as long
//! on its way there, and comes back as early, as no more is live for it than the program needs at its peak anyway; four blocks are on
//! their way at most, and one back, since more is harder to lay out than it is worth. What is recomputed is not kept, and so not sent.
//! Not here: how many blocks are sent where that is left open (`search/`).

use super::offload::sent;
use super::room::Room;
use super::{Alternative, Lever, LeverRequest, Levers, Places};
use crate::candidate::Settings;
use crate::request::Request;
use plimsoll_graph::ops::AwaitTransfer;
use plimsoll_graph::{Graph, MemoryId, Node, Pass, Program, Storage, TensorId, TensorIds};
use plimsoll_units::Seconds;
use rustc_hash::FxHashMap;
use smallvec::smallvec;
use std::collections::BTreeMap;

/// What is smaller than this part of the largest activation of its block stays: a transfer of its own costs more than it
/// frees.
const SMALL: u64 = 32;

/// The number of blocks that a part of them is, rounded up.
pub(crate) fn blocks_of(part: f64, blocks: usize) -> usize {
    // A product that rounding put above a whole number is meant to be that number.
    const ROUNDING: f64 = 1e-9;
    ((part * blocks as f64 - ROUNDING).ceil().max(0.0) as usize).min(blocks)
}

/// Blocks in the order in which they are sent: the first ones come first, since the backward pass needs them last, when gradients
/// have piled up, and their transfers have the most time; those of an encoder so before those of the decoder behind it. But of alike
/// ones every second is sent, so that the link is done with each meanwhile, before those between. However many are, one more is sent
/// beside the same ones.
pub(crate) fn in_order(nodes: &[Node]) -> impl Iterator<Item = usize> {
    let kinds = Places::new(nodes).blocks.into_iter();
    let blocks = kinds.map(|kind| kind.into_iter().flatten().map(|block| block as usize).collect::<Vec<_>>());
    blocks.flat_map(|alike| {
        let second = |first| alike.iter().copied().skip(first).step_by(2);
        second(0).chain(second(1)).collect::<Vec<_>>()
    })
}

/// Sends what the forward pass keeps of so many blocks to the host, in every program that has a backward pass.
pub fn activation_offload(graph: &mut Graph, blocks: usize) {
    if blocks == 0 {
        return;
    }
    for index in 0..graph.programs.len() {
        let program = &graph.programs[index];
        let is_sent = sent_away(graph, &program.nodes, blocks);
        if !is_sent.contains(&true) {
            continue;
        }
        let Traffic { sent, .. } = Traffic::new(graph, program, &is_sent);
        let nodes = std::mem::take(&mut graph.programs[index].nodes);
        graph.programs[index].nodes = rewrite(graph, nodes, &sent);
    }
}

/// Whether an activation is sent along with the largest one of its block, in bytes.
pub(crate) fn is_worth_sending(bytes: u64, largest: u64) -> bool {
    bytes > largest / SMALL
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
    in_order(nodes).take(blocks).for_each(|block| is_chosen[block] = true);
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
        is_sent[id.index()] = is_worth_sending(bytes, largest[block]);
    }
    is_sent
}

/// A tensor that is sent, and the nodes before which it moves.
struct Sent {
    from: TensorId,
    bytes: u64,
    /// The node that makes it.
    made: usize,
    block: Option<u32>,
    /// The last node of the forward pass that reads it, the first one after it, and the last of all.
    read: [usize; 3],
    /// The node before which it is waited for.
    awaited: usize,
    /// The node before which it is fetched.
    fetched: usize,
}

/// When what is sent moves: as late and as early as there is room for it.
struct Traffic {
    /// In the order in which they are made.
    sent: Vec<Sent>,
    room: Room,
    /// The bytes that the block has of which the most is sent.
    block: u64,
}

impl Traffic {
    fn new(graph: &Graph, program: &Program, is_sent: &[bool]) -> Self {
        let nodes = &program.nodes;
        let (mut sent, mut of_tensor) = (Vec::<Sent>::new(), FxHashMap::default());
        let mut of_blocks = BTreeMap::<_, u64>::new();
        for (index, node) in nodes.iter().enumerate() {
            for from in &node.inputs {
                let Some(&of) = of_tensor.get(from) else { continue };
                let Sent { read: [forward, first, last], .. } = &mut sent[of];
                match node.pass {
                    Pass::Forward => *forward = index,
                    _ => (*first, *last) = (index.min(*first), index),
                }
            }
            if node.pass == Pass::Forward {
                for &from in node.outputs.iter().filter(|id| is_sent[id.index()]) {
                    let (bytes, block) = (graph[from].ty.bytes().0, node.block);
                    *of_blocks.entry(block).or_default() += bytes;
                    of_tensor.insert(from, sent.len());
                    let read = [index, usize::MAX, index];
                    sent.push(Sent { from, bytes, made: index, block, read, awaited: index, fetched: index });
                }
            }
        }
        let away = sent.iter().map(|sent| {
            let [forward, first, _] = sent.read;
            ([forward + 2, first + 1], sent.bytes)
        });
        let room = Room::new(graph, program, away);
        let mut traffic = Self { sent, room, block: of_blocks.into_values().max().unwrap_or(0) };
        traffic.hold(nodes);
        traffic.fetch_ahead(nodes);
        traffic
    }

    /// Waits for each as late as may be, with four blocks on their way at most; the ones that were sent last, which have had the least
    /// time, before others. All that is sent is there before the backward pass comes to a block, and mostly before an output head,
    /// of which it isn't known yet what it works with.
    fn hold(&mut self, nodes: &[Node]) {
        let last_block = self.sent.iter().map(|sent| sent.block).max().flatten();
        let (window, mut beside_head) = (4 * self.block, self.block / 2);
        let mut next = usize::MAX;
        for index in (0..self.sent.len()).rev() {
            let Sent { bytes, block, read: [forward, ..], .. } = self.sent[index];
            let mut awaited = forward + 1;
            let mut counts = block != last_block;
            while awaited < next.min(nodes.len()) {
                let node = &nodes[awaited];
                // A forward pass that begins again is another one's.
                let is_done = if node.pass == Pass::Forward {
                    node.block.is_some() && node.block < block
                } else {
                    node.block.is_some()
                };
                let is_head = node.pass != Pass::Forward && node.block.is_none();
                if is_done || !self.room.has(awaited, bytes, window) || (is_head && counts && bytes > beside_head) {
                    break;
                }
                if is_head && std::mem::take(&mut counts) {
                    beside_head -= bytes;
                }
                self.room.occupy(awaited, bytes);
                awaited += 1;
            }
            (self.sent[index].awaited, next) = (awaited, awaited);
        }
    }

    /// Fetches each as early as may be, in the order in which they are needed, with no more there than a block has.
    fn fetch_ahead(&mut self, nodes: &[Node]) {
        let mut order = (0..self.sent.len()).collect::<Vec<_>>();
        order.sort_by_key(|&index| self.sent[index].read[1]);
        let mut before = 0;
        for index in order {
            let Sent { bytes, awaited, read: [_, first, last], .. } = self.sent[index];
            let mut fetched = first;
            while fetched > before.max(awaited) && self.room.has(fetched - 1, bytes, self.block) {
                let node = &nodes[fetched - 1];
                if node.pass == Pass::Forward || node.block.is_none() {
                    break;
                }
                fetched -= 1;
                self.room.occupy(fetched, bytes);
            }
            (first..=last).for_each(|node| self.room.moves(node, bytes));
            (self.sent[index].fetched, before) = (fetched, fetched);
        }
    }
}

/// Sends each where it is made, and fetches it before it is read after the forward pass.
fn rewrite(graph: &mut Graph, nodes: Vec<Node>, all: &[Sent]) -> Vec<Node> {
    let by = |moment: fn(&Sent) -> usize| {
        let mut order = (0..all.len()).map(|index| (moment(&all[index]), index)).collect::<Vec<_>>();
        order.sort_unstable();
        order.into_iter().peekable()
    };
    let (mut made, mut awaited) = (by(|sent| sent.made), by(|sent| sent.awaited));
    let mut fetched = (0..all.len()).collect::<Vec<_>>();
    fetched.sort_by_key(|&index| (all[index].fetched, all[index].read[1]));
    let mut fetched = fetched.into_iter().peekable();
    let (mut there, mut back) = (Vec::<(TensorId, Node)>::with_capacity(all.len()), FxHashMap::default());
    let mut rewritten = Vec::with_capacity(2 * nodes.len());
    for (index, mut node) in nodes.into_iter().enumerate() {
        // Who waits for the last need not wait for those that were sent before it.
        let now = std::iter::from_fn(|| awaited.next_if(|(moment, _)| *moment == index)).collect::<Vec<_>>();
        rewritten.extend(now.into_iter().rev().map(|(_, of)| {
            let (op, outputs) = (AwaitTransfer.into(), TensorIds::new());
            Node { op, outputs, ..there[of].1.clone() }
        }));
        while let Some(of) = fetched.next_if(|&of| all[of].fetched == index) {
            let (host, to_host) = &there[of];
            let device = copy_in(graph, all[of].from, MemoryId::DEVICE, "back");
            let (inputs, outputs) = (smallvec![*host], smallvec![device]);
            rewritten.push(Node { inputs, outputs, pass: node.pass, ..to_host.clone() });
            back.insert(all[of].from, device);
        }
        node.inputs.iter_mut().for_each(|input| *input = back.get(input).copied().unwrap_or(*input));
        let maker = node.clone();
        rewritten.push(node);
        while let Some((_, of)) = made.next_if(|(moment, _)| *moment == index) {
            let host = copy_in(graph, all[of].from, MemoryId::HOST, "host");
            there.push((host, sent(&maker, all[of].from, host)));
            rewritten.push(there[of].1.clone());
        }
    }
    rewritten
}

/// A tensor for a copy of another one in a memory.
fn copy_in(graph: &mut Graph, id: TensorId, memory: MemoryId, suffix: &str) -> TensorId {
    let tensor = graph[id].clone();
    let copy = graph.tensor(format!("{}/{suffix}", tensor.name), tensor.ty, tensor.role, Storage::Transient);
    graph[copy].memory = memory;
    copy
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
        match request.budget.host() {
            None => Some("it saves nothing here, since device and host share one memory".to_owned()),
            Some(_) if added < FELT => None,
            Some(_) => {
                let ms = 1e3 * added.0;
                Some(format!("the link is too slow to hide all of its transfers, which add {ms:.0} ms to a step"))
            }
        }
    }

    /// Nothing where device and host share one memory, in which it frees nothing.
    fn further(&self, request: &Request) -> Vec<Alternative> {
        let (Some(asked), Some(_)) = (request.levers.activation_offload, request.budget.host()) else {
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
    use plimsoll_graph::Op;
    use plimsoll_graph::ops::{Add, Relu};

    #[test]
    fn every_second_block_is_sent_before_those_between_and_an_encoder_s_before_a_decoder_s() {
        let nodes = |ops: &[Op]| {
            let of_block = |(block, op): (usize, &Op)| Node {
                op: op.clone(),
                inputs: smallvec![TensorId(0)],
                outputs: smallvec![TensorId(1)],
                block: Some(block as u32),
                pass: Pass::Forward,
            };
            ops.iter().enumerate().map(of_block).collect::<Vec<_>>()
        };
        let order = |ops: &[Op]| in_order(&nodes(ops)).collect::<Vec<_>>();
        let (encoder, decoder) = (Op::from(Relu), Op::from(Add));
        assert_eq!(order(&vec![decoder.clone(); 5]), [0, 2, 4, 1, 3]);
        assert_eq!(order(&[vec![encoder; 3], vec![decoder; 3]].concat()), [0, 2, 1, 3, 5, 4]);
        assert_eq!(order(&[]), [0; 0]);
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
