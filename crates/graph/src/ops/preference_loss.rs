//! Losses of preferences: the model must prefer the chosen answer of each example to the rejected one, more than the
//! reference does, or prefer answers that are liked.

use super::{Access, Example, Fill, Io, Op, Operation, Scale, accumulating, expect_type, operands};
use crate::{Backward, DType, GraphError, TensorType};
use plimsoll_units::Bytes;
use serde::{Deserialize, Serialize};

/// Numbers that are reported with the loss: the mean rewards of chosen and rejected answers, and the part of examples
/// whose chosen answer has the higher reward. Of single answers: the sums of the rewards of liked and of disliked answers,
/// divided by the number of examples, and the part of examples that are liked.
pub const REWARDS: usize = 3;

/// The loss of an example, as a function of δ, the reward of its chosen answer minus that of its rejected one, and of the
/// smoothing ε.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PreferenceKind {
    /// -(1-ε) · log σ(δ) - ε · log σ(-δ). Source: Rafailov et al. 2023 (arXiv:2305.18290), eq. 7; with ε, Mitchell 2023,
    /// "A note on DPO with noisy preferences".
    #[default]
    Sigmoid,
    /// (-(1-ε) · log σ(δ) + ε · log σ(-δ)) / (1-2ε). Source: Chowdhury et al. 2024 (arXiv:2403.00409), eq. 12.
    Robust,
    /// max(0, 1 - δ). Source: Zhao et al. 2023 (arXiv:2305.10425), eq. 8.
    Hinge,
    /// Without a reference: the mean negative log-likelihood of the tokens of the prompt and of the chosen answer, minus
    /// β · log σ(o(c) - o(r)), where c and r are the mean log-probabilities of both answers' tokens, and
    /// o(m) = m - log(1 - exp(m)) are the log-odds, of an m of at most -2^-20. Source: Hong et al. 2024 (arXiv:2403.07691),
    /// eq. 6 and 7.
    Orpo,
    /// (d - 1/(2β))², where d is the difference of the mean log-ratios of both answers' tokens. Source: Azar et al. 2023
    /// (arXiv:2310.12036), eq. 17, with means as in TRL.
    Ipo,
    /// Of single answers, with the reward r of each and z, `Scalars::reference_point`: `liked` · σ(z - r) if it is liked, else
    /// `disliked` · σ(r - z). Source: Ethayarajh et al. 2024 (arXiv:2402.01306), eq. 7 and 8; with a z of zero, D'Oosterlinck et
    /// al. 2024 (arXiv:2408.06266), eq. 7, for single answers as in TRL.
    Single {
        /// The weight of liked answers, above zero.
        liked: f32,
        /// The weight of disliked answers, above zero.
        disliked: f32,
        /// Whether z is estimated in each step: the mean reward of answers to other prompts, at least zero. Otherwise z is zero.
        has_reference_point: bool,
    },
}

impl PreferenceKind {
    /// Whether an example has two answers.
    pub fn is_paired(self) -> bool {
        !matches!(self, Self::Single { .. })
    }

    /// Whether the model is compared with a reference.
    pub fn has_reference(self) -> bool {
        self != Self::Orpo
    }

    /// Whether each step estimates `Scalars::reference_point`.
    pub fn has_reference_point(self) -> bool {
        matches!(self, Self::Single { has_reference_point: true, .. })
    }

    /// Whether prompts are trained on too.
    pub fn trains_prompts(self) -> bool {
        self == Self::Orpo
    }
}

/// loss = `Scalars::loss_scale` · the sum of the examples' losses. Example i has the chosen answer in row 2i and the rejected
/// one in row 2i+1; the reward of an answer is β · (policy - reference), with the log-probabilities of its tokens. Examples
/// of which a row has no targets are absent.
/// policy, reference: (2N,) log-probabilities, targets: (2N, T) integers, -1 for no target -> loss: (1,), rewards: (3,), the
/// sums described at [`REWARDS`] times `Scalars::loss_scale`.
/// If the loss is `Single`, each row is an example: policy, reference: (N,), targets: (N, T), which are of the second group
/// if the answer is disliked.
/// If the loss is `Orpo`, the operands are policy: (2N, 2), whose second column is that of the prompt, the second group of
/// [`grouped_target`](super::grouped_target), and targets; the reward of an answer is β times the mean log-probability of its
/// tokens.
/// Scratch: none.
/// Errors: `ShapeMismatch` if operands do not match, rows are not pairs, or a constant is out of range.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct PreferenceLoss {
    /// The loss of an example.
    pub kind: PreferenceKind,
    /// β, above zero: how much deviation from the reference costs; without a reference, the weight of the odds.
    pub beta: f32,
    /// ε in [0, 1], below 1/2 if the loss is `Robust`: the part of preferences that is taken to be wrong.
    pub smoothing: f32,
}

