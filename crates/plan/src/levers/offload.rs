//! Optimizer offload: gradients, masters and moments of some parameters rest in the host's memory and are updated there; the
//! device keeps the weights that it computes with. A weight without a master gets one of its own type, which is sent back as
//! it is; the remainder of a weight, if it has one, rests with the master. A weight that rests on the host itself needs no
//! master.
//!
//! ```text
//!   device   weight ─────► backward ─► gradient'                     weight ◄──┐
//!                                        │ transfer                            │ transfer
//!   host                               gradient ─► adamw ─► master, remainder ─┘
//! ```

use super::precision::MASTER;
use super::{Alternative, Lever};
use crate::request::Request;
use crate::settings::{LeverRequest, Levers, Settings};
use plimsoll_graph::ops::Transfer;
use plimsoll_graph::{Graph, MemoryId, Node, Pass, Role, Storage, TensorId};
use rustc_hash::FxHashMap;
use smallvec::smallvec;

/// Moves the optimizer of the first trained parameters to the host: as few as hold `fraction` of all trained
/// elements, and those whose weights are on the host already. The nodes' operands are then in two memories; `settle` puts the
/// transfers in.
pub fn offload(graph: &mut Graph, fraction: f64) {
    let is_resting = |weight: TensorId| graph[weight].memory != MemoryId::DEVICE;
    let moved = moved(graph, fraction, is_resting);
    if moved.is_empty() {
        return;
    }
    let gradients = gradients(graph);
    // Weights without a master, and the master that they get.
    let mut masters = FxHashMap::default();
    for index in moved {
        let weight = graph.parameters[index].tensor;
        let mut training = graph.parameters[index].training.clone().expect("what is moved is trained");
        if graph[weight].memory == MemoryId::DEVICE && training.master.is_none() {
            let (name, ty) = (format!("{}.{MASTER}", graph[weight].name), graph[weight].ty.clone());
            let master = graph.tensor(name, ty, Role::Optimizer, Storage::Persistent);
            masters.insert(weight, master);
            training.master = Some(master);
        }
        let updated = [Some(weight), training.master].into_iter().flatten();
        let written_by = updated.filter_map(|written| gradients.get(&written)).flatten();
        let own = [Some(training.gradient), training.master, training.remainder];
        let own = own.into_iter().flatten().collect::<Vec<_>>();
        let moved_along = training.state.iter().chain(&own);
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

/// The parameters whose optimizer is moved, by their index. `is_resting`: whether a weight is on the host.
pub(crate) fn moved(graph: &Graph, fraction: f64, is_resting: impl Fn(TensorId) -> bool) -> Vec<usize> {
    let wanted = fraction * graph.trained_parameter_count() as f64;
    let mut elements = 0.0;
    let trained = graph.parameters.iter().enumerate().filter(|(_, p)| p.training.is_some());
    let moved = trained.filter(|(_, parameter)| {
        let is_moved = elements < wanted || is_resting(parameter.tensor);
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
fn follow_master(mut node: Node, masters: &FxHashMap<TensorId, TensorId>, nodes: &mut Vec<Node>) {
    if node.pass != Pass::Update {
        return nodes.push(node);
    }
    for input in &mut node.inputs {
        *input = *masters.get(input).unwrap_or(input);
    }
    let back = node.op.update().and_then(|update| {
        let weight = node.outputs[update.weight];
        let master = *masters.get(&weight)?;
        node.outputs[update.weight] = master;
        Some(sent(&node, master, weight))
    });
    nodes.push(node);
    nodes.extend(back);
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
