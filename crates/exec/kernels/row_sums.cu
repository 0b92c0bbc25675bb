// Sums over rows, in parts of a fixed number, so that bits depend on shapes alone. Reference: the gradient of a bias in
// src/reference/linear.rs.

#include "common.cuh"

// partial[part] = the sum of the part's rows. x: (rows, columns). Blocks: stretches of columns along x, parts along y.
template <class T>
__device__ __forceinline__ void sum_rows(const T *x, float *partial, int rows, int columns) {
    int each = (rows + gridDim.y - 1) / gridDim.y, first = blockIdx.y * each, last = min(first + each, rows);
    int c = blockIdx.x * blockDim.x + threadIdx.x;
    if (c >= columns) return;
    float sum = 0.0f;
    for (int row = first; row < last; ++row) sum += widen(x[(u64)row * columns + c]);
    partial[(u64)blockIdx.y * columns + c] = sum;
}

#define KERNELS(suffix, T)                                                                                             \
    KERNEL(256) row_sums_##suffix(const T *x, float *partial, int rows, int columns) {                                 \
        sum_rows(x, partial, rows, columns);                                                                           \
    }
FOR_FLOATS(KERNELS)

// y = the sum of the parts, which lie `stride` floats apart, added up in their order. A thread for each column.
KERNEL(256) row_sums_join(const float *partial, float *y, int parts, int stride, int columns, int accumulate) {
    int c = blockIdx.x * blockDim.x + threadIdx.x;
    if (c >= columns) return;
    float sum = 0.0f;
    for (int part = 0; part < parts; ++part) sum += partial[(u64)part * stride + c];
    y[c] = accumulate ? y[c] + sum : sum;
}
