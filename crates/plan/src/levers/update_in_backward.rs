//! When parameters are updated, where a step has a single micro-batch: the update then belongs to that program, and
//! gradients need not outlive it. Where nothing else forbids it, each parameter is even updated as soon as its gradient
//! is complete, so that the gradient dies in the backward pass.
//!
//! ```text
//!   joined        micro_step  forward, backward: all gradients, norm, all updates          update  nothing left
//!   in backward   micro_step  forward, gradients of block 11, their update, those of 10, …  update  the norm
//! ```

use super::Lever;
use super::copies::Copies;
use crate::base_graph::{Programs, built};
use crate::request::{PlanError, Request};
use crate::settings::{Excluded, Levers, Precision, Settings};
use plimsoll_graph::ops::GradClip;
use plimsoll_graph::{Graph, Node, Op, Pass, ProgramKind, ProgramName, Role, Storage, TensorId, TensorType};
use rustc_hash::{FxHashMap, FxHashSet};
use smallvec::smallvec;

/// Why parameters can't be updated in the backward pass of this graph, in words; nothing if they can.
pub fn update_in_backward_excluded(graph: &Graph, precision: Precision) -> Option<Excluded> {
    let because = |reason: &'static str| Some(Excluded { lever: UpdateInBackwardLever.name(), reason });
    let clips = |node: &Node| matches!(node.op, Op::GradClip(GradClip { max_norm: Some(_) }));
    if accumulates(graph) {
        return because("a step has several micro-batches, and their gradients add up before the update");
    }
    if graph.programs.iter().flat_map(|p| &p.nodes).any(clips) {
        return because("clipping needs the norm of all gradients before the first update");
    }
    if precision.scales_gradients() {
        return because("loss scaling must know of an overflow anywhere before the first update");
    }
    None
}

fn accumulates(graph: &Graph) -> bool {
    graph.program(ProgramKind::MicroStepAdd).is_some()
}

fn position(graph: &Graph, name: ProgramName) -> usize {
    graph.programs.iter().position(|program| program.name == name).expect("a training graph has this program")
}

/// Joins the update to the micro-step if there is only one, so that gradients are transient. What the host reads after
/// the update it still reads there.
pub fn join_update(graph: &mut Graph) {
    if accumulates(graph) {
        return;
    }
    let mut gradients = FxHashSet::default();
    for training in graph.parameters.iter().filter_map(|parameter| parameter.training.as_ref()) {
        graph.tensors[training.gradient.index()].storage = Storage::Transient;
        gradients.insert(training.gradient);
    }
    let update = position(graph, ProgramKind::Update.into());
    let update = std::mem::take(&mut graph.programs[update].nodes);
    for (number, step) in micro_steps(graph).into_iter().enumerate() {
        let mut nodes = std::mem::take(&mut graph.programs[step].nodes);
        let joined = nodes.len();
        nodes.extend(update.iter().cloned());
        if number > 0 {
            separate(graph, &mut nodes, joined, &gradients);
        }
        graph.programs[step].nodes = nodes;
    }
}

/// The micro-steps for sequences of all lengths.
fn micro_steps(graph: &Graph) -> Vec<usize> {
    let programs = graph.programs.iter().enumerate();
    programs.filter(|(_, p)| p.name.kind == ProgramKind::MicroStep).map(|(index, _)| index).collect()
}

/// Gives a program transients of its own in place of the gradients and of those of the update, which begins at node
/// `joined`: a transient tensor belongs to one program.
fn separate(graph: &mut Graph, nodes: &mut [Node], joined: usize, gradients: &FxHashSet<TensorId>) {
    let mut copies = Copies::default();
    for (index, node) in nodes.iter_mut().enumerate() {
        for id in node.inputs.iter_mut().chain(&mut node.outputs) {
            let shared = gradients.contains(id) || index >= joined && graph[*id].storage == Storage::Transient;
            if shared {
                *id = copies.of(graph, *id);
            }
        }
    }
}

/// Moves each parameter's update, in a graph whose update is joined, after the last node that writes its gradient or
/// reads its weight. Panics if it is excluded.
pub fn update_in_backward(graph: &mut Graph) {
    for step in micro_steps(graph) {
        let nodes = std::mem::take(&mut graph.programs[step].nodes);
        graph.programs[step].nodes = with_updates_early(graph, nodes);
    }
}

