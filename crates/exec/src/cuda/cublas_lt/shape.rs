//! The shape of products, for which an algorithm is chosen.

use crate::cuda::product::{Factors, Matrix, Product};
use plimsoll_graph::DType;
use plimsoll_graph::ops::Fp8;
use serde::{Deserialize, Serialize};
use std::fmt;

/// A product without its addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(super) struct ProductShape {
    pub(super) factors: Factors,
    /// The type of both factors.
    pub(super) dtype: DType,
    /// The formats of left and right, if they are codes. Files of earlier versions have none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) formats: Option<[Fp8; 2]>,
    pub(super) result: DType,
    /// Rows, columns, inner.
    pub(super) extents: [usize; 3],
    /// Elements from row to row, of left, right and result.
    pub(super) strides: [usize; 3],
    /// Alignments of their addresses in bytes, up to 256.
    pub(super) alignments: [u32; 3],
    pub(super) has_bias: bool,
    /// Whether alpha is in the card's memory.
    pub(super) is_scaled: bool,
    pub(super) accumulates: bool,
    pub(super) tf32: bool,
}

/// The largest alignment that is distinguished.
const MOST_ALIGNED: u64 = 256;

impl ProductShape {
    /// The shape of a product; `None` if the library has no such product for any extents.
    pub(super) fn of(product: &Product, tf32: bool) -> Option<Self> {
        let Product { factors, left, right, result, bias, scaled_by, extents, accumulate, .. } = *product;
        let has_types = match product.codes {
            // The library adds a bias in half precision to a result in single precision.
            Some(_) => bias == 0 || result.dtype.is_half(),
            None => left.dtype == right.dtype && [left.dtype, DType::F32].contains(&result.dtype),
        };
        // The plan's bias has the factors' type unless they are codes; the library uses the result's. If rows in half precision are not whole
        // vectors, the library seems to add the bias after rounding: on an H100, 130 x 390 by 390 x 5 in bf16 had such
        // an error.
        let in_vectors = |elements: usize| (elements as u64 * result.dtype.size_bytes()).is_multiple_of(16);
        let is_rounded_once = !result.dtype.is_half() || in_vectors(extents[1]) && in_vectors(result.stride);
        let is_of_result = product.codes.is_some() || left.dtype == result.dtype;
        let has_bias = bias == 0 || is_of_result && is_rounded_once;
        let matrices = [left, right, result];
        let alignment = |matrix: Matrix| (MOST_ALIGNED >> (8 - matrix.address.trailing_zeros().min(8))) as u32;
        (has_types && has_bias).then(|| Self {
            factors,
            dtype: left.dtype,
            formats: product.codes.map(|codes| codes.formats),
            result: result.dtype,
            extents,
            strides: matrices.map(|matrix| matrix.stride),
            alignments: matrices.map(alignment),
            has_bias: bias != 0,
            is_scaled: scaled_by != 0,
            accumulates: accumulate,
            tf32: tf32 && left.dtype == DType::F32,
        })
    }

    /// Alignments in the library's order: right factor, left factor, addend, result.
    pub(super) fn alignments(&self) -> [u32; 4] {
        let [left, right, result] = self.alignments;
        [right, left, result, result]
    }
}

impl fmt::Display for ProductShape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [rows, columns, inner] = self.extents;
        let kind = match self.formats {
            Some(_) => "fp8".to_owned(),
            None if self.tf32 => "TF32".to_owned(),
            None => format!("{:?}", self.dtype),
        };
        write!(f, "{rows} x {inner} by {inner} x {columns} in {kind}")
    }
}