/// [`PreferenceLoss`] and its gradient in one pass.
/// The same operands -> loss: (1,), rewards: (3,), dpolicy: (2N,). The gradient is multiplied by
/// `Scalars::gradient_scale`. Scratch: none.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct PreferenceLossGrad {
    /// The loss.
    pub forward: PreferenceLoss,
    /// Whether loss and rewards are added to the existing values.
    pub accumulate_loss: bool,
}

impl PreferenceLoss {
    fn check(&self, op: &'static str, inputs: &[&TensorType]) -> Result<(), GraphError> {
        let (policy, reference, targets) = if self.kind.has_reference() {
            let [policy, reference, targets] = operands(op, inputs)?;
            (policy, Some(reference), targets)
        } else {
            let [policy, targets] = operands(op, inputs)?;
            (policy, None, targets)
        };
        if let PreferenceKind::Single { liked, disliked, .. } = self.kind
            && ![liked, disliked].iter().all(|weight| *weight > 0.0 && weight.is_finite())
        {
            let problem = format!("weights of {liked} and {disliked}");
            return Err(GraphError::ShapeMismatch { op, problem });
        }
        let most = if self.kind == PreferenceKind::Robust { 0.499 } else { 1.0 };
        if !(self.beta > 0.0 && self.beta.is_finite() && (0.0..=most).contains(&self.smoothing)) {
            let problem = format!("β of {} and a smoothing of {}", self.beta, self.smoothing);
            return Err(GraphError::ShapeMismatch { op, problem });
        }
        let rows = targets.shape.first().copied().unwrap_or(0);
        let rows_of_example = if self.kind.is_paired() { 2 } else { 1 };
        if targets.shape.len() != 2 || !rows.is_multiple_of(rows_of_example) || targets.dtype != DType::I32 {
            let problem = format!("targets of type {targets:?} are not those of examples of {rows_of_example} rows");
            return Err(GraphError::ShapeMismatch { op, problem });
        }
        let sums = if self.kind.trains_prompts() { &[rows, 2][..] } else { &[rows] };
        let sums = TensorType::f32(sums);
        expect_type(op, "policy", policy, &sums)?;
        reference.map_or(Ok(()), |reference| expect_type(op, "reference", reference, &sums))
    }
}

impl Op {
    /// Whether this is a loss that compares with `Scalars::reference_point`, which each step then estimates first, by running
    /// `evaluate` for each micro-batch on answers to other prompts.
    pub fn has_reference_point(&self) -> bool {
        match self {
            Self::PreferenceLoss(loss) => loss.kind.has_reference_point(),
            Self::PreferenceLossGrad(grad) => grad.forward.kind.has_reference_point(),
            _ => false,
        }
    }
}

/// Operations of two rows, with both log-probabilities and the logistic function.
fn flops(io: &Io) -> u64 {
    const OF_ROWS: u64 = 40;
    OF_ROWS * io.inputs[0].shape[0] as u64 / 2
}

