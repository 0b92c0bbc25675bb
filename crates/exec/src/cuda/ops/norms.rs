//! Launches that `layer_norm.rs` and `rms_norm.rs` share.

use super::row_sums::join;
use super::shape::{extent, in_vectors, launch, line, named, number, threads_of_row, threads_with_a_vector};
use crate::cuda::launch::{Arguments, Launch, Part};
use plimsoll_graph::TensorType;

/// Dynamic shared memory that a kernel may use without an attribute.
const USUAL_SHARED_BYTES: usize = 46 << 10;

/// Threads of the largest block whose threads keep their columns in registers.
const MOST_THREADS: usize = 512;

/// A block for each of `count` rows, which are as long as the weight.
pub(super) fn rows(
    module: &'static str,
    kernel: &str,
    weight: &TensorType,
    count: usize,
    arguments: Arguments,
) -> Launch {
    let launch = launch(module, named(kernel, weight), line(count), arguments);
    Launch { threads: threads_of_row(weight), ..launch }
}

/// The gradient by rows, which are as long as the weight, in one of two forms of a kernel. Each of `parts` blocks takes
/// rows in turn and makes `sets` sums per column. `arguments` are the first arguments of both forms.
pub(super) fn grad(
    module: &'static str,
    kernel: &str,
    weight: &TensorType,
    [parts, sets]: [usize; 2],
    arguments: Arguments,
) -> Launch {
    let threads = threads_with_a_vector(weight);
    if in_vectors(weight) && threads <= MOST_THREADS {
        let launch = launch(module, named(&format!("{kernel}_grad"), weight), line(parts), arguments);
        return Launch { threads: extent(threads), ..launch };
    }
    let sums_bytes = 4 * sets * weight.columns();
    let on_chip = sums_bytes <= USUAL_SHARED_BYTES;
    let arguments = arguments.flag(on_chip).int(number(weight.dtype));
    Launch {
        threads: threads_of_row(weight),
        shared_bytes: if on_chip { extent(sums_bytes) } else { 0 },
        ..launch(module, format!("{kernel}_grad_any"), line(parts), arguments)
    }
}

/// A gradient, and the sums over its parts, which are in scratch. `wanted` are the results of sums by their index among
/// the `sets` of a part.
pub(super) fn with_joins(
    gradient: Launch,
    scratch: u64,
    [parts, sets, columns]: [usize; 3],
    wanted: &[(usize, u64)],
    accumulate: bool,
) -> Vec<Part> {
    let joins = wanted.iter().map(|&(set, result)| {
        let partial = scratch + (4 * set * columns) as u64;
        join(partial, result, parts, [sets * columns, columns], accumulate)
    });
    std::iter::once(gradient).chain(joins).map(Part::Kernel).collect()
}
