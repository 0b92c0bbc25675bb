//! The shape of products, for which an algorithm is chosen, and its description for the library.

use super::handle::{Handle, Owned, check};
use super::library::{CublasLtError, Status};
use crate::cuda::ops::{Factors, Matrix, Product};
use plimsoll_graph::DType;
use serde::{Deserialize, Serialize};
use std::ffi::{c_int, c_void};
use std::fmt;

/// A product without its addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(super) struct ProductShape {
    factors: Factors,
    /// The type of both factors.
    dtype: DType,
    result: DType,
    /// Rows, columns, inner.
    extents: [usize; 3],
    /// Elements from row to row, of left, right and result.
    strides: [usize; 3],
    /// Alignments of their addresses in bytes, up to 256.
    alignments: [u32; 3],
    has_bias: bool,
    /// Whether alpha is in the card's memory.
    pub(super) is_scaled: bool,
    pub(super) accumulates: bool,
    tf32: bool,
}

/// `cublasOperation_t`
const AS_IT_IS: c_int = 0;
const TRANSPOSED: c_int = 1;

/// `cublasLtMatmulDescAttributes_t`
const POINTER_MODE: c_int = 2;
const FIRST_OPERATION: c_int = 3;
const SECOND_OPERATION: c_int = 4;
const EPILOGUE: c_int = 7;
const BIAS_POINTER: c_int = 8;

/// `CUBLASLT_POINTER_MODE_DEVICE`: alpha and beta are in the card's memory.
const ON_DEVICE: c_int = 1;

/// `CUBLASLT_EPILOGUE_BIAS`
const ADDS_BIAS: c_int = 4;

/// `cublasComputeType_t`: sums in single precision; with factors rounded to TF32.
const COMPUTE_32F: c_int = 68;
const COMPUTE_32F_FAST_TF32: c_int = 77;

/// The largest alignment that is distinguished.
const MOST_ALIGNED: u64 = 256;

impl ProductShape {
    /// The shape of a product; `None` if the library has no such product for any extents.
    pub(super) fn of(product: &Product, tf32: bool) -> Option<Self> {
        let Product { factors, left, right, result, bias, scaled_by, extents, accumulate, .. } = *product;
        let has_types = left.dtype == right.dtype && [left.dtype, DType::F32].contains(&result.dtype);
        // The plan's bias has the factors' type; the library uses the result's. If rows in half precision are not whole
        // vectors, the library seems to add the bias after rounding: on an H100, 130 x 390 by 390 x 5 in bf16 had such
        // an error.
        let in_vectors = |elements: usize| (elements as u64 * result.dtype.size_bytes()).is_multiple_of(16);
        let is_rounded_once = !result.dtype.is_half() || in_vectors(extents[1]) && in_vectors(result.stride);
        let has_bias = bias == 0 || left.dtype == result.dtype && is_rounded_once;
        let matrices = [left, right, result];
        let alignment = |matrix: Matrix| (MOST_ALIGNED >> (8 - matrix.address.trailing_zeros().min(8))) as u32;
        (has_types && has_bias).then(|| Self {
            factors,
            dtype: left.dtype,
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
        let kind = if self.tf32 { "TF32".to_owned() } else { format!("{:?}", self.dtype) };
        write!(f, "{rows} x {inner} by {inner} x {columns} in {kind}")
    }
}

/// The library's description of a shape.
#[derive(Debug)]
pub(super) struct Description {
    pub(super) product: Owned,
    pub(super) left: Owned,
    pub(super) right: Owned,
    pub(super) result: Owned,
}

impl Description {
    /// Describes a shape; the bias, if there is one, is at this address. Errors: the library fails.
    pub(super) fn new(handle: &Handle, shape: &ProductShape, bias: u64) -> Result<Self, CublasLtError> {
        let functions = &handle.library().functions;
        let compute = if shape.tf32 { COMPUTE_32F_FAST_TF32 } else { COMPUTE_32F };
        // SAFETY: the destination is on the caller's stack.
        let create = |to| unsafe { (functions.create_description)(to, compute, number(DType::F32)) };
        let product = Owned::new("cublasLtMatmulDescCreate", functions.destroy_description, create)?;
        let set = |attribute, value: *const c_void, bytes| {
            // SAFETY: the description exists, and the value has the given number of bytes.
            let status = unsafe { (functions.describe)(product.at(), attribute, value, bytes) };
            check("cublasLtMatmulDescSetAttribute", status)
        };
        let set_number = |attribute, value: c_int| set(attribute, (&raw const value).cast(), size_of::<c_int>());
        let operation = |is_transposed| if is_transposed { TRANSPOSED } else { AS_IT_IS };
        set_number(FIRST_OPERATION, operation(shape.factors == Factors::RightTransposed))?;
        set_number(SECOND_OPERATION, operation(shape.factors == Factors::LeftTransposed))?;
        if shape.is_scaled {
            set_number(POINTER_MODE, ON_DEVICE)?;
        }
        if shape.has_bias {
            set_number(EPILOGUE, ADDS_BIAS)?;
            set(BIAS_POINTER, (&raw const bias).cast(), size_of::<u64>())?;
        }
        let layout = |dtype, [rows, columns]: [usize; 2], stride: usize| {
            // SAFETY: the destination is on the caller's stack.
            let create = |to| unsafe {
                (functions.create_layout)(to, number(dtype), columns as u64, rows as u64, stride as i64) as Status
            };
            Owned::new("cublasLtMatrixLayoutCreate", functions.destroy_layout, create)
        };
        let [rows, columns, inner] = shape.extents;
        // Rows and columns of the row-major matrices; the library sees the transposed ones.
        let (left, right) = match shape.factors {
            Factors::Plain => ([rows, inner], [inner, columns]),
            Factors::RightTransposed => ([rows, inner], [columns, inner]),
            Factors::LeftTransposed => ([inner, rows], [inner, columns]),
        };
        let [left_stride, right_stride, result_stride] = shape.strides;
        Ok(Self {
            left: layout(shape.dtype, left, left_stride)?,
            right: layout(shape.dtype, right, right_stride)?,
            result: layout(shape.result, [rows, columns], result_stride)?,
            product,
        })
    }
}

/// `cudaDataType_t`. Panics for other types, which [`ProductShape::of`] excludes.
fn number(dtype: DType) -> c_int {
    match dtype {
        DType::F32 => 0,
        DType::F16 => 2,
        DType::Bf16 => 14,
        other => panic!("a product of {other:?}"),
    }
}
