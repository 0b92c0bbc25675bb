//! Descriptions of products. Attributes that Plimsoll does not set are refused, so that no code can rely on them.

use super::number::Number;
use super::{INVALID_VALUE, NOT_SUPPORTED, Status};
use std::ffi::c_int;

/// `cublasLtMatmulDesc_t`
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Description {
    /// Whether factors are rounded to TF32.
    pub(super) tf32: bool,
    /// Whether each factor is transposed.
    pub(super) transposed: [bool; 2],
    /// Whether alpha and beta are stored on the card.
    pub(super) factors_on_card: bool,
    pub(super) has_bias: bool,
    pub(super) bias: u64,
    /// Addresses of the numbers by which A's and B's elements are multiplied; 0 for 1.
    pub(super) scales: [u64; 2],
}

/// `cublasLtMatrixLayout_t`, column-major.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Layout {
    pub(super) number: Number,
    pub(super) rows: u64,
    pub(super) columns: u64,
    /// Elements from one column to the next.
    pub(super) stride: u64,
}

/// `cublasLtMatmulPreference_t`
#[derive(Debug, Clone, Copy)]
pub(super) struct Preference {
    pub(super) workspace_bytes: u64,
    /// `cublasLtReductionScheme_t` values that are allowed.
    pub(super) reductions: u32,
    /// Alignments of A, B, C and D in bytes.
    pub(super) alignments: [u32; 4],
}

impl Default for Preference {
    /// The documented defaults.
    fn default() -> Self {
        Self { workspace_bytes: 0, reductions: 7, alignments: [256; 4] }
    }
}

fn int(value: &[u8]) -> Result<u32, Status> {
    value.try_into().map(u32::from_le_bytes).map_err(|_| INVALID_VALUE)
}

fn long(value: &[u8]) -> Result<u64, Status> {
    value.try_into().map(u64::from_le_bytes).map_err(|_| INVALID_VALUE)
}

fn flag(value: &[u8]) -> Result<bool, Status> {
    match int(value)? {
        0 => Ok(false),
        1 => Ok(true),
        _ => Err(NOT_SUPPORTED),
    }
}

impl Description {
    /// `CUBLAS_COMPUTE_32F` or `CUBLAS_COMPUTE_32F_FAST_TF32`, with scale type `CUDA_R_32F`.
    pub(super) fn new(compute: c_int, scale: c_int) -> Result<Self, Status> {
        let tf32 = match compute {
            68 => false,
            77 => true,
            _ => return Err(NOT_SUPPORTED),
        };
        if scale != 0 {
            return Err(NOT_SUPPORTED);
        }
        Ok(Self { tf32, transposed: [false; 2], factors_on_card: false, has_bias: false, bias: 0, scales: [0; 2] })
    }

    /// `cublasLtMatmulDescAttributes_t`
    pub(super) fn set(&mut self, which: c_int, value: &[u8]) -> Result<(), Status> {
        match which {
            2 => self.factors_on_card = flag(value)?,
            3 => self.transposed[0] = flag(value)?,
            4 => self.transposed[1] = flag(value)?,
            7 => {
                self.has_bias = match int(value)? {
                    1 => false,
                    4 => true,
                    _ => return Err(NOT_SUPPORTED),
                }
            }
            8 => self.bias = long(value)?,
            17 | 18 => self.scales[which as usize - 17] = long(value)?,
            _ => return Err(INVALID_VALUE),
        }
        Ok(())
    }
}

impl Layout {
    pub(super) fn new(kind: c_int, rows: u64, columns: u64, stride: i64) -> Result<Self, Status> {
        let number = Number::of(kind).ok_or(NOT_SUPPORTED)?;
        let stride = u64::try_from(stride).map_err(|_| INVALID_VALUE)?;
        if rows == 0 || columns == 0 || stride < rows {
            return Err(INVALID_VALUE);
        }
        Ok(Self { number, rows, columns, stride })
    }
}

impl Preference {
    /// `cublasLtMatmulPreferenceAttributes_t`
    pub(super) fn set(&mut self, which: c_int, value: &[u8]) -> Result<(), Status> {
        match which {
            1 => self.workspace_bytes = long(value)?,
            3 => self.reductions = int(value)?,
            5..=8 => self.alignments[which as usize - 5] = int(value)?,
            _ => return Err(INVALID_VALUE),
        }
        Ok(())
    }
}
