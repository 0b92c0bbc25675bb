//! Launches that `layer_norm.rs` and `rms_norm.rs` share.

use super::row_sums::join;
use super::shape::{extent, in_vectors, launch, line, named, number, threads_of_row, threads_with_a_vector};
use crate::cuda::launch::{Arguments, Launch, Operands, Part};
use plimsoll_graph::{Target, TensorType};

/// Dynamic shared memory that a kernel may use without an attribute.
const USUAL_SHARED_BYTES: usize = 46 << 10;

/// Threads of the largest block whose threads keep their columns in registers.
const MOST_THREADS: usize = 512;

/// A block for each row.
pub(super) fn rows(module: &'static str, x: &TensorType, arguments: Arguments) -> Vec<Part> {
    vec![Launch { threads: threads_of_row(x), ..launch(module, named(module, x), line(x.rows()), arguments) }.into()]
}

/// The gradient by rows, in which each block sums a part. `wanted` are the results of sums by their index in a part.
/// `arguments` are the first arguments of both kernels of a module.
pub(super) fn grad(
    module: &'static str,
    operands: &Operands,
    sets: usize,
    wanted: &[(usize, u64)],
    accumulate: bool,
    arguments: Arguments,
) -> Vec<Part> {
    let x = operands.io.inputs[1];
    let (columns, parts) = (x.columns(), Target::cuda_norm_parts(x.rows()));
    let threads = threads_with_a_vector(x);
    let gradient = if in_vectors(x) && threads <= MOST_THREADS {
        Launch {
            threads: extent(threads),
            ..launch(module, named(&format!("{module}_grad"), x), line(parts), arguments)
        }
    } else {
        let sums_bytes = 4 * sets * columns;
        let on_chip = sums_bytes <= USUAL_SHARED_BYTES;
        Launch {
            threads: threads_of_row(x),
            shared_bytes: if on_chip && !wanted.is_empty() { extent(sums_bytes) } else { 0 },
            ..launch(module, format!("{module}_grad_any"), line(parts), arguments.flag(on_chip).int(number(x.dtype)))
        }
    };
    let joins = wanted.iter().map(|&(set, result)| {
        let partial = operands.scratch.address + (4 * set * columns) as u64;
        join(partial, result, parts, [sets * columns, columns], accumulate)
    });
    std::iter::once(gradient).chain(joins).map(Part::Kernel).collect()
}
