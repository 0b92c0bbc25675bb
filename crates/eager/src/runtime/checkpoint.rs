//! Gradient checkpointing: a block keeps its inputs and runs again in the backward pass.
//! Not here: which blocks are checkpointed (`modules/`). Source: PyTorch's `torch/utils/checkpoint.py`.
//!
//! ```text
//!   non-reentrant:  forward ─► nodes save slots ─► the first unpacked slot runs the block again and fills all slots
//!                   ─► each node frees the slot that it unpacks
//!   reentrant:      forward without a tape ─► its node runs the block again with a tape and a nested backward pass
//! ```

use super::frame::{Block, Frame};
use super::tape::{Op, Saved};
use super::tensor::Edge;
use super::{Rt, Tensor, backward};
use crate::sharding::with_hooks;
use plimsoll_trainers::Checkpointing;
use std::rc::Rc;

/// Runs a block, and runs it again in the backward pass unless checkpointing is off.
pub(crate) fn checkpoint(rt: &Rt, how: Checkpointing, inputs: &[Tensor], block: Block) -> Vec<Tensor> {
    with_hooks(rt, || match how {
        Checkpointing::Off => block(inputs),
        Checkpointing::NonReentrant => {
            rt.frames.borrow_mut().push(Rc::new(Frame::new(rt, block.clone(), inputs)));
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
        // Functions written in Python receive zeros for results without a gradient.
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
