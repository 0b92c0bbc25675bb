//! The output head fused with cross-entropy, in chunks of rows, so that the logits of a whole batch are never stored.
//!
//! [`HeadLossGrad`] computes the loss, the gradient of the hidden states and that of the head's weight in one pass over
//! the chunks, so the logits are computed once.

use super::head::{Head, HeadAdapterGrads, HeadGradients};
use super::{Access, Example, Fill, Io, Nature, Op, Operation, Target, accumulating};
use crate::{Backward, GraphError, TensorType};
use plimsoll_units::Bytes;
use serde::{Deserialize, Serialize};

/// loss = `Scalars::loss_scale` · Σ ((1-ε) · n_target + ε/V · Σ_v n_v), over the rows that have a target, where n_v is
/// the negative log-likelihood of token v, log Σ_u exp(z_u) - z_v, with the logits z_v = x·w_v, or with a `cap`
/// cap · tanh(x·w_v / cap), and ε the smoothing. With an `adapter`, x·w_v + t·b_v replaces x·w_v.
/// x: (B, T, C), weight: (V, C), targets: (B, T) integers, negative for no target, with an adapter t: (B, T, R) and b: (V, R)
/// -> loss: (1,).
/// Scratch: `chunk` × V logits and `chunk` losses; on the processor also the scratch of the products.
/// Errors: `ShapeMismatch` if operands do not match, or the cap is not above zero.
/// Source of the smoothing: Szegedy et al. 2016 (arXiv:1512.00567), section 7; of the cap: Gemma Team 2024, "Gemma 2",
/// section 2.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct HeadLoss {
    /// Rows of logits computed at a time.
    pub chunk: usize,
    /// ε in [0, 1]: the part of each target that is spread over the whole vocabulary.
    pub smoothing: f32,
    /// The limit of logits, above zero.
    pub cap: Option<f32>,
    /// Whether the weight has an adapter.
    #[serde(default)]
    pub adapter: bool,
}

/// [`HeadLoss`] and its gradient in one pass, which avoids computing the logits twice.
/// The operands of the forward op -> loss: (1,), dx: (B, T, C) if `input`, dt: (B, T, R) if that is requested,
/// dweight: (V, C) in `F32` if `weight`, db: (V, R) in `F32` if that is requested. The gradients are multiplied by
/// `Scalars::gradient_scale`.
/// Scratch: as the forward op, and on a card the [`InnerParts`](super::InnerParts) of dx and dt.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct HeadLossGrad {
    /// Rows of logits computed at a time.
    pub chunk: usize,
    /// ε in [0, 1]: the part of each target that is spread over the whole vocabulary.
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

impl HeadLossGrad {
    /// The gradients that it computes.
    pub fn requested(&self) -> HeadGradients {
        HeadGradients { input: self.input, weight: self.weight, adapter: self.adapter }
    }

    fn head<'a>(&self, io: &Io<'a>) -> Head<'a> {
        Head::of(&io.inputs, 1, self.adapter.is_some())
    }
}

impl HeadLoss {
    fn head<'a>(&self, io: &Io<'a>) -> Head<'a> {
        Head::of(&io.inputs, 1, self.adapter)
    }
}

impl Operation for HeadLoss {
    fn name(&self) -> &'static str {
        "head_loss"
    }

    fn infer(&self, inputs: &[&TensorType]) -> Result<Vec<TensorType>, GraphError> {
        Head::check("head_loss", self.cap, inputs, 1, self.adapter)?;
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
        let Self { chunk, smoothing, cap, adapter } = *self;
        let (requested, trained) = HeadGradients::of(cx, 1, adapter);
        let HeadGradients { input, weight, adapter } = requested;
        let (inputs, loss, accumulate_loss) = (cx.inputs().to_vec(), cx.output(0), cx.accumulates());
        let make = |accumulate| {
            HeadLossGrad { chunk, smoothing, cap, input, weight, adapter, accumulate_loss, accumulate }.into()
        };
        cx.retire_node();
        requested.push(cx, 1, make, [&inputs, &[loss]], &trained)
    }

    fn examples() -> Vec<Example> {
        let case = |chunk, smoothing, cap, vocab: usize, x: &[usize]| {
            Example::uniform(Self { chunk, smoothing, cap, adapter: false }, &[x, &[vocab, x[2]], &x[..2]])
                .fill(2, Fill::Target(vocab as i32))
        };
        let adapted = |chunk, smoothing, cap, vocab: usize, x: &[usize], rank| {
            let shapes: [&[usize]; 5] = [x, &[vocab, x[2]], &x[..2], &[x[0], x[1], rank], &[vocab, rank]];
            let op = Self { chunk, smoothing, cap, adapter: true };
            Example::uniform(op, &shapes).fill(2, Fill::Target(vocab as i32))
        };
        vec![
            case(4, 0.0, None, 7, &[2, 5, 3]),
            case(16, 0.0, None, 50, &[1, 33, 17]),
            case(8, 0.0, None, 5, &[1, 1, 1]),
            case(7, 0.1, None, 51, &[2, 9, 5]),
            case(2, 0.0, None, 4099, &[1, 3, 8]),
            case(4, 0.0, Some(0.7), 7, &[2, 5, 3]),
            case(7, 0.1, Some(1.3), 1050, &[2, 5, 6]),
            adapted(4, 0.0, None, 7, &[2, 5, 3], 2),
            adapted(40, 0.1, None, 50, &[2, 35, 33], 34),
            adapted(3, 0.0, Some(0.9), 4099, &[1, 4, 8], 5),
        ]
    }
}

