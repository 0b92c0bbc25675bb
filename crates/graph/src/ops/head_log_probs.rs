//! The output head with the log-probability of each row's targets, in chunks of tokens, so that the logits of a whole
//! batch are never stored.
//!
//! Unlike [`HeadLoss`](super::HeadLoss), a sum is kept for each row, since losses of preferences compare rows. The slopes of
//! the sums are known only after all of them, so [`HeadLogProbsGrad`] computes the logits again.
//!
//! Targets are of two groups, which [`grouped_target`] tells apart: an answer and its prompt, or answers that are liked and
//! disliked.

use super::head::{Head, HeadAdapterGrads, HeadGradients};
use super::{Access, Example, Fill, Io, Nature, Op, Operation, Target, expect_type};
use crate::{Backward, DeviceKind, GraphError, TensorType};
use plimsoll_units::Bytes;
use serde::{Deserialize, Serialize};

/// The id of a target, and whether it is of the second group: a target t >= 0 is the id t of the first group, t <= -2 the id
/// -2 - t of the second one. `None` for -1, which is no target.
pub fn grouped_target(target: i32) -> Option<(usize, bool)> {
    let is_second = target < 0;
    let id = if is_second { -2 - i64::from(target) } else { i64::from(target) };
    Some((usize::try_from(id).ok()?, is_second))
}

/// sums_b = Σ_t (z_target - log Σ_v exp(z_v)), over the tokens t of row b that have a target, with the logits z_v = x·w_v, or
/// with a `cap` cap · tanh(x·w_v / cap); if `split`, a sum for each group of targets. With an `adapter`, x·w_v + t·b_v
/// replaces x·w_v.
/// x: (B, T, C), weight: (V, C), targets: (B, T) integers as [`grouped_target`] reads them, with an adapter t: (B, T, R) and
/// b: (V, R) -> sums: (B,), or (B, 2) if `split`.
/// Scratch: `chunk` × V logits and `chunk` losses, on a card B·T losses; on the processor also that of the products.
/// Errors: `ShapeMismatch` if operands do not match, or the cap is not above zero.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct HeadLogProbs {
    /// Tokens whose logits are computed at a time.
    pub chunk: usize,
    /// The limit of logits, above zero.
    pub cap: Option<f32>,
    /// Whether each group of targets has its own sum.
    pub split: bool,
    /// Whether the weight has an adapter.
    #[serde(default)]
    pub adapter: bool,
}

/// The gradient of [`HeadLogProbs`].
/// The operands of the forward op, slopes: those of the sums, of their type -> dx: (B, T, C) if `input`, dt: (B, T, R) if that
/// is requested, dweight: (V, C) in `F32` if `weight`, db: (V, R) in `F32` if that is requested.
/// Scratch: `chunk` × V logits and `chunk` losses, and on a card the [`InnerParts`](super::InnerParts) of dx and dt; on
/// the processor also that of the products.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct HeadLogProbsGrad {
    /// Tokens whose logits are computed at a time.
    pub chunk: usize,
    /// The limit of logits, above zero.
    pub cap: Option<f32>,
    /// Whether each group of targets has its own sum.
    pub split: bool,
    /// Whether dx is computed.
    pub input: bool,
    /// Whether dweight is computed.
    pub weight: bool,
    /// Whether the weight has an adapter, and which of its gradients are computed.
    #[serde(default)]
    pub adapter: Option<HeadAdapterGrads>,
    /// Whether dweight and db are added to the existing values.
    pub accumulate: bool,
}

impl HeadLogProbs {
    fn head<'a>(&self, io: &Io<'a>) -> Head<'a> {
        Head::of(&io.inputs, 1, self.adapter)
    }
}

impl HeadLogProbsGrad {
    /// The gradients that it computes.
    pub fn requested(&self) -> HeadGradients {
        HeadGradients { input: self.input, weight: self.weight, adapter: self.adapter }
    }

    fn head<'a>(&self, io: &Io<'a>) -> Head<'a> {
        Head::of(&io.inputs, 1, self.adapter.is_some())
    }
}

/// The type of the sums of all rows.
fn of_rows(x: &TensorType, split: bool) -> TensorType {
    let rows = x.shape[0];
    if split { TensorType::f32(&[rows, 2]) } else { TensorType::f32(&[rows]) }
}

