//! Working memory of nodes beside their kernels' scratch: what the processor, whose kernels compute in single precision,
//! widens of half precision for them, and what a library of products works in on a card.

use super::{Io, Nature, Op, Operand};
use crate::{DeviceKind, Target, TensorType};
use plimsoll_units::Bytes;

/// cuBLASLt wants its workspace at a multiple of 16 bytes, and has its fastest kernels for 256.
const WORKSPACE_ALIGNMENT: u64 = 256;

/// Room for rows of x in single precision, in which the processor's kernels compute on half precision: `shared` by all
/// workers, and as many as `each` of them needs. None where x is in single precision, and none on a card.
pub(super) fn rows_in_single(x: &TensorType, shared: usize, each: usize, target: &Target) -> Bytes {
    match *target {
        Target::Cpu { threads } if x.dtype.is_half() => Bytes(4 * ((shared + threads * each) * x.columns()) as u64),
        Target::Cpu { .. } | Target::Cuda { .. } => Bytes::ZERO,
    }
}

impl Op {
    /// Working memory of a node on a device: the kernel's scratch, and on the processor, whose kernels compute in
    /// single precision, room for operands and results in half precision, each at a multiple of 64 bytes; on a card, behind
    /// it at a multiple of 256 bytes, the [workspace](Self::product_workspace) of its products.
    pub fn working_bytes(&self, io: &Io, target: &Target) -> Bytes {
        let scratch = self.scratch(io, target);
        match target.kind() {
            DeviceKind::Cpu => self.widened(io).map(|(_, bytes)| bytes).sum::<Bytes>() + scratch,
            DeviceKind::Cuda => match self.product_workspace(target) {
                Bytes::ZERO => scratch,
                workspace => scratch.align_up(WORKSPACE_ALIGNMENT) + workspace,
            },
        }
    }

    /// What a library of products works in, if the op has products and there is one.
    pub fn product_workspace(&self, target: &Target) -> Bytes {
        if self.nature() == Nature::Products { target.product_workspace() } else { Bytes::ZERO }
    }

    /// What the processor widens, in the order of operands and results, and the bytes that each takes then.
    pub fn widened<'a>(&'a self, io: &'a Io) -> impl Iterator<Item = (Operand, Bytes)> + 'a {
        let inputs = io.inputs.iter().enumerate().map(|(i, ty)| (Operand::Input(i), *ty));
        let outputs = io.outputs.iter().enumerate().map(|(i, ty)| (Operand::Output(i), *ty));
        let half = inputs.chain(outputs).filter(|(at, ty)| ty.dtype.is_half() && !self.takes_half(*at));
        half.map(|(at, ty)| (at, Bytes(4 * ty.elements() as u64).align_up(64)))
    }
}
