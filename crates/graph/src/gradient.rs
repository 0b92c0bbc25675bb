//! The gradient pass: walks a program backwards and appends the gradient nodes of each op.
//!
//! ```text
//! forward   a ──► b ──► c ──► loss
//! backward  da ◄─ db ◄─ dc ◄─ (1)
//! ```
//!
//! Gradients of activations are SSA values: a second contribution creates a new value, their sum. Gradients of
//! parameters are persistent accumulators: the first contribution of a step sets them, all others add. Those that are kept
//! in fewer bits than single precision are summed over the program in a tensor of their own, which is rounded once. A
//! parameter that is not trained has no gradient, and the pass skips nodes without a trained parameter upstream.

use crate::ops::KeepGradient;
use crate::{Backward, GraphError, Node, Pass, ProgramBuilder, Role, TensorId};
use smallvec::smallvec;
use std::collections::{HashMap, HashSet};

/// Appends to `builder` the backward pass of all nodes that lead to `roots`. A root comes with its gradient, or with
/// `None` if it is a loss, whose gradient is one. With `accumulate`, parameter gradients and the loss are added to
/// those of earlier micro-steps. Parameters without training state get no gradient.
/// Returns the gradient of each tensor that has one and is not a parameter's accumulator.
pub fn differentiate(
    builder: &mut ProgramBuilder,
    roots: &[(TensorId, Option<TensorId>)],
    accumulate: bool,
) -> Result<HashMap<TensorId, TensorId>, GraphError> {
    let parameter_gradients = builder
        .graph
        .parameters
        .iter()
        .filter_map(|p| Some((p.tensor, p.training.as_ref()?.gradient)))
        .collect::<HashMap<_, _>>();
    let forward = builder.nodes.clone();
    let requires_grad = reach_forward(&forward, &parameter_gradients);
    let losses = roots.iter().filter(|(_, gradient)| gradient.is_none()).map(|(id, _)| *id).collect::<HashSet<_>>();
    let mut gradients = roots.iter().filter_map(|&(id, gradient)| Some((id, gradient?))).collect::<HashMap<_, _>>();
    let (mut written, mut fresh) = (HashSet::new(), HashMap::new());
    builder.begin(Pass::Backward);
    for node in forward.iter().rev() {
        let reached = node.outputs.iter().any(|id| losses.contains(id) || gradients.contains_key(id));
        if !reached || !node.inputs.iter().any(|id| requires_grad.contains(id)) {
            continue;
        }
        let scope = builder.graph[node.outputs[0]].name.to_string();
        builder.scope(scope, node.block);
        let mut context = Backward {
            program: builder,
            op: node.op.name(),
            inputs: &node.inputs,
            outputs: &node.outputs,
            gradients: &mut gradients,
            requires_grad: &requires_grad,
            parameter_gradients: &parameter_gradients,
            written: &mut written,
            fresh: &mut fresh,
            accumulate,
            is_retired: false,
        };
        node.op.backward(&mut context)?;
        if context.is_retired {
            let position = builder.nodes.iter().position(|other| other == node);
            builder.nodes.remove(position.expect("the node is in the program that is differentiated"));
        }
    }
    keep_gradients(builder, &fresh, accumulate);
    Ok(gradients)
}

/// Rounds what the pass contributes to each gradient that is not kept in single precision, after the last node that writes
/// it. `fresh`: that contribution for each gradient.
fn keep_gradients(builder: &mut ProgramBuilder, fresh: &HashMap<TensorId, TensorId>, accumulate: bool) {
    let trained =
        builder.graph.parameters.iter().zip(0..).filter_map(|(p, site)| Some((p.training.as_ref()?.gradient, site)));
    let kept = trained.filter_map(|(gradient, site)| Some((*fresh.get(&gradient)?, (gradient, site))));
    let mut kept = kept.collect::<HashMap<_, _>>();
    let mut reversed = Vec::new();
    for node in std::mem::take(&mut builder.nodes).into_iter().rev() {
        // The last of its outputs first, since the order is reversed.
        for fresh in node.outputs.iter().rev() {
            if let Some((gradient, site)) = kept.remove(fresh) {
                builder.graph.tensors[fresh.index()].role = Role::Gradient;
                let op = KeepGradient { accumulate, site }.into();
                reversed.push(Node { op, inputs: smallvec![*fresh], outputs: smallvec![gradient], ..node.clone() });
            }
        }
        reversed.push(node);
    }
    reversed.reverse();
    builder.nodes = reversed;
}

/// Every tensor that depends on a parameter with a gradient, and those parameters.
fn reach_forward(nodes: &[Node], parameter_gradients: &HashMap<TensorId, TensorId>) -> HashSet<TensorId> {
    let mut reached = parameter_gradients.keys().copied().collect::<HashSet<_>>();
    for node in nodes {
        if node.inputs.iter().any(|id| reached.contains(id)) {
            reached.extend(node.outputs.iter().copied());
        }
    }
    reached
}
