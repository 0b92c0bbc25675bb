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
//! Results are sent one by one as they are made, and come back one by one in the order in which they are needed. Each is held as long,
//! and comes back as early, as the program's peak allows (`room.rs`); four blocks are on their way to the host at most, and one
//! back, since more gains less than it makes packing harder. What is recomputed is not kept, and so not sent.
//! Not here: how many blocks are sent where that is left open (`search/`).

use super::offload::sent;
use super::room::{Absent, Room, Stay};
use super::{Alternative, Lever, Places};
use crate::plan::Plan;
use crate::queue::Queue;
use crate::request::Request;
use crate::settings::{LeverRequest, Levers, Settings};
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
/// have piled up, and their transfers have the most time; so those of an encoder come before those of its decoder. Of
/// blocks of one kind every second is sent before those between, so that the link has time for each. One more block is always
/// sent in addition to the same ones.
pub(crate) fn in_order(nodes: &[Node]) -> impl Iterator<Item = usize> {
    let kinds = Places::new(nodes).blocks.into_iter();
    let blocks = kinds.map(|kind| kind.into_iter().flatten().map(|block| block as usize).collect::<Vec<_>>());
    blocks.flat_map(|alike| {
        let second = |first| alike.iter().copied().skip(first).step_by(2);
        second(0).chain(second(1)).collect::<Vec<_>>()
    })
}

/// Sends what the forward pass keeps of this many blocks to the host, in every program that has a backward pass.
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
        let sent = traffic(graph, program, &is_sent);
        let nodes = std::mem::take(&mut graph.programs[index].nodes);
        graph.programs[index].nodes = rewrite(graph, nodes, &sent);
    }
}

/// Whether an activation is sent along with the largest one of its block, in bytes.
pub(crate) fn is_worth_sending(bytes: u64, largest: u64) -> bool {
    bytes > largest / SMALL
}

/// Which tensors are sent: what a block makes in its forward pass and blocks read later. Nodes between them, such as an output
/// head, read the last block's result at once.
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
    /// The last node of the forward pass that reads it.
    last_forward: usize,
    /// The first node after the forward pass that reads it.
    first_later: usize,
    /// The last node that reads it.
    last: usize,
    /// The node before which it is waited for.
    awaited: usize,
    /// The node before which it is fetched.
    fetched: usize,
}

/// What is sent, in the order in which it is made, and when it moves: as late and as early as there is room for it, with
/// four blocks on their way at most, and one back.
fn traffic(graph: &Graph, program: &Program, is_sent: &[bool]) -> Vec<Sent> {
    let mut all = readers(graph, program, is_sent);
    let mut of_blocks = BTreeMap::<_, u64>::new();
    all.iter().for_each(|sent| *of_blocks.entry(sent.block).or_default() += sent.bytes);
    let largest_block = of_blocks.into_values().max().unwrap_or(0);
    let absent = |sent: &Sent| Absent { ticks: sent.last_forward + 2..sent.first_later + 1, bytes: sent.bytes };
    let mut room = Room::new(graph, program, all.iter().map(absent));
    let held = |&Sent { bytes, made, last_forward, .. }: &Sent| Stay {
        bytes,
        needed: made..last_forward + 1,
        since: made,
        window: 4 * largest_block,
        spared: 0,
    };
    let ends = room.hold(&all.iter().map(held).collect::<Vec<_>>(), may_hold(&program.nodes, &all, largest_block / 2));
    all.iter_mut().zip(ends).for_each(|(sent, end)| sent.awaited = end);
    let mut order = (0..all.len()).collect::<Vec<_>>();
    order.sort_by_key(|&index| all[index].first_later);
    let fetched = order.iter().map(|&index| {
        let Sent { bytes, awaited, first_later, last, .. } = all[index];
        Stay { bytes, needed: first_later..last + 1, since: awaited, window: largest_block, spared: 0 }
    });
    let is_in_backward = |node: &Node| node.pass != Pass::Forward && node.block.is_some();
    let begins = room.fetch(&fetched.collect::<Vec<_>>(), |_, node| is_in_backward(&program.nodes[node]));
    order.into_iter().zip(begins).for_each(|(index, begin)| all[index].fetched = begin);
    all
}

