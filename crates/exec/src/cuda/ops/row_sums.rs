//! Launches of `kernels/row_sums.cu`: sums over rows in a fixed number of parts, which lie in scratch.

use super::shape::{THREADS, blocks, extent, launch, named};
use crate::cuda::launch::{Arguments, Launch};
use plimsoll_graph::{Target, TensorType};

/// Parts that so many rows are summed in.
pub(super) fn parts(rows: usize) -> usize {
    rows.min(Target::CUDA_ROW_PARTS)
}

/// y = the sums of the columns of x; `partial` has room for each part's.
pub(super) fn launches(ty: &TensorType, x: u64, y: u64, partial: u64, accumulate: bool) -> Vec<Launch> {
    let (rows, columns) = (ty.rows(), ty.columns());
    let grid = [extent(columns.div_ceil(THREADS as usize)), extent(parts(rows)), 1];
    let arguments = Arguments::default().addresses(&[x, partial]).int(rows).int(columns);
    let sums = launch("row_sums", named("row_sums", ty), grid, arguments);
    vec![sums, join(partial, y, parts(rows), [columns, columns], accumulate)]
}

/// y = the sum of the parts, `[stride, columns]` of them being how far they lie apart and how long they are.
pub(super) fn join(partial: u64, y: u64, parts: usize, [stride, columns]: [usize; 2], accumulate: bool) -> Launch {
    let arguments = Arguments::default().addresses(&[partial, y]).int(parts).int(stride).int(columns).flag(accumulate);
    launch("row_sums", "row_sums_join", blocks(columns, 1), arguments)
}
