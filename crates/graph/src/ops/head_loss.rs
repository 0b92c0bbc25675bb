//! The output head fused with cross-entropy, in chunks of rows, so that the logits of a whole batch are never stored.
//!
//! [`HeadLossGrad`] computes the loss, the gradient of the hidden states and that of the head's weight in one pass over
//! the chunks, so the logits are computed once.

use super::soft_cap::{CAP_FLOPS, CAP_SLOPE_FLOPS, is_cap};
use super::{
    Access, Example, Fill, InnerParts, Io, Nature, Op, Operation, Target, accumulating, expect_type, operands,
    product_scratch,
};
use crate::{Backward, DType, DeviceKind, GraphError, TensorType};
use plimsoll_units::Bytes;
use serde::{Deserialize, Serialize};

/// loss = `Scalars::loss_scale` · Σ ((1-ε) · n_target + ε/V · Σ_v n_v), over the rows that have a target, where n_v is
/// the negative log-likelihood of token v, log Σ_u exp(z_u) - z_v, with the logits z_v = x·w_v, or with a `cap`
/// cap · tanh(x·w_v / cap), and ε the smoothing.
/// x: (B, T, C), weight: (V, C), targets: (B, T) integers, negative for no target -> loss: (1,).
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
}

/// [`HeadLoss`] and its gradient in one pass, which avoids computing the logits twice.
/// x: (B, T, C), weight: (V, C), targets: (B, T) -> loss: (1,), dx: (B, T, C) if `input`, dweight: (V, C) in `F32` if
/// `weight`. The gradients are multiplied by `Scalars::gradient_scale`.
/// Scratch: as the forward op, and on a card the [`InnerParts`] of dx.
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
    /// Whether the loss is added to the existing value.
    pub accumulate_loss: bool,
    /// Whether dweight is added to the existing values.
    pub accumulate: bool,
}

/// Errors: `ShapeMismatch` if x, weight and targets do not match, or the cap is not above zero.
pub(super) fn check(op: &'static str, cap: Option<f32>, inputs: &[&TensorType]) -> Result<(), GraphError> {
    let [x, weight, targets] = operands(op, inputs)?;
    check_cap(op, cap)?;
    let rows = TensorType { shape: x.shape[..x.shape.len() - 1].into(), dtype: DType::I32 };
    expect_type(op, "targets", targets, &rows)?;
    expect_type(op, "weight", weight, &x.with_shape(&[weight.shape[0], x.columns()]))
}

/// Extents of the product that computes logits. Those of its gradients are the same in another order.
pub(super) fn product(io: &Io) -> [usize; 3] {
    [io.inputs[0].rows(), io.inputs[0].columns(), io.inputs[1].shape[0]]
}

/// Operations of one of these products.
pub(super) fn product_flops(io: &Io) -> u64 {
    2 * (io.inputs[0].elements() * io.inputs[1].shape[0]) as u64
}

/// Floats from one row of logits to the next. On a card each row is aligned to vectors of 16 bytes of half precision.
pub fn logits_stride(vocab: usize, kind: DeviceKind) -> usize {
    match kind {
        DeviceKind::Cpu => vocab,
        DeviceKind::Cuda => vocab.next_multiple_of(8),
    }
}

/// Scratch for `chunk` rows of logits of each of the `draws`, for a loss per row, and for the processor's products.
pub(super) fn logits_scratch(chunk: usize, draws: usize, [x, weight]: [&TensorType; 2], target: &Target) -> Bytes {
    let (rows, vocab) = (chunk.min(x.rows()), weight.shape[0]);
    let stride = logits_stride(vocab, target.kind());
    let channels = weight.shape[1];
    let products = match target.kind() {
        DeviceKind::Cpu => {
            let slopes = ([rows, vocab, channels], x.dtype);
            let all = [([rows, channels, vocab], DType::F32), slopes, ([vocab, rows, channels], DType::F32)];
            all.map(|(extents, result)| product_scratch([weight.dtype, result], extents, target.threads()))
                .into_iter()
                .max()
                .expect("three products")
        }
        DeviceKind::Cuda => Bytes::ZERO,
    };
    Bytes(4 * (rows * (draws * stride + 1)) as u64) + products
}

/// Additional scratch for the parts of dx on a card.
pub(super) fn slopes_scratch(chunk: usize, [x, weight]: [&TensorType; 2], target: &Target) -> Bytes {
    let (rows, vocab, channels) = (chunk.min(x.rows()), weight.shape[0], weight.shape[1]);
    match target.kind() {
        DeviceKind::Cpu => Bytes::ZERO,
        DeviceKind::Cuda => match InnerParts::of([rows, channels, vocab]).scratch(rows, channels) {
            Bytes::ZERO => Bytes::ZERO,
            // Alignment for vectors of 16 bytes.
            parts => parts + Bytes(16),
        },
    }
}

/// Traffic of the logits of each of the `draws`, which are read or written `passes` times, and twice more for a cap.
pub(super) fn logits_moved([x, weight]: [&TensorType; 2], draws: usize, passes: u64, cap: Option<f32>) -> Bytes {
    let passes = passes + if cap.is_some() { 2 } else { 0 };
    Bytes(4 * passes * (draws * x.rows() * weight.shape[0]) as u64)
}

/// Traffic of a gradient, with those of x and of the weight as `requested`.
pub(super) fn gradient_moved(io: &Io, chunk: usize, requested: [bool; 2], cap: Option<f32>) -> Bytes {
    let chunks = io.inputs[0].rows().div_ceil(chunk) as u64;
    let [input, weight] = requested.map(u64::from);
    let weights = Bytes(io.inputs[1].bytes().0 * (1 + input + 2 * weight) * chunks);
    let rows = Bytes(io.inputs[0].bytes().0 * (1 + input + weight));
    rows + weights + logits_moved([io.inputs[0], io.inputs[1]], 1, 2 + input + weight, cap)
}

