//! Launches of `kernels/preference_loss.cu`.

use super::CudaKernel;
use super::shape::{launch, line};
use crate::cuda::launch::{Arguments, Operands, Part};
use plimsoll_graph::ops::{PreferenceKind, PreferenceLoss, PreferenceLossGrad};

/// `enum Kind` of the kernel.
fn number(kind: PreferenceKind) -> usize {
    match kind {
        PreferenceKind::Sigmoid => 0,
        PreferenceKind::Robust => 1,
        PreferenceKind::Hinge => 2,
        PreferenceKind::Ipo => 3,
        PreferenceKind::Orpo => 4,
        PreferenceKind::Single { .. } => 5,
    }
}

/// The loss and the rewards, and the slopes if `slopes` is their address.
fn parts(op: &PreferenceLoss, accumulate: bool, slopes: Option<u64>, operands: &Operands) -> Vec<Part> {
    // Losses without a reference have no operand for it.
    let at = if op.kind.has_reference() { 2 } else { 1 };
    let [liked, disliked] = match op.kind {
        PreferenceKind::Single { liked, disliked, .. } => [liked, disliked],
        _ => [0.0; 2],
    };
    let (targets, reference) = (operands.io.inputs[at], if at == 2 { operands.inputs[1] } else { 0 });
    let arguments = Arguments::default()
        .addresses(&[operands.inputs[0], reference, operands.inputs[at]])
        .addresses(&operands.outputs[..2])
        .addresses(&[slopes.unwrap_or(0), operands.scalars])
        .int(if op.kind.is_paired() { targets.shape[0] / 2 } else { targets.shape[0] })
        .int(targets.columns())
        .int(number(op.kind))
        .float(op.beta)
        .float(op.smoothing)
        .float(liked)
        .float(disliked)
        .flag(accumulate);
    vec![Part::Kernel(launch("preference_loss", "preference_loss", line(1), arguments))]
}

impl CudaKernel for PreferenceLoss {
    fn parts(&self, operands: &Operands) -> Vec<Part> {
        parts(self, false, None, operands)
    }
}

impl CudaKernel for PreferenceLossGrad {
    fn parts(&self, operands: &Operands) -> Vec<Part> {
        parts(&self.forward, self.accumulate_loss, Some(operands.outputs[2]), operands)
    }
}
