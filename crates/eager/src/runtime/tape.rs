//! The tape: the nodes that ops record, and the tensors that they save.
//! Not here: the order in which nodes run (`engine.rs`). Source: PyTorch's `torch/csrc/autograd/function.h`,
//! `saved_variable.cpp`.

use super::frame::Kept;
use super::storage::Storage;
use super::tensor::{Edge, Gradients, Node};
use super::{DType, Rt, Tensor};
use crate::usage::Kind;
use std::cell::RefCell;
use std::rc::Rc;

/// A tensor that a node saved.
pub(crate) enum Saved {
    /// The tensor.
    Tensor(Tensor),
    /// A slot of a checkpointed block, which will run again.
    Kept(Kept),
}

impl Saved {
    /// Saves a tensor, or in a checkpointed block a slot for it.
    pub fn of(tensor: &Tensor) -> Self {
        match tensor.rt().frames.borrow().last() {
            Some(frame) => Self::Kept(frame.keep(tensor)),
            None => {
                tensor.mark_if_temporary(Kind::Activation);
                Self::Tensor(tensor.detach())
            }
        }
    }

    /// The tensor; if it is in a slot, this runs the block again.
    pub fn unpack(self) -> Tensor {
        match self {
            Self::Tensor(tensor) => {
                tensor.rt().hold(tensor.clone());
                tensor.rt().fusion.add(&tensor);
                tensor
            }
            Self::Kept(kept) => kept.unpack(),
        }
    }
}

/// An op on its way to the tape: first it saves operands, then it allocates results, and then it is recorded with them.
pub(crate) struct Op {
    name: &'static str,
    rt: Rt,
    recorded: bool,
    next: Vec<Option<Edge>>,
    inputs: Vec<(Vec<u64>, DType)>,
    /// Operands of the enclosing op.
    around: Vec<Rc<Storage>>,
}

impl Op {
    /// Starts an op with these inputs.
    pub fn new(name: &'static str, inputs: &[&Tensor]) -> Self {
        let rt = inputs[0].rt().clone();
        let recorded = rt.records() && inputs.iter().any(|input| input.requires_grad());
        let (next, shapes) = match recorded {
            true => (
                inputs.iter().map(|input| input.edge().cloned()).collect(),
                inputs.iter().map(|input| (input.shape().to_vec(), input.dtype())).collect(),
            ),
            false => (vec![], vec![]),
        };
        let around = rt.fusion.begin(inputs);
        Self { name, rt, recorded, next, inputs: shapes, around }
    }

    /// Whether an input needs a gradient.
    pub fn needs(&self, input: usize) -> bool {
        self.recorded && self.next[input].is_some()
    }

    /// Saves a tensor for the backward pass.
    pub fn save(&self, tensor: &Tensor) -> Option<Saved> {
        self.save_if(tensor, true)
    }

    /// Saves a tensor if `wanted`.
    pub fn save_if(&self, tensor: &Tensor, wanted: bool) -> Option<Saved> {
        (self.recorded && wanted).then(|| Saved::of(tensor))
    }

    /// Records the op with its results and its formula, which computes the inputs' gradients from the results'
    /// gradients.
    pub fn finish(
        mut self,
        outputs: Vec<Tensor>,
        formula: impl FnOnce(&Rt, &Gradients, &[bool]) -> Gradients + 'static,
    ) -> Vec<Tensor> {
        self.rt.fusion.end(std::mem::take(&mut self.around));
        if !self.recorded {
            return outputs;
        }
        let module = self.rt.trace.borrow().module();
        let node = Rc::new(Node {
            sequence: self.rt.next_sequence(),
            name: self.name,
            module,
            next: RefCell::new(self.next),
            inputs: self.inputs,
            outputs: outputs.len(),
            formula: RefCell::new(Some(Box::new(formula))),
        });
        let with_edge = |(index, output): (usize, Tensor)| match output.dtype().is_float() {
            true => output.with_edge(Edge::Node(node.clone(), index)),
            false => output,
        };
        outputs.into_iter().enumerate().map(with_edge).collect()
    }

    /// The same for an op with one result.
    pub fn finish_one(
        self,
        output: Tensor,
        formula: impl FnOnce(&Rt, &Tensor, &[bool]) -> Gradients + 'static,
    ) -> Tensor {
        let formula = move |rt: &Rt, gradients: &Gradients, needs: &[bool]| match &gradients[0] {
            Some(gradient) => formula(rt, gradient, needs),
            None => needs.iter().map(|_| None).collect(),
        };
        self.finish(vec![output], formula).swap_remove(0)
    }
}
