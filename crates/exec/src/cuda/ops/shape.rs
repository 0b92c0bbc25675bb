//! Shapes of launches and names of kernels that many ops share.

use crate::cuda::launch::{Arguments, Launch};
use plimsoll_graph::{DType, TensorType};
use std::borrow::Cow;

/// Threads of a block of kernels that pass over elements.
pub(super) const THREADS: u32 = 256;

/// Threads of a warp.
pub(super) const WARP: usize = 32;

/// A launch of blocks of [`THREADS`] threads without dynamic shared memory.
pub(super) fn launch(
    module: &'static str,
    entry: impl Into<Cow<'static, str>>,
    grid: [u32; 3],
    arguments: Arguments,
) -> Launch {
    Launch { module, entry: entry.into(), grid, threads: THREADS, shared_bytes: 0, arguments }
}

/// A kernel's name for tensors of this type.
pub(super) fn named(kernel: &str, ty: &TensorType) -> String {
    format!("{kernel}_{}", suffix(ty.dtype))
}

/// The suffix of a kernel's name for tensors of this type. Panics for types without kernels, which the ops' types
/// exclude.
pub(super) fn suffix(dtype: DType) -> &'static str {
    match dtype {
        DType::F32 => "f32",
        DType::F16 => "f16",
        DType::Bf16 => "bf16",
        other => panic!("a kernel for {other:?}"),
    }
}

/// `enum Number` of `kernels/common.cuh`: a type that kernels get as an argument. Panics as [`suffix`] does.
pub(super) fn number(dtype: DType) -> usize {
    match dtype {
        DType::F32 => 0,
        DType::F16 => 1,
        DType::Bf16 => 2,
        other => panic!("numbers of {other:?}"),
    }
}

/// This many blocks along the first axis. Panics if there are more than a launch can have: no tensor that fits a card
/// has as many rows.
pub(super) fn line(blocks: usize) -> [u32; 3] {
    [extent(blocks), 1, 1]
}

/// An extent of a grid or a block.
pub(super) fn extent(count: usize) -> u32 {
    u32::try_from(count).unwrap_or_else(|_| panic!("{count} blocks"))
}

/// Blocks of [`THREADS`] threads, with a thread for every `each` elements.
pub(super) fn blocks(elements: usize, each: usize) -> [u32; 3] {
    line(elements.div_ceil(each * THREADS as usize))
}

/// Bytes of a row.
pub(super) fn row_bytes(ty: &TensorType) -> u64 {
    ty.columns() as u64 * ty.dtype.size_bytes()
}

/// Elements of a vector of 16 bytes.
pub(super) fn vector(ty: &TensorType) -> usize {
    16 / ty.dtype.size_bytes() as usize
}

/// Blocks of [`THREADS`] threads, with a thread for each vector of 16 bytes.
pub(super) fn vectors(ty: &TensorType) -> [u32; 3] {
    blocks(ty.elements(), vector(ty))
}

/// Whether all rows are aligned to 16 bytes.
pub(super) fn in_vectors(ty: &TensorType) -> bool {
    ty.columns().is_multiple_of(vector(ty))
}

/// Threads of whole warps, with a vector of 16 bytes of a row for each.
pub(super) fn threads_with_a_vector(ty: &TensorType) -> usize {
    ty.columns().div_ceil(vector(ty)).next_multiple_of(WARP)
}

/// Threads of a block that processes a row of this tensor.
pub(super) fn threads_of_row(ty: &TensorType) -> u32 {
    extent(threads_with_a_vector(ty)).min(THREADS)
}
