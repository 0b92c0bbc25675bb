//! The output head over two dropout draws of the same tokens, with a penalty for the divergence of their predictions.

use super::head_loss::{cap_flops, check_cap, logits_moved, logits_scratch, slopes_scratch};
use super::{Access, Example, Fill, Io, Nature, Op, Operation, Target, accumulating, expect_type, operands};
use crate::{Backward, DType, GraphError, TensorType};
use plimsoll_units::Bytes;
use serde::{Deserialize, Serialize};

/// loss = `Scalars::loss_scale` · Σ (½(CE₁ + CE₂) + α·½(KL(p₁‖p₂) + KL(p₂‖p₁))), over the rows that have a target,
/// where pᵢ is the softmax of the logits and CEᵢ the loss of [`HeadLoss`](super::HeadLoss) for xᵢ, with the same `cap`.
/// With x₁ = x₂ it equals that loss.
/// x₁, x₂: (B, T, C), weight: (V, C), targets: (B, T) integers, negative for no target -> loss: (1,).
/// Scratch: 2 × `chunk` × V logits and `chunk` losses; on the processor also that of products in half precision.
/// Source: Liang et al. 2021 (arXiv:2106.14448), eq. 1 to 3, over two.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct PairedHeadLoss {
    /// Rows of logits computed at a time, for each draw.
    pub chunk: usize,
    /// α: weight of the divergence.
    pub alpha: f32,
    /// The part of each target that is spread over the whole vocabulary, in [0, 1].
    pub smoothing: f32,
    /// The limit of logits, above zero.
    pub cap: Option<f32>,
}

/// [`PairedHeadLoss`] and its gradient in one pass, which avoids computing the logits twice.
/// x₁, x₂: (B, T, C), weight: (V, C), targets: (B, T) -> loss: (1,), dx₁, dx₂: (B, T, C), dweight: (V, C) in `F32`. The
/// gradients are multiplied by `Scalars::gradient_scale`.
/// Scratch: as the forward op, and on a card the [`InnerParts`](super::InnerParts) of dx.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct PairedHeadLossGrad {
    /// Rows of logits computed at a time, for each draw.
    pub chunk: usize,
    /// α: weight of the divergence.
    pub alpha: f32,
    /// The part of each target that is spread over the whole vocabulary, in [0, 1].
    pub smoothing: f32,
    /// The limit of logits, above zero.
    pub cap: Option<f32>,
    /// Whether dx is computed.
    pub input: bool,
    /// Whether dweight is computed.
    pub weight: bool,
    /// Whether the loss is added to the existing value.
    pub accumulate_loss: bool,
    /// Whether dweight is added to the existing values.
    pub accumulate: bool,
}

fn check(op: &'static str, cap: Option<f32>, inputs: &[&TensorType]) -> Result<(), GraphError> {
    let [x, other, weight, targets] = operands(op, inputs)?;
    check_cap(op, cap)?;
    let rows = TensorType { shape: x.shape[..x.shape.len() - 1].into(), dtype: DType::I32 };
    expect_type(op, "the second x", other, x)?;
    expect_type(op, "targets", targets, &rows)?;
    expect_type(op, "weight", weight, &x.with_shape(&[weight.shape[0], x.columns()]))
}

/// Extents of the product that computes a draw's logits. Those of its gradients are the same in another order.
fn product(io: &Io) -> [usize; 3] {
    [io.inputs[0].rows(), io.inputs[0].columns(), io.inputs[2].shape[0]]
}

/// Floating point operations of both draws.
fn product_flops(io: &Io) -> u64 {
    4 * (io.inputs[0].elements() * io.inputs[2].shape[0]) as u64
}

impl Operation for PairedHeadLoss {
    fn name(&self) -> &'static str {
        "paired_head_loss"
    }

    fn infer(&self, inputs: &[&TensorType]) -> Result<Vec<TensorType>, GraphError> {
        check("paired_head_loss", self.cap, inputs)?;
        Ok(vec![TensorType::f32(&[1])])
    }

    fn nature(&self) -> Nature {
        Nature::Products
    }

    fn product(&self, io: &Io) -> Option<[usize; 3]> {
        Some(product(io))
    }

    fn flops(&self, io: &Io) -> u64 {
        product_flops(io) + cap_flops([io.inputs[0], io.inputs[2]], 2, false, self.cap)
    }

    fn bytes_moved(&self, io: &Io) -> Bytes {
        io.inputs.iter().map(|t| t.bytes()).sum::<Bytes>() + logits_moved([io.inputs[0], io.inputs[2]], 2, 2, self.cap)
    }

    fn scratch(&self, io: &Io, target: &Target) -> Bytes {
        logits_scratch(self.chunk, 2, [io.inputs[0], io.inputs[2]], target)
    }

    fn backward(&self, cx: &mut Backward) -> Result<(), GraphError> {
        let inputs = cx.inputs().to_vec();
        let (Self { chunk, alpha, smoothing, cap }, accumulate_loss) = (*self, cx.accumulates());
        let (input, trained, loss) = (cx.wants(0) || cx.wants(1), cx.trained(&[2]), cx.output(0));
        let weight = !trained.is_empty();
        let make = |accumulate| {
            PairedHeadLossGrad { chunk, alpha, smoothing, cap, input, weight, accumulate_loss, accumulate }.into()
        };
        cx.retire_node();
        let leading = if input { &[Some(loss), None, None][..] } else { &[Some(loss)] };
        let made = cx.push_to_parameters(make, &inputs, leading, &trained)?;
        if input {
            cx.give(0, made[1])?;
            cx.give(1, made[2])?;
        }
        Ok(())
    }

    fn examples() -> Vec<Example> {
        let case = |op: Self, vocab: usize, x: &[usize]| {
            Example::uniform(op, &[x, x, &[vocab, x[2]], &x[..2]]).fill(3, Fill::Target(vocab as i32))
        };
        let op = |chunk, alpha, smoothing| Self { chunk, alpha, smoothing, cap: None };
        vec![
            case(op(4, 1.0, 0.0), 7, &[2, 5, 3]),
            case(op(16, 0.5, 0.1), 50, &[1, 33, 17]),
            case(op(8, 5.0, 0.0), 5, &[1, 1, 1]),
            case(op(3, 0.0, 0.0), 1030, &[1, 4, 2]),
            case(Self { cap: Some(0.7), ..op(3, 2.0, 0.1) }, 1030, &[1, 4, 6]),
        ]
    }
}

