//! Working memory of nodes: scratch that several ops need to compute on half precision in single precision on the
//! processor, and the workspace of a library for products on a card.

use super::{Io, Op};
use crate::{Target, TensorType};
use plimsoll_units::Bytes;

/// cuBLASLt requires a workspace at a multiple of 16 bytes; its fastest kernels require 256.
const WORKSPACE_ALIGNMENT: u64 = 256;

/// Bytes for rows of x in single precision, in which the processor computes on half precision: `shared` rows for all
/// workers, and `each` rows per worker. Zero if x is in single precision or on a card.
pub(super) fn rows_in_single(x: &TensorType, shared: usize, each: usize, target: &Target) -> Bytes {
    match *target {
        Target::Cpu { threads } if x.dtype.is_half() => Bytes(4 * ((shared + threads * each) * x.columns()) as u64),
        Target::Cpu { .. } | Target::Cuda { .. } => Bytes::ZERO,
    }
}

impl Op {
    /// Working memory of a node on a device: the kernel's scratch, and on a card, after it at a multiple of 256 bytes,
    /// the [workspace](Self::product_workspace) of its products.
    pub fn working_bytes(&self, io: &Io, target: &Target) -> Bytes {
        let scratch = self.scratch(io, target);
        match self.product_workspace(target) {
            Bytes::ZERO => scratch,
            workspace => scratch.align_up(WORKSPACE_ALIGNMENT) + workspace,
        }
    }

    /// The workspace of a library for products, if a library computes the op's products on
    /// the target.
    pub fn product_workspace(&self, target: &Target) -> Bytes {
        if self.uses_library() { target.product_workspace() } else { Bytes::ZERO }
    }
}