impl Operation for HeadLogProbs {
    fn name(&self) -> &'static str {
        "head_log_probs"
    }

    fn infer(&self, inputs: &[&TensorType]) -> Result<Vec<TensorType>, GraphError> {
        Head::check("head_log_probs", self.cap, inputs, 1, self.adapter)?;
        Ok(vec![of_rows(inputs[0], self.split)])
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
        let x = io.inputs[0];
        let of_chunk = self.head(io).logits_scratch(self.chunk, target);
        match target.kind() {
            DeviceKind::Cpu => of_chunk,
            // The losses of the other chunks.
            DeviceKind::Cuda => of_chunk + Bytes(4 * (x.rows() - self.chunk.min(x.rows())) as u64),
        }
    }

    fn backward(&self, cx: &mut Backward) -> Result<(), GraphError> {
        let inputs = [cx.inputs(), &[cx.upstream(0)?]].concat();
        let Self { chunk, cap, split, adapter } = *self;
        let (requested, trained) = HeadGradients::of(cx, 1, adapter);
        let HeadGradients { input, weight, adapter } = requested;
        let make = |accumulate| HeadLogProbsGrad { chunk, cap, split, input, weight, adapter, accumulate }.into();
        requested.push(cx, 1, make, [&inputs, &[]], &trained)
    }

    fn examples() -> Vec<Example> {
        let case = |chunk, cap, split, vocab: usize, x: &[usize]| {
            let fill = if split { Fill::Grouped(vocab as i32) } else { Fill::Target(vocab as i32) };
            Example::uniform(Self { chunk, cap, split, adapter: false }, &[x, &[vocab, x[2]], &x[..2]]).fill(2, fill)
        };
        let adapted = |chunk, cap, split, vocab: usize, x: &[usize], rank| {
            let shapes: [&[usize]; 5] = [x, &[vocab, x[2]], &x[..2], &[x[0], x[1], rank], &[vocab, rank]];
            let op = Self { chunk, cap, split, adapter: true };
            Example::uniform(op, &shapes).fill(2, Fill::Grouped(vocab as i32))
        };
        vec![
            case(4, None, false, 7, &[2, 5, 3]),
            case(16, None, false, 50, &[4, 33, 17]),
            case(8, None, false, 5, &[1, 1, 1]),
            case(2, None, true, 4099, &[2, 3, 8]),
            case(7, Some(0.7), false, 1050, &[2, 5, 6]),
            case(9, Some(2.0), true, 50, &[3, 40, 5]),
            adapted(4, None, true, 7, &[2, 5, 3], 2),
            adapted(37, Some(2.0), false, 50, &[3, 40, 36], 33),
            adapted(3, None, false, 4099, &[2, 2, 8], 3),
        ]
    }
}

impl Operation for HeadLogProbsGrad {
    fn name(&self) -> &'static str {
        "head_log_probs_grad"
    }

    fn infer(&self, inputs: &[&TensorType]) -> Result<Vec<TensorType>, GraphError> {
        let (slopes, operands) = inputs.split_last().map_or((None, inputs), |(slopes, rest)| (Some(slopes), rest));
        Head::check("head_log_probs_grad", self.cap, operands, 1, self.adapter.is_some())?;
        let of_rows = of_rows(operands[0], self.split);
        slopes.map_or(Ok(()), |slopes| expect_type("head_log_probs_grad", "slopes", slopes, &of_rows))?;
        Ok(self.requested().types(1, operands))
    }

    fn access(&self, index: usize) -> Access {
        self.requested().access(1, index, self.accumulate)
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
        HeadLogProbs::examples()
            .into_iter()
            .zip([
                ([true, true, false], None),
                ([true, false, true], None),
                ([true, true, true], None),
                ([false, true, true], None),
                ([true, true, false], None),
                ([true, true, true], None),
                ([true, true, true], Some(all)),
                ([true, false, false], Some(all)),
                ([false, false, true], Some(HeadAdapterGrads { up: false, ..all })),
            ])
            .map(|(mut example, ([input, weight, accumulate], adapter))| {
                let Op::HeadLogProbs(HeadLogProbs { chunk, cap, split, .. }) = example.op else {
                    unreachable!("the examples have the forward op")
                };
                let slopes = of_rows(&example.inputs[0].0, split);
                example.inputs.push((slopes, Fill::Uniform));
                Example { op: Self { chunk, cap, split, input, weight, adapter, accumulate }.into(), ..example }
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Targets;

    #[test]
    fn targets_of_the_second_group_are_below_minus_one() {
        for (target, expected) in [
            (0, Some((0, false))),
            (i32::MAX, Some((i32::MAX as usize, false))),
            (-1, None),
            (-2, Some((0, true))),
            (-9, Some((7, true))),
            (i32::MIN, Some((i32::MAX as usize - 1, true))),
        ] {
            assert_eq!(grouped_target(target), expected, "{target}");
        }
    }

    /// On a card the losses of all tokens are kept until the rows are summed.
    #[test]
    fn a_card_keeps_a_loss_for_each_token() {
        let (x, weight) = (TensorType::f32(&[2, 8, 4]), TensorType::f32(&[10, 4]));
        let inputs = [&x, &weight, &TensorType::i32(&[2, 8])];
        let io = Io::new(inputs, []);
        let op = HeadLogProbs { chunk: 4, cap: None, split: false, adapter: false };
        assert_eq!(op.scratch(&io, &Targets::cuda((8, 0), 1).device).0, 4 * (4 * 16 + 16));
        let (cap, split, accumulate) = (None, false, false);
        let grad = HeadLogProbsGrad { chunk: 4, cap, split, input: true, weight: false, adapter: None, accumulate };
        let (rows, weights, logits) = (4 * 16 * 4, 4 * 10 * 4, 4 * 16 * 10);
        assert_eq!(grad.bytes_moved(&io).0, 2 * rows + 4 * 2 * weights + 3 * logits);
        assert_eq!(grad.flops(&io), 2 * 2 * 16 * 4 * 10);
    }
}
