//! The router of a mixture of experts: the experts of each token, their weights, and the order of the tokens by expert.
//!
//! ```text
//! experts  token 0: 2 0    token 1: 2 1    token 2: 0 2        (K = 2)
//! sorted   expert 0: tokens 0 2 | expert 1: token 1 | expert 2: tokens 0 1 2
//! places   token 0: 3 0    token 1: 4 2    token 2: 1 5
//! bounds   0 2 3 6
//! ```
//!
//! No token is dropped, and all shapes are independent of the routing: there are always R = N·K rows for N tokens, and
//! bounds are read on the device.

use super::{Example, Fill, Io, Operation, Target, expect_type, operands};
use crate::{Backward, DType, DeviceKind, GraphError, TensorType};
use plimsoll_units::Bytes;
use serde::{Deserialize, Serialize};

/// Chooses for each token the K experts with the largest logits; the lower index comes first among equal logits, as in
/// `torch.topk` on a CPU. With p = softmax(logits) over all E experts, the weight of a chosen expert is p, divided by the
/// sum of the chosen experts' p if `normalized`. That equals the softmax over the chosen logits alone.
/// logits: (B, T, E) -> weights: (B, T, K) `F32`, in descending order of the logits; experts: (B, T, K) `I32`; places:
/// (B, T, K) `I32`, the row of each choice if choices are sorted by expert and then by token; bounds: (E + 1,) `I32`,
/// the first row of each expert, and the number of rows; and if `sums`, sums: (E,) `F32`, Σ p over all tokens.
/// NaN counts as the largest logit, and makes weights NaN. Saves logits and experts. Scratch: for each
/// [part](tokens_of_part) of the tokens a number per expert, a second one if `sums`, and another one on the processor.
/// Errors: `ShapeMismatch` if there are fewer experts than K.
/// Source: routers of Qwen3-MoE (`norm_topk_prob` is `normalized`) and OLMoE (not normalized), and of Mixtral and
/// gpt-oss (normalized), in transformers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Route {
    /// K, at least one.
    pub experts_per_token: usize,
    /// Whether the weights of a token sum to one.
    pub normalized: bool,
    /// Whether the sums of probabilities are computed, for [`RouterLoss`](super::RouterLoss).
    pub sums: bool,
}

/// Gradient of [`Route`]; the choice of experts has none.
/// logits: (B, T, E), experts: (B, T, K), dweights: (B, T, K) `F32`, and if `sums`, dsums: (E,) `F32` -> dlogits:
/// (B, T, E). Scratch: none on a card, on the processor as for [`Route`] without sums.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct RouteGrad {
    /// As in [`Route`].
    pub normalized: bool,
    /// Whether the sums of probabilities have a gradient.
    pub sums: bool,
}

/// Fewest tokens, and largest number, of the parts in which a router processes tokens.
const FEWEST_TOKENS: usize = 32;
const MOST_PARTS: usize = 256;

/// Tokens of a part of a router's tokens; the last part may have fewer. It depends only on the shape, so that all
/// devices and any number of threads compute the same order.
pub fn tokens_of_part(tokens: usize) -> usize {
    tokens.div_ceil(MOST_PARTS).max(FEWEST_TOKENS)
}

/// Scratch for `numbers` numbers per expert and part of the tokens, and on the processor for a row of each part.
fn part_scratch(logits: &TensorType, numbers: usize, target: &Target) -> Bytes {
    let parts = logits.rows().div_ceil(tokens_of_part(logits.rows()));
    let rows = numbers + usize::from(target.kind() == DeviceKind::Cpu);
    Bytes(4 * (rows * parts * logits.columns()) as u64)
}

/// `logits` with its last extent replaced by K. Panics if it has no extents.
fn choices(logits: &TensorType, experts_per_token: usize, dtype: DType) -> TensorType {
    let mut ty = logits.with_dtype(dtype);
    *ty.shape.last_mut().expect("logits have extents") = experts_per_token;
    ty
}

