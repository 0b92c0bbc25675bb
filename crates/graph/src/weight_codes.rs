//! Formats of frozen weight matrices in codes: which tensors store a matrix. `exec` encodes and decodes them.

use crate::{DType, TensorType};
use serde::{Deserialize, Serialize};

/// How the codes of a frozen weight matrix (out, in) are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum WeightCodes {
    /// Codes of 4 bits, whose levels are quantiles of a normal distribution, with a scale for every
    /// [`NF4_BLOCK`] consecutive weights. The scales are quantized in turn: codes of 8 bits after their mean is
    /// subtracted, with a scale in single precision for every [`NESTED_BLOCK`] of them. The format of bitsandbytes.
    /// Source: QLoRA, Dettmers et al. 2023 (arXiv:2305.14314), section 3.
    Nf4,
    /// Integers of 8 bits from -127 to 127, with a scale in single precision for every row. Source: LLM.int8(),
    /// Dettmers et al. 2022 (arXiv:2208.07339), section 2.
    Int8,
}

/// Weights that share a scale in [`WeightCodes::Nf4`].
pub const NF4_BLOCK: usize = 64;

/// Scales that share a scale in [`WeightCodes::Nf4`].
pub const NESTED_BLOCK: usize = 256;

impl WeightCodes {
    /// All formats.
    pub const ALL: [Self; 2] = [Self::Nf4, Self::Int8];

    /// As flags and files name it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Nf4 => "nf4",
            Self::Int8 => "int8",
        }
    }

    /// Weights whose codes share a byte.
    pub const fn per_byte(self) -> usize {
        match self {
            Self::Nf4 => 2,
            Self::Int8 => 1,
        }
    }

    /// The type of the codes of a matrix (out, in); `None` if the format can't store it: a row must fill its bytes.
    pub fn codes(self, weight: &TensorType) -> Option<TensorType> {
        match weight.shape[..] {
            [to, from] if from.is_multiple_of(self.per_byte()) => {
                Some(weight.with_shape(&[to, from / self.per_byte()]).with_dtype(DType::U8))
            }
            _ => None,
        }
    }

    /// The extents (out, in) of the matrix with these codes.
    pub fn extents(self, codes: &TensorType) -> [usize; 2] {
        [codes.rows(), codes.columns() * self.per_byte()]
    }

    /// The tensors that store the scales of a matrix (out, in), as bitsandbytes names them.
    pub fn scales(self, [to, from]: [usize; 2]) -> Vec<(&'static str, TensorType)> {
        match self {
            Self::Nf4 => {
                let blocks = (to * from).div_ceil(NF4_BLOCK);
                vec![
                    ("absmax", TensorType::f32(&[blocks]).with_dtype(DType::U8)),
                    ("nested_absmax", TensorType::f32(&[blocks.div_ceil(NESTED_BLOCK)])),
                    ("nested_offset", TensorType::f32(&[1])),
                ]
            }
            Self::Int8 => vec![("SCB", TensorType::f32(&[to]))],
        }
    }
}
