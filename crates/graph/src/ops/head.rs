//! What the ops of output heads have in common: their operands, and the arithmetic, traffic and scratch of their products.
//!
//! The weight of a head may have a low-rank adapter. Its first part t = s·A x is an operand, which other ops compute; its
//! second part is a product that is added to each chunk of logits, so that no second tensor has as many columns as the
//! vocabulary.
//!
//! ```text
//!   x (B, T, C) ──► · Wᵀ ──► logits of a chunk (rows, V) ◄── · Bᵀ ◄── t (B, T, R)
//! ```
//!
//! Operands: x of each draw, W (V, C), targets (B, T); with an adapter also t of each draw and B (V, R).

use super::soft_cap::{CAP_FLOPS, CAP_SLOPE_FLOPS, is_cap};
use super::{Access, InnerParts, Target, accumulating, expect_type, product_scratch};
use crate::{Backward, DType, DeviceKind, GraphError, Op, TensorId, TensorType};
use plimsoll_units::Bytes;
use serde::{Deserialize, Serialize};

/// The gradients of a head's adapter that a node computes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeadAdapterGrads {
    /// Whether dt is computed.
    pub low: bool,
    /// Whether dB is computed.
    pub up: bool,
}

/// Floats from one row of logits to the next. On a card each row is aligned to vectors of 16 bytes of half precision.
pub fn logits_stride(vocab: usize, kind: DeviceKind) -> usize {
    match kind {
        DeviceKind::Cpu => vocab,
        DeviceKind::Cuda => vocab.next_multiple_of(8),
    }
}

/// The gradients that a node computes. Its results, after those that are no gradients: dx of each draw, dt of each draw,
/// dW, dB.
#[derive(Debug, Clone, Copy)]
pub struct HeadGradients {
    /// Whether dx is computed.
    pub input: bool,
    /// Whether dW is computed.
    pub weight: bool,
    /// `None` without an adapter.
    pub adapter: Option<HeadAdapterGrads>,
}

impl HeadGradients {
    /// Those that the backward pass needs of a node with `draws` draws, and its operands that are trained parameters.
    pub(super) fn of(cx: &Backward, draws: usize, has_adapter: bool) -> (Self, Vec<usize>) {
        let wants = |first: usize| (first..first + draws).any(|index| cx.wants(index));
        let places = [draws, 2 * draws + 2];
        let trained = cx.trained(if has_adapter { &places } else { &places[..1] });
        let up = trained.contains(&places[1]);
        let adapter = has_adapter.then(|| HeadAdapterGrads { low: wants(draws + 2), up });
        (Self { input: wants(0), weight: trained.contains(&places[0]), adapter }, trained)
    }

    /// Whether dt is computed.
    pub fn low(&self) -> bool {
        self.adapter.is_some_and(|adapter| adapter.low)
    }

    /// Whether dB is computed.
    pub fn up(&self) -> bool {
        self.adapter.is_some_and(|adapter| adapter.up)
    }

    /// The operands whose gradients are new tensors, in the order of these.
    fn places(&self, draws: usize) -> impl Iterator<Item = usize> + use<> {
        let of_draws = move |first: usize, requested: bool| first..first + if requested { draws } else { 0 };
        of_draws(0, self.input).chain(of_draws(draws + 2, self.low()))
    }

    /// Emits the gradient node, whose op is `make(accumulate)`, and gives the gradients of the operands that are not
    /// parameters. `first`: the results that are no gradients; `trained`: the operands that are trained parameters.
    pub(super) fn push(
        &self,
        cx: &mut Backward,
        draws: usize,
        make: impl FnOnce(bool) -> Op,
        [inputs, first]: [&[TensorId]; 2],
        trained: &[usize],
    ) -> Result<(), GraphError> {
        let places = self.places(draws).collect::<Vec<_>>();
        let leading = first.iter().map(|&id| Some(id)).chain(places.iter().map(|_| None)).collect::<Vec<_>>();
        let made = cx.push_to_parameters(make, inputs, &leading, trained)?;
        places.into_iter().zip(&made[first.len()..]).try_for_each(|(place, &gradient)| cx.give(place, gradient))
    }

