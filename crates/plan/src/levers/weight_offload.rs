//! Weight offload: weight matrices rest in the host's memory, and travel to the device for each pass through their block.
//!
//! ```text
//!   to device   ‾‾ W1 ‾‾ ‾‾ W3 ‾‾ …                    … ‾‾ W3 ‾‾ ‾‾ W1 ‾‾
//!   device         block 0 | 1 | 2 | 3 | … | head | … | 3 | 2 | 1 | 0
//!   host                                                     update W3    update W1
//! ```
//!
//! A copy on the device is dropped after the last node of its block and pass that reads it (`settle.rs`); it comes as early as there
//! is room (`room.rs`). The optimizer of a weight that rests on the host is there too, so its update sends nothing back.
//! A table of embeddings does not travel: the host reads its rows. Not here: how many weights rest on the host (`search/`).

use super::{Alternative, Lever, in_order, is_worth_sending};
use crate::plan::Plan;
use crate::request::Request;
use crate::settings::{LeverRequest, Levers, Settings};
use plimsoll_graph::ops::Home;
use plimsoll_graph::{Graph, MemoryId, Node, Role, Storage, TensorId};
use plimsoll_units::Seconds;
use rustc_hash::FxHashMap;

/// Moves weights to the host: as few units as hold `fraction` of the bytes of all that can be there. The nodes' operands are then
/// in two memories; `settle` puts the transfers in.
pub fn weight_offload(graph: &mut Graph, fraction: f64) {
    for id in resting(graph, fraction) {
        graph[id].memory = MemoryId::HOST;
    }
}

/// The weights that rest on the host, by whole units.
pub(crate) fn resting(graph: &Graph, fraction: f64) -> Vec<TensorId> {
    if fraction <= 0.0 {
        return Vec::new();
    }
    let units = units(graph);
    let wanted = fraction * units.iter().map(|unit| unit.bytes).sum::<u64>() as f64;
    let mut bytes = 0;
    let moved = units.into_iter().take_while(|unit| {
        let is_moved = (bytes as f64) < wanted;
        bytes += unit.bytes;
        is_moved
    });
    moved.flat_map(|unit| unit.weights).collect()
}

/// Weights that move to the host together: those of a block, or one that is outside all blocks.
struct Unit {
    weights: Vec<TensorId>,
    bytes: u64,
}

impl Unit {
    /// The weights that are worth a transfer of their own; `None` if there are none.
    fn of(graph: &Graph, mut weights: Vec<TensorId>, largest: u64) -> Option<Self> {
        let bytes = |id: &TensorId| graph[*id].ty.bytes().0;
        weights.retain(|id| is_worth_sending(bytes(id), largest));
        let bytes = weights.iter().map(bytes).sum();
        (bytes > 0).then_some(Self { weights, bytes })
    }
}

/// In the order in which they move: tables of which only rows are read, as they cost the least, blocks in the order of
/// activations, and the others.
fn units(graph: &Graph) -> Vec<Unit> {
    let Some(program) = graph.repeated_micro_step() else { return Vec::new() };
    let (mut first_block, mut order) = (FxHashMap::default(), Vec::new());
    for node in &program.nodes {
        for &id in &node.inputs {
            let is_weight = graph[id].storage == Storage::Persistent && graph[id].role == Role::Weight;
            if is_weight && !first_block.contains_key(&id) {
                first_block.insert(id, node.block);
                order.push(id);
            }
        }
    }
    let mut of_blocks = FxHashMap::<u32, Vec<TensorId>>::default();
    let (mut tables, mut others) = (Vec::new(), Vec::new());
    for id in order {
        match first_block[&id] {
            Some(block) => of_blocks.entry(block).or_default().push(id),
            None if program.nodes.iter().all(|node| !travels(node, id)) => tables.push(id),
            None => others.push(id),
        }
    }
    let largest = |weights: &[TensorId]| weights.iter().map(|&id| graph[id].ty.bytes().0).max().unwrap_or(0);
    let outside = largest(&tables).max(largest(&others));
    let of_block = |block: usize| {
        let weights = of_blocks.remove(&(block as u32))?;
        let largest = largest(&weights);
        Unit::of(graph, weights, largest)
    };
    let blocks = in_order(&program.nodes).filter_map(of_block).collect::<Vec<_>>();
    let alone = |weights: Vec<TensorId>| weights.into_iter().filter_map(|id| Unit::of(graph, vec![id], outside));
    alone(tables).chain(blocks).chain(alone(others)).collect()
}

/// Whether a node needs a copy of a weight on the device if that rests on the host.
pub(crate) fn travels(node: &Node, weight: TensorId) -> bool {
    let stays = match node.op.home() {
        Home::Operand(index) => Some(index),
        _ => None,
    };
    node.inputs.iter().enumerate().any(|(index, id)| *id == weight && Some(index) != stays)
}

pub(super) struct WeightOffloadLever;

impl Lever for WeightOffloadLever {
    fn name(&self) -> &'static str {
        "weight-offload"
    }

    fn describe(&self, now: &Settings, _: &Request) -> String {
        match now.levers.weight_offload {
            0.0 => "off".to_owned(),
            part => format!("{:.0} %", 100.0 * part),
        }
    }

    fn off(&self, now: &Settings, _: &Request) -> Settings {
        Settings { levers: Levers { weight_offload: 0.0, ..now.levers }, ..*now }
    }

    fn remark(&self, request: &Request, plan: &Plan, added: Seconds) -> Option<String> {
        super::activation_offload::remark_on_transfers(request, plan, added)
    }

    /// Nothing if device and host share one memory: it frees no bytes there.
    fn further(&self, request: &Request) -> Vec<Alternative> {
        const PROPOSED: [f64; 4] = [0.25, 0.5, 0.75, 1.0];
        let (Some(asked), Some(_)) = (request.levers.weight_offload, request.budget.host()) else {
            return Vec::new();
        };
        let alternative =
            |part: f64| Alternative::of_lever(self, part, request, |levers| levers.weight_offload = Some(part));
        PROPOSED.into_iter().filter(|&part| part > asked).map(alternative).collect()
    }

    fn leave_open(&self, levers: &mut LeverRequest) -> bool {
        levers.weight_offload.take().is_some()
    }
}
