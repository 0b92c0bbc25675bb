//! A product of matrices as plain data. Not here: its kernels (`ops/products.rs`), the library that may compute it
//! (`cublas_lt/`).

use plimsoll_graph::DType;
use plimsoll_graph::ops::{Fp8, InnerParts};
use serde::{Deserialize, Serialize};

/// A matrix in memory, whose rows begin `stride` elements apart.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Matrix {
    pub(super) address: u64,
    pub(super) dtype: DType,
    pub(super) stride: usize,
}

/// Which factors of a product are transposed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Factors {
    /// (rows, inner) and (inner, columns).
    Plain,
    /// (rows, inner) and (columns, inner).
    RightTransposed,
    /// (inner, rows) and (inner, columns).
    LeftTransposed,
}

/// Factors of 8 bits, whose matrices hold codes as `U8`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Codes {
    /// The formats of left and right.
    pub(super) formats: [Fp8; 2],
    /// Addresses of the numbers that left and right are multiplied by.
    pub(super) scales: [u64; 2],
}

/// result = alpha · left · right + bias, added to the previous values if `accumulate`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Product {
    pub(super) factors: Factors,
    pub(super) left: Matrix,
    pub(super) right: Matrix,
    pub(super) result: Matrix,
    /// Address of a number per column in the result's type, which is then also the factors' unless they are codes; 0 without a
    /// bias.
    pub(super) bias: u64,
    /// Address of the run's scalars if alpha is the scale of the loss times that of gradients; 0 if alpha is one.
    pub(super) scaled_by: u64,
    /// What the factors are, if they are codes. Rows of both then have the terms, in whole vectors.
    pub(super) codes: Option<Codes>,
    /// Rows, columns, inner.
    pub(super) extents: [usize; 3],
    pub(super) accumulate: bool,
    /// Parts of the inner extent.
    pub(super) parts: InnerParts,
    /// Address of scratch for the parts, if there are several.
    pub(super) partial: u64,
}
