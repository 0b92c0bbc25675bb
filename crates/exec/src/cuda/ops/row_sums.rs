//! Launches of `kernels/row_sums.cu`: sums over rows in a fixed number of parts, which are in scratch.

use super::shape::{WARP, extent, in_vectors, launch, line, named, vector};
use crate::cuda::launch::{Arguments, Launch};
use plimsoll_graph::{Target, TensorType};

/// Threads of a block that joins parts: `JOINERS` warps of `row_sums.cu`.
const JOIN_THREADS: u32 = 1024;

/// y = the sums of the columns of x; `partial` is scratch for each part's sums.
pub(super) fn launches(ty: &TensorType, x: u64, y: u64, partial: u64, accumulate: bool) -> Vec<Launch> {
    let (rows, columns, parts) = (ty.rows(), ty.columns(), Target::cuda_row_parts(ty.rows()));
    let (kernel, each) = if in_vectors(ty) { ("row_sums_vectors", vector(ty)) } else { ("row_sums", 1) };
    let grid = [extent(columns.div_ceil(WARP * each)), extent(parts), 1];
    let arguments = Arguments::default().addresses(&[x, partial]).int(rows).int(columns);
    let sums = launch("row_sums", named(kernel, ty), grid, arguments);
    vec![sums, join(partial, y, parts, [columns, columns], accumulate)]
}

/// y = the sum of the parts, which begin `stride` floats apart and have `columns` floats.
pub(super) fn join(partial: u64, y: u64, parts: usize, [stride, columns]: [usize; 2], accumulate: bool) -> Launch {
    let arguments = Arguments::default().addresses(&[partial, y]).int(parts).int(stride).int(columns).flag(accumulate);
    let grid = line(columns.div_ceil(WARP));
    Launch { threads: JOIN_THREADS, ..launch("row_sums", "row_sums_join", grid, arguments) }
}
