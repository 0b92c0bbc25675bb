//! A product of matrices as plain data. Not here: its kernels (`ops/products.rs`), the library that may compute it
//! (`cublas_lt/`).

use plimsoll_graph::DType;
use plimsoll_graph::ops::InnerParts;
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

/// result = alpha · left · right + bias, added to the previous values if `accumulate`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Product {
    pub(super) factors: Factors,
    pub(super) left: Matrix,
    pub(super) right: Matrix,
    pub(super) result: Matrix,
    /// Address of a number per column in the right factor's type, which is then also the result's; 0 without a bias.
    pub(super) bias: u64,
    /// Address of the run's scalars if alpha is the scale of the loss times that of gradients; 0 if alpha is one.
    pub(super) scaled_by: u64,
    /// Rows, columns, inner.
    pub(super) extents: [usize; 3],
    pub(super) accumulate: bool,
    /// Parts of the inner extent.
    pub(super) parts: InnerParts,
    /// Address of scratch for the parts, if there are several.
    pub(super) partial: u64,
}
