//! Formats of frozen weight matrices in codes: which tensors store a matrix. `exec` encodes and decodes them. A weight with three
//! dimensions is a matrix for each expert, (E, rows, columns); each is encoded on its own.

use crate::{DType, Shape, TensorType};
use serde::{Deserialize, Serialize};

/// How the codes of a frozen weight matrix (rows, columns) are stored; the columns of linear layers are mostly their inputs.
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

    /// The type of the codes of a weight of this type, (rows, columns) or (E, rows, columns); `None` if the format can't store it:
    /// a row must fill its bytes.
    pub fn codes(self, weight: &TensorType) -> Option<TensorType> {
        let columns = weight.columns();
        let is_stored = matches!(weight.shape.len(), 2 | 3) && columns.is_multiple_of(self.per_byte());
        is_stored.then(|| weight.with_columns(columns / self.per_byte()).with_dtype(DType::U8))
    }

    /// The shape of the weight with these codes.
    pub fn shape(self, codes: &TensorType) -> Shape {
        codes.with_columns(codes.columns() * self.per_byte()).shape
    }

    /// The tensors that store the scales of a weight of this shape, as bitsandbytes names them: of each matrix one after another.
    pub fn scales(self, weight: &[usize]) -> Vec<(&'static str, TensorType)> {
        let (experts, [rows, columns]) = match *weight {
            [rows, columns] => (None, [rows, columns]),
            [experts, rows, columns] => (Some(experts), [rows, columns]),
            _ => return vec![],
        };
        let of_each = |extent: usize| TensorType::f32(&experts.into_iter().chain([extent]).collect::<Shape>());
        match self {
            Self::Nf4 => {
                let blocks = (rows * columns).div_ceil(NF4_BLOCK);
                vec![
                    ("absmax", of_each(blocks).with_dtype(DType::U8)),
                    ("nested_absmax", of_each(blocks.div_ceil(NESTED_BLOCK))),
                    ("nested_offset", of_each(1)),
                ]
            }
            Self::Int8 => vec![("SCB", of_each(rows))],
        }
    }

    /// The number of the tensors of [`scales`](Self::scales).
    pub const fn scale_count(self) -> usize {
        match self {
            Self::Nf4 => 3,
            Self::Int8 => 1,
        }
    }
}
