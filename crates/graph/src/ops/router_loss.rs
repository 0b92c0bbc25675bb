//! The loss on the balance of experts, over all layers at once.

use super::{Access, Example, Fill, Io, Operation, Target, accumulating, expect_rank, expect_type};
use crate::{Backward, DType, DeviceKind, GraphError, TensorType};
use plimsoll_units::Bytes;
use serde::{Deserialize, Serialize};

/// loss = `Scalars::micro_batch_share` · coefficient · E · Σ_e f_e · P_e, where f_e is the mean number of choices of
/// expert e, and P_e its mean probability, over the tokens of all L layers. It is a product of means over layers, so it
/// is not a sum of losses of layers: the op takes the results of every layer's [`Route`](super::Route).
/// sums: (E,) `F32` of each layer, then bounds: (E + 1,) `I32` of each layer -> loss: (1,) `F32`, and dsums: (E,) `F32`,
/// the gradient of each layer's sums, multiplied by `Scalars::gradient_scale`. dsums is a result of the forward pass, so
/// that the backward pass of no layer needs the results of all layers.
/// Scratch: on a card two numbers per expert, on the processor none.
/// Source: Fedus et al. 2021 (arXiv:2101.03961), equations 4 to 6; `load_balancing_loss_func` of transformers without an
/// attention mask.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct RouterLoss {
    /// Factor of the loss.
    pub coefficient: f32,
    /// K of the routers.
    pub experts_per_token: usize,
    /// Whether the loss is added to the existing value.
    pub accumulate: bool,
}

impl Operation for RouterLoss {
    fn name(&self) -> &'static str {
        "router_loss"
    }

    fn infer(&self, inputs: &[&TensorType]) -> Result<Vec<TensorType>, GraphError> {
        let op = "router_loss";
        let (sums, bounds) = inputs.split_at(inputs.len() / 2);
        let Some(&first) = sums.first().filter(|_| sums.len() == bounds.len()) else {
            let problem = format!("takes sums and bounds of each layer, found {} operands", inputs.len());
            return Err(GraphError::ShapeMismatch { op, problem });
        };
        expect_rank(op, "sums", first, 1)?;
        let of_bounds = TensorType::i32(&[first.elements() + 1]);
        sums.iter().try_for_each(|sums| expect_type(op, "sums", sums, &first.with_dtype(DType::F32)))?;
        bounds.iter().try_for_each(|bounds| expect_type(op, "bounds", bounds, &of_bounds))?;
        Ok(vec![TensorType::f32(&[1]), first.clone()])
    }

    fn access(&self, index: usize) -> Access {
        if index == 0 { accumulating(self.accumulate) } else { Access::Write }
    }

    fn flops(&self, io: &Io) -> u64 {
        4 * (io.inputs.len() * io.inputs[0].elements()) as u64
    }

    fn scratch(&self, io: &Io, target: &Target) -> Bytes {
        match target.kind() {
            DeviceKind::Cpu => Bytes::ZERO,
            DeviceKind::Cuda => Bytes(8 * io.inputs[0].elements() as u64),
        }
    }

    fn backward(&self, cx: &mut Backward) -> Result<(), GraphError> {
        let dsums = cx.output(1);
        (0..cx.inputs().len() / 2)
            .filter(|&layer| cx.wants(layer))
            .collect::<Vec<_>>()
            .into_iter()
            .try_for_each(|layer| cx.give(layer, dsums))
    }

    fn examples() -> Vec<Example> {
        let case = |accumulate, [layers, experts, tokens]: [usize; 3]| {
            let op = Self { coefficient: 0.5, experts_per_token: 2, accumulate };
            let (sums, bounds): (&[usize], &[usize]) = (&[experts], &[experts + 1]);
            let shapes = [vec![sums; layers], vec![bounds; layers]].concat();
            let filled = |example: Example, index| example.fill(index, Fill::Bounds(2 * tokens as i32));
            (layers..2 * layers).fold(Example::uniform(op, &shapes), filled)
        };
        vec![case(false, [3, 5, 6]), case(true, [1, 300, 64]), case(false, [2, 1, 1])]
    }
}