impl Operation for HeadLossGrad {
    fn name(&self) -> &'static str {
        "head_loss_grad"
    }

    fn infer(&self, inputs: &[&TensorType]) -> Result<Vec<TensorType>, GraphError> {
        Head::check("head_loss_grad", self.cap, inputs, 1, self.adapter.is_some())?;
        Ok([vec![TensorType::f32(&[1])], self.requested().types(1, inputs)].concat())
    }

    fn access(&self, index: usize) -> Access {
        match index {
            0 => accumulating(self.accumulate_loss),
            _ => self.requested().access(1, index - 1, self.accumulate),
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
        HeadLoss::examples()
            .into_iter()
            .zip([
                ([false, false], [true, true], None),
                ([true, true], [true, false], None),
                ([false, true], [false, true], None),
                ([true, false], [true, true], None),
                ([false, true], [true, true], None),
                ([true, true], [false, false], None),
                ([true, true], [true, true], None),
                ([true, true], [true, true], Some(all)),
                ([false, false], [true, false], Some(all)),
                ([false, true], [false, false], Some(HeadAdapterGrads { low: false, ..all })),
            ])
            .map(|(example, ([accumulate_loss, accumulate], [input, weight], adapter))| {
                let Op::HeadLoss(HeadLoss { chunk, smoothing, cap, .. }) = example.op else {
                    unreachable!("the examples have the forward op")
                };
                let op = Self { chunk, smoothing, cap, input, weight, adapter, accumulate_loss, accumulate };
                Example { op: op.into(), ..example }
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{DType, Targets};

    /// Two chunks of rows. With an adapter, both of its parts are read for each chunk, and logits are read and written
    /// once more.
    #[test]
    fn an_adapter_adds_its_products() {
        let [x, weight] = [&[1, 8, 4][..], &[10, 4]].map(TensorType::f32);
        let [low, up, ids] = [&[1, 8, 3][..], &[10, 3], &[1, 8]].map(TensorType::f32);
        let ids = ids.with_dtype(DType::I32);
        let (plain, adapted) = (Io::new([&x, &weight, &ids], []), Io::new([&x, &weight, &ids, &low, &up], []));
        let (of_low, of_up, logits) = (8 * 3 * 4, 10 * 3 * 4, 8 * 10 * 4);
        let forward = HeadLoss { chunk: 4, smoothing: 0.0, cap: None, adapter: false };
        let with_adapter = HeadLoss { adapter: true, ..forward };
        assert_eq!(with_adapter.flops(&adapted) - forward.flops(&plain), 2 * 8 * 10 * 3);
        let moved = with_adapter.bytes_moved(&adapted) - forward.bytes_moved(&plain);
        assert_eq!(moved.0, of_low + of_up + 2 * logits);
        let grad = HeadLossGrad {
            chunk: 4,
            smoothing: 0.0,
            cap: None,
            input: true,
            weight: false,
            adapter: None,
            accumulate_loss: false,
            accumulate: false,
        };
        for (of_t, of_b) in [(true, true), (true, false), (false, true)] {
            let with_adapter = HeadLossGrad { adapter: Some(HeadAdapterGrads { low: of_t, up: of_b }), ..grad };
            let [t, b] = [of_t, of_b].map(u64::from);
            assert_eq!(with_adapter.flops(&adapted) - grad.flops(&plain), (1 + t + b) * 2 * 8 * 10 * 3);
            let moved = with_adapter.bytes_moved(&adapted) - grad.bytes_moved(&plain);
            assert_eq!(moved.0, of_low * (1 + t + b) + 2 * of_up * (1 + t + 2 * b) + (2 + t + b) * logits);
            let card = &Targets::cuda((8, 0), 1).device;
            assert_eq!(with_adapter.scratch(&adapted, card), grad.scratch(&plain, card), "no second logits");
        }
        let swapped = [&x, &weight, &ids, &up, &low];
        assert!(with_adapter.infer(&swapped).is_err() && with_adapter.infer(&swapped[..3]).is_err());
    }
}