fn with_updates_early(graph: &mut Graph, mut nodes: Vec<Node>) -> Vec<Node> {
    let first_of_update = nodes.iter().position(|n| n.pass == Pass::Update).expect("an update has a norm");
    let of_update = nodes.split_off(first_of_update);
    let mut last_touch = vec![0; graph.tensors.len()];
    for (index, node) in nodes.iter().enumerate() {
        for id in node.inputs.iter().chain(&node.outputs) {
            last_touch[id.index()] = index;
        }
    }
    // The updates that are put after each node.
    let mut behind = vec![Vec::new(); nodes.len()];
    let chain = Chain::of(&of_update);
    let parameters = graph.parameters.iter().enumerate();
    let parameters =
        parameters.flat_map(|(index, p)| [(p.tensor, index), (p.master(), index)]).collect::<FxHashMap<_, _>>();
    // What each parameter's own chain makes of its gradient; and where what the update writes is to be written.
    let mut norms = FxHashMap::default();
    let mut owners = FxHashMap::default();
    for node in &of_update {
        let Some(update) = node.op.update() else { continue };
        let (gradient, written) = (node.inputs[update.gradient], node.outputs[update.weight]);
        let parameter = graph.parameters[parameters[&written]].clone();
        let place = last_touch[parameter.tensor.index()].max(last_touch[gradient.index()]);
        let [norm, factor] = chain.of_one(graph, gradient, nodes[place].block, &mut behind[place]);
        norms.insert(gradient, norm);
        let average = parameter.training.as_ref().and_then(|t| t.average);
        for written in [Some(parameter.tensor), Some(parameter.master()), average].into_iter().flatten() {
            owners.insert(written, (place, factor));
        }
    }
    let mut rest = Vec::new();
    for mut node in of_update {
        if node == chain.norm {
            // The norm of norms is the norm.
            node.inputs.iter_mut().for_each(|gradient| *gradient = norms[gradient]);
            rest.push(node);
        } else if node != chain.factor {
            let (place, factor) = owners[&node.outputs[0]];
            node.inputs.iter_mut().filter(|id| **id == chain.factor.outputs[0]).for_each(|id| *id = factor);
            behind[place].push(node);
        }
    }
    let each = nodes.into_iter().zip(behind).flat_map(|(node, behind)| std::iter::once(node).chain(behind));
    each.chain(rest).collect()
}

/// The two nodes that make of all gradients the factor that optimizers take.
struct Chain {
    norm: Node,
    factor: Node,
}

impl Chain {
    /// The chain in an update's nodes. Panics if there is none.
    fn of(update: &[Node]) -> Self {
        let of_first = |node: &Node| Some(node.inputs[node.op.update()?.factor]);
        let factor = update.iter().find_map(of_first).expect("something is updated");
        let maker =
            |id: TensorId| update.iter().find(|n| *n.outputs == [id]).expect("an update makes its factor").clone();
        let factor = maker(factor);
        Self { norm: maker(factor.inputs[0]), factor }
    }

    /// Appends the chain for one gradient alone; returns what it makes: the norm and the factor.
    fn of_one(
        &self,
        graph: &mut Graph,
        gradient: TensorId,
        block: Option<u32>,
        nodes: &mut Vec<Node>,
    ) -> [TensorId; 2] {
        let mut from = gradient;
        [("norm", &self.norm), ("factor", &self.factor)].map(|(what, node)| {
            let name = format!("{}.{what}", graph[gradient].name);
            let made = graph.tensor(name, TensorType::f32(&[1]), Role::Staging, Storage::Transient);
            nodes.push(Node { inputs: smallvec![from], outputs: smallvec![made], block, ..node.clone() });
            from = made;
            made
        })
    }
}

pub(super) struct UpdateInBackwardLever;

impl Lever for UpdateInBackwardLever {
    fn name(&self) -> &'static str {
        "update-in-backward"
    }

    fn describe(&self, now: &Settings, _: &Request) -> String {
        if now.levers.update_in_backward { "on" } else { "off" }.to_owned()
    }

    fn off(&self, now: &Settings, _: &Request) -> Settings {
        Settings { levers: Levers { update_in_backward: false, ..now.levers }, ..*now }
    }

    fn excluded(&self, now: &Settings, request: &Request) -> Result<Option<Excluded>, PlanError> {
        Ok(update_in_backward_excluded(&built(request, now, Programs::OfStep)?, now.levers.precision))
    }
}
