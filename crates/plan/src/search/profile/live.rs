//! What is certain to be live at once in the micro-step.

use super::moved::{Moved, Owners, kept_bytes};
use crate::layout::{lifetimes_of, scratch_bytes};
use crate::levers::{travels, with_scratch};
use crate::lifetimes::{Buffer, Lifetimes};
use plimsoll_graph::ops::Home;
use plimsoll_graph::{ALIGNMENT, Access, Graph, MemoryId, Node, Pass, Program, Role, Storage, Targets, TensorId};
use rustc_hash::FxHashMap;
use std::ops::Range;

/// A gradient's buffer. Searches have hundreds of outlines at a time.
struct Owned {
    lower: u32,
    upper: u32,
    /// The parameter's index.
    owner: u32,
    bytes: u64,
}

/// What the micro-step's kernels hand to each other on the device.
pub(super) struct Transients {
    program: usize,
    /// All but scratch, with nothing moved.
    at_rest: Live,
    /// Those of them that are gradients, with the parameter of each.
    owned: Vec<Owned>,
    gradients: Vec<StagedGradient>,
    weights: Vec<StagedWeight>,
    /// Scratch of nodes that always have as much, each at its tick.
    pub(super) working: Vec<(usize, u64)>,
    /// Nodes whose scratch is rows of logits or of scores.
    in_rows: Vec<usize>,
}

impl Transients {
    pub(super) fn of(graph: &Graph, targets: &Targets, owners: &Owners) -> Option<Self> {
        let program = micro_step(graph)?;
        let Lifetimes { buffers, of_tensor, of_scratch } = lifetimes_of(graph, &graph.programs[program], targets);
        let gradients = staged_gradients(graph, &graph.programs[program], owners);
        let weights = staged_weights(graph, &graph.programs[program].nodes);
        let mut owner = vec![None; buffers.len()];
        for (id, buffer) in of_tensor.iter() {
            owner[buffer] = owner[buffer].or(owners.gradient(id));
        }
        // Single numbers may be made elsewhere.
        let is_certain = |buffer: &Buffer| {
            buffer.memory == MemoryId::DEVICE && buffer.role != Role::Staging && buffer.role != Role::Scratch
        };
        let nodes = &graph.programs[program].nodes;
        let (mut at_rest, mut owned) = (Live::new(nodes.len() + 2), Vec::new());
        for (buffer, owner) in buffers.into_iter().zip(owner).filter(|(buffer, _)| is_certain(buffer)) {
            at_rest.add(buffer.lower as usize, buffer.upper as usize, buffer.bytes);
            let Buffer { lower, upper, bytes, .. } = buffer;
            owned.extend(owner.map(|owner| Owned {
                lower: lower as u32,
                upper: upper as u32,
                bytes,
                owner: owner as u32,
            }));
        }
        // Nodes that follow the optimizer take their scratch along.
        let stays =
            |node: &usize| nodes[*node].op.home() == Home::Device && nodes[*node].memory(graph) == MemoryId::DEVICE;
        let (in_rows, working): (Vec<_>, Vec<_>) =
            of_scratch.into_keys().filter(stays).partition(|&node| with_scratch(&nodes[node].op, (1, 1)).is_some());
        let working = working.into_iter().map(|node| at_work(graph, targets, node, &nodes[node])).collect();
        owned.shrink_to_fit();
        Some(Self { program, at_rest, owned, gradients, weights, working, in_rows })
    }

    /// Bytes at each tick with nothing moved, without scratch.
    pub(super) fn at_rest(&self) -> Vec<i64> {
        self.at_rest.over_time()
    }

    /// What moving a share of the state adds to each tick: below zero where gradients are no longer on the device.
    pub(super) fn added_by(&self, share: &Moved) -> Vec<i64> {
        let mut added = Live::new(self.at_rest.0.len() - 1);
        for Owned { lower, upper, bytes, .. } in self.owned.iter().filter(|of| share.parameters[of.owner as usize]) {
            added.remove(*lower as usize, *upper as usize, *bytes);
        }
        added.add_staged(&self.gradients, share);
        for StagedWeight { needed, bytes, .. } in self.weights.iter().filter(|of| share.weights[of.id.index()]) {
            added.add(needed.start, needed.end, *bytes);
        }
        added.over_time()
    }

