//! When parameters are updated, where a step has a single micro-batch: the update then belongs to that program, and
//! gradients need not outlive it. Where nothing else forbids it, each parameter is even updated as soon as its gradient
//! is complete, so that the gradient dies in the backward pass.
//!
//! ```text
//!   joined        micro_step  forward, backward: all gradients, norm, all updates          update  nothing left
//!   in backward   micro_step  forward, gradients of block 11, their update, those of 10, …  update  the norm
//! ```

use super::{Excluded, Precision};
use graph::ops::{GradClip, GradNorm};
use graph::{Graph, Node, Op, Pass, Role, Storage, TensorId, TensorType};
use std::collections::{HashMap, HashSet};

/// Why parameters can't be updated in the backward pass of this graph, in words; nothing if they can.
pub fn update_in_backward_excluded(graph: &Graph, precision: Precision) -> Option<Excluded> {
    let because = |reason: &'static str| Some(Excluded { lever: "update in backward", reason });
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
    graph.program("micro_step_add").is_some()
}

fn position(graph: &Graph, name: &str) -> usize {
    graph.programs.iter().position(|p| p.name == name).expect("a training graph has this program")
}

/// Joins the update to the micro-step if there is only one, so that gradients are transient. What the host reads after
/// the update it still reads there.
pub fn join_update(graph: &mut Graph) {
    if accumulates(graph) {
        return;
    }
    let mut gradients = HashSet::new();
    for parameter in graph.parameters.clone() {
        if let Some(training) = parameter.training {
            graph[training.gradient].storage = Storage::Transient;
            gradients.insert(training.gradient);
        }
    }
    let update = position(graph, "update");
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
    programs.filter(|(_, p)| p.base_name() == "micro_step").map(|(index, _)| index).collect()
}

/// Gives a program transients of its own in place of the gradients and of those of the update, which begins at node
/// `joined`: a transient tensor belongs to one program.
fn separate(graph: &mut Graph, nodes: &mut [Node], joined: usize, gradients: &HashSet<TensorId>) {
    let mut copies = HashMap::new();
    for (index, node) in nodes.iter_mut().enumerate() {
        for id in node.inputs.iter_mut().chain(&mut node.outputs) {
            let shared = gradients.contains(id) || index >= joined && graph[*id].storage == Storage::Transient;
            if shared {
                *id = *copies.entry(*id).or_insert_with(|| {
                    let tensor = graph[*id].clone();
                    graph.tensor(tensor.name, tensor.ty, tensor.role, tensor.storage)
                });
            }
        }
    }
}

/// Moves each parameter's update, in a graph whose update is joined, behind the last node that writes its gradient or
/// reads its weight. Panics if it is excluded.
pub fn update_in_backward(graph: &mut Graph) {
    for step in micro_steps(graph) {
        let nodes = std::mem::take(&mut graph.programs[step].nodes);
        graph.programs[step].nodes = with_updates_early(graph, nodes);
    }
}

fn with_updates_early(graph: &mut Graph, nodes: Vec<Node>) -> Vec<Node> {
    let first_of_update = nodes.iter().position(|n| n.pass == Pass::Update).expect("an update has a norm");
    let mut groups = nodes.into_iter().map(|node| vec![node]).collect::<Vec<_>>();
    let of_update = groups.split_off(first_of_update).into_iter().flatten().collect::<Vec<_>>();

    let mut last_touch = HashMap::new();
    for (index, group) in groups.iter().enumerate() {
        for &id in group[0].inputs.iter().chain(&group[0].outputs) {
            last_touch.insert(id, index);
        }
    }
    let updates = of_update.iter().filter(|n| matches!(n.op, Op::AdamW(_)));
    let gradients = updates.map(|n| (n.outputs[0], n.inputs[0])).collect::<HashMap<_, _>>();
    let mut owners = HashMap::new();
    let mut norms = HashMap::new();
    for parameter in graph.parameters.clone() {
        let Some(training) = &parameter.training else { continue };
        let weight = parameter.tensor;
        let gradient = gradients[&training.master.filter(|m| gradients.contains_key(m)).unwrap_or(weight)];
        let place = last_touch[&weight].max(last_touch[&gradient]);
        let name = |what: &str| format!("{}.{what}", graph[gradient].name);
        let (norm_name, factor_name) = (name("norm"), name("factor"));
        let one = TensorType::f32(&[1]);
        let norm = graph.tensor(norm_name, one.clone(), Role::Staging, Storage::Transient);
        let factor = graph.tensor(factor_name, one, Role::Staging, Storage::Transient);
        norms.insert(gradient, norm);
        for updated in [Some(weight), training.master, training.average].into_iter().flatten() {
            owners.insert(updated, (place, factor));
        }
        let beside = groups[place][0].clone();
        let node = |op: Op, from: TensorId, to: TensorId| Node {
            op,
            inputs: vec![from],
            outputs: vec![to],
            block: beside.block,
            pass: Pass::Update,
        };
        groups[place].push(node(GradNorm.into(), gradient, norm));
        groups[place].push(node(GradClip { max_norm: None }.into(), norm, factor));
    }
    let mut rest = Vec::new();
    for mut node in of_update {
        match node.op {
            // The norm of norms is the norm.
            Op::GradNorm(_) => {
                node.inputs.iter_mut().for_each(|gradient| *gradient = norms[gradient]);
                rest.push(node);
            }
            Op::GradClip(_) => {}
            _ => {
                let (place, factor) = owners[&node.outputs[0]];
                if matches!(node.op, Op::AdamW(_) | Op::MovingAverage(_)) {
                    node.inputs[1] = factor;
                }
                groups[place].push(node);
            }
        }
    }
    groups.into_iter().flatten().chain(rest).collect()
}
