//! A block with checkpointing: its nodes save places, and the first place that is asked for runs it again.
//! Not here: which blocks have one (`checkpoint.rs`).

use super::{DType, Rt, Tensor};
use crate::usage::Kind;
use std::cell::{Cell, RefCell};
use std::rc::Rc;

/// A block: of its inputs, its results.
pub(crate) type Block = Rc<dyn Fn(&[Tensor]) -> Vec<Tensor>>;

/// A run of a block whose nodes save places.
pub(crate) struct Frame {
    /// What the nodes of the second run saved, until it is taken.
    again: RefCell<Vec<Option<Tensor>>>,
    saved: Cell<usize>,
    /// Which run this is.
    state: Cell<State>,
    block: Block,
    inputs: Vec<Tensor>,
    autocast: Option<DType>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    First,
    Again,
    Done,
}

/// A place of a frame.
pub(crate) struct Kept {
    frame: Rc<Frame>,
    index: usize,
    rt: Rt,
}

impl Frame {
    /// The first run of a block, which has not begun.
    pub fn new(rt: &Rt, block: Block, inputs: &[Tensor]) -> Self {
        Self {
            again: RefCell::default(),
            saved: Cell::new(0),
            state: Cell::new(State::First),
            block,
            inputs: inputs.to_vec(),
            autocast: rt.autocast().dtype(),
        }
    }

    /// A place for a tensor, which is kept in the second run only.
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
                    again.push(Some(tensor.detach()));
                }
                // PyTorch stops the second run by an exception where the last place is filled.
                tensor.rt().stopped.set(again.len() == self.saved.get());
                usize::MAX
            }
        };
        Kept { frame: self.clone(), index, rt: tensor.rt().clone() }
    }
}

impl Kept {
    /// The tensor: the first place that is asked for runs the block again.
    pub fn unpack(self) -> Tensor {
        let Self { frame, index, rt } = self;
        if frame.state.get() == State::First {
            frame.state.set(State::Again);
            rt.frames.borrow_mut().push(frame.clone());
            let results = rt.with_grad(true, || rt.autocast().with(frame.autocast, || (frame.block)(&frame.inputs)));
            rt.frames.borrow_mut().pop();
            drop(results);
            rt.stopped.set(false);
            frame.state.set(State::Done);
        }
        let tensor = frame.again.borrow_mut()[index].take();
        rt.hold(frame);
        tensor.expect("a place is asked for once")
    }
}
