//! Shapes of launches that many ops share, and how kernels are named.

use graph::{DType, TensorType};

/// Threads of a block of kernels that pass over elements.
pub(super) const THREADS: u32 = 256;

/// How the name of a kernel ends that takes tensors of this type. Panics for types that no kernel is named after: the
/// ops' types exclude that.
pub(super) fn suffix(dtype: DType) -> &'static str {
    match dtype {
        DType::F32 => "f32",
        DType::F16 => "f16",
        DType::Bf16 => "bf16",
        other => panic!("a kernel for {other:?}"),
    }
}

/// Blocks with a thread for each so many elements.
pub(super) fn blocks(elements: usize, each: usize) -> [u32; 3] {
    [elements.div_ceil(each * THREADS as usize) as u32, 1, 1]
}

/// Blocks with a thread for each vector of 16 bytes.
pub(super) fn vectors(ty: &TensorType) -> [u32; 3] {
    blocks(ty.elements(), 16 / ty.dtype.size_bytes() as usize)
}