    /// Types of the gradients of these operands.
    pub(super) fn types(&self, draws: usize, inputs: &[&TensorType]) -> Vec<TensorType> {
        let new = self.places(draws).map(|place| inputs[place].clone());
        let accumulated = |place: usize, requested: bool| requested.then(|| inputs[place].with_dtype(DType::F32));
        let weight = accumulated(draws, self.weight);
        new.chain(weight).chain(accumulated(2 * draws + 2, self.up())).collect()
    }

    /// How a node uses its gradient `index`.
    pub(super) fn access(&self, draws: usize, index: usize, accumulate: bool) -> Access {
        if index < self.places(draws).count() { Access::Write } else { accumulating(accumulate) }
    }
}

/// The types of a head's operands.
#[derive(Debug, Clone, Copy)]
pub(super) struct Head<'a> {
    draws: usize,
    x: &'a TensorType,
    weight: &'a TensorType,
    /// Those of t and B.
    adapter: Option<[&'a TensorType; 2]>,
}

impl<'a> Head<'a> {
    /// Takes them from a node's operands, which were checked.
    pub(super) fn of(inputs: &[&'a TensorType], draws: usize, has_adapter: bool) -> Self {
        let adapter = has_adapter.then(|| [inputs[draws + 2], inputs[2 * draws + 2]]);
        Self { draws, x: inputs[0], weight: inputs[draws], adapter }
    }

    /// Errors: `ShapeMismatch` if a node's operands do not match, or the cap is not above zero.
    pub(super) fn check(
        op: &'static str,
        cap: Option<f32>,
        inputs: &[&TensorType],
        draws: usize,
        has_adapter: bool,
    ) -> Result<(), GraphError> {
        let expected = draws + 2 + if has_adapter { draws + 1 } else { 0 };
        let mismatch = |problem| Err(GraphError::ShapeMismatch { op, problem });
        if inputs.len() != expected {
            return mismatch(format!("takes {expected} operands, found {}", inputs.len()));
        }
        if let Some(cap) = cap.filter(|&cap| !is_cap(cap)) {
            return mismatch(format!("logits capped at {cap}"));
        }
        let Head { x, weight, adapter, .. } = Head::of(inputs, draws, has_adapter);
        let rows = TensorType { shape: x.shape[..x.shape.len() - 1].into(), dtype: DType::I32 };
        inputs[..draws].iter().try_for_each(|other| expect_type(op, "x of each draw", other, x))?;
        expect_type(op, "targets", inputs[draws + 1], &rows)?;
        expect_type(op, "weight", weight, &x.with_shape(&[weight.shape[0], x.columns()]))?;
        let Some([low, up]) = adapter else { return Ok(()) };
        let of_low = x.with_shape(&[&rows.shape[..], &[low.columns()]].concat());
        inputs[draws + 2..2 * draws + 2]
            .iter()
            .try_for_each(|other| expect_type(op, "t of each draw", other, &of_low))?;
        expect_type(op, "the adapter's second matrix", up, &x.with_shape(&[weight.shape[0], low.columns()]))
    }

    fn vocab(&self) -> usize {
        self.weight.shape[0]
    }

    /// Columns of t; zero without an adapter.
    fn rank(&self) -> usize {
        self.adapter.map_or(0, |[low, _]| low.columns())
    }

    /// Logits of all draws.
    fn logits(&self) -> u64 {
        (self.draws * self.x.rows() * self.vocab()) as u64
    }

    /// Extents of the product that computes a draw's logits. Those of its gradients are the same in another order.
    pub(super) fn product(&self) -> [usize; 3] {
        [self.x.rows(), self.x.columns(), self.vocab()]
    }

    /// Operations of the products that compute the logits.
    pub(super) fn product_flops(&self) -> u64 {
        2 * self.logits() * (self.x.columns() + self.rank()) as u64
    }

    /// Operations of the products of a gradient.
    pub(super) fn gradient_flops(&self, of: &HeadGradients) -> u64 {
        let [input, weight, low, up] = [of.input, of.weight, of.low(), of.up()].map(u64::from);
        let of_rank = (1 + low + up) * self.rank() as u64;
        2 * self.logits() * ((1 + input + weight) * self.x.columns() as u64 + of_rank)
    }

    /// Operations of the caps of the logits, and of their slopes if `slopes`.
    pub(super) fn cap_flops(&self, slopes: bool, cap: Option<f32>) -> u64 {
        let of_logit = match cap {
            Some(_) => CAP_FLOPS + if slopes { CAP_SLOPE_FLOPS } else { 0 },
            None => 0,
        };
        of_logit * self.logits()
    }

    /// Scratch for `chunk` rows of logits of each draw, for a loss per row, and for the processor's products.
    pub(super) fn logits_scratch(&self, chunk: usize, target: &Target) -> Bytes {
        let (rows, vocab) = (chunk.min(self.x.rows()), self.vocab());
        let products = match target.kind() {
            DeviceKind::Cpu => {
                let of_columns = |columns: usize| {
                    let slopes = ([rows, vocab, columns], self.x.dtype);
                    [([rows, columns, vocab], DType::F32), slopes, ([vocab, rows, columns], DType::F32)]
                };
                let of_adapter = self.adapter.map(|_| of_columns(self.rank())).into_iter().flatten();
                let all = of_columns(self.x.columns()).into_iter().chain(of_adapter);
                all.map(|(extents, result)| product_scratch([self.weight.dtype, result], extents, target.threads()))
                    .max()
                    .expect("three products")
            }
            DeviceKind::Cuda => Bytes::ZERO,
        };
        Bytes(4 * (rows * (self.draws * logits_stride(vocab, target.kind()) + 1)) as u64) + products
    }

    /// Scratch of a gradient: also that of the parts of dx and dt on a card.
    pub(super) fn gradient_scratch(&self, chunk: usize, of: &HeadGradients, target: &Target) -> Bytes {
        let rows = chunk.min(self.x.rows());
        let parts = |columns: usize| InnerParts::of([rows, columns, self.vocab()]).scratch(rows, columns);
        let columns = [(of.input, self.x.columns()), (of.low(), self.rank())];
        let requested = columns.into_iter().filter(|(requested, _)| *requested && target.kind() == DeviceKind::Cuda);
        let of_parts = match requested.map(|(_, columns)| parts(columns)).max().unwrap_or(Bytes::ZERO) {
            Bytes::ZERO => Bytes::ZERO,
            // Alignment for vectors of 16 bytes.
            parts => parts + Bytes(16),
        };
        self.logits_scratch(chunk, target) + of_parts
    }

    /// Traffic of logits that are read or written `passes` times, twice more for a cap, and twice more for the product of
    /// an adapter.
    pub(super) fn logits_moved(&self, passes: u64, cap: Option<f32>) -> Bytes {
        let added = 2 * u64::from(cap.is_some()) + 2 * u64::from(self.adapter.is_some());
        Bytes(4 * (passes + added) * self.logits())
    }

    /// Traffic of a gradient.
    pub(super) fn gradient_moved(&self, chunk: usize, of: &HeadGradients, cap: Option<f32>) -> Bytes {
        let (draws, chunks) = (self.draws as u64, self.x.rows().div_ceil(chunk) as u64);
        let factors = |rows: &TensorType, weight: &TensorType, [of_rows, of_weight]: [bool; 2]| {
            let [of_rows, of_weight] = [of_rows, of_weight].map(u64::from);
            let weights = weight.bytes().0 * (1 + of_rows + 2 * of_weight) * chunks;
            Bytes(draws * (weights + rows.bytes().0 * (1 + of_rows + of_weight)))
        };
        let whole = factors(self.x, self.weight, [of.input, of.weight]);
        let of_adapter = self.adapter.map_or(Bytes::ZERO, |[low, up]| factors(low, up, [of.low(), of.up()]));
        let products = [of.input, of.weight, of.low(), of.up()].map(u64::from).iter().sum::<u64>();
        whole + of_adapter + self.logits_moved(2 + products, cap)
    }
}
