//! The CPU's fast kernels: the same results as the reference kernels to rounding, and the same bits for any number of
//! threads. One file an op, named after the op's own; what each computes is said in `graph`, not here.
//!
//! `vectorize.rs` compiles a loop for the instruction sets of the machine that runs it, `parallel.rs` shares work out,
//! `tiled/` multiplies matrices, and decides whether a library does: then `product.rs` picks `gemm.rs`, with the only call to
//! the built-in one, or `blas.rs`, with those to another that users may name; all take the views of `matrix.rs`. `math.rs` has the few functions that loops share.
//! Kernels other than products compute in single precision: `tiles.rs` hands them tiles of what is kept in half precision,
//! which `half.rs` converts. What weights in `Bf16` lack of single precision is split off
//! and joined by `remainder.rs`.
//!
//! Work is cut by shapes alone, never by the number of threads, and each part writes only what is its own. Products
//! that are left to a BLAS are the exception: they are cut by the number of workers.

mod add;
mod attention;
mod attention_grad;
mod attention_products;
mod blas;
mod cached_attention;
mod cast;
mod ceilings;
mod dropout;
mod embedding;
mod gated;
mod gelu;
mod gemm;
mod grad_clip;
mod grad_norm;
mod half;
mod head_loss;
mod layer_norm;
mod linear;
mod math;
mod matrix;
mod moving_average;
mod paired_head_loss;
mod parallel;
mod parameter_update;
mod positions;
mod product;
mod relu;
mod remainder;
mod rms_norm;
mod rotary;
mod scale;
mod take_row;
mod tiled;
mod tiles;
mod vectorize;

pub use blas::{Blas, BlasError, BlasLibrary, blas_in_use, use_blas};
pub use ceilings::Ceilings;
pub use half::converted;
pub use remainder::{joined, remainders, rounded_weight};
pub use tiled::{Instructions, instructions};

use crate::call::Call;
use plimsoll_graph::Op;
use tiles::in_precision;

/// Executes an op. Runs at most `call.threads` workers of the current rayon pool at a time.
/// Panics if operands are not those that the op's types ask for: plans are validated before they get here.
pub fn run(op: &Op, mut call: Call) {
    match op {
        Op::Add(_) => in_precision!(call, add::run(call)),
        Op::Attention(op) => in_precision!(call, attention::run(op, call)),
        Op::AttentionGrad(op) => in_precision!(call, attention_grad::run(op, call)),
        // Kernels end when their work is done, so that there is nothing to wait for.
        Op::AwaitTransfer(_) => {}
        Op::CachedAttention(op) => in_precision!(call, cached_attention::run(op, call)),
        Op::Cast(_) => cast::run(call),
        Op::Dropout(op) => in_precision!(call, dropout::run(op, call)),
        Op::Embedding(_) => embedding::run(call),
        Op::EmbeddingGrad(op) => in_precision!(call, embedding::run_grad(op, call)),
        Op::Gated(op) => in_precision!(call, gated::run(op, call)),
        Op::GatedGrad(op) => in_precision!(call, gated::run_grad(op, call)),
        Op::Gelu(_) => in_precision!(call, gelu::run(call)),
        Op::GeluGrad(_) => in_precision!(call, gelu::run_grad(call)),
        Op::GradClip(op) => grad_clip::run(op, call),
        Op::GradNorm(_) => grad_norm::run(call),
        Op::HeadLoss(op) => head_loss::run(op, call),
        Op::HeadLossGrad(op) => head_loss::run_grad(op, call),
        Op::LayerNorm(op) => in_precision!(call, layer_norm::run(op, call)),
        Op::LayerNormGrad(op) => in_precision!(call, layer_norm::run_grad(op, call)),
        Op::Linear(op) => linear::run(op, call),
        Op::LinearInputGrad(op) => linear::run_input_grad(op, call),
        Op::LinearWeightGrad(op) => linear::run_weight_grad(op, call),
        Op::MovingAverage(op) => moving_average::run(op, call),
        Op::PairedHeadLoss(op) => paired_head_loss::run(op, call),
        Op::PairedHeadLossGrad(op) => paired_head_loss::run_grad(op, call),
        Op::ParameterUpdate(op) => parameter_update::run(op, call),
        Op::Positions(op) => in_precision!(call, positions::run(op, call)),
        Op::PositionsGrad(op) => in_precision!(call, positions::run_grad(op, call)),
        Op::Relu(_) => in_precision!(call, relu::run(call)),
        Op::ReluGrad(_) => in_precision!(call, relu::run_grad(call)),
        Op::RmsNorm(op) => in_precision!(call, rms_norm::run(op, call)),
        Op::RmsNormGrad(op) => in_precision!(call, rms_norm::run_grad(op, call)),
        Op::Rotary(op) => in_precision!(call, rotary::run(op, call)),
        Op::Scale(op) => in_precision!(call, scale::run(op, call)),
        Op::TakeRow(_) => take_row::run(call),
        Op::Transfer(_) => {
            let bytes = call.bytes(0);
            call.take_byte_outputs().for_each(|into| parallel::copy(into, bytes));
        }
    }
}
