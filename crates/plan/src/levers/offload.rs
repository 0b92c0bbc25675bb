//! Optimizer offload: gradients, master weights and moments of some parameters rest in the host's memory and are
//! updated there; the device keeps the weights that it computes with. A weight with a remainder gets a whole master:
//! if its two halves rested in two memories, both would travel.
//!
//! ```text
//!   device   weight ─────► backward ─► gradient'          weight ◄─────────────┐
//!                                        │ transfer                            │ transfer
//!   host                               gradient ─► adamw ─► master ─► (cast) ──┘
//! ```

use super::precision::MASTER;
use super::{Alternative, Lever};
use crate::request::Request;
use crate::settings::{LeverRequest, Levers, Settings};
use plimsoll_graph::ops::{Cast, Transfer, WeightFormat};
use plimsoll_graph::{DType, Graph, MemoryId, Node, Op, Pass, Role, Storage, TensorId};
use rustc_hash::FxHashMap;
use smallvec::smallvec;

/// Moves the optimizer of the first trained parameters to the host: as few as hold `fraction` of all trained
/// elements. The nodes' operands are then in two memories; `settle` puts the transfers in.
pub fn offload(graph: &mut Graph, fraction: f64) {
    let moved = moved(graph, fraction);
    if moved.is_empty() {
        return;
    }
    let gradients = gradients(graph);
    // Weights without a master, and the master that they get.
    let mut masters = FxHashMap::default();
    for index in moved {
        let weight = graph.parameters[index].tensor;
        let mut training = graph.parameters[index].training.clone().expect("what is moved is trained");
        let master = training.master.unwrap_or_else(|| {
            let remainder = training.remainder.take();
            let master = master_of(graph, weight, remainder);
            masters.insert(weight, NewMaster { master, remainder });
            master
        });
        training.master = Some(master);
        let written_by = [weight, master].into_iter().filter_map(|written| gradients.get(&written)).flatten();
        let moved_along = training.state.iter().chain([&training.gradient, &master]);
        for &id in written_by.chain(moved_along) {
            graph[id].memory = MemoryId::HOST;
        }
        graph.parameters[index].training = Some(training);
    }
    for program in graph.programs.iter_mut().filter(|p| p.nodes.iter().any(|n| n.pass == Pass::Update)) {
        let mut nodes = Vec::with_capacity(program.nodes.len() + masters.len());
        for node in std::mem::take(&mut program.nodes) {
            follow_master(node, &masters, &mut nodes);
        }
        program.nodes = nodes;
    }
}

/// The new master of a weight.
struct NewMaster {
    master: TensorId,
    /// The remainder that the weight had so far.
    remainder: Option<TensorId>,
}

/// A master for a weight that has none. Where it has a remainder, the master is the tensor that this was, so that nothing
/// is left of it.
fn master_of(graph: &mut Graph, weight: TensorId, remainder: Option<TensorId>) -> TensorId {
    let name = format!("{}.{MASTER}", graph[weight].name);
    let Some(remainder) = remainder else {
        let ty = graph[weight].ty.clone();
        return graph.tensor(name, ty, Role::Optimizer, Storage::Persistent);
    };
    graph[remainder].name = name.into();
    graph[remainder].ty.dtype = DType::F32;
    remainder
}

/// The parameters whose optimizer is moved, by their index.
pub(crate) fn moved(graph: &Graph, fraction: f64) -> Vec<usize> {
    let wanted = fraction * graph.trained_parameter_count() as f64;
    let mut elements = 0.0;
    let trained = graph.parameters.iter().enumerate().filter(|(_, p)| p.training.is_some());
    let moved = trained.take_while(|(_, parameter)| {
        let is_moved = elements < wanted;
        elements += graph[parameter.tensor].ty.elements() as f64;
        is_moved
    });
    moved.map(|(index, _)| index).collect()
}

/// The gradients that each weight or master is updated by, in all programs: some have gradients of their own.
fn gradients(graph: &Graph) -> FxHashMap<TensorId, Vec<TensorId>> {
    let mut gradients = FxHashMap::<_, Vec<_>>::default();
    for node in graph.programs.iter().flat_map(|p| &p.nodes).filter(|n| n.pass == Pass::Update) {
        if let Some(update) = node.op.update() {
            gradients.entry(node.outputs[update.weight]).or_default().push(node.inputs[update.gradient]);
        }
    }
    gradients
}

/// The optimizer's nodes work on the master, and the weights follow it; what else the update reads, it reads there.
fn follow_master(mut node: Node, masters: &FxHashMap<TensorId, NewMaster>, nodes: &mut Vec<Node>) {
    if node.pass != Pass::Update {
        return nodes.push(node);
    }
    let read = node.inputs.iter().filter_map(|input| masters.get(input)?.remainder).collect::<Vec<_>>();
    node.inputs.retain(|input| !read.contains(input));
    for input in &mut node.inputs {
        *input = masters.get(input).map_or(*input, |new| new.master);
    }
    let back = node.op.update().and_then(|update| {
        let weight = node.outputs[update.weight];
        let NewMaster { master, .. } = *masters.get(&weight)?;
        node.outputs[update.weight] = master;
        let Some(remainder) = update.remainder else { return Some(sent(&node, master, weight)) };
        node.outputs.remove(remainder);
        node.op = whole(&node.op);
        let (inputs, outputs) = (smallvec![master], smallvec![weight]);
        Some(Node { op: Cast { to: DType::Bf16 }.into(), inputs, outputs, ..node.clone() })
    });
    nodes.push(node);
    nodes.extend(back);
}

/// An optimizer of a weight with its remainder, of a whole master.
pub(crate) fn whole(op: &Op) -> Op {
    op.keeping_weight(WeightFormat::F32).expect("an optimizer keeps its weight as asked")
}

/// A transfer in the block and the pass of a node.
pub(super) fn sent(like: &Node, from: TensorId, to: TensorId) -> Node {
    Node { op: Transfer.into(), inputs: smallvec![from], outputs: smallvec![to], block: like.block, pass: like.pass }
}

pub(super) struct OffloadLever;

impl Lever for OffloadLever {
    fn name(&self) -> &'static str {
        "optimizer-offload"
    }

    fn describe(&self, now: &Settings, _: &Request) -> String {
        format!("{:.0} %", 100.0 * now.levers.optimizer_offload)
    }

    fn off(&self, now: &Settings, _: &Request) -> Settings {
        Settings { levers: Levers { optimizer_offload: 0.0, ..now.levers }, ..*now }
    }

    /// Nothing if device and host share one memory: it frees no bytes there.
    fn further(&self, request: &Request) -> Vec<Alternative> {
        const PROPOSED: [f64; 4] = [0.25, 0.5, 0.75, 1.0];
        let (Some(asked), Some(_)) = (request.levers.optimizer_offload, request.budget.host()) else {
            return Vec::new();
        };
        let alternative =
            |part: f64| Alternative::of_lever(self, part, request, |levers| levers.optimizer_offload = Some(part));
        PROPOSED.into_iter().filter(|&part| part > asked).map(alternative).collect()
    }

    fn leave_open(&self, levers: &mut LeverRequest) -> bool {
        levers.optimizer_offload.take().is_some()
    }
}
