//! Which results are kept and which recomputed, chosen result by result rather than by levels of a block. Blocks that are
//! alike have the choices of their hull (`hull.rs`) in common; a budget that falls between two of these is met by some
//! blocks at the one and the rest at the other. How far that can be from the best choice of all is proved in `bound.rs`.
//!
//! ```text
//!   prices of a byte, ascending     ladder
//!     attention    0 ─► 1             a block at a time from point 0 to 1,
//!     norms etc.   1 ─► 2             then from 1 to 2,
//!     products     2 ─► 3             ...
//! ```
//!
//! Choices are between a result's being kept and its being recomputed once, where the backward pass first needs it; what
//! another block takes in is kept. Not here: how a choice is carried out (`levers/recompute.rs`), what fits
//! (`fastest.rs`).

mod bound;
mod closure;
mod hull;

use crate::cost::KnownTimes;
use crate::layout::ALIGNMENT;
use crate::levers::{Level, MOST_KINDS, NodePlace, NodeSet, Places, Recompute, Uses};
use crate::request::Request;
pub(crate) use bound::{Closeness, PartBound, Plain, step_at_least};
use hull::{Block, Maker, Point, Saved};
use plimsoll_graph::{Graph, Node, Pass, Storage, TensorId};
use rustc_hash::FxHashMap;

/// Blocks that are alike, and what is best recomputed of each.
#[derive(Debug)]
struct Kind {
    /// Ascending; `None` is what is outside all blocks.
    blocks: Vec<Option<u32>>,
    /// Each of them.
    block: Block,
    /// From nothing to as much as saves bytes.
    hull: Vec<Hull>,
}

/// A point of a kind's hull.
#[derive(Debug)]
struct Hull {
    set: NodeSet,
    bytes: u64,
    seconds: f64,
}

impl Hull {
    /// Seconds that a byte less costs, on the way to another point.
    fn price_to(&self, next: &Self) -> f64 {
        (next.seconds - self.seconds) / (self.bytes - next.bytes) as f64
    }
}

/// The choices of a micro-step.
#[derive(Debug)]
pub(crate) struct Choices {
    kinds: Vec<Kind>,
}

/// What a block does at a level.
#[derive(Debug, Clone, Copy)]
struct AtLevel {
    /// Bytes that it keeps less than if nothing were recomputed.
    saved: i64,
    seconds: f64,
}

/// A step from a point of a kind's hull to the next.
#[derive(Debug, Clone, Copy)]
struct Rise {
    kind: usize,
    /// Of the point that it leads to.
    point: usize,
    /// Seconds for a byte.
    price: f64,
}

impl Choices {
    /// Of a graph that nothing is recomputed in.
    pub(crate) fn new(request: &Request, graph: &Graph) -> Self {
        let Some(program) = graph.program("micro_step_add").or_else(|| graph.program("micro_step")) else {
            return Self { kinds: Vec::new() };
        };
        let (places, uses) = (Places::new(&program.nodes), Uses::new(graph, &program.nodes));
        let mut known = KnownTimes::default();
        let mut kinds = Vec::new();
        for (kind, blocks) in places.blocks.iter().enumerate() {
            // One in the middle: the first may take in what others don't.
            let block = blocks[blocks.len() / 2];
            let members = of_block(&program.nodes, block);
            let block = block_of(request, graph, &places, &uses, members, &mut known);
            let set = |point: &Point| {
                let makers = block.makers.iter().zip(&point.recomputed).filter(|(_, is)| **is);
                makers.fold(NodeSet::default(), |set, (maker, _)| set.with(NodePlace { kind, index: maker.place }))
            };
            let hull = block.hull();
            let hull = hull.iter().map(|point| Hull { set: set(point), bytes: point.bytes, seconds: point.seconds });
            let hull = hull.collect();
            kinds.push(Kind { blocks: blocks.clone(), block, hull });
        }
        Self { kinds }
    }

