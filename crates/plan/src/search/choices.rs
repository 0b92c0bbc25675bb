//! Which results a search may recompute. Blocks of one kind share the points of their hull (`hull.rs`); between two
//! points, the first blocks are at the one and the rest at the other.
//!
//! ```text
//!   price of a byte, ascending     ladder
//!     attention    0 -> 1            some blocks from point 0 to 1, then all,
//!     norms etc.   1 -> 2            then from 1 to 2,
//!     products     2 -> 3            ...
//! ```
//!
//! A result is kept or recomputed once, right before the backward pass first reads it; a block's input is always kept.
//! Not here: how a graph is rewritten (`levers/recompute.rs`).

use super::hull::{Block, Maker, Point, Saved};
use super::space::LEVELS;
use crate::cost::KnownTimes;
use crate::levers::{MOST_KINDS, NodePlace, NodeSet, Places, Uses};
use crate::request::Request;
use crate::settings::{Level, Recompute};
use plimsoll_graph::{ALIGNMENT, Graph, Node, Pass, Storage, TensorId};
use rustc_hash::FxHashMap;

/// A step from one point of a kind's hull to the next.
struct Rise {
    kind: usize,
    /// Index of the point that it leads to, from 1.
    point: usize,
    /// What is recomputed at that point.
    set: NodeSet,
    /// Seconds that each byte costs which it frees.
    price: f64,
}

/// What a micro-step may recompute: whole levels, and about `most` steps from nothing to everything that frees bytes,
/// the cheapest bytes first. `graph` recomputes nothing.
pub(super) fn recompute_steps(request: &Request, graph: &Graph, most: usize) -> Vec<Recompute> {
    if let Some(asked) = request.levers.recompute {
        return vec![asked];
    }
    let mut steps = LEVELS.to_vec();
    let Some(program) = graph.repeated_micro_step() else { return steps };
    let places = Places::new(&program.nodes);
    let rises = rises(request, graph, &program.nodes, &places);
    if rises.is_empty() || most == 0 {
        return steps;
    }
    let parts = (most / rises.len()).clamp(1, 8);
    let mut sets = [NodeSet::default(); MOST_KINDS];
    let chosen =
        |sets: &[NodeSet; MOST_KINDS]| Level::Chosen(sets.iter().copied().fold(NodeSet::default(), NodeSet::or));
    for Rise { kind, set, .. } in rises {
        let rest = chosen(&sets);
        sets[kind] = set;
        let first = chosen(&sets);
        // How many of the first blocks of the model have how many of this kind among them.
        let blocks = places.blocks[kind].iter().flatten().map(|&block| block as usize + 1).collect::<Vec<_>>();
        let mut cuts = (1..parts).map(|part| blocks.len() * part / parts).filter(|&cut| cut > 0).collect::<Vec<_>>();
        cuts.dedup();
        steps.extend(cuts.into_iter().map(|cut| Recompute { blocks: blocks[cut - 1], first, rest }));
        steps.push(Recompute::all(first));
    }
    steps
}

/// All rises, the cheapest byte first.
fn rises(request: &Request, graph: &Graph, nodes: &[Node], places: &Places) -> Vec<Rise> {
    let (uses, mut known, mut rises) = (Uses::new(graph, nodes), KnownTimes::default(), Vec::new());
    for (kind, blocks) in places.blocks.iter().enumerate() {
        // One in the middle: the first block may read something that the others don't.
        let block = block_of(request, graph, nodes, places, &uses, blocks[blocks.len() / 2], &mut known);
        let set = |point: &Point| {
            let makers = block.makers.iter().zip(&point.recomputed).filter(|(_, is)| **is);
            makers.fold(NodeSet::default(), |set, (maker, _)| set.with(NodePlace { kind, index: maker.place }))
        };
        let hull = block.hull();
        rises.extend(hull.windows(2).enumerate().map(|(index, pair)| Rise {
            kind,
            point: index + 1,
            set: set(&pair[1]),
            price: pair[0].price_to(&pair[1]),
        }));
    }
    rises.sort_by(|a, b| a.price.total_cmp(&b.price).then(a.point.cmp(&b.point)));
    rises
}

fn block_of(
    request: &Request,
    graph: &Graph,
    nodes: &[Node],
    places: &Places,
    uses: &Uses,
    number: Option<u32>,
    known: &mut KnownTimes,
) -> Block {
    let mut block = Block::default();
    let mut indices = FxHashMap::default();
    let is_member = |node: &Node| node.pass == Pass::Forward && node.block == number;
    for (index, node) in nodes.iter().enumerate().filter(|(_, node)| is_member(node)) {
        let mut known_as = |id: &TensorId| {
            *indices.entry(*id).or_insert_with(|| {
                let bytes = graph[*id].ty.bytes().0.next_multiple_of(ALIGNMENT);
                block.tensors.push(Saved { bytes, is_needed: uses[*id].needed });
                block.tensors.len() - 1
            })
        };
        let is_transient = |id: &&TensorId| graph[**id].storage == Storage::Transient;
        let operands = node.inputs.iter().filter(is_transient).map(&mut known_as).collect();
        let results = node.outputs.iter().map(&mut known_as).collect();
        let is_kept = node.outputs.iter().any(|id| uses.is_kept(graph, *id));
        if let Some(place) = places.of(index).filter(|_| !is_kept) {
            let seconds = request.machine.on_device(graph, node, &request.targets, known);
            block.makers.push(Maker { place: place.index, seconds, operands, results });
        }
    }
    block
}
