//! Gradient checkpointing: a block keeps its inputs and is run again in the backward pass.
//! Not here: which blocks (`modules/`). Source: PyTorch's `torch/utils/checkpoint.py`.
//!
//! ```text
//!   by hooks:     forward ─► nodes save places ─► first place unpacked ─► block runs again, fills all places ─► each
//!                                                                         is freed by the node that takes it
//!   re-entrant:   forward without a tape ─► its node runs the block again with a tape, and a backward pass of its own
//! ```

use super::tape::{Edge, Held, Op, Saved};
use super::{DType, Rt, Tensor, backward};
use crate::estimate::Kind;
use crate::sharding::watched;
use plimsoll_trainers::Checkpointing;
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
        rt.held.borrow_mut().push(Held::Frame(frame));
        tensor.expect("a place is asked for once")
    }
}

/// Runs a block, which is run again in the backward pass.
pub(crate) fn checkpoint(rt: &Rt, how: Checkpointing, inputs: &[Tensor], block: Block) -> Vec<Tensor> {
    watched(rt, || match how {
        Checkpointing::Off => block(inputs),
        Checkpointing::NonReentrant => {
            let frame = Rc::new(Frame {
                again: RefCell::default(),
                saved: Cell::new(0),
                state: Cell::new(State::First),
                block: block.clone(),
                inputs: inputs.to_vec(),
                autocast: rt.autocast().dtype(),
            });
            rt.frames.borrow_mut().push(frame);
            let results = block(inputs);
            rt.frames.borrow_mut().pop();
            results
        }
        Checkpointing::Reentrant => reentrant(rt, inputs, block),
    })
}

fn reentrant(rt: &Rt, inputs: &[Tensor], block: Block) -> Vec<Tensor> {
    let op = Op::new("CheckpointFunction", &inputs.iter().collect::<Vec<_>>());
    let results = rt.with_grad(false, || block(inputs));
    let autocast = rt.autocast().dtype();
    let asked = inputs.iter().map(Tensor::requires_grad).collect::<Vec<_>>();
    let saved = inputs.iter().filter_map(|input| op.save(input)).collect::<Vec<_>>();
    let likes = results.iter().map(|result| (result.shape().to_vec(), result.dtype())).collect::<Vec<_>>();
    op.finish(results, move |rt, gradients, _| {
        // Functions that are written in Python are given zeros for results without a gradient.
        let given = likes.iter().zip(gradients).map(|((shape, dtype), gradient)| {
            gradient.clone().unwrap_or_else(|| Tensor::new(rt, shape, *dtype, "zeros"))
        });
        let gradients = given.collect::<Vec<_>>();
        let inputs = saved.into_iter().map(Saved::unpack);
        let inputs = inputs.zip(&asked).map(|(input, asked)| if *asked { input.into_leaf() } else { input });
        let inputs = inputs.collect::<Vec<_>>();
        rt.with_graph(|| {
            let results = rt.with_grad(true, || rt.autocast().with(autocast, || block(&inputs)));
            let roots = results.iter().zip(&gradients).filter_map(|(result, gradient)| {
                let edge: Edge = result.edge().cloned()?;
                Some((edge, gradient.clone()))
            });
            backward(rt, roots.collect());
        });
        rt.keep_with_graph(block);
        inputs.iter().map(|input| input.leaf().and_then(|leaf| leaf.grad.borrow_mut().take())).collect()
    })
}
