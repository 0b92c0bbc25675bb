//! The library's description of a product's shape.

use super::handle::{Handle, Owned, check};
use super::library::{CublasLtError, Status};
use super::shape::ProductShape;
use crate::cuda::product::Factors;
use plimsoll_graph::DType;
use plimsoll_graph::ops::Fp8;
use std::ffi::{c_int, c_void};

/// `cublasOperation_t`
const AS_IT_IS: c_int = 0;
const TRANSPOSED: c_int = 1;

/// `cublasLtMatmulDescAttributes_t`
const POINTER_MODE: c_int = 2;
const FIRST_OPERATION: c_int = 3;
const SECOND_OPERATION: c_int = 4;
const EPILOGUE: c_int = 7;
const BIAS_POINTER: c_int = 8;
const FIRST_SCALE: c_int = 17;
const SECOND_SCALE: c_int = 18;

/// `CUBLASLT_POINTER_MODE_DEVICE`: alpha and beta are in the card's memory.
const ON_DEVICE: c_int = 1;

/// `CUBLASLT_EPILOGUE_BIAS`
const ADDS_BIAS: c_int = 4;

/// `cublasComputeType_t`: sums in single precision; with factors rounded to TF32.
const COMPUTE_32F: c_int = 68;
const COMPUTE_32F_FAST_TF32: c_int = 77;

/// The library's description of a shape.
#[derive(Debug)]
pub(super) struct Description {
    pub(super) product: Owned,
    pub(super) left: Owned,
    pub(super) right: Owned,
    pub(super) result: Owned,
}

impl Description {
    /// Describes a shape; the bias and the scales of left and right, if there are any, are at these addresses. Errors: the library
    /// fails.
    pub(super) fn new(
        handle: &Handle,
        shape: &ProductShape,
        bias: u64,
        scales: [u64; 2],
    ) -> Result<Self, CublasLtError> {
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
        if shape.formats.is_some() {
            // Left is the library's second factor.
            set(FIRST_SCALE, (&raw const scales[1]).cast(), size_of::<u64>())?;
            set(SECOND_SCALE, (&raw const scales[0]).cast(), size_of::<u64>())?;
        }
        let layout = |number: c_int, [rows, columns]: [usize; 2], stride: usize| {
            // SAFETY: the destination is on the caller's stack.
            let create = |to| unsafe {
                (functions.create_layout)(to, number, columns as u64, rows as u64, stride as i64) as Status
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
        let [of_left, of_right] = match shape.formats {
            Some(formats) => formats.map(number_of_codes),
            None => [number(shape.dtype); 2],
        };
        Ok(Self {
            left: layout(of_left, left, left_stride)?,
            right: layout(of_right, right, right_stride)?,
            result: layout(number(shape.result), [rows, columns], result_stride)?,
            product,
        })
    }
}

/// `cudaDataType_t`
fn number_of_codes(format: Fp8) -> c_int {
    match format {
        Fp8::E4m3 => 28,
        Fp8::E5m2 => 29,
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
