//! Hooks of blocks whose weights are on the GPU only while the block runs. Called around a block's forward pass and
//! before its backward pass.
//! Not here: the hooks' actions (`fsdp.rs`, `zero3.rs`).

use crate::runtime::{Op, Rt, Tensor};

/// Receives calls as blocks run, in the order of the model.
pub(crate) trait Units {
    /// Called before a block's forward pass. Returns the block's index.
    fn enter(&self, rt: &Rt) -> usize;
    /// Called after a block's forward pass.
    fn leave(&self, rt: &Rt, unit: usize);
    /// Called when a gradient of one of the block's results arrives.
    fn before_backward(&self, rt: &Rt, unit: usize);
}

/// Runs a block with its hooks.
pub(crate) fn with_hooks(rt: &Rt, block: impl FnOnce() -> Vec<Tensor>) -> Vec<Tensor> {
    let Some(units) = rt.units.borrow().clone() else { return block() };
    let unit = units.enter(rt);
    let results = block();
    units.leave(rt, unit);
    let watch = |result: Tensor| {
        let units = units.clone();
        let op = Op::new("pre_backward_hook", &[&result]);
        let same = result.alias(result.shape().to_vec(), result.strides().to_vec());
        op.finish_one(same, move |rt, gradient, _| {
            units.before_backward(rt, unit);
            vec![Some(gradient.clone())]
        })
    };
    results.into_iter().map(watch).collect()
}
