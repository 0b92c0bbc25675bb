//! Half precision on the processor, whose kernels compute in single precision: what is widened for them, and the working
//! memory that this takes.

use super::{Io, Op, Operand};
use crate::{DeviceKind, Target};
use plimsoll_units::Bytes;

impl Op {
    /// Working memory of a node on a device: the kernel's scratch, and on the processor, whose kernels compute in
    /// single precision, room for operands and results in half precision, each at a multiple of 64 bytes.
    pub fn working_bytes(&self, io: &Io, target: &Target) -> Bytes {
        let widened = match target.kind() {
            DeviceKind::Cpu => self.widened(io).map(|(_, bytes)| bytes).sum(),
            DeviceKind::Cuda => Bytes::ZERO,
        };
        widened + self.scratch(io, target)
    }

    /// What the processor widens, in the order of operands and results, and the bytes that each takes then.
    pub fn widened<'a>(&'a self, io: &'a Io) -> impl Iterator<Item = (Operand, Bytes)> + 'a {
        let inputs = io.inputs.iter().enumerate().map(|(i, ty)| (Operand::Input(i), *ty));
        let outputs = io.outputs.iter().enumerate().map(|(i, ty)| (Operand::Output(i), *ty));
        let half = inputs.chain(outputs).filter(|(at, ty)| ty.dtype.is_half() && !self.takes_half(*at));
        half.map(|(at, ty)| (at, Bytes(4 * ty.elements() as u64).align_up(64)))
    }
}
