//! The output head over two dropout draws of the same tokens, with a penalty for the divergence of their predictions.

use super::head::{Head, HeadAdapterGrads, HeadGradients};
use super::{Access, Example, Fill, Io, Nature, Op, Operation, Target, accumulating};
use crate::{Backward, GraphError, TensorType};
use plimsoll_units::Bytes;
use serde::{Deserialize, Serialize};

/// loss = `Scalars::loss_scale` · Σ (½(CE₁ + CE₂) + α·½(KL(p₁‖p₂) + KL(p₂‖p₁))), over the rows that have a target,
/// where pᵢ is the softmax of the logits and CEᵢ the loss of [`HeadLoss`](super::HeadLoss) for xᵢ, with the same `cap`.
/// With x₁ = x₂ it equals that loss. With an `adapter`, x·w_v + t·b_v replaces x·w_v in both.
/// x₁, x₂: (B, T, C), weight: (V, C), targets: (B, T) integers, negative for no target, with an adapter t₁, t₂: (B, T, R) and
/// b: (V, R) -> loss: (1,).
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
    /// Whether the weight has an adapter.
    #[serde(default)]
    pub adapter: bool,
}

/// [`PairedHeadLoss`] and its gradient in one pass, which avoids computing the logits twice.
/// The operands of the forward op -> loss: (1,), dx₁, dx₂: (B, T, C), dt₁, dt₂: (B, T, R), dweight: (V, C) in `F32`,
/// db: (V, R) in `F32`, each if that is requested. The gradients are multiplied by `Scalars::gradient_scale`.
/// Scratch: as the forward op, and on a card the [`InnerParts`](super::InnerParts) of dx and dt.
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
    /// Whether the weight has an adapter, and which of its gradients are computed.
    #[serde(default)]
    pub adapter: Option<HeadAdapterGrads>,
    /// Whether the loss is added to the existing value.
    pub accumulate_loss: bool,
    /// Whether dweight and db are added to the existing values.
    pub accumulate: bool,
}

impl PairedHeadLoss {
    fn head<'a>(&self, io: &Io<'a>) -> Head<'a> {
        Head::of(&io.inputs, 2, self.adapter)
    }
}

impl PairedHeadLossGrad {
    /// The gradients that it computes.
    pub fn requested(&self) -> HeadGradients {
        HeadGradients { input: self.input, weight: self.weight, adapter: self.adapter }
    }

    fn head<'a>(&self, io: &Io<'a>) -> Head<'a> {
        Head::of(&io.inputs, 2, self.adapter.is_some())
    }
}

impl Operation for PairedHeadLoss {
    fn name(&self) -> &'static str {
        "paired_head_loss"
    }

    fn infer(&self, inputs: &[&TensorType]) -> Result<Vec<TensorType>, GraphError> {
        Head::check("paired_head_loss", self.cap, inputs, 2, self.adapter)?;
        Ok(vec![TensorType::f32(&[1])])
    }

    fn nature(&self) -> Nature {
        Nature::Products
    }

    fn product(&self, io: &Io) -> Option<[usize; 3]> {
        Some(self.head(io).product())
    }

    fn flops(&self, io: &Io) -> u64 {
        self.head(io).product_flops() + self.head(io).cap_flops(false, self.cap)
    }

    fn bytes_moved(&self, io: &Io) -> Bytes {
        io.inputs.iter().map(|t| t.bytes()).sum::<Bytes>() + self.head(io).logits_moved(2, self.cap)
    }

    fn scratch(&self, io: &Io, target: &Target) -> Bytes {
        self.head(io).logits_scratch(self.chunk, target)
    }

    fn backward(&self, cx: &mut Backward) -> Result<(), GraphError> {
        let Self { chunk, alpha, smoothing, cap, adapter } = *self;
        let (requested, trained) = HeadGradients::of(cx, 2, adapter);
        let HeadGradients { input, weight, adapter } = requested;
        let (inputs, loss, accumulate_loss) = (cx.inputs().to_vec(), cx.output(0), cx.accumulates());
        let make = |accumulate| {
            let of_loss = PairedHeadLossGrad {
                chunk,
                alpha,
                smoothing,
                cap,
                input,
                weight,
                adapter,
                accumulate_loss,
                accumulate,
            };
            of_loss.into()
        };
        cx.retire_node();
        requested.push(cx, 2, make, [&inputs, &[loss]], &trained)
    }

    fn examples() -> Vec<Example> {
        let case = |op: Self, vocab: usize, x: &[usize]| {
            Example::uniform(op, &[x, x, &[vocab, x[2]], &x[..2]]).fill(3, Fill::Target(vocab as i32))
        };
        let adapted = |op: Self, vocab: usize, x: &[usize], rank| {
            let low = [x[0], x[1], rank];
            let shapes: [&[usize]; 7] = [x, x, &[vocab, x[2]], &x[..2], &low, &low, &[vocab, rank]];
            Example::uniform(Self { adapter: true, ..op }, &shapes).fill(3, Fill::Target(vocab as i32))
        };
        let op = |chunk, alpha, smoothing| Self { chunk, alpha, smoothing, cap: None, adapter: false };
        vec![
            case(op(4, 1.0, 0.0), 7, &[2, 5, 3]),
            case(op(16, 0.5, 0.1), 50, &[1, 33, 17]),
            case(op(8, 5.0, 0.0), 5, &[1, 1, 1]),
            case(op(3, 0.0, 0.0), 1030, &[1, 4, 2]),
            case(Self { cap: Some(0.7), ..op(3, 2.0, 0.1) }, 1030, &[1, 4, 6]),
            adapted(op(4, 1.0, 0.1), 7, &[2, 5, 3], 2),
            adapted(Self { cap: Some(0.7), ..op(3, 0.5, 0.0) }, 1030, &[1, 4, 6], 5),
        ]
    }
}

