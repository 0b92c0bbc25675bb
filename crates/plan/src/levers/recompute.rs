//! Activation checkpointing: results of the forward pass that are recomputed in the backward pass rather than kept.
//!
//! ```text
//!   up ──► gelu ──► down                     forward
//!   █████████████████████████████████ up     kept either way: gelu's gradient needs it
//!            ███████                 gelu    dies after its last use in the forward pass,
//!                          ███       gelu'   and is made again for the gradient of `down`
//! ```

use super::places::Places;
use super::{Alternative, Lever};
use crate::request::Request;
use crate::settings::{Level, LeverRequest, Levers, Recompute, Settings};
use plimsoll_graph::{Graph, Node, Op, Pass, Storage, TensorId};

/// From nothing to everything in this many blocks, a block at a time. Each recomputes what the one before it does, and
/// more.
pub fn recompute_ladder(blocks: usize) -> Vec<Recompute> {
    let mut ladder = vec![Recompute::all(Level::None)];
    for (first, rest) in
        [(Level::Cheap, Level::None), (Level::Attention, Level::Cheap), (Level::Block, Level::Attention)]
    {
        ladder.extend((1..blocks).map(|blocks| Recompute { blocks, first, rest }));
        ladder.push(Recompute::all(first));
    }
    ladder
}

/// Rewrites every program that has a backward pass.
pub fn recompute(graph: &mut Graph, levels: Recompute) {
    for index in 0..graph.programs.len() {
        if graph.programs[index].nodes.iter().all(|node| node.pass != Pass::Backward) {
            continue;
        }
        let nodes = std::mem::take(&mut graph.programs[index].nodes);
        let remade = remade(graph, &nodes, levels);
        graph.programs[index].nodes = rewrite(graph, nodes, &remade);
    }
}

/// Makes copies of what the backward pass needs where it first needs it.
fn rewrite(graph: &mut Graph, nodes: Vec<Node>, remade: &[Option<usize>]) -> Vec<Node> {
    let mut copies = vec![None; remade.len()];
    let mut rewritten = Vec::with_capacity(2 * nodes.len());
    for node in &nodes {
        let mut node = node.clone();
        if node.pass == Pass::Backward {
            for input in &mut node.inputs {
                if let Some(maker) = remade[input.index()] {
                    make_again(graph, &nodes, remade, maker, &mut copies, &mut rewritten);
                    *input = copies[input.index()].expect("it was just made");
                }
            }
        }
        rewritten.push(node);
    }
    rewritten
}

/// Appends a copy of node `maker`, after copies of those that its operands come from, unless there is one already.
fn make_again(
    graph: &mut Graph,
    nodes: &[Node],
    remade: &[Option<usize>],
    maker: usize,
    copies: &mut [Option<TensorId>],
    rewritten: &mut Vec<Node>,
) {
    let original = &nodes[maker];
    if copies[original.outputs[0].index()].is_some() {
        return;
    }
    let inputs = original.inputs.iter().map(|input| match remade[input.index()] {
        Some(earlier) => {
            make_again(graph, nodes, remade, earlier, copies, rewritten);
            copies[input.index()].expect("it was just made")
        }
        None => *input,
    });
    let inputs = inputs.collect();
    let outputs = original.outputs.iter().map(|&id| {
        let tensor = graph[id].clone();
        let copy = graph.tensor(format!("{}/again", tensor.name), tensor.ty, tensor.role, tensor.storage);
        copies[id.index()] = Some(copy);
        copy
    });
    let outputs = outputs.collect();
    rewritten.push(Node { inputs, outputs, pass: Pass::Recompute, ..original.clone() });
}

