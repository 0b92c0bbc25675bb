//! Tensors in half precision for kernels that compute in single precision: a tile of each is widened, the kernel runs
//! on the tiles, and its results are rounded while they are in the first-level cache, so that one pass over memory is
//! enough. Kernels receive tensors in single precision without a copy.
//!
//! Tiles of kernels that pass over flat tensors are on the stack. Tiles of kernels that need whole rows are in the
//! working memory that their ops declare, in one slot per worker.

use super::half::Float;
use super::matrix::MatrixMut;
use super::parallel::{self, CHUNK};
use crate::call::{Call, Input};
use plimsoll_graph::DType;
use rayon::iter::IndexedParallelIterator;
use rayon::slice::ParallelSliceMut;
use std::sync::{Mutex, PoisonError};

/// Floats on the stack for the tiles of a kernel: with their sources, half a first-level cache.
const STACK: usize = 3 << 10;

/// The number of elements of a tile on the stack is a multiple of this.
const MULTIPLE: usize = 64;

/// Aligned to cache lines, so that reads of vectors match the writes.
#[repr(align(64))]
struct Aligned([f32; STACK]);

/// `in_precision!(call, kernel(arguments))` calls a kernel for the precision of the call's first operand.
macro_rules! in_precision {
    ($call:ident, $($kernel:ident)::+($($argument:expr),*)) => {
        match $call.io.inputs[0].dtype {
            plimsoll_graph::DType::F32 => $($kernel)::+::<f32>($($argument),*),
            plimsoll_graph::DType::F16 => $($kernel)::+::<::half::f16>($($argument),*),
            plimsoll_graph::DType::Bf16 => $($kernel)::+::<::half::bf16>($($argument),*),
            other => panic!("{other:?} is not a float type"),
        }
    };
}

pub(super) use in_precision;

/// Operand `index`. Panics if it is in another precision, or shares the memory of an output.
pub(super) fn operand<'a, E: Float>(call: &Call<'a>, index: usize) -> &'a [E] {
    assert_eq!(call.io.inputs[index].dtype, E::DTYPE, "precision of operand {index}");
    bytemuck::cast_slice(call.bytes(index))
}

/// Operand `index`, or `None` if it shares the memory of an output. Panics if it is in another precision.
pub(super) fn operand_unless_in_output<'a, E: Float>(call: &Call<'a>, index: usize) -> Option<&'a [E]> {
    match call.inputs[index] {
        Input::InOutput => None,
        _ => Some(operand(call, index)),
    }
}

/// All results. Panics if there are not `N`, or if the first is in another precision.
pub(super) fn results<'a, E: Float, const N: usize>(call: &mut Call<'a>) -> [&'a mut [E]; N] {
    let (first, others) = split_results(call);
    let mut all = std::iter::once(first).chain(others.map(bytemuck::cast_slice_mut));
    let results = [(); N].map(|()| all.next().expect("the op's types name each result"));
    assert!(all.next().is_none(), "an op has more than {N} results");
    results
}

/// The first result, and the bytes of the others. Panics if the first is in another precision.
pub(super) fn split_results<'a, E: Float>(
    call: &mut Call<'a>,
) -> (&'a mut [E], impl Iterator<Item = &'a mut [u8]> + use<'a, E>) {
    assert_eq!(call.io.outputs[0].dtype, E::DTYPE, "precision of the first result");
    let mut outputs = call.take_byte_outputs();
    let first = outputs.next().expect("an op has results");
    (bytemuck::cast_slice_mut(first), outputs)
}

/// The values in single precision: themselves, or widened into `tile`.
pub(super) fn widened<'a, E: Float>(values: &'a [E], tile: &'a mut [f32]) -> &'a [f32] {
    if E::DTYPE == DType::F32 {
        return bytemuck::cast_slice(values);
    }
    let tile = &mut tile[..values.len()];
    E::widen(values, tile);
    tile
}

/// Runs `work` on a result in single precision: on itself, or on `tile`, which is then rounded into it. `work` must
/// write every element and not read the previous values.
pub(super) fn in_single<E: Float>(result: &mut MatrixMut<E>, tile: &mut [f32], work: impl FnOnce(&mut MatrixMut<f32>)) {
    if E::DTYPE == DType::F32 {
        return work(&mut result.cast());
    }
    let (rows, columns) = (result.rows, result.columns);
    let tile = &mut tile[..rows * columns];
    work(&mut MatrixMut::new(tile, rows, columns));
    for (row, tile) in tile.chunks_exact(columns.max(1)).enumerate() {
        E::round(tile, result.row(row));
    }
}