/// What is sent and who reads it, before it is known when it moves.
fn readers(graph: &Graph, program: &Program, is_sent: &[bool]) -> Vec<Sent> {
    let (mut all, mut of_tensor) = (Vec::<Sent>::new(), FxHashMap::default());
    for (index, node) in program.nodes.iter().enumerate() {
        for from in &node.inputs {
            let Some(&of) = of_tensor.get(from) else { continue };
            let sent: &mut Sent = &mut all[of];
            match node.pass {
                Pass::Forward => sent.last_forward = index,
                _ => (sent.first_later, sent.last) = (index.min(sent.first_later), index),
            }
        }
        if node.pass == Pass::Forward {
            for &from in node.outputs.iter().filter(|id| is_sent[id.index()]) {
                of_tensor.insert(from, all.len());
                all.push(Sent {
                    from,
                    bytes: graph[from].ty.bytes().0,
                    made: index,
                    block: node.block,
                    last_forward: index,
                    first_later: usize::MAX,
                    last: index,
                    awaited: index,
                    fetched: index,
                });
            }
        }
    }
    all
}

/// Whether what is sent may still be on its way at a node. All of it has arrived before the backward pass comes to a block, and
/// but for the last block's and `beside_head` bytes before an output head, whose scratch is not known yet.
fn may_hold(nodes: &[Node], all: &[Sent], mut beside_head: u64) -> impl FnMut(usize, usize) -> bool {
    let last_block = all.iter().map(|sent| sent.block).max().flatten();
    let mut counted = None;
    move |index, node| {
        let (node, &Sent { bytes, block, .. }) = (&nodes[node], &all[index]);
        if node.pass == Pass::Forward {
            // The forward pass comes to an earlier block again: it is another one's.
            return node.block.is_none() || node.block >= block;
        }
        let is_head = node.block.is_none();
        if is_head && block != last_block && counted != Some(index) {
            if bytes > beside_head {
                return false;
            }
            (beside_head, counted) = (beside_head - bytes, Some(index));
        }
        is_head
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
    fetched.sort_by_key(|&index| (all[index].fetched, all[index].first_later));
    let mut fetched = fetched.into_iter().peekable();
    let (mut there, mut back) = (Vec::<(TensorId, Node)>::with_capacity(all.len()), FxHashMap::default());
    let mut rewritten = Vec::with_capacity(2 * nodes.len());
    for (index, mut node) in nodes.into_iter().enumerate() {
        // A wait for the last implies those for tensors that were sent before it.
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

/// A remark on a lever that sends tensors to the host and back, if it adds this time to a step.
pub(super) fn remark_on_transfers(request: &Request, plan: &Plan, added: Seconds) -> Option<String> {
    /// Less than this is not mentioned.
    const FELT: Seconds = Seconds(1e-3);
    match request.budget.host() {
        None => Some("it saves nothing here, since device and host share one memory".to_owned()),
        Some(_) if added < FELT => None,
        Some(_) => {
            let gigabytes = |bytes: f64| bytes / 1e9;
            let moved = [Queue::ToDevice, Queue::ToHost].map(|queue| gigabytes(plan.bytes_through(queue).as_f64()));
            let rate = gigabytes(request.machine.transfer_bytes_per_s());
            Some(format!(
                "the link is too slow to hide all of its transfers, which add {:.0} ms to a step: {:.1} GB to the device and \
                 {:.1} GB back at {rate:.1} GB/s each way",
                1e3 * added.0,
                moved[0],
                moved[1],
            ))
        }
    }
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

    fn remark(&self, request: &Request, plan: &Plan, added: Seconds) -> Option<String> {
        remark_on_transfers(request, plan, added)
    }

    /// Nothing if device and host share one memory: it frees no bytes there.
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
    fn a_part_of_the_blocks_is_rounded_up() {
        for (part, blocks, expected) in
            [(0.0, 12, 0), (0.01, 12, 1), (0.25, 12, 3), (0.3, 10, 3), (0.5, 3, 2), (1.0, 12, 12), (0.5, 0, 0)]
        {
            assert_eq!(blocks_of(part, blocks), expected, "{part} of {blocks}");
        }
    }
}
