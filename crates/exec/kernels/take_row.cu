// y = x[.., row], in each sample the row that the run's scalars specify, as bytes. A block for each sample. Reference:
// src/reference/take_row.rs.

#include "common.cuh"

KERNEL(256) take_row(const char *x, char *y, const Scalars *scalars, u64 rows, u64 row_bytes) {
    u64 sample = blockIdx.x;
    copy_bytes(x + (sample * rows + scalars->row) * row_bytes, y + sample * row_bytes, row_bytes);
}