    /// What a block of each kind does where a set of places is recomputed in all.
    fn at_level(&self, level: Level) -> Vec<AtLevel> {
        let of_kind = |(kind, Kind { block, hull, .. }): (usize, &Kind)| {
            let is_in = |place: usize| match level {
                Level::Chosen(set) => set.has(NodePlace { kind, index: place }),
                _ => false,
            };
            let point = block.point(block.makers.iter().map(|maker| is_in(maker.place)).collect());
            AtLevel { saved: hull[0].bytes as i64 - point.bytes as i64, seconds: point.seconds }
        };
        self.kinds.iter().enumerate().map(of_kind).collect()
    }

    fn mix(&self, Recompute { blocks, first, rest }: Recompute) -> Mix {
        Mix { blocks, first: self.at_level(first), rest: self.at_level(rest) }
    }

    /// All steps up, the cheapest byte first.
    fn rises(&self) -> Vec<Rise> {
        let of_kind = |(kind, of): (usize, &Kind)| {
            let price =
                |(index, pair): (usize, &[Hull])| Rise { kind, point: index + 1, price: pair[0].price_to(&pair[1]) };
            of.hull.windows(2).enumerate().map(price).collect::<Vec<_>>()
        };
        let mut rises = self.kinds.iter().enumerate().flat_map(of_kind).collect::<Vec<_>>();
        rises.sort_by(|a, b| a.price.total_cmp(&b.price).then(a.point.cmp(&b.point)));
        rises
    }

    /// From nothing to as much as saves bytes, a block at a time, the cheapest bytes first.
    pub(crate) fn ladder(&self) -> Vec<Recompute> {
        let mut ladder = vec![Recompute::all(Level::None)];
        let mut sets = [NodeSet::default(); MOST_KINDS];
        let whole =
            |sets: &[NodeSet; MOST_KINDS]| Level::Chosen(sets.iter().copied().fold(NodeSet::default(), NodeSet::or));
        for Rise { kind, point, .. } in self.rises() {
            let rest = whole(&sets);
            sets[kind] = self.kinds[kind].hull[point].set;
            let first = whole(&sets);
            let (_, all_but_last) = self.kinds[kind].blocks.split_last().expect("a kind has blocks");
            let blocks = all_but_last.iter().flatten().map(|&block| block as usize + 1);
            ladder.extend(blocks.map(|blocks| Recompute { blocks, first, rest }));
            ladder.push(Recompute::all(first));
        }
        ladder
    }
}

/// Those of a ladder that treat all blocks alike, and between each two of them what cuts the way into up to four parts, as long as
/// these are no more than `most`.
pub(crate) fn mixes(ladder: &[Recompute], most: usize) -> Vec<Recompute> {
    let alike = ladder.iter().enumerate().filter(|(_, recompute)| recompute.blocks == 0).map(|(index, _)| index);
    let alike = alike.collect::<Vec<_>>();
    let parts = (most / alike.len()).clamp(1, 4);
    let between = |pair: &[usize]| {
        let (first, steps) = (pair[0], pair[1] - pair[0]);
        let mut indices = (0..parts).map(|part| first + steps * part / parts).collect::<Vec<_>>();
        indices.dedup();
        indices
    };
    let indices = alike.windows(2).flat_map(between).chain(alike.last().copied());
    indices.map(|index| ladder[index]).collect()
}

/// What blocks do of each kind where the first blocks may be at another level than the rest.
struct Mix {
    blocks: usize,
    first: Vec<AtLevel>,
    rest: Vec<AtLevel>,
}

impl Mix {
    fn of(&self, kind: usize, block: Option<u32>) -> AtLevel {
        let is_first = block.is_some_and(|block| (block as usize) < self.blocks);
        if is_first { self.first[kind] } else { self.rest[kind] }
    }
}

/// The nodes of the forward pass in a block, with their indices.
fn of_block(nodes: &[Node], block: Option<u32>) -> impl Iterator<Item = (usize, &Node)> {
    nodes.iter().enumerate().filter(move |(_, node)| node.pass == Pass::Forward && node.block == block)
}

fn block_of<'a>(
    request: &Request,
    graph: &Graph,
    places: &Places,
    uses: &Uses,
    members: impl Iterator<Item = (usize, &'a Node)>,
    known: &mut KnownTimes,
) -> Block {
    let mut block = Block::default();
    let mut indices = FxHashMap::default();
    for (index, node) in members {
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
