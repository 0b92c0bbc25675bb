//! The kernels of each op on a card and their launches, in one file per op. Files that several ops share: `shape.rs`
//! (grids and kernel names), `elementwise.rs`, `norms.rs`, `products.rs`, `row_sums.rs`, `attention_tensor.rs`.

mod add;
mod attention;
mod attention_tensor;
mod await_transfer;
mod by_rows;
mod cached_attention;
mod cast;
mod clamped_swiglu;
mod column_scale;
mod contrastive_loss;
mod dispatch;
mod dropout;
mod elementwise;
mod embedding;
mod exact_gelu;
mod expert_linear;
mod fp8_linear;
mod gated;
mod gelu;
mod grad_clip;
mod grad_norm;
mod head_log_probs;
mod head_loss;
mod keep_gradient;
mod layer_norm;
mod linear;
mod low_rank_norm;
mod moving_average;
mod norms;
mod paired_head_loss;
mod parameter_update;
mod pool;
mod positions;
mod preference_loss;
mod products;
mod quantized_linear;
mod relu;
mod rms_norm;
mod rotary;
mod route;
mod router_loss;
mod row_sums;
mod scale;
mod shape;
mod soft_cap;
mod take_row;
mod transfer;
mod uniform_noise;

pub(super) use parameter_update::{are_alike, updates};
pub use products::OLDEST_WITH_TF32;

use super::launch::{Launch, Operands, Part};
use plimsoll_graph::{Io, Op, match_op};

/// An op on a card. Implemented for the op's struct in the file that is named after it.
trait CudaKernel {
    /// The parts of the op, in order; empty if there is nothing to do. Panics if the operands do not have the op's
    /// types, which plans are validated for, or if there is a [`refusal`](Self::refusal).
    fn parts(&self, operands: &Operands) -> Vec<Part>;

    /// Why a card of this compute capability has no kernels for the op on operands of these types; `None` if it has them.
    fn refusal(&self, _io: &Io, _compute_capability: (u8, u8)) -> Option<String> {
        None
    }
}

fn kernel(op: &Op) -> &dyn CudaKernel {
    match_op!(op, op => op)
}

/// The parts of an op, in order: products, which a library may compute, and kernels. Panics as [`CudaKernel::parts`]
/// does.
pub(super) fn parts(op: &Op, operands: &Operands) -> Vec<Part> {
    kernel(op).parts(operands)
}

/// The launches of an op if no library computes its products, in order. Panics as [`CudaKernel::parts`] does.
pub fn launches(op: &Op, operands: &Operands) -> Vec<Launch> {
    parts(op, operands).into_iter().flat_map(Part::into_kernels).collect()
}

/// Why a card of this compute capability has no kernels for an op on operands of these types; `None` if it has them. Ask before
/// [`launches`].
pub fn refusal(op: &Op, io: &Io, compute_capability: (u8, u8)) -> Option<String> {
    kernel(op).refusal(io, compute_capability)
}
