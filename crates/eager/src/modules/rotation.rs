//! Rotary positions: the angles, and the rotation of queries and keys, in pointwise ops or by Liger's kernel.

use crate::modules::Source;
use crate::ops;
use crate::runtime::{DType, Rt, Tensor};

/// Cosines and sines of the positions for `half` frequencies: (1, T, D) each, in the hidden states' type.
pub(super) fn angles(rt: &Rt, length: u64, half: u64, dtype: DType, source: &Source) -> [Tensor; 2] {
    let new = |channels, op| Tensor::new(rt, &[1, length, channels], DType::F32, op);
    let cast = new(1, "_to_copy");
    let products = new(half, "mul");
    drop(cast);
    let both = if source.rotates_halves { products.clone() } else { new(2 * half, "cat") };
    let angles = ["cos", "sin"].map(|op| {
        let mut angle = both.empty_like(DType::F32, op);
        angle = angle.scale();
        angle
    });
    if source.rotates_in_single_precision {
        return angles;
    }
    angles.each_ref().map(|angle| angle.to(dtype))
}

/// Queries and keys (B, H, T, D), rotated by angles (1, T, D), or (1, T, D / 2) if the halves are rotated separately.
pub(super) fn rotated(tensors: [&Tensor; 2], angles: &[Tensor; 2], source: &Source, liger: bool) -> [Tensor; 2] {
    if liger {
        return ops::liger::rotate(tensors[0], tensors[1], angles);
    }
    let angles = angles.each_ref().map(|angle| angle.unsqueeze(1));
    let rotated = match source.rotates_parts {
        true => rotate_parts(tensors, &angles),
        false if source.rotates_halves => tensors.map(|x| rotate_halves(x, &angles)),
        false => tensors.map(|x| rotate(x, &angles)),
    };
    match source.rotates_in_single_precision {
        true => [rotated[0].to(tensors[0].dtype()), rotated[1].to(tensors[1].dtype())],
        false => rotated,
    }
}

/// Moves the second half of the channels, negated, before the first half.
fn rotate_half(x: &Tensor) -> Tensor {
    let half = x.size(-1) / 2;
    let [first, second] = [x.narrow(-1, half), x.narrow(-1, half)];
    ops::cat(&[&second.neg(), &first], -1)
}

/// x (B, H, T, D), rotated by angles (1, 1, T, D).
fn rotate(x: &Tensor, [cos, sin]: &[Tensor; 2]) -> Tensor {
    let kept = x.mul(cos);
    let mut turned = rotate_half(x);
    turned = turned.mul(sin);
    kept.add(&turned)
}

/// The same in single precision, in the type of the operand. Source: `modeling_modernbert.py`.
pub(super) fn rotated_upcast(tensors: [&Tensor; 2], angles: &[Tensor; 2]) -> [Tensor; 2] {
    let angles = angles.each_ref().map(|angle| angle.unsqueeze(1));
    let rotated = tensors.map(|x| {
        let kept = x.to(DType::F32).mul(&angles[0]);
        let mut turned = rotate_half(&x.to(DType::F32));
        turned = turned.mul(&angles[1]);
        kept.add(&turned)
    });
    let [q, k] = [0, 1].map(|index| rotated[index].to(tensors[index].dtype()));
    [q, k]
}

/// The same for tensors of which only the first channels have angles, concatenated with the other channels.
fn rotate_parts(tensors: [&Tensor; 2], angles: &[Tensor; 2]) -> [Tensor; 2] {
    let rotated = angles[0].size(-1);
    let parts = tensors.map(|x| [x.narrow(-1, rotated), x.narrow(-1, x.size(-1) - rotated)]);
    parts.each_ref().map(|[first, rest]| ops::cat(&[&rotate(first, angles), rest], -1))
}

/// x (B, H, T, D), whose halves are rotated by angles (1, 1, T, D / 2). Source: `_apply_rotary_emb` of
/// `modeling_gpt_oss.py`.
fn rotate_halves(x: &Tensor, [cos, sin]: &[Tensor; 2]) -> Tensor {
    let halves = x.split(2, -1);
    let first = halves[0].mul(cos).sub(&halves[1].mul(sin));
    let second = halves[1].mul(cos).add(&halves[0].mul(sin));
    ops::cat(&[&first, &second], -1)
}