impl Operation for PairedHeadLossGrad {
    fn name(&self) -> &'static str {
        "paired_head_loss_grad"
    }

    fn infer(&self, inputs: &[&TensorType]) -> Result<Vec<TensorType>, GraphError> {
        Head::check("paired_head_loss_grad", self.cap, inputs, 2, self.adapter.is_some())?;
        Ok([vec![TensorType::f32(&[1])], self.requested().types(2, inputs)].concat())
    }

    fn access(&self, index: usize) -> Access {
        match index {
            0 => accumulating(self.accumulate_loss),
            _ => self.requested().access(2, index - 1, self.accumulate),
        }
    }

    fn nature(&self) -> Nature {
        Nature::Products
    }

    fn product(&self, io: &Io) -> Option<[usize; 3]> {
        Some(self.head(io).product())
    }

    fn flops(&self, io: &Io) -> u64 {
        self.head(io).gradient_flops(&self.requested()) + self.head(io).cap_flops(true, self.cap)
    }

    fn bytes_moved(&self, io: &Io) -> Bytes {
        self.head(io).gradient_moved(self.chunk, &self.requested(), self.cap)
    }

    fn scratch(&self, io: &Io, target: &Target) -> Bytes {
        self.head(io).gradient_scratch(self.chunk, &self.requested(), target)
    }

    fn examples() -> Vec<Example> {
        let all = HeadAdapterGrads { low: true, up: true };
        PairedHeadLoss::examples()
            .into_iter()
            .zip([
                ([false, false], [true, true], None),
                ([true, true], [true, false], None),
                ([false, true], [false, true], None),
                ([true, false], [true, true], None),
                ([true, true], [true, true], None),
                ([false, true], [true, false], Some(all)),
                ([true, false], [true, true], Some(all)),
            ])
            .map(|(example, ([accumulate_loss, accumulate], [input, weight], adapter))| {
                let Op::PairedHeadLoss(PairedHeadLoss { chunk, alpha, smoothing, cap, .. }) = example.op else {
                    unreachable!("the examples have the forward op")
                };
                let op = Self { chunk, alpha, smoothing, cap, input, weight, adapter, accumulate_loss, accumulate };
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
        let forward = PairedHeadLoss { chunk: 4, alpha: 1.0, smoothing: 0.0, cap: None, adapter: false };
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
                adapter: None,
                accumulate_loss: false,
                accumulate: false,
            };
            let [dx, dw] = [input, weight].map(u64::from);
            let expected = 2 * rows * (1 + dx + dw) + 2 * weights * (1 + dx + 2 * dw) * 2 + 2 * (2 + dx + dw) * logits;
            assert_eq!(grad.bytes_moved(&io).0, expected, "{input} {weight}");
        }
    }
}
