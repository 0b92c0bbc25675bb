//! Updating each parameter as soon as its gradient is complete, so that the gradient dies in the backward pass.
//!
//! ```text
//!   micro_step … head, gradients of block 11 ─► their update, gradients of block 10 ─► their update, …
//!   update       the norm of all gradients, which nobody waits for any more
//! ```

use super::{Excluded, Precision};
use graph::ops::{GradClip, GradNorm};
use graph::{Graph, Node, Op, Role, Storage, TensorId, TensorType};

/// Why the lever can't be pulled in this graph, in words; nothing if it can.
pub fn update_in_backward_excluded(graph: &Graph, precision: Precision) -> Option<Excluded> {
    let because = |reason: &'static str| Some(Excluded { lever: "update in backward", reason });
    let clips = |node: &Node| matches!(node.op, Op::GradClip(GradClip { max_norm: Some(_) }));
    if graph.program("micro_step_add").is_some() {
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

/// Moves each parameter's update behind the last node that writes its gradient or reads its weight. Panics if it is
/// excluded.
pub fn update_in_backward(graph: &mut Graph) {
    let program = |name: &str| graph.programs.iter().position(|p| p.name == name).expect("a training graph");
    let (step, update) = (program("micro_step"), program("update"));
    let mut nodes = std::mem::take(&mut graph.programs[step].nodes).into_iter().map(|n| vec![n]).collect::<Vec<_>>();
    let mut of_update = std::mem::take(&mut graph.programs[update].nodes);
    let mut norms = Vec::new();
    for parameter in graph.parameters.clone() {
        let Some(training) = &parameter.training else { continue };
        let gradient = training.gradient;
        graph[gradient].storage = Storage::Transient;
        let touches = |node: &Node| node.inputs.contains(&parameter.tensor) || node.outputs.contains(&gradient);
        let last = nodes.iter().rposition(|group| touches(&group[0])).expect("a parameter has a gradient");
        let place = nodes[last][0].clone();
        let name = |what: &str| format!("{}.{what}", graph[gradient].name);
        let (norm_name, factor_name) = (name("norm"), name("factor"));
        let one = TensorType::f32(&[1]);
        let norm = graph.tensor(norm_name, one.clone(), Role::Staging, Storage::Persistent);
        let factor = graph.tensor(factor_name, one, Role::Staging, Storage::Transient);
        norms.push((gradient, norm));
        let node =
            |op: Op, from: TensorId, to: TensorId| Node { op, inputs: vec![from], outputs: vec![to], ..place.clone() };
        nodes[last].push(node(GradNorm.into(), gradient, norm));
        nodes[last].push(node(GradClip { max_norm: None }.into(), norm, factor));
        let belongs = |node: &Node| {
            let updated = [training.master, Some(parameter.tensor), training.average];
            !matches!(node.op, Op::GradNorm(_)) && node.outputs.iter().any(|id| updated.contains(&Some(*id)))
        };
        let (own, others): (Vec<_>, Vec<_>) = of_update.into_iter().partition(belongs);
        of_update = others;
        nodes[last].extend(own.into_iter().map(|mut node| {
            if matches!(node.op, Op::AdamW(_) | Op::MovingAverage(_)) {
                node.inputs[1] = factor;
            }
            Node { block: place.block, pass: place.pass, ..node }
        }));
    }
    of_update.retain(|node| !matches!(node.op, Op::GradClip(_)));
    for input in of_update.iter_mut().flat_map(|n| &mut n.inputs) {
        if let Some((_, norm)) = norms.iter().find(|(gradient, _)| gradient == input) {
            *input = *norm;
        }
    }
    graph.programs[step].nodes = nodes.into_iter().flatten().collect();
    graph.programs[update].nodes = of_update;
}