    /// Scratch at the ticks of nodes with these rows.
    pub(super) fn at_work(&self, graph: &Graph, targets: &Targets, scratch: (usize, usize)) -> Vec<(usize, u64)> {
        let nodes = &graph.programs[self.program].nodes;
        let of_node = |&index: &usize| {
            let op = with_scratch(&nodes[index].op, scratch).expect("nodes that have rows at a time");
            at_work(graph, targets, index, &Node { op, ..nodes[index].clone() })
        };
        self.in_rows.iter().map(of_node).collect()
    }
}

/// A node's tick in lifetimes, and its scratch.
fn at_work(graph: &Graph, targets: &Targets, index: usize, node: &Node) -> (usize, u64) {
    (index + 1, scratch_bytes(graph, node, targets).next_multiple_of(ALIGNMENT))
}

/// A gradient whose update waits for a factor that is made of it and others.
pub(super) struct Gathered {
    factor: TensorId,
    owner: usize,
    bytes: u64,
}

/// Those of the micro-step that are not kept.
pub(super) fn gathered(graph: &Graph, owners: &Owners) -> Vec<Gathered> {
    let Some(program) = micro_step(graph) else { return Vec::new() };
    let mut made_of = vec![&[] as &[TensorId]; graph.tensors.len()];
    let mut gathered = Vec::new();
    for node in &graph.programs[program].nodes {
        if let (Some(update), Some(owner)) = (node.op.update(), owners.updated(node)) {
            let (gradient, factor) = (node.inputs[update.gradient], node.inputs[update.factor]);
            let norms = made_of[factor.index()];
            let waits_for_it = norms.iter().any(|norm| made_of[norm.index()].contains(&gradient));
            if waits_for_it && graph[gradient].storage == Storage::Transient {
                gathered.push(Gathered { factor, owner, bytes: kept_bytes(&graph[gradient]) });
            }
        }
        node.outputs.iter().for_each(|id| made_of[id.index()] = &node.inputs);
    }
    gathered
}

/// A lower bound on the bytes of gradients on the host at once, in addition to those that are kept: all whose updates wait for
/// a factor that is made of all of them.
pub(super) fn gathered_on_host(gathered: &[Gathered], part: &Moved) -> u64 {
    let mut by_factor = FxHashMap::<TensorId, u64>::default();
    for Gathered { factor, bytes, .. } in gathered.iter().filter(|gradient| part.parameters[gradient.owner]) {
        *by_factor.entry(*factor).or_default() += bytes;
    }
    by_factor.into_values().max().unwrap_or(0)
}

/// By how many bytes each tick of lifetimes has more than the one before it.
struct Live(Vec<i64>);

impl Live {
    fn new(end: usize) -> Self {
        Self(vec![0; end + 1])
    }

    fn add(&mut self, lower: usize, upper: usize, bytes: u64) {
        let bytes = bytes.next_multiple_of(ALIGNMENT) as i64;
        self.0[lower] += bytes;
        self.0[upper] -= bytes;
    }

    /// Takes away what was added.
    fn remove(&mut self, lower: usize, upper: usize, bytes: u64) {
        self.add(upper, lower, bytes);
    }

    /// Adds the buffers that moved gradients have on the device, each until the next of its block is sent, and where they are
    /// added to, since the one before was used.
    fn add_staged(&mut self, gradients: &[StagedGradient], part: &Moved) {
        let moved = gradients.iter().filter(|gradient| part.parameters[gradient.owner as usize]).collect::<Vec<_>>();
        for (index, gradient) in moved.iter().enumerate() {
            let before = moved[index.saturating_sub(1)];
            let after = moved.get(index + 1).filter(|after| after.block.is_some() && after.block == gradient.block);
            // What the node before sends can't be fetched before that is done.
            let since = moved[..index].iter().rev().take_while(|earlier| earlier.time >= before.time);
            let comes_ahead = gradient.is_fetched && since.clone().all(|g| g.is_fetched && g.id != gradient.id);
            let begin = if comes_ahead { before.time } else { gradient.time };
            self.add(begin as usize, after.unwrap_or(gradient).time as usize + 1, gradient.bytes);
        }
    }

