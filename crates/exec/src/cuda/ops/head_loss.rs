//! Launches of output heads with their loss: for each chunk of rows a product for the logits, a kernel that replaces
//! the logits by the loss's slopes, and products with the slopes. Kernels: `head_loss.cu`, `paired_head_loss.cu`,
//! `head_log_probs.cu`, and those of products.

use super::CudaKernel;
use super::shape::{WARP, extent, launch, line, number};
use crate::cuda::launch::{Arguments, Launch, Operands, Part};
use crate::cuda::product::{Factors, Matrix, Product};
use plimsoll_graph::ops::{HeadGradients, HeadLoss, HeadLossGrad, InnerParts, logits_stride};
use plimsoll_graph::{DType, DeviceKind};

/// Logits that a thread processes at a time, and most threads per row: `EACH` and `THREADS` of `head_loss.cuh`.
const EACH: usize = 4;
const MOST_THREADS: usize = 1024;

/// An output head, with one draw or two.
pub(super) struct Head<'a> {
    pub(super) operands: &'a Operands<'a>,
    /// Rows of a chunk, whose logits are in memory at the same time.
    pub(super) chunk: usize,
    pub(super) smoothing: f32,
    pub(super) cap: Option<f32>,
    /// Weight of the divergence of two draws, if there are two.
    pub(super) alpha: Option<f32>,
    /// Whether the weight has an adapter.
    pub(super) has_adapter: bool,
    pub(super) gradients: Gradients<'a>,
    pub(super) accumulate_loss: bool,
    pub(super) accumulate: bool,
    /// What is computed for each row instead of the loss.
    pub(super) rows: Option<Rows>,
}

/// Addresses of gradients: of hidden states and of an adapter's t for each draw, empty if they are not requested, and of
/// the weight and an adapter's B.
#[derive(Default)]
pub(super) struct Gradients<'a> {
    x: &'a [u64],
    low: &'a [u64],
    weight: Option<u64>,
    up: Option<u64>,
}

impl<'a> Gradients<'a> {
    /// Those among an op's results, in their order.
    pub(super) fn of(requested: &HeadGradients, draws: usize, results: &'a [u64]) -> Self {
        let (x, results) = results.split_at(if requested.input { draws } else { 0 });
        let (low, results) = results.split_at(if requested.low() { draws } else { 0 });
        let mut of_weights = results.iter().copied();
        let weight = if requested.weight { of_weights.next() } else { None };
        let up = if requested.up() { of_weights.next() } else { None };
        Self { x, low, weight, up }
    }

    fn are_requested(&self) -> bool {
        !(self.x.is_empty() && self.low.is_empty()) || self.weight.is_some() || self.up.is_some()
    }
}

/// A factor of logits for each draw and the one that all draws share, with the addresses of their gradients: hidden states
/// and the weight, or the two parts of an adapter.
#[derive(Clone, Copy)]
struct Pair<'a> {
    /// The operand of the first draw.
    first: usize,
    table: usize,
    columns: usize,
    of_rows: &'a [u64],
    of_table: Option<u64>,
}

/// Results for rows of tokens.
#[derive(Clone, Copy)]
pub(super) enum Rows {
    /// The sums of the log-probabilities of targets, of each group apart if `split`.
    Sums { split: bool },
    /// The gradient of these sums, whose slopes are at this address.
    Slopes { address: u64, split: bool },
}