impl Operation for PairedHeadLossGrad {
    fn name(&self) -> &'static str {
        "paired_head_loss_grad"
    }

    fn infer(&self, inputs: &[&TensorType]) -> Result<Vec<TensorType>, GraphError> {
        check("paired_head_loss_grad", self.cap, inputs)?;
        let x = inputs[0].clone();
        let mut outputs = vec![TensorType::f32(&[1])];
        if self.input {
            outputs.extend([x.clone(), x]);
        }
        outputs.extend(self.weight.then(|| inputs[2].with_dtype(DType::F32)));
        Ok(outputs)
    }

    fn access(&self, index: usize) -> Access {
        match index {
            0 => accumulating(self.accumulate_loss),
            1 | 2 if self.input => Access::Write,
            _ => accumulating(self.accumulate),
        }
    }

    fn nature(&self) -> Nature {
        Nature::Products
    }

    fn product(&self, io: &Io) -> Option<[usize; 3]> {
        Some(product(io))
    }

    fn flops(&self, io: &Io) -> u64 {
        let products = (1 + u64::from(self.input) + u64::from(self.weight)) * product_flops(io);
        products + cap_flops([io.inputs[0], io.inputs[2]], 2, true, self.cap)
    }

    fn bytes_moved(&self, io: &Io) -> Bytes {
        let chunks = io.inputs[0].rows().div_ceil(self.chunk) as u64;
        let [input, weight] = [self.input, self.weight].map(u64::from);
        let weights = Bytes(io.inputs[2].bytes().0 * 2 * (1 + input + 2 * weight) * chunks);
        let rows = Bytes(io.inputs[0].bytes().0 * 2 * (1 + input + weight));
        rows + weights + logits_moved([io.inputs[0], io.inputs[2]], 2, 2 + input + weight, self.cap)
    }

    fn scratch(&self, io: &Io, target: &Target) -> Bytes {
        let operands = [io.inputs[0], io.inputs[2]];
        let slopes = if self.input { slopes_scratch(self.chunk, operands, target) } else { Bytes::ZERO };
        logits_scratch(self.chunk, 2, operands, target) + slopes
    }

    fn examples() -> Vec<Example> {
        PairedHeadLoss::examples()
            .into_iter()
            .zip([(false, false), (true, true), (false, true), (true, false), (true, true)])
            .zip([(true, true), (true, false), (false, true), (true, true), (true, true)])
            .map(|((example, (accumulate_loss, accumulate)), (input, weight))| {
                let Op::PairedHeadLoss(PairedHeadLoss { chunk, alpha, smoothing, cap }) = example.op else {
                    unreachable!("the examples have the forward op")
                };
                let op = Self { chunk, alpha, smoothing, cap, input, weight, accumulate_loss, accumulate };
                Example { op: op.into(), ..example }
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two chunks of rows: weights are read, and their gradients read and written, for each draw and chunk; logits in
    /// passes.
    #[test]
    fn bytes_moved_are_those_of_rows_weights_and_logits() {
        let (x, weight) = (TensorType::f32(&[1, 8, 4]), TensorType::f32(&[10, 4]));
        let inputs = [&x, &x, &weight, &TensorType::i32(&[1, 8])];
        let io = Io::new(inputs, []);
        let (rows, weights, targets, logits) = (128, 160, 32, 8 * 10 * 4);
        let forward = PairedHeadLoss { chunk: 4, alpha: 1.0, smoothing: 0.0, cap: None };
        assert_eq!(forward.bytes_moved(&io).0, 2 * rows + weights + targets + 4 * logits);
        let capped = PairedHeadLoss { cap: Some(30.0), ..forward };
        assert_eq!(capped.bytes_moved(&io).0 - forward.bytes_moved(&io).0, 4 * logits);
        assert_eq!(capped.flops(&io) - forward.flops(&io), 10 * 2 * 8 * 10);
        for (input, weight) in [(false, false), (true, false), (false, true), (true, true)] {
            let grad = PairedHeadLossGrad {
                chunk: 4,
                alpha: 1.0,
                smoothing: 0.0,
                cap: None,
                input,
                weight,
                accumulate_loss: false,
                accumulate: false,
            };
            let [dx, dw] = [input, weight].map(u64::from);
            let expected = 2 * rows * (1 + dx + dw) + 2 * weights * (1 + dx + 2 * dw) * 2 + 2 * (2 + dx + dw) * logits;
            assert_eq!(grad.bytes_moved(&io).0, expected, "{input} {weight}");
        }
    }
}
