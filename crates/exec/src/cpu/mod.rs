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
mod await_transfer;
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
mod soft_cap;
mod take_row;
mod tiled;
mod tiles;
mod transfer;
mod vectorize;

pub use blas::{Blas, BlasError, BlasLibrary, blas_in_use, use_blas};
pub use ceilings::Ceilings;
pub use half::converted;
pub use remainder::{joined, remainders, rounded_weight};
pub use tiled::{Instructions, instructions};

use crate::call::Call;
use plimsoll_graph::{Op, match_op};

/// A fast kernel. Implemented for the op's struct in the file that is named after it.
trait CpuKernel {
    /// Executes the op with at most `call.threads` workers of the current rayon pool at a time.
    /// Panics if the operands do not have the op's types: plans are validated before they get here.
    fn run(&self, call: Call);
}

/// Executes an op. Panics as [`CpuKernel::run`] does.
pub fn run(op: &Op, call: Call) {
    match_op!(op, op => CpuKernel::run(op, call));
}