impl Operation for PreferenceLoss {
    fn name(&self) -> &'static str {
        "preference_loss"
    }

    fn infer(&self, inputs: &[&TensorType]) -> Result<Vec<TensorType>, GraphError> {
        self.check("preference_loss", inputs)?;
        Ok(vec![TensorType::f32(&[1]), TensorType::f32(&[REWARDS])])
    }

    fn flops(&self, io: &Io) -> u64 {
        flops(io)
    }

    fn backward(&self, cx: &mut Backward) -> Result<(), GraphError> {
        let inputs = cx.inputs().to_vec();
        let op = PreferenceLossGrad { forward: *self, accumulate_loss: cx.accumulates() };
        let outputs = [Some(cx.output(0)), Some(cx.output(1)), None];
        cx.retire_node();
        let made = cx.push_to_parameters(|_| op.into(), &inputs, &outputs, &[])?;
        if self.kind.has_reference() && cx.wants(1) {
            let of_reference = cx.push(Scale { factor: -1.0 }, &[made[2]])?;
            cx.give(1, of_reference[0])?;
        }
        if cx.wants(0) { cx.give(0, made[2]) } else { Ok(()) }
    }

    fn examples() -> Vec<Example> {
        use PreferenceKind::{Hinge, Ipo, Orpo, Robust, Sigmoid, Single};
        let case = |kind, beta, smoothing, [rows, tokens]: [usize; 2]| {
            let shapes: [&[usize]; 3] = [&[rows], &[rows], &[rows, tokens]];
            Example::uniform(Self { kind, beta, smoothing }, &shapes).fill(2, Fill::Target(3))
        };
        let single = |beta, [rows, tokens]: [usize; 2]| {
            let kind = Single { liked: 1.5, disliked: 0.75, has_reference_point: true };
            let op = Self { kind, beta, smoothing: 0.0 };
            Example::uniform(op, &[&[rows], &[rows], &[rows, tokens]]).fill(2, Fill::Grouped(3))
        };
        let without_reference = |beta, [rows, tokens]: [usize; 2]| {
            let op = Self { kind: Orpo, beta, smoothing: 0.0 };
            Example::uniform(op, &[&[rows, 2], &[rows, tokens]]).fill(0, Fill::Negative).fill(1, Fill::Grouped(3))
        };
        vec![
            case(Sigmoid, 0.1, 0.0, [8, 5]),
            case(Sigmoid, 2.0, 0.2, [70, 3]),
            case(Robust, 1.0, 0.1, [6, 4]),
            case(Hinge, 1.5, 0.0, [32, 2]),
            case(Ipo, 0.3, 0.0, [600, 9]),
            case(Sigmoid, 30.0, 0.0, [12, 1]),
            without_reference(0.1, [10, 6]),
            without_reference(3.0, [130, 4]),
            single(0.4, [7, 1]),
            single(2.0, [600, 3]),
        ]
    }
}

impl Operation for PreferenceLossGrad {
    fn name(&self) -> &'static str {
        "preference_loss_grad"
    }

    fn infer(&self, inputs: &[&TensorType]) -> Result<Vec<TensorType>, GraphError> {
        self.forward.check("preference_loss_grad", inputs)?;
        Ok(vec![TensorType::f32(&[1]), TensorType::f32(&[REWARDS]), inputs[0].clone()])
    }

    fn access(&self, index: usize) -> Access {
        if index < 2 { accumulating(self.accumulate_loss) } else { Access::Write }
    }

    fn flops(&self, io: &Io) -> u64 {
        2 * flops(io)
    }

    fn bytes_moved(&self, io: &Io) -> Bytes {
        io.inputs.iter().map(|ty| ty.bytes()).sum::<Bytes>() + io.outputs[2].bytes()
    }

    fn examples() -> Vec<Example> {
        let with = |(example, accumulate_loss): (Example, bool)| {
            let Op::PreferenceLoss(forward) = example.op else { unreachable!("the examples have the forward op") };
            Example { op: Self { forward, accumulate_loss }.into(), ..example }
        };
        let accumulates = [true, false].into_iter().cycle();
        PreferenceLoss::examples().into_iter().zip(accumulates).map(with).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_pairs_and_constants_in_range() {
        let op = PreferenceLoss { kind: PreferenceKind::Sigmoid, beta: 0.1, smoothing: 0.0 };
        let inferred = |op: PreferenceLoss, rows: usize| {
            let sums = TensorType::f32(&[rows]);
            op.infer(&[&sums, &sums, &TensorType::i32(&[rows, 4])])
        };
        assert!(inferred(op, 4).is_ok() && inferred(op, 3).is_err());
        for beta in [0.0, -1.0, f32::NAN, f32::INFINITY] {
            assert!(inferred(PreferenceLoss { beta, ..op }, 4).is_err(), "{beta}");
        }
        let robust = PreferenceLoss { kind: PreferenceKind::Robust, smoothing: 0.5, ..op };
        assert!(inferred(robust, 4).is_err() && inferred(PreferenceLoss { smoothing: 0.4, ..robust }, 4).is_ok());
        let odds = PreferenceLoss { kind: PreferenceKind::Orpo, ..op };
        let (sums, targets) = (TensorType::f32(&[4, 2]), TensorType::i32(&[4, 3]));
        assert!(odds.infer(&[&sums, &targets]).is_ok() && inferred(odds, 4).is_err());
    }
}