/// Operations of the caps of the logits of each of the `draws`, and of their slopes if `slopes`.
pub(super) fn cap_flops([x, weight]: [&TensorType; 2], draws: usize, slopes: bool, cap: Option<f32>) -> u64 {
    let of_logit = match cap {
        Some(_) => CAP_FLOPS + if slopes { CAP_SLOPE_FLOPS } else { 0 },
        None => 0,
    };
    of_logit * (draws * x.rows() * weight.shape[0]) as u64
}

/// Errors: the cap of logits is not above zero.
pub(super) fn check_cap(op: &'static str, cap: Option<f32>) -> Result<(), GraphError> {
    match cap {
        Some(cap) if !is_cap(cap) => Err(GraphError::ShapeMismatch { op, problem: format!("logits capped at {cap}") }),
        _ => Ok(()),
    }
}

impl Operation for HeadLoss {
    fn name(&self) -> &'static str {
        "head_loss"
    }

    fn infer(&self, inputs: &[&TensorType]) -> Result<Vec<TensorType>, GraphError> {
        check("head_loss", self.cap, inputs)?;
        Ok(vec![TensorType::f32(&[1])])
    }

    fn nature(&self) -> Nature {
        Nature::Products
    }

    fn product(&self, io: &Io) -> Option<[usize; 3]> {
        Some(product(io))
    }

    fn flops(&self, io: &Io) -> u64 {
        product_flops(io) + cap_flops([io.inputs[0], io.inputs[1]], 1, false, self.cap)
    }

    fn bytes_moved(&self, io: &Io) -> Bytes {
        io.inputs.iter().map(|t| t.bytes()).sum::<Bytes>() + logits_moved([io.inputs[0], io.inputs[1]], 1, 2, self.cap)
    }

    fn scratch(&self, io: &Io, target: &Target) -> Bytes {
        logits_scratch(self.chunk, 1, [io.inputs[0], io.inputs[1]], target)
    }

    fn backward(&self, cx: &mut Backward) -> Result<(), GraphError> {
        let inputs = cx.inputs().to_vec();
        let (Self { chunk, smoothing, cap }, accumulate_loss) = (*self, cx.accumulates());
        let (input, trained, loss) = (cx.wants(0), cx.trained(&[1]), cx.output(0));
        let weight = !trained.is_empty();
        let make =
            |accumulate| HeadLossGrad { chunk, smoothing, cap, input, weight, accumulate_loss, accumulate }.into();
        cx.retire_node();
        let leading = if input { &[Some(loss), None][..] } else { &[Some(loss)] };
        let made = cx.push_to_parameters(make, &inputs, leading, &trained)?;
        if input { cx.give(0, made[1]) } else { Ok(()) }
    }

    fn examples() -> Vec<Example> {
        let case = |chunk, smoothing, cap, vocab: usize, x: &[usize]| {
            Example::uniform(Self { chunk, smoothing, cap }, &[x, &[vocab, x[2]], &x[..2]])
                .fill(2, Fill::Target(vocab as i32))
        };
        vec![
            case(4, 0.0, None, 7, &[2, 5, 3]),
            case(16, 0.0, None, 50, &[1, 33, 17]),
            case(8, 0.0, None, 5, &[1, 1, 1]),
            case(7, 0.1, None, 51, &[2, 9, 5]),
            case(2, 0.0, None, 4099, &[1, 3, 8]),
            case(4, 0.0, Some(0.7), 7, &[2, 5, 3]),
            case(7, 0.1, Some(1.3), 1050, &[2, 5, 6]),
        ]
    }
}

impl Operation for HeadLossGrad {
    fn name(&self) -> &'static str {
        "head_loss_grad"
    }

    fn infer(&self, inputs: &[&TensorType]) -> Result<Vec<TensorType>, GraphError> {
        check("head_loss_grad", self.cap, inputs)?;
        let mut outputs = vec![TensorType::f32(&[1])];
        outputs.extend(self.input.then(|| inputs[0].clone()));
        outputs.extend(self.weight.then(|| inputs[1].with_dtype(DType::F32)));
        Ok(outputs)
    }

    fn access(&self, index: usize) -> Access {
        match index {
            0 => accumulating(self.accumulate_loss),
            1 if self.input => Access::Write,
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
        products + cap_flops([io.inputs[0], io.inputs[1]], 1, true, self.cap)
    }

    fn bytes_moved(&self, io: &Io) -> Bytes {
        gradient_moved(io, self.chunk, [self.input, self.weight], self.cap)
    }

    fn scratch(&self, io: &Io, target: &Target) -> Bytes {
        let operands = [io.inputs[0], io.inputs[1]];
        let slopes = if self.input { slopes_scratch(self.chunk, operands, target) } else { Bytes::ZERO };
        logits_scratch(self.chunk, 1, operands, target) + slopes
    }

    fn examples() -> Vec<Example> {
        HeadLoss::examples()
            .into_iter()
            .zip([
                (false, false),
                (true, true),
                (false, true),
                (true, false),
                (false, true),
                (true, true),
                (true, true),
            ])
            .zip([(true, true), (true, false), (false, true), (true, true), (true, true), (false, false), (true, true)])
            .map(|((example, (accumulate_loss, accumulate)), (input, weight))| {
                let Op::HeadLoss(HeadLoss { chunk, smoothing, cap }) = example.op else {
                    unreachable!("the examples have the forward op")
                };
                let op = Self { chunk, smoothing, cap, input, weight, accumulate_loss, accumulate };
                Example { op: op.into(), ..example }
            })
            .collect()
    }
}
