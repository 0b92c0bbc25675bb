//! What recomputing and offloading activations does to a micro-step, read off the graph that does neither.
//!
//! ```text
//!   tick          made   last read in the forward pass        first needed in the backward pass
//!   kept           |██████████████████████████████████████████████████████████
//!   recomputed     |███████████|                               again|█████████
//!   offloaded      |███████████|              on the host            |█████████
//! ```

use crate::cost::{KnownTimes, Work};
use crate::levers::{is_worth_sending, remade};
use crate::request::Request;
use crate::settings::Recompute;
use plimsoll_graph::ops::Transfer;
use plimsoll_graph::{ALIGNMENT, Graph, Io, Node, Op, Pass, Storage, TensorId};

/// Bytes that are not on the device for some ticks; below zero where a tensor is kept longer.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Absence {
    /// The first tick.
    pub(super) from: u32,
    /// The tick at which they are back.
    pub(super) until: u32,
    pub(super) bytes: i64,
}

/// What a block does at a recompute level.
#[derive(Debug, Clone, Default)]
pub(super) struct OfBlock {
    pub(super) recomputed: Vec<Absence>,
    /// Seconds of the device.
    pub(super) recompute_s: f64,
    /// What else is absent if the block's activations wait on the host.
    pub(super) offloaded: Vec<Absence>,
    /// Seconds of the link each way.
    pub(super) offload_s: f64,
    /// Bytes on the host.
    pub(super) host_bytes: u64,
}

/// When the nodes of a micro-step read what its forward pass makes.
pub(super) struct Activations<'a> {
    request: &'a Request,
    graph: &'a Graph,
    nodes: &'a [Node],
    /// The last tick of the forward pass that makes or reads each tensor.
    last_forward: Vec<u32>,
    /// The first tick after it that reads each tensor.
    first_later: Vec<u32>,
    /// Whether blocks read it later, and nothing outside them does.
    is_read_by_blocks: Vec<bool>,
    blocks: usize,
}

const NEVER: u32 = u32::MAX;

impl<'a> Activations<'a> {
    /// Of a program that neither recomputes nor offloads.
    pub(super) fn new(request: &'a Request, graph: &'a Graph, nodes: &'a [Node]) -> Self {
        let tensors = graph.tensors.len();
        let (mut last_forward, mut first_later) = (vec![0; tensors], vec![NEVER; tensors]);
        let (mut in_blocks, mut outside) = (vec![false; tensors], vec![false; tensors]);
        for (node, tick) in nodes.iter().zip(1..) {
            if node.pass == Pass::Forward {
                node.inputs.iter().chain(&node.outputs).for_each(|id| last_forward[id.index()] = tick);
                continue;
            }
            for id in &node.inputs {
                let first = &mut first_later[id.index()];
                *first = tick.min(*first);
                let reader = if node.block.is_some() { &mut in_blocks } else { &mut outside };
                reader[id.index()] = true;
            }
        }
        let is_read_by_blocks =
            in_blocks.into_iter().zip(outside).map(|(inside, outside)| inside && !outside).collect();
        let blocks = nodes.iter().filter_map(|node| node.block).max().map_or(0, |last| last as usize + 1);
        Self { request, graph, nodes, last_forward, first_later, is_read_by_blocks, blocks }
    }

    /// What each block does where all are at one level; first what is outside all blocks.
    pub(super) fn at_level(&self, level: Recompute, known: &mut KnownTimes) -> Vec<OfBlock> {
        let Self { graph, nodes, .. } = self;
        let makers = remade(graph, nodes, level);
        let mut of_blocks = vec![OfBlock::default(); self.blocks + 1];
        // When each tensor is needed again: by the backward pass, or by what is recomputed for it.
        let mut needed = self.first_later.clone();
        let mut is_sendable = self.is_read_by_blocks.clone();
        for (index, node) in nodes.iter().enumerate().rev() {
            if node.outputs.first().is_none_or(|id| makers[id.index()] != Some(index)) {
                continue;
            }
            let first = node.outputs.iter().map(|id| needed[id.index()]).min().unwrap_or(NEVER);
            if first == NEVER {
                continue;
            }
            let of_block = &mut of_blocks[slot(node)];
            of_block.recompute_s += self.request.machine.on_device(graph, node, &self.request.targets, known);
            let kept = node.outputs.iter().filter(|id| self.first_later[id.index()] != NEVER);
            of_block.recomputed.extend(kept.filter_map(|&id| self.absence(id, first)));
            for &id in &node.inputs {
                let is_kept_for_this = needed[id.index()] == NEVER && makers[id.index()].is_none();
                if is_kept_for_this && graph[id].storage == Storage::Transient {
                    let kept = self.absence(id, first).map(|of| Absence { bytes: -of.bytes, ..of });
                    of_blocks[slot(node)].recomputed.extend(kept);
                }
                is_sendable[id.index()] |= needed[id.index()] == NEVER && node.block.is_some();
                needed[id.index()] = first.min(needed[id.index()]);
            }
        }
        self.offload(&makers, &needed, &is_sendable, &mut of_blocks, known);
        of_blocks
    }

    fn offload(
        &self,
        makers: &[Option<usize>],
        needed: &[u32],
        is_sendable: &[bool],
        of_blocks: &mut [OfBlock],
        known: &mut KnownTimes,
    ) {
        let graph = self.graph;
        let is_sent = |id: &TensorId| {
            is_sendable[id.index()] && makers[id.index()].is_none() && graph[*id].storage == Storage::Transient
        };
        let of_forward = || self.nodes.iter().filter(|node| node.pass == Pass::Forward && node.block.is_some());
        let mut largest = vec![0; of_blocks.len()];
        for node in of_forward() {
            let bytes = node.outputs.iter().filter(|id| is_sent(id)).map(|id| graph[*id].ty.bytes().0).max();
            largest[slot(node)] = bytes.unwrap_or(0).max(largest[slot(node)]);
        }
        for node in of_forward() {
            for &id in node.outputs.iter().filter(|id| is_sent(id)) {
                let ty = &graph[id].ty;
                if !is_worth_sending(ty.bytes().0, largest[slot(node)]) {
                    continue;
                }
                let io = Io::new([ty], [ty]);
                let (op, work) = (Op::from(Transfer), Work::of(&Transfer.into(), &io, &self.request.targets.device));
                let of_block = &mut of_blocks[slot(node)];
                of_block.offload_s += self.request.machine.known(&op, work, known);
                of_block.host_bytes += ty.bytes().0.next_multiple_of(ALIGNMENT);
                of_block.offloaded.extend(self.absence(id, needed[id.index()]));
            }
        }
    }

    /// The ticks between the forward pass's last use of a tensor and a later one; `None` if there are none.
    fn absence(&self, id: TensorId, until: u32) -> Option<Absence> {
        let from = self.last_forward[id.index()] + 1;
        let bytes = self.graph[id].ty.bytes().0.next_multiple_of(ALIGNMENT) as i64;
        (from < until).then_some(Absence { from, until, bytes })
    }
}

/// Where a node's block is in a list that begins with what is outside all blocks.
pub(super) fn slot(node: &Node) -> usize {
    node.block.map_or(0, |block| block as usize + 1)
}
