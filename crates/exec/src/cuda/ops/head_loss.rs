//! Launches of output heads with their loss: for each chunk of rows a product for the logits, a kernel that replaces
//! the logits by the loss's slopes, and products with the slopes. Kernels: `head_loss.cu`, `paired_head_loss.cu`,
//! `head_log_probs.cu`, and those of products.

use super::CudaKernel;
use super::shape::{WARP, extent, launch, line, number};
use crate::cuda::launch::{Arguments, Launch, Operands, Part};
use crate::cuda::product::{Factors, Matrix, Product};
use plimsoll_graph::ops::{HeadLoss, HeadLossGrad, InnerParts, logits_stride};
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
    /// Addresses of the draws' gradients, if they are requested.
    pub(super) inputs: Option<&'a [u64]>,
    /// Address of the weight's gradient, if it is requested.
    pub(super) weight: Option<u64>,
    pub(super) accumulate_loss: bool,
    pub(super) accumulate: bool,
    /// What is computed for each row instead of the loss.
    pub(super) rows: Option<Rows>,
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

    /// Rows `first` to `first + rows`; scratch has space for `most` rows.
    fn chunk(&self, first: usize, rows: usize, most: usize) -> Vec<Part> {
        let (draws, scratch) = (self.draws(), self.operands.scratch.address);
        let weight = self.operands.io.inputs[draws];
        let (vocab, channels) = (weight.shape[0], weight.shape[1]);
        let stride = logits_stride(vocab, DeviceKind::Cuda);
        let logits = |draw: usize| scratch + (4 * draw * most * stride) as u64;
        let losses = scratch + (4 * draws * most * stride) as u64;
        let of_rows = |address: u64| address + (first * channels) as u64 * weight.dtype.size_bytes();
        let hidden = |address| Matrix { address: of_rows(address), dtype: weight.dtype, stride: channels };
        let single = |draw| Matrix { address: logits(draw), dtype: DType::F32, stride };
        // The result of `lay_slopes` of `head_loss.cuh`: in half precision with the same bytes from row to row, and
        // scaled.
        let is_half = weight.dtype.is_half();
        let halves = |draw| Matrix { address: logits(draw), dtype: weight.dtype, stride: 2 * stride };
        let slopes = |draw| if is_half { halves(draw) } else { single(draw) };
        let is_scaled = is_half || self.rows.is_some();
        let scaled_by = if is_scaled { 0 } else { self.operands.scalars };
        let table = Matrix { address: self.operands.inputs[draws], dtype: weight.dtype, stride: channels };
        let product = Product {
            factors: Factors::RightTransposed,
            left: hidden(self.operands.inputs[0]),
            right: table,
            result: single(0),
            bias: 0,
            scaled_by: 0,
            extents: [rows, vocab, channels],
            accumulate: false,
            parts: InnerParts::whole(channels),
            partial: (losses + 4 * most as u64).next_multiple_of(16),
        };
        let mut parts = Vec::new();
        for draw in 0..draws {
            let left = hidden(self.operands.inputs[draw]);
            parts.push(Product { left, result: single(draw), ..product }.part(self.operands));
        }
        parts.extend(match self.rows {
            None => self.losses(first, rows, &[logits(0), logits(1)][..draws], losses).map(Part::Kernel).to_vec(),
            Some(Rows::Sums { .. }) => vec![Part::Kernel(self.log_probs(first, rows, logits(0), losses))],
            Some(Rows::Slopes { address, split }) => {
                vec![Part::Kernel(self.slopes(first, rows, logits(0), address, split))]
            }
        });
        for draw in 0..draws {
            let scaled = Product { left: slopes(draw), scaled_by, ..product };
            parts.extend(self.inputs.map(|inputs| {
                let (result, extents) = (hidden(inputs[draw]), [rows, channels, vocab]);
                // Split as for whole chunks, for which the scratch is sized.
                let parts = InnerParts::of([most, channels, vocab]);
                Product { factors: Factors::Plain, result, extents, parts, ..scaled }.part(self.operands)
            }));
            parts.extend(self.weight.map(|address| {
                let result = Matrix { address, dtype: DType::F32, stride: channels };
                let (right, extents) = (hidden(self.operands.inputs[draw]), [vocab, channels, rows]);
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
        arguments = arguments
            .float(self.cap.unwrap_or(0.0))
            .flag(self.inputs.is_some() || self.weight.is_some())
            .int(number(weight.dtype));
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
            inputs: None,
            weight: None,
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
            inputs: self.input.then(|| &operands.outputs[1..2]),
            weight: operands.outputs.last().copied().filter(|_| self.weight),
            accumulate_loss: self.accumulate_loss,
            accumulate: self.accumulate,
            rows: None,
        }
        .parts()
    }
}