impl Operation for Route {
    fn name(&self) -> &'static str {
        "route"
    }

    fn infer(&self, inputs: &[&TensorType]) -> Result<Vec<TensorType>, GraphError> {
        let [logits] = operands("route", inputs)?;
        let (count, chosen) = (logits.columns(), self.experts_per_token);
        if logits.shape.len() != 3 || chosen == 0 || chosen > count {
            let problem = format!("takes logits (B, T, E) with E at least {}, found {logits:?}", chosen.max(1));
            return Err(GraphError::ShapeMismatch { op: "route", problem });
        }
        let [weights, integers] = [DType::F32, DType::I32].map(|dtype| choices(logits, chosen, dtype));
        let mut outputs = vec![weights, integers.clone(), integers, TensorType::i32(&[count + 1])];
        outputs.extend(self.sums.then(|| TensorType::f32(&[count])));
        Ok(outputs)
    }

    fn flops(&self, io: &Io) -> u64 {
        (10 + self.experts_per_token as u64) * io.inputs[0].elements() as u64
    }

    fn scratch(&self, io: &Io, target: &Target) -> Bytes {
        part_scratch(io.inputs[0], 1 + usize::from(self.sums), target)
    }

    fn backward(&self, cx: &mut Backward) -> Result<(), GraphError> {
        let mut inputs = vec![cx.input(0), cx.output(1), cx.upstream(0)?];
        let dsums = if self.sums { cx.upstream(4).ok() } else { None };
        inputs.extend(dsums);
        let dlogits = cx.push(RouteGrad { normalized: self.normalized, sums: dsums.is_some() }, &inputs)?[0];
        cx.give(0, dlogits)
    }

    fn examples() -> Vec<Example> {
        let case = |experts_per_token, normalized, sums, logits: &[usize]| {
            Example::uniform(Self { experts_per_token, normalized, sums }, &[logits])
        };
        vec![
            case(2, true, true, &[2, 3, 5]),
            case(1, false, false, &[1, 5, 3]),
            case(8, false, true, &[1, 37, 67]),
            case(4, true, false, &[3, 23, 8]),
            case(3, true, true, &[1, 1, 3]),
            case(2, false, true, &[1, 70, 300]),
        ]
    }
}

impl Operation for RouteGrad {
    fn name(&self) -> &'static str {
        "route_grad"
    }

    fn infer(&self, inputs: &[&TensorType]) -> Result<Vec<TensorType>, GraphError> {
        let (logits, experts, dweights) = if self.sums {
            let [logits, experts, dweights, dsums] = operands("route_grad", inputs)?;
            expect_type("route_grad", "dsums", dsums, &TensorType::f32(&[logits.columns()]))?;
            (logits, experts, dweights)
        } else {
            let [logits, experts, dweights] = operands("route_grad", inputs)?;
            (logits, experts, dweights)
        };
        expect_type("route_grad", "experts", experts, &choices(logits, experts.columns(), DType::I32))?;
        expect_type("route_grad", "dweights", dweights, &experts.with_dtype(DType::F32))?;
        Ok(vec![logits.clone()])
    }

    fn flops(&self, io: &Io) -> u64 {
        12 * io.outputs[0].elements() as u64
    }

    fn scratch(&self, io: &Io, target: &Target) -> Bytes {
        match target.kind() {
            DeviceKind::Cpu => part_scratch(io.inputs[0], 1, target),
            DeviceKind::Cuda => Bytes::ZERO,
        }
    }

    fn examples() -> Vec<Example> {
        let case = |normalized, sums, [b, t, e]: [usize; 3], chosen: usize| {
            let choices: &[usize] = &[b, t, chosen];
            let shapes = [&[b, t, e], choices, choices, &[e]];
            let shapes = if sums { &shapes[..] } else { &shapes[..3] };
            Example::uniform(Self { normalized, sums }, shapes).fill(1, Fill::Distinct(e as i32))
        };
        vec![
            case(true, true, [2, 3, 5], 2),
            case(true, false, [1, 37, 67], 8),
            case(false, true, [1, 5, 33], 1),
            case(false, false, [3, 23, 8], 8),
        ]
    }
}