impl Head<'_> {
    /// Number of draws of hidden states.
    fn draws(&self) -> usize {
        if self.alpha.is_some() { 2 } else { 1 }
    }

    pub(super) fn parts(&self) -> Vec<Part> {
        let rows = self.operands.io.inputs[0].rows();
        let chunk = self.chunk.min(rows);
        let chunks = (0..rows).step_by(chunk).flat_map(|first| self.chunk(first, chunk.min(rows - first), chunk));
        let sums = match self.rows {
            Some(Rows::Sums { split }) => Some(self.sums(chunk, split)),
            _ => None,
        };
        chunks.chain(sums.map(Part::Kernel)).collect()
    }

    /// The sums of each row's log-probabilities, from the losses of all tokens.
    fn sums(&self, most: usize, split: bool) -> Launch {
        let (targets, vocab) = (self.operands.io.inputs[2], self.operands.io.inputs[1].shape[0]);
        let losses = self.operands.scratch.address + (4 * most * logits_stride(vocab, DeviceKind::Cuda)) as u64;
        let addresses = [losses, self.operands.inputs[2], self.operands.outputs[0]];
        let arguments = Arguments::default().addresses(&addresses).int(targets.columns()).flag(split);
        launch("head_log_probs", "head_log_probs_sum", line(targets.shape[0]), arguments)
    }

    /// The factors of logits, whose products are added.
    fn pairs(&self) -> Vec<Pair<'_>> {
        let (draws, of) = (self.draws(), &self.gradients);
        let pair = |first, table: usize, of_rows, of_table| {
            let columns = self.operands.io.inputs[table].columns();
            Pair { first, table, columns, of_rows, of_table }
        };
        let of_adapter = self.has_adapter.then(|| pair(draws + 2, 2 * draws + 2, of.low, of.up));
        [pair(0, draws, of.x, of.weight)].into_iter().chain(of_adapter).collect()
    }

    /// Rows `first` to `first + rows`; scratch has space for `most` rows.
    fn chunk(&self, first: usize, rows: usize, most: usize) -> Vec<Part> {
        let (draws, scratch) = (self.draws(), self.operands.scratch.address);
        let weight = self.operands.io.inputs[draws];
        let vocab = weight.shape[0];
        let stride = logits_stride(vocab, DeviceKind::Cuda);
        let logits = |draw: usize| scratch + (4 * draw * most * stride) as u64;
        let losses = scratch + (4 * draws * most * stride) as u64;
        let of_rows = |address: u64, columns: usize| {
            let address = address + (first * columns) as u64 * weight.dtype.size_bytes();
            Matrix { address, dtype: weight.dtype, stride: columns }
        };
        let single = |draw| Matrix { address: logits(draw), dtype: DType::F32, stride };
        // The result of `lay_slopes` of `head_loss.cuh`: in half precision with the same bytes from row to row, and
        // scaled.
        let is_half = weight.dtype.is_half();
        let halves = |draw| Matrix { address: logits(draw), dtype: weight.dtype, stride: 2 * stride };
        let slopes = |draw| if is_half { halves(draw) } else { single(draw) };
        let is_scaled = is_half || self.rows.is_some();
        let scaled_by = if is_scaled { 0 } else { self.operands.scalars };
        let product = |pair: &Pair, draw: usize| {
            let columns = pair.columns;
            let table = self.operands.inputs[pair.table];
            Product {
                factors: Factors::RightTransposed,
                left: of_rows(self.operands.inputs[pair.first + draw], columns),
                right: Matrix { address: table, dtype: weight.dtype, stride: columns },
                result: single(draw),
                bias: 0,
                scaled_by: 0,
                codes: None,
                extents: [rows, vocab, columns],
                accumulate: pair.first > 0,
                parts: InnerParts::whole(columns),
                partial: (losses + 4 * most as u64).next_multiple_of(16),
            }
        };
        let pairs = self.pairs();
        let mut parts = Vec::new();
        for draw in 0..draws {
            parts.extend(pairs.iter().map(|pair| product(pair, draw).part(self.operands)));
        }
        parts.extend(match self.rows {
            None => self.losses(first, rows, &[logits(0), logits(1)][..draws], losses).map(Part::Kernel).to_vec(),
            Some(Rows::Sums { .. }) => vec![Part::Kernel(self.log_probs(first, rows, logits(0), losses))],
            Some(Rows::Slopes { address, split }) => {
                vec![Part::Kernel(self.slopes(first, rows, logits(0), address, split))]
            }
        });
        for (draw, pair) in (0..draws).flat_map(|draw| pairs.iter().map(move |pair| (draw, pair))) {
            let logits = product(pair, draw);
            let scaled = Product { left: slopes(draw), scaled_by, ..logits };
            parts.extend(pair.of_rows.get(draw).map(|&address| {
                let (result, extents) = (of_rows(address, pair.columns), [rows, pair.columns, vocab]);
                // Split as for whole chunks, for which the scratch is sized.
                let parts = InnerParts::of([most, pair.columns, vocab]);
                Product { factors: Factors::Plain, result, extents, accumulate: false, parts, ..scaled }
                    .part(self.operands)
            }));
            parts.extend(pair.of_table.map(|address| {
                let result = Matrix { address, dtype: DType::F32, stride: pair.columns };
                let (right, extents) = (logits.left, [vocab, pair.columns, rows]);
                let accumulate = self.accumulate || first + draw > 0;
                let parts = InnerParts::whole(rows);
                Product { factors: Factors::LeftTransposed, right, result, extents, accumulate, parts, ..scaled }
                    .part(self.operands)
            }));
        }
        parts
    }

    /// The losses of `rows` rows, and their sum.
    fn losses(&self, first: usize, rows: usize, logits: &[u64], losses: u64) -> [Launch; 2] {
        let summed = Arguments::default()
            .addresses(&[losses, self.operands.outputs[0], self.operands.scalars])
            .int(rows)
            .flag(self.accumulate_loss || first > 0);
        let module = self.module();
        let sum = if self.draws() == 2 { "paired_head_loss_sum" } else { "head_loss_sum" };
        [self.loss(first, rows, logits, losses), launch(module, sum, line(1), summed)]
    }

    fn module(&self) -> &'static str {
        if self.draws() == 2 { "paired_head_loss" } else { "head_loss" }
    }

    /// The losses of `rows` rows; if gradients are requested, the slopes in their logits too.
    fn loss(&self, first: usize, rows: usize, logits: &[u64], losses: u64) -> Launch {
        let (operands, draws) = (self.operands, self.draws());
        let weight = operands.io.inputs[draws];
        let vocab = weight.shape[0];
        let targets = operands.inputs[draws + 1] + 4 * first as u64;
        let mut arguments = Arguments::default()
            .addresses(logits)
            .addresses(&[targets, losses, operands.scalars])
            .int(vocab)
            .long(logits_stride(vocab, DeviceKind::Cuda) as u64)
            .float(self.smoothing);
        arguments = self.alpha.into_iter().fold(arguments, Arguments::float);
        arguments =
            arguments.float(self.cap.unwrap_or(0.0)).flag(self.gradients.are_requested()).int(number(weight.dtype));
        self.of_tokens(self.module(), self.module(), rows, arguments)
    }

    /// The losses of `rows` tokens, at their place among those of all tokens.
    fn log_probs(&self, first: usize, rows: usize, logits: u64, losses: u64) -> Launch {
        let (vocab, offset) = (self.operands.io.inputs[1].shape[0], 4 * first as u64);
        let arguments = Arguments::default()
            .addresses(&[logits, self.operands.inputs[2] + offset, losses + offset])
            .int(vocab)
            .long(logits_stride(vocab, DeviceKind::Cuda) as u64)
            .float(self.cap.unwrap_or(0.0));
        self.of_tokens("head_log_probs", "head_log_probs", rows, arguments)
    }

    /// The slopes in the logits of `rows` tokens, from those of the sums at the address `of_rows`.
    fn slopes(&self, first: usize, rows: usize, logits: u64, of_rows: u64, split: bool) -> Launch {
        let [_, weight, targets] = [0, 1, 2].map(|index| self.operands.io.inputs[index]);
        let vocab = weight.shape[0];
        let arguments = Arguments::default()
            .addresses(&[logits, self.operands.inputs[2] + 4 * first as u64, of_rows])
            .int(first)
            .int(targets.columns())
            .int(vocab)
            .long(logits_stride(vocab, DeviceKind::Cuda) as u64)
            .float(self.cap.unwrap_or(0.0))
            .flag(split)
            .int(number(weight.dtype));
        self.of_tokens("head_log_probs", "head_log_probs_grad", rows, arguments)
    }

    /// A launch with a block for each of `rows` rows of logits.
    fn of_tokens(&self, module: &'static str, kernel: &str, rows: usize, arguments: Arguments) -> Launch {
        let vocab = self.operands.io.inputs[self.draws()].shape[0];
        let threads = extent(vocab.div_ceil(EACH).next_multiple_of(WARP).min(MOST_THREADS));
        let entry = format!("{kernel}{}", if self.cap.is_some() { "_capped" } else { "" });
        Launch { threads, ..launch(module, entry, line(rows), arguments) }
    }
}

impl CudaKernel for HeadLoss {
    fn parts(&self, operands: &Operands) -> Vec<Part> {
        Head {
            operands,
            chunk: self.chunk,
            smoothing: self.smoothing,
            cap: self.cap,
            alpha: None,
            has_adapter: self.adapter,
            gradients: Gradients::default(),
            accumulate_loss: false,
            accumulate: false,
            rows: None,
        }
        .parts()
    }
}

impl CudaKernel for HeadLossGrad {
    fn parts(&self, operands: &Operands) -> Vec<Part> {
        Head {
            operands,
            chunk: self.chunk,
            smoothing: self.smoothing,
            cap: self.cap,
            alpha: None,
            has_adapter: self.adapter.is_some(),
            gradients: Gradients::of(&self.requested(), 1, &operands.outputs[1..]),
            accumulate_loss: self.accumulate_loss,
            accumulate: self.accumulate,
            rows: None,
        }
        .parts()
    }
}
