//! The gradient pass: walks a program backwards and appends the gradient nodes of each op.
//!
//! ```text
//! forward   a ──► b ──► c ──► loss
//! backward  da ◄─ db ◄─ dc ◄─ (1)
//! ```
//!
//! Gradients of activations are SSA values: a second contribution creates a new value, their sum. Gradients of
//! parameters are persistent accumulators: the first contribution of a step sets them, all others add. A parameter that
//! is not trained has no gradient, and the pass skips nodes without a trained parameter upstream.

use crate::ops::Add;
use crate::{GraphError, Node, Op, Pass, ProgramBuilder, TensorId};
use std::collections::{HashMap, HashSet};

/// The context of an op's gradient rule: the node, the gradients of its results, and methods to emit nodes.
#[derive(Debug)]
pub struct Backward<'a, 'g> {
    builder: &'a mut ProgramBuilder<'g>,
    node: Node,
    gradients: &'a mut HashMap<TensorId, TensorId>,
    requires_grad: &'a HashSet<TensorId>,
    parameter_gradients: &'a HashMap<TensorId, TensorId>,
    written: &'a mut HashSet<TensorId>,
    accumulate: bool,
}

impl Backward<'_, '_> {
    /// The node's operand.
    pub fn input(&self, index: usize) -> TensorId {
        self.node.inputs[index]
    }

    /// All of the node's operands.
    pub fn inputs(&self) -> &[TensorId] {
        &self.node.inputs
    }

    /// The node's result.
    pub fn output(&self, index: usize) -> TensorId {
        self.node.outputs[index]
    }

    /// The gradient of the node's result. Errors: `NotDifferentiable` if no downstream node contributed one.
    pub fn upstream(&self, index: usize) -> Result<TensorId, GraphError> {
        let id = self.node.outputs[index];
        self.gradients.get(&id).copied().ok_or(GraphError::NotDifferentiable { op: self.node.op.name() })
    }

    /// The first extent of operand `index`, for example the number of rows of a table.
    pub fn rows_of_input(&self, index: usize) -> usize {
        self.builder.graph[self.node.inputs[index]].ty.shape[0]
    }

    /// Whether this operand needs a gradient: it depends on a trained parameter.
    pub fn wants(&self, index: usize) -> bool {
        self.requires_grad.contains(&self.node.inputs[index])
    }

    /// Emits a node with new outputs.
    pub fn push(&mut self, op: impl Into<Op>, inputs: &[TensorId]) -> Result<Vec<TensorId>, GraphError> {
        self.builder.push(op, inputs)
    }

    /// Adds a contribution to the gradient of operand `index`.
    pub fn give(&mut self, index: usize, gradient: TensorId) -> Result<(), GraphError> {
        let operand = self.node.inputs[index];
        let total = match self.gradients.get(&operand) {
            Some(&present) => self.builder.apply(Add, &[present, gradient])?,
            None => gradient,
        };
        self.gradients.insert(operand, total);
        Ok(())
    }

    /// Takes the sum of the contributions to the gradient of operand `index` so far, for rules whose kernel adds its
    /// own contribution. The rule must pass the new sum to `give`.
    pub fn take_pending(&mut self, index: usize) -> Option<TensorId> {
        self.gradients.remove(&self.node.inputs[index])
    }

    /// The operands among `targets` that are trained parameters. Nodes must not compute gradients of the others.
    pub fn trained(&self, targets: &[usize]) -> Vec<usize> {
        let is_trained = |index: &usize| self.parameter_gradients.contains_key(&self.node.inputs[*index]);
        targets.iter().copied().filter(is_trained).collect()
    }

    /// Emits the node that contributes to the gradients of the trained parameters `targets` (indices of operands).
    /// `make(accumulate)` returns the op: it must add to all of these gradients if `accumulate`, and set them
    /// otherwise. The outputs `leading` come first (`None`: a new one), then the gradients. Returns all outputs.
    /// Panics if a target is not trained, or if some targets have a gradient already and others do not.
    pub fn push_to_parameters(
        &mut self,
        make: impl FnOnce(bool) -> Op,
        inputs: &[TensorId],
        leading: &[Option<TensorId>],
        targets: &[usize],
    ) -> Result<Vec<TensorId>, GraphError> {
        let mut outputs = leading.to_vec();
        let mut accumulate = None;
        for &index in targets {
            let gradient = self.parameter_gradients[&self.node.inputs[index]];
            let adds = !self.written.insert(gradient) || self.accumulate;
            assert!(
                *accumulate.get_or_insert(adds) == adds,
                "either all or none of a node's parameters have a gradient already"
            );
            outputs.push(Some(gradient));
        }
        self.builder.push_into(make(accumulate.unwrap_or(false)), inputs, &outputs)
    }

    /// Whether the loss is added to that of earlier micro-batches instead of replacing it.
    pub fn accumulates(&self) -> bool {
        self.accumulate
    }

    /// Removes the forward node, for rules that recompute its results together with the gradient.
    pub fn retire_node(&mut self) {
        let position = self.builder.nodes.iter().position(|n| *n == self.node);
        self.builder.nodes.remove(position.expect("the node is in the program"));
    }
}

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
    let mut written = HashSet::new();
    builder.begin(Pass::Backward);
    for node in forward.iter().rev() {
        let reached = node.outputs.iter().any(|id| losses.contains(id) || gradients.contains_key(id));
        if !reached || !node.inputs.iter().any(|id| requires_grad.contains(id)) {
            continue;
        }
        let scope = builder.graph[node.outputs[0]].name.to_string();
        builder.scope(scope, node.block);
        let mut context = Backward {
            builder,
            node: node.clone(),
            gradients: &mut gradients,
            requires_grad: &requires_grad,
            parameter_gradients: &parameter_gradients,
            written: &mut written,
            accumulate,
        };
        node.op.backward(&mut context)?;
    }
    Ok(gradients)
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
