// Sums over rows, in a fixed number of parts, so that the bits depend only on shapes. Reference: the gradient of a bias
// in src/reference/linear.rs.

#include "common.cuh"

#define THREADS 256
// Rows that a block reads at once, and warps that join parts.
#define ROWS (THREADS / WARP)
#define JOINERS 32

// partial[part] = the sum of the part's rows. x: (rows, columns). Blocks: stretches of WARP vectors of columns along x,
// parts along y. Each warp has a row of the stretch at a time.
template <class T, int COUNT>
__device__ __forceinline__ void sum_rows(const T *x, float *partial, int rows, int columns) {
    // Padded, so that neighboring columns, which are COUNT apart from lane to lane, are read from different banks.
    __shared__ float sums[COUNT][ROWS * WARP + WARP / COUNT];
    int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    int each = (rows + gridDim.y - 1) / gridDim.y, first = blockIdx.y * each, last = min(first + each, rows);
    int start = blockIdx.x * WARP * COUNT, c = start + lane * COUNT;
    float sum[COUNT] = {};
    if (c < columns) {
#pragma unroll 4
        for (int row = first + warp; row < last; row += ROWS) {
            Vector<T, COUNT> v = Vector<T, COUNT>::load(x + (u64)row * columns + c);
#pragma unroll
            for (int k = 0; k < COUNT; ++k) sum[k] += widen(v.at[k]);
        }
    }
#pragma unroll
    for (int k = 0; k < COUNT; ++k) sums[k][threadIdx.x] = sum[k];
    __syncthreads();
    // A thread for each column, so that neighboring threads write neighboring elements.
    int of_stretch = threadIdx.x;
    c = start + of_stretch;
    if (of_stretch >= WARP * COUNT || c >= columns) return;
    float all = 0.0f;
#pragma unroll
    for (int row = 0; row < ROWS; ++row) all += sums[of_stretch % COUNT][row * WARP + of_stretch / COUNT];
    partial[(u64)blockIdx.y * columns + c] = all;
}

#define KERNELS(suffix, T)                                                                                             \
    KERNEL(THREADS) row_sums_##suffix(const T *x, float *partial, int rows, int columns) {                             \
        sum_rows<T, 1>(x, partial, rows, columns);                                                                     \
    }                                                                                                                  \
    KERNEL(THREADS) row_sums_vectors_##suffix(const T *x, float *partial, int rows, int columns) {                     \
        sum_rows<T, Vector<T>::SIZE>(x, partial, rows, columns);                                                       \
    }
FOR_FLOATS(KERNELS)

// y = the sum of the parts, which begin `stride` floats apart. Blocks: stretches of WARP columns. Each warp sums some
// of the parts, and then one column of the warps' sums.
KERNEL(JOINERS *WARP) row_sums_join(const float *partial, float *y, int parts, int stride, int columns, int accumulate) {
    __shared__ float sums[JOINERS][WARP + 1];
    int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, c = blockIdx.x * WARP + lane;
    float sum = 0.0f;
    if (c < columns) {
#pragma unroll 4
        for (int part = warp; part < parts; part += JOINERS) sum += partial[(u64)part * stride + c];
    }
    sums[warp][lane] = sum;
    __syncthreads();
    sum = warp_sum(sums[lane][warp]);
    c = blockIdx.x * WARP + warp;
    if (lane == 0 && c < columns) y[c] = accumulate ? y[c] + sum : sum;
}
