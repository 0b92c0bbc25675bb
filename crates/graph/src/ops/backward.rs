//! The interface of an op's gradient rule: the node that it differentiates, and the program that it emits nodes to.
//! Not here: the order of the pass (`gradient.rs`).

use super::{Add, Op};
use crate::{DType, GraphError, TensorId, TensorType};
use std::collections::{HashMap, HashSet};

/// Appends nodes to a program that is being differentiated.
pub trait Emit {
    /// Appends a node and returns its outputs. In `outputs`, `Some` is an existing tensor and `None` creates one; if
    /// `outputs` itself is `None`, all are created. Errors: the op does not accept these operands or outputs.
    fn emit(
        &mut self,
        op: Op,
        inputs: &[TensorId],
        outputs: Option<&[Option<TensorId>]>,
    ) -> Result<Vec<TensorId>, GraphError>;

    /// The type of a tensor of the program.
    fn type_of(&self, id: TensorId) -> &TensorType;
}

/// The backward pass as an op's gradient rule uses it: the node, the gradients of its results, and a way to emit nodes.
pub struct Backward<'a> {
    pub(crate) program: &'a mut dyn Emit,
    /// The name of the node's op.
    pub(crate) op: &'static str,
    pub(crate) inputs: &'a [TensorId],
    pub(crate) outputs: &'a [TensorId],
    pub(crate) gradients: &'a mut HashMap<TensorId, TensorId>,
    /// Tensors that depend on a trained parameter.
    pub(crate) requires_grad: &'a HashSet<TensorId>,
    /// The gradient of each trained parameter.
    pub(crate) parameter_gradients: &'a HashMap<TensorId, TensorId>,
    /// Gradients of parameters that a node of this pass has written.
    pub(crate) written: &'a mut HashSet<TensorId>,
    /// What this pass alone contributes to each gradient that is not kept in single precision.
    pub(crate) fresh: &'a mut HashMap<TensorId, TensorId>,
    /// Whether gradients are added to those of earlier micro-batches.
    pub(crate) accumulate: bool,
    /// Whether the rule retired the forward node.
    pub(crate) is_retired: bool,
}

impl Backward<'_> {
    /// Operand `index` of the node.
    pub fn input(&self, index: usize) -> TensorId {
        self.inputs[index]
    }

    /// All of the node's operands.
    pub fn inputs(&self) -> &[TensorId] {
        self.inputs
    }

    /// Result `index` of the node.
    pub fn output(&self, index: usize) -> TensorId {
        self.outputs[index]
    }

    /// The gradient of the node's result. Errors: `NotDifferentiable` if no later node contributed to it.
    pub fn upstream(&self, index: usize) -> Result<TensorId, GraphError> {
        let id = self.outputs[index];
        self.gradients.get(&id).copied().ok_or(GraphError::NotDifferentiable { op: self.op })
    }

    /// The type of operand `index`.
    pub fn type_of_input(&self, index: usize) -> &TensorType {
        self.program.type_of(self.inputs[index])
    }

    /// The first dimension of operand `index`, for example the number of rows of a table.
    pub fn rows_of_input(&self, index: usize) -> usize {
        self.type_of_input(index).shape[0]
    }

    /// Whether operand `index` needs a gradient because it depends on a trained parameter.
    pub fn wants(&self, index: usize) -> bool {
        self.requires_grad.contains(&self.inputs[index])
    }

    /// Emits a node with new outputs.
    pub fn push(&mut self, op: impl Into<Op>, inputs: &[TensorId]) -> Result<Vec<TensorId>, GraphError> {
        self.program.emit(op.into(), inputs, None)
    }

    /// Adds a contribution to the gradient of operand `index`.
    pub fn give(&mut self, index: usize, gradient: TensorId) -> Result<(), GraphError> {
        let operand = self.inputs[index];
        let total = match self.gradients.get(&operand) {
            Some(&present) => self.program.emit(Add.into(), &[present, gradient], None)?[0],
            None => gradient,
        };
        self.gradients.insert(operand, total);
        Ok(())
    }

    /// Takes the sum of the contributions to the gradient of operand `index` so far, for rules whose kernel adds its
    /// own contribution. The rule must pass the new sum to `give`.
    pub fn take_pending(&mut self, index: usize) -> Option<TensorId> {
        self.gradients.remove(&self.inputs[index])
    }

    /// The operands among `targets` that are trained parameters. Nodes must not compute gradients of the others.
    pub fn trained(&self, targets: &[usize]) -> Vec<usize> {
        let is_trained = |index: &usize| self.parameter_gradients.contains_key(&self.inputs[*index]);
        targets.iter().copied().filter(is_trained).collect()
    }

    /// Emits the node that contributes to the gradients of the trained parameters `targets` (indices of operands).
    /// `make(accumulate)` returns the op, which adds to all of these gradients if `accumulate` and else sets them. The
    /// node's outputs are `leading` (`None` creates a tensor), then the gradients. Returns all outputs.
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
        let gradients = targets.iter().map(|&index| self.parameter_gradients[&self.inputs[index]]);
        let gradients = gradients.collect::<Vec<_>>();
        for &gradient in &gradients {
            let is_rounded = self.program.type_of(gradient).dtype != DType::F32;
            let adds = !self.written.insert(gradient) || (self.accumulate && !is_rounded);
            assert!(*accumulate.get_or_insert(adds) == adds, "a node sets all its target gradients or adds to all");
            outputs.push(if is_rounded { self.fresh.get(&gradient).copied() } else { Some(gradient) });
        }
        let made = self.program.emit(make(accumulate.unwrap_or(false)), inputs, Some(&outputs))?;
        for (gradient, &written) in gradients.into_iter().zip(&made[leading.len()..]) {
            if written != gradient {
                self.fresh.insert(gradient, written);
            }
        }
        Ok(made)
    }

    /// Whether the loss is added to that of earlier micro-batches instead of replacing it.
    pub fn accumulates(&self) -> bool {
        self.accumulate
    }

    /// Removes the forward node, for rules that recompute its results together with the gradient.
    pub fn retire_node(&mut self) {
        self.is_retired = true;
    }
}
