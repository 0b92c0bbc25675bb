//! The CPU's fast kernels: they compute the reference kernels' results up to rounding, with the same bits for any
//! number of threads. Each op has a file with the name of its file in `graph`, which documents what it computes.
//!
//! `vectorize.rs` compiles a loop for several instruction sets, and `parallel.rs` distributes work to threads. `tiled/`
//! multiplies matrices, and decides whether a library does it: then `product.rs` chooses between `gemm.rs`, the
//! built-in library, and `blas.rs`, a library that users may name. All take the views of `matrix.rs`. `math.rs` has
//! functions that loops share. Kernels other than products compute in single precision: `tiles.rs` passes them tiles of
//! tensors in half precision, which `half.rs` converts. `remainder.rs` splits single precision into weights in `Bf16`
//! and their remainders, and joins them.
//!
//! Work is split by shapes alone, never by the number of threads, and each part writes disjoint memory. Products by a
//! BLAS are the exception: they are split by the number of workers.

mod add;
mod attention;
mod attention_block;
mod attention_grad;
mod attention_products;
mod await_transfer;
mod blas;
mod by_rows;
mod cached_attention;
mod cast;
mod ceilings;
mod clamped_swiglu;
mod column_scale;
mod contrastive_loss;
mod dispatch;
mod dropout;
mod embedding;
mod exact_gelu;
mod expert_linear;
mod fp8_linear;
mod gated;
mod gelu;
mod gemm;
mod grad_clip;
mod grad_norm;
mod half;
mod head;
mod head_log_probs;
mod head_loss;
mod keep_gradient;
mod layer_norm;
mod linear;
mod low_rank_norm;
mod math;
mod matrix;
mod moving_average;
mod paired_head_loss;
mod parallel;
mod parameter_update;
mod pool;
mod positions;
mod preference_loss;
mod product;
mod quantized_linear;
mod relu;
mod remainder;
mod rms_norm;
mod rotary;
mod rounding;
mod route;
mod router_loss;
mod scale;
mod soft_cap;
mod sums;
mod take_row;
mod tiled;
mod tiles;
mod transfer;
mod uniform_noise;
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