/// A row that every worker reads, widened at the beginning of the scratch memory if needed, and the rest of the memory.
pub(super) fn widened_row<'a, E: Float>(row: &'a [E], scratch: &'a mut [f32]) -> (&'a [f32], &'a mut [f32]) {
    if E::DTYPE == DType::F32 {
        return (bytemuck::cast_slice(row), scratch);
    }
    let (tile, rest) = scratch.split_at_mut(row.len());
    (widened(row, tile), rest)
}

/// Runs `kernel` on chunks of a result and of its operands, all of one length, in tiles if they are in half precision.
/// Workers share the chunks if the kernel accesses enough `elements` in total. An operand that is `None` shares the
/// result's memory; if the result is a tile, the kernel gets the operand's own tile.
pub(super) fn for_each_chunk<E: Float, const N: usize>(
    elements: usize,
    result: &mut [E],
    operands: [Option<&[E]>; N],
    kernel: impl Fn(&mut [f32], [Option<&[f32]>; N]) + Sync + Send,
) {
    parallel::for_each(elements, result.par_chunks_mut(CHUNK).enumerate(), |(part, result)| {
        let operands = operands.map(|operand| operand.map(|operand| &operand[part * CHUNK..][..result.len()]));
        in_stack_tiles([result], operands, |[result], operands| kernel(result, operands));
    });
}

/// [`in_tiles`] on the stack, of a multiple of 64 elements each.
#[inline(always)]
pub(super) fn in_stack_tiles<E: Float, const M: usize, const N: usize>(
    results: [&mut [E]; M],
    operands: [Option<&[E]>; N],
    kernel: impl FnMut([&mut [f32]; M], [Option<&[f32]>; N]),
) {
    if E::DTYPE == DType::F32 {
        return in_tiles(&mut [], results, operands, kernel);
    }
    let each = STACK / (M + N) / MULTIPLE * MULTIPLE;
    in_tiles(&mut Aligned([0.0; STACK]).0[..(M + N) * each], results, operands, kernel);
}

/// Runs `kernel` on results and operands of one length in single precision: on themselves, or tile by tile; `memory`
/// has space for one tile of each. An operand that is `None` shares the memory of the result with its index, or of the
/// last one; if results are tiles, the kernel gets the operand's own tile. The kernel reads results only as such
/// operands.
#[inline(always)]
pub(super) fn in_tiles<E: Float, const M: usize, const N: usize>(
    memory: &mut [f32],
    mut results: [&mut [E]; M],
    operands: [Option<&[E]>; N],
    mut kernel: impl FnMut([&mut [f32]; M], [Option<&[f32]>; N]),
) {
    if E::DTYPE == DType::F32 {
        let operands = operands.map(|operand| operand.map(bytemuck::cast_slice));
        return kernel(results.map(bytemuck::cast_slice_mut), operands);
    }
    let (length, each) = (results[0].len(), memory.len() / (M + N));
    for start in (0..length).step_by(each) {
        let stretch = start..length.min(start + each);
        let mut tiles = memory.chunks_exact_mut(each).map(|tile| &mut tile[..stretch.len()]);
        let mut next = || tiles.next().expect("a tile for each result and operand");
        let mut index = 0;
        let operands = operands.map(|operand| {
            let tile = next();
            E::widen(&operand.unwrap_or(&*results[index.min(M - 1)])[stretch.clone()], tile);
            index += 1;
            Some(&*tile)
        });
        let mut written = [(); M].map(|()| next());
        kernel(written.each_mut().map(|tile| &mut **tile), operands);
        for (result, tile) in results.iter_mut().zip(written) {
            E::round(tile, &mut result[stretch.clone()]);
        }
    }
}

/// Number of rows with `channels` channels in a chunk.
pub(super) fn rows_of_chunk(channels: usize) -> usize {
    (CHUNK / channels).max(1)
}

/// Working memory with a slot for each worker; empty for single precision.
pub(super) struct Slots<'a>(Vec<Mutex<&'a mut [f32]>>);

impl<'a> Slots<'a> {
    /// Slots of `floats` each for `workers` workers on values of this precision. Panics if the memory is too small.
    pub(super) fn new<E: Float>(scratch: &'a mut [f32], floats: usize, workers: usize) -> Self {
        if E::DTYPE == DType::F32 {
            return Self(Vec::new());
        }
        let slots = scratch.chunks_exact_mut(floats).take(workers).map(Mutex::new).collect::<Vec<_>>();
        assert_eq!(slots.len(), workers, "slots for workers");
        Self(slots)
    }

    /// Runs `work` with the worker's slot. If there are more workers than slots, they wait for each other.
    #[inline(always)]
    pub(super) fn with_slot(&self, work: impl FnOnce(&mut [f32])) {
        if self.0.is_empty() {
            return work(&mut []);
        }
        let worker = rayon::current_thread_index().unwrap_or(0);
        let mut slot = self.0[worker % self.0.len()].lock().unwrap_or_else(PoisonError::into_inner);
        work(&mut slot);
    }
}
