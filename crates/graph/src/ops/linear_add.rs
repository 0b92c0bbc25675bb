//! A matrix product that is added to a tensor in place: the second half of a low-rank adapter, and its gradient.

use super::linear::{product_flops, scratch_of};
use super::{Example, Io, Linear, LinearInputGrad, Nature, Operation, Target, WeightLayout, expect_type, operands};
use crate::{Backward, GraphError, TensorType};
use plimsoll_units::Bytes;
use serde::{Deserialize, Serialize};

/// y = base + x W. base: (.., O), x: (.., I), weight: (I, O) or (O, I) -> y: (.., O), which may overwrite base.
/// Saves x. Scratch: on the processor [`product_scratch`](super::product_scratch), on a card none.
/// Errors: `ShapeMismatch` if the channels differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinearAdd {
    /// Layout of the weight.
    pub layout: WeightLayout,
}

impl Operation for LinearAdd {
    fn name(&self) -> &'static str {
        "linear_add"
    }

    fn infer(&self, inputs: &[&TensorType]) -> Result<Vec<TensorType>, GraphError> {
        let [base, x, weight] = operands("linear_add", inputs)?;
        let (from, to) = self.layout.extents(weight);
        expect_type("linear_add", "x", x, &x.with_columns(from).with_dtype(weight.dtype))?;
        expect_type("linear_add", "base", base, &x.with_columns(to))?;
        Ok(vec![base.clone()])
    }

    fn reuse(&self) -> &'static [(usize, usize)] {
        &[(0, 0)]
    }

    fn scratch(&self, io: &Io, target: &Target) -> Bytes {
        let (x, y) = (io.inputs[1], io.outputs[0]);
        scratch_of([x.dtype, y.dtype], [x.rows(), x.columns(), y.columns()], target)
    }

    fn nature(&self) -> Nature {
        Nature::Products
    }

    fn product(&self, io: &Io) -> Option<[usize; 3]> {
        Some([io.inputs[1].rows(), io.inputs[1].columns(), io.outputs[0].columns()])
    }

    fn is_by_rows(&self) -> bool {
        true
    }

    fn flops(&self, io: &Io) -> u64 {
        product_flops(io.inputs[1].rows(), io.inputs[1].columns(), io.outputs[0].columns())
    }

    fn backward(&self, cx: &mut Backward) -> Result<(), GraphError> {
        let (dy, x) = (cx.upstream(0)?, cx.input(1));
        if cx.wants(0) {
            cx.give(0, dy)?;
        }
        Linear { layout: self.layout, bias: false }.push_weight_grad(cx, x, dy, &[2])?;
        if cx.wants(1) {
            let dx = cx.push(LinearInputGrad { layout: self.layout }, &[dy, cx.input(2)])?[0];
            cx.give(1, dx)?;
        }
        Ok(())
    }

    fn examples() -> Vec<Example> {
        let op = |layout| Self { layout };
        vec![
            Example::uniform(op(WeightLayout::OutIn), &[&[2, 3, 7], &[2, 3, 5], &[7, 5]]),
            Example::uniform(op(WeightLayout::InOut), &[&[1, 19, 33], &[1, 19, 4], &[4, 33]]),
            Example::uniform(op(WeightLayout::OutIn), &[&[1, 130, 65], &[1, 130, 16], &[65, 16]]),
            Example::uniform(op(WeightLayout::InOut), &[&[2, 65, 390], &[2, 65, 8], &[8, 390]]),
        ]
    }
}
