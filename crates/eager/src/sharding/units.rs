//! Blocks whose weights are on the card only while they run: hooks around a block's forward pass and before its backward pass.
//! Not here: what is done then (`fsdp.rs`, `zero3.rs`).

use crate::runtime::{Op, Rt, Tensor};

/// Told of blocks as they run, in the order of the model.
pub(crate) trait Units {
    /// A block's forward pass begins. Returns its number.
    fn enter(&self, rt: &Rt) -> usize;
    /// It has ended.
    fn leave(&self, rt: &Rt, unit: usize);
    /// The first gradient of its results is there.
    fn before_backward(&self, rt: &Rt, unit: usize);
}

/// Runs a block, and tells those who have to know.
pub(crate) fn watched(rt: &Rt, block: impl FnOnce() -> Vec<Tensor>) -> Vec<Tensor> {
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