    fn over_time(&self) -> Vec<i64> {
        let live = self.0.iter().scan(0, |live, change| {
            *live += change;
            Some(*live)
        });
        live.collect()
    }
}

/// A gradient that a kernel of the device makes or adds to. If it is moved, it has a buffer there too (`levers/settle.rs`),
/// since what is sent is held until the next of its block is, and what is fetched comes one ahead (`levers/overlap.rs`).
struct StagedGradient {
    id: TensorId,
    owner: u32,
    block: Option<u32>,
    /// When it is made, in ticks of lifetimes.
    time: u32,
    bytes: u64,
    is_fetched: bool,
}

/// A weight that nodes of the device read. If it is moved, it has a copy there for each pass through its block
/// (`levers/settle.rs`).
pub(super) struct StagedWeight {
    pub(super) id: TensorId,
    /// In ticks of lifetimes.
    pub(super) needed: Range<usize>,
    bytes: u64,
    /// Whether a block reads it in its backward pass.
    pub(super) is_in_backward: bool,
}

/// Each weight for each pass of a block that reads it, and for each node outside of blocks that does.
pub(super) fn staged_weights(graph: &Graph, nodes: &[Node]) -> Vec<StagedWeight> {
    let (mut staged, mut of_pass) = (Vec::<StagedWeight>::new(), FxHashMap::default());
    for (node, time) in nodes.iter().zip(1..).filter(|(node, _)| node.pass != Pass::Update) {
        for &id in &node.inputs {
            let is_weight = graph[id].storage == Storage::Persistent && graph[id].role == Role::Weight;
            if !is_weight || !travels(node, id) {
                continue;
            }
            let is_forward = node.pass == Pass::Forward;
            let known = node.block.and_then(|block| of_pass.get(&(id, block, is_forward)).copied());
            let index: usize = known.unwrap_or_else(|| {
                let is_in_backward = node.block.is_some() && !is_forward;
                staged.push(StagedWeight { id, needed: time..time, bytes: graph[id].ty.bytes().0, is_in_backward });
                staged.len() - 1
            });
            if let Some(block) = node.block {
                of_pass.insert((id, block, is_forward), index);
            }
            staged[index].needed.end = time + 1;
        }
    }
    staged
}

fn staged_gradients(graph: &Graph, program: &Program, owners: &Owners) -> Vec<StagedGradient> {
    let mut gradients = Vec::new();
    let on_device = |(node, _): &(&Node, u32)| node.op.home() == Home::Device;
    for (node, time) in program.nodes.iter().zip(1..).filter(on_device) {
        for (index, &id) in node.outputs.iter().enumerate() {
            let takes_a_place = node.op.reuse().iter().any(|&(_, output)| output == index);
            let is_tensor = graph[id].ty.elements() > 1;
            if let Some(owner) = owners.gradient(id).filter(|_| is_tensor && !takes_a_place) {
                let bytes = graph[id].ty.bytes().0;
                let is_fetched = node.op.access(index) == Access::ReadWrite;
                let (owner, block) = (owner as u32, node.block);
                gradients.push(StagedGradient { id, owner, block, time, bytes, is_fetched });
            }
        }
    }
    gradients.shrink_to_fit();
    gradients
}

/// The program that is live the most: the one that adds to what an earlier one left, or else the only one.
pub(super) fn micro_step(graph: &Graph) -> Option<usize> {
    let name = graph.repeated_micro_step()?.name;
    graph.programs.iter().position(|program| program.name == name)
}
