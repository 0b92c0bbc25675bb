//! A norm of a decoder in terms of aten's ops.

use crate::modules::Source;
use crate::modules::loader::Loader;
use crate::ops;
use crate::runtime::{DType, Tensor};
use plimsoll_graph::models::description::{self, NormFormula};

pub(super) enum Norm {
    Layer {
        weight: Tensor,
        bias: Tensor,
    },
    Rms {
        weight: Tensor,
        scales_before_cast: bool,
    },
    /// As in Gemma, times one plus the weight.
    OffsetRms {
        weight: Tensor,
    },
}

impl Norm {
    /// `path` is the block's; empty for a norm of the whole model.
    pub fn load(loader: &Loader, path: &str, norm: &description::Norm, width: u64, source: &Source) -> Self {
        let name = if path.is_empty() { norm.name.to_owned() } else { format!("{path}.{}", norm.name) };
        let weight = loader.parameter(&format!("{name}.weight"), &[width]);
        match norm.formula {
            NormFormula::Rms => Self::Rms { weight, scales_before_cast: source.scales_before_cast },
            NormFormula::OffsetRms => Self::OffsetRms { weight },
            // LayerNorm of transformers always has a bias.
            NormFormula::Layer { .. } => {
                Self::Layer { weight, bias: loader.parameter(&format!("{name}.bias"), &[width]) }
            }
        }
    }

    pub fn forward(&self, x: &Tensor, liger: bool) -> Tensor {
        match self {
            Self::Layer { weight, bias } => ops::layer_norm(x, weight, Some(bias)),
            Self::Rms { weight, .. } if liger => ops::liger::rms_norm(x, weight),
            Self::Rms { weight, scales_before_cast } => rms_norm(weight, x, *scales_before_cast),
            Self::OffsetRms { weight } => offset_rms_norm(weight, x),
        }
    }
}

/// x in single precision, divided by the root of the mean square.
fn normalized(x: &Tensor) -> Tensor {
    let x = x.to(DType::F32);
    let mut scale = x.pow();
    scale = scale.mean_last();
    scale = scale.shift();
    scale = scale.rsqrt();
    x.mul(&scale)
}

/// Gemma's RMSNorm: all in single precision. Source: `Gemma3RMSNorm`.
fn offset_rms_norm(weight: &Tensor, x: &Tensor) -> Tensor {
    let mut normed = normalized(x);
    let factor = weight.to(DType::F32).shift();
    normed = normed.mul(&factor);
    drop(factor);
    normed.to(x.dtype())
}

/// RMSNorm in single precision: x (B, T, C), weight (C,) -> (B, T, C).
fn rms_norm(weight: &Tensor, x: &Tensor, scales_before_cast: bool) -> Tensor {
    let dtype = x.dtype();
    let mut x = x.to(DType::F32);
    let mut variance = x.pow();
    variance = variance.mean_last();
    let shifted = variance.shift();
    let scale = shifted.rsqrt();
    drop(shifted);
    x = x.mul(&scale);
    drop(scale);
    match scales_before_cast {
        true => weight.mul(&x).to(dtype),
        false => weight.mul(&x.to(dtype)),
    }
}