/// For each tensor that is made again the index of the forward node that makes it.
pub(crate) fn remade(graph: &Graph, nodes: &[Node], levels: Recompute) -> Vec<Option<usize>> {
    let is_forward = |node: &Node| node.pass == Pass::Forward;
    let uses = Uses::new(graph, nodes);
    let places = Places::new(nodes);
    let allowed = |index: usize, node: &Node| match levels.level(node.block) {
        Level::Chosen(set) => places.of(index).is_some_and(|place| set.has(place)),
        Level::None => false,
        Level::Cheap => node.op.is_cheap(),
        Level::Attention => {
            let around = node.outputs.iter().any(|id| uses[*id].feeds_attention);
            node.op.is_cheap() || matches!(node.op, Op::Attention(_)) || around
        }
        Level::Block => true,
    };
    let mut makers = Vec::new();
    for (index, node) in nodes.iter().enumerate().filter(|(index, node)| is_forward(node) && allowed(*index, node)) {
        let kept = node.outputs.iter().any(|id| uses.is_kept(graph, *id));
        let in_both = node.outputs.iter().any(|id| uses[*id].forward && uses[*id].needed);
        if !kept && (in_both || levels.level(node.block) > Level::Cheap) {
            makers.push(index);
        }
    }
    // Where only some results are recomputed, this must not keep operands that no other node needs.
    loop {
        let made = makers_of(graph, nodes, &makers);
        let is_there =
            |id: &TensorId| graph[*id].storage != Storage::Transient || made[id.index()].is_some() || uses[*id].needed;
        let before = makers.len();
        makers.retain(|&index| {
            let node = &nodes[index];
            matches!(levels.level(node.block), Level::Block | Level::Chosen(_)) || node.inputs.iter().all(is_there)
        });
        if makers.len() == before {
            return made;
        }
    }
}

fn makers_of(graph: &Graph, nodes: &[Node], makers: &[usize]) -> Vec<Option<usize>> {
    let mut made = vec![None; graph.tensors.len()];
    for &index in makers {
        for id in &nodes[index].outputs {
            made[id.index()] = Some(index);
        }
    }
    made
}

/// Who reads each tensor.
pub(crate) struct Uses(Vec<Use>);

/// Who reads a tensor.
#[derive(Clone, Copy, Default)]
pub(crate) struct Use {
    /// The forward pass.
    forward: bool,
    /// Whatever comes after it.
    pub(crate) needed: bool,
    /// A node of the forward pass in another block than the one that it is made in.
    leaves_block: bool,
    /// Attention, in the forward pass.
    feeds_attention: bool,
    /// The block that it is made in, where a node of the forward pass makes it.
    made_in: Option<Option<u32>>,
}

impl Uses {
    pub(crate) fn new(graph: &Graph, nodes: &[Node]) -> Self {
        let mut uses = vec![Use::default(); graph.tensors.len()];
        for node in nodes {
            for input in &node.inputs {
                let of = &mut uses[input.index()];
                if node.pass == Pass::Forward {
                    of.forward = true;
                    of.leaves_block |= of.made_in.is_some_and(|block| block != node.block);
                    of.feeds_attention |= matches!(node.op, Op::Attention(_));
                } else {
                    of.needed = true;
                }
            }
            if node.pass == Pass::Forward {
                for output in &node.outputs {
                    uses[output.index()].made_in = Some(node.block);
                }
            }
        }
        Self(uses)
    }

    /// Whether a result is kept in any case: what another block takes in is that block's input.
    pub(crate) fn is_kept(&self, graph: &Graph, id: TensorId) -> bool {
        self[id].leaves_block || graph[id].storage != Storage::Transient
    }
}

impl std::ops::Index<TensorId> for Uses {
    type Output = Use;
    fn index(&self, id: TensorId) -> &Use {
        &self.0[id.index()]
    }
}

pub(super) struct RecomputeLever;

impl Lever for RecomputeLever {
    fn name(&self) -> &'static str {
        "recompute"
    }

    fn describe(&self, now: &Settings, request: &Request) -> String {
        let Recompute { blocks: first, first: level, rest } = now.levers.recompute;
        let blocks = request.model.blocks();
        let name = |level: Level| match level {
            Level::Chosen(set) => format!("{} results", set.len()),
            level => level.name().to_owned(),
        };
        match first {
            0 => name(rest),
            _ if first >= blocks => name(level),
            _ => format!("{} in {first} of {blocks}, {} in the rest", name(level), name(rest)),
        }
    }

    fn off(&self, now: &Settings, _: &Request) -> Settings {
        Settings { levers: Levers { recompute: Recompute::all(Level::None), ..now.levers }, ..*now }
    }

    fn further(&self, request: &Request) -> Vec<Alternative> {
        let Some(asked) = request.levers.recompute else { return Vec::new() };
        let deeper = [Level::Cheap, Level::Attention, Level::Block].into_iter().filter(|level| *level > asked.rest);
        let alternative = |level: Level| {
            Alternative::of_lever(self, level.name(), request, |levers| levers.recompute = Some(Recompute::all(level)))
        };
        deeper.map(alternative).collect()
    }

    fn leave_open(&self, levers: &mut LeverRequest) -> bool {
        levers.recompute.take().is_some()
    }
}
