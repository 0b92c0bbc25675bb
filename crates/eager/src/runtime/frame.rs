//! Frames of checkpointed blocks: a block's nodes save slots instead of tensors, and unpacking the first slot runs the
//! block again.
//! Not here: which blocks have a frame (`checkpoint.rs`).

use super::{DType, Rt, Tensor};
use crate::usage::Kind;
use rustc_hash::FxHashSet;
use std::cell::{Cell, RefCell};
use std::rc::Rc;

/// A block: computes its results from its inputs.
pub(crate) type Block = Rc<dyn Fn(&[Tensor]) -> Vec<Tensor>>;

/// A checkpointed block, for its first run and its second run in the backward pass.
pub(crate) struct Frame {
    /// Tensors that the nodes of the second run saved, by slot; `None` after a slot is unpacked.
    again: RefCell<Vec<Option<Tensor>>>,
    /// The number of slots.
    saved: Cell<usize>,
    /// Slots of nodes that no longer exist when the second run starts; it fills them with nothing.
    dropped: RefCell<FxHashSet<usize>>,
    /// The current run.
    state: Cell<State>,
    block: Block,
    inputs: Vec<Tensor>,
    /// The type of autocast in the first run; the second run uses it too.
    autocast: Option<DType>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    First,
    Again,
    Done,
}

/// A slot of a frame.
pub(crate) struct Kept {
    frame: Rc<Frame>,
    index: usize,
    rt: Rt,
}

impl Frame {
    /// The frame of a block before its first run.
    pub fn new(rt: &Rt, block: Block, inputs: &[Tensor]) -> Self {
        Self {
            again: RefCell::default(),
            saved: Cell::new(0),
            dropped: RefCell::default(),
            state: Cell::new(State::First),
            block,
            inputs: inputs.to_vec(),
            autocast: rt.autocast().dtype(),
        }
    }

    /// Adds a slot for a tensor in the first run; stores the tensor in the next slot in the second run.
    pub fn keep(self: &Rc<Self>, tensor: &Tensor) -> Kept {
        let index = match self.state.get() {
            State::First => {
                let index = self.saved.get();
                self.saved.set(index + 1);
                index
            }
            _ => {
                let mut again = self.again.borrow_mut();
                if again.len() < self.saved.get() {
                    tensor.mark_if_temporary(Kind::Recomputed);
                    let is_wanted = !self.dropped.borrow().contains(&again.len());
                    again.push(is_wanted.then(|| tensor.detach()));
                }
                // PyTorch ends the second run with an exception as soon as the last slot is filled.
                tensor.rt().stopped.set(again.len() == self.saved.get());
                usize::MAX
            }
        };
        Kept { frame: self.clone(), index, rt: tensor.rt().clone() }
    }
}

impl Kept {
    /// The tensor of the slot. The first unpacked slot runs the block again.
    pub fn unpack(self) -> Tensor {
        let (frame, rt) = (self.frame.clone(), &self.rt);
        if frame.state.get() == State::First {
            frame.state.set(State::Again);
            rt.frames.borrow_mut().push(frame.clone());
            let results = rt.with_grad(true, || rt.autocast().with(frame.autocast, || (frame.block)(&frame.inputs)));
            rt.frames.borrow_mut().pop();
            drop(results);
            rt.stopped.set(false);
            frame.state.set(State::Done);
        }
        let tensor = frame.again.borrow_mut()[self.index].take();
        rt.hold(frame);
        tensor.expect("a slot is unpacked once")
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        if self.frame.state.get() == State::First {
            self.frame.dropped.borrow_mut().insert(self.index);
        }
    }
}
