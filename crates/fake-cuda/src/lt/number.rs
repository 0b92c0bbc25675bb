//! Element types of matrices.

use crate::ptx::lanes::{bf16_bits, bf16_value, e4m3_bits, e4m3_value, e5m2_bits, e5m2_value, f16_bits, f16_value};
use std::ffi::c_int;

/// `cudaDataType_t`
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Number {
    F32,
    F16,
    Bf16,
    E4m3,
    E5m2,
}

impl Number {
    pub(super) fn of(kind: c_int) -> Option<Self> {
        match kind {
            0 => Some(Self::F32),
            2 => Some(Self::F16),
            14 => Some(Self::Bf16),
            28 => Some(Self::E4m3),
            29 => Some(Self::E5m2),
            _ => None,
        }
    }

    pub(super) fn bytes(self) -> u64 {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::Bf16 => 2,
            Self::E4m3 | Self::E5m2 => 1,
        }
    }

    pub(super) fn values(self, bytes: &[u8]) -> Vec<f32> {
        let halves =
            |value: fn(u16) -> f32| bytes.chunks_exact(2).map(move |two| value(u16::from_le_bytes([two[0], two[1]])));
        match self {
            Self::F32 => bytes.chunks_exact(4).map(|four| f32::from_le_bytes(four.try_into().expect("four"))).collect(),
            Self::F16 => halves(f16_value).collect(),
            Self::Bf16 => halves(bf16_value).collect(),
            Self::E4m3 => bytes.iter().map(|&byte| e4m3_value(byte)).collect(),
            Self::E5m2 => bytes.iter().map(|&byte| e5m2_value(byte)).collect(),
        }
    }

    pub(super) fn encode(self, values: &[f32]) -> Vec<u8> {
        match self {
            Self::F32 => values.iter().flat_map(|x| x.to_le_bytes()).collect(),
            Self::F16 => values.iter().flat_map(|&x| f16_bits(f64::from(x)).to_le_bytes()).collect(),
            Self::Bf16 => values.iter().flat_map(|&x| bf16_bits(f64::from(x)).to_le_bytes()).collect(),
            Self::E4m3 => values.iter().map(|&x| e4m3_bits(x.into())).collect(),
            Self::E5m2 => values.iter().map(|&x| e5m2_bits(x.into())).collect(),
        }
    }
}
