// Products of experts in single precision, of numbers of any type and any alignment, and sums over the rows of each
// expert. How: linear.cuh, for the rows of each expert. Rows are contiguous. On tensor cores: expert_product.cu,
// expert_product_tf32.cu. Reference: src/reference/expert_linear.rs.

#include "experts.cuh"
#include "linear.cuh"

// c = a b + bias for the rows of each expert, of which b has a matrix and bias, unless null, a row. All have one type.
template <Layout LB>
__device__ __forceinline__ void of_rows(const void *a, const void *b, void *c, const void *bias, const int *bounds,
                                        int experts, int columns, int inners, int number) {
    int across = (columns + SMALL - 1) / SMALL, first_column = blockIdx.x % across * SMALL;
    ExpertRows own = rows_of_tile<SMALL>(bounds, experts, blockIdx.x / across);
    if (own.rows == 0) return;
    a = element(a, (u64)own.start * inners, number);
    b = element(b, (u64)own.expert * columns * inners, number);
    c = element(c, (u64)own.start * columns, number);
    if (bias) bias = element(bias, (u64)own.expert * columns, number);
    Result result{c, bias, (u64)columns, own.rows, columns, number, number, 0, 1.0f};
    product_tile<INNER, LB, SMALL>(a, b, result, own.first_row, first_column, 0, inners, 0, inners,
                                   LB == INNER ? inners : columns, number, number);
}

#define OF_ROWS(name, LB)                                                                                              \
    KERNEL_BLOCKS(THREADS, 3) experts_##name##_64(const void *a, const void *b, void *c, const void *bias,             \
                                                  const int *bounds, int experts, int columns, int inners,             \
                                                  int number) {                                                        \
        of_rows<LB>(a, b, c, bias, bounds, experts, columns, inners, number);                                          \
    }
OF_ROWS(nn, OUTER)
OF_ROWS(nt, INNER)

// c = aᵀ b over the rows of each expert, which is blockIdx.y, or added to c, which has a matrix for each expert.
KERNEL_BLOCKS(THREADS, 3) experts_tn_64(const void *a, const void *b, float *c, const int *bounds, int rows, int columns,
                                        int accumulate, int number) {
    u64 expert = blockIdx.y;
    int across = (columns + SMALL - 1) / SMALL, start = bounds[expert], inners = bounds[expert + 1] - start;
    a = element(a, (u64)start * rows, number);
    b = element(b, (u64)start * columns, number);
    Result result{c + expert * rows * columns, nullptr, (u64)columns, rows, columns, F32, F32, accumulate, 1.0f};
    product_tile<OUTER, OUTER, SMALL>(a, b, result, blockIdx.x / across * SMALL, blockIdx.x % across * SMALL, 0, inners,
                                      0, rows, columns, number, number);
}

// y[expert] = the sum of the expert's rows, or added to y. Blocks: stretches of WARP columns along x, experts along y.
// Each warp adds up some of the rows.
KERNEL(THREADS) expert_row_sums(const void *x, float *y, const int *bounds, int columns, int accumulate, int number) {
    __shared__ float sums[THREADS / WARP][WARP];
    int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, c = blockIdx.x * WARP + lane;
    int last = bounds[blockIdx.y + 1];
    float sum = 0.0f;
    if (c < columns) {
#pragma unroll 4
        for (int row = bounds[blockIdx.y] + warp; row < last; row += THREADS / WARP)
            sum += number_at(x, (u64)row * columns + c, number);
    }
    sums[warp][lane] = sum;
    __syncthreads();
    if (warp > 0 || c >= columns) return;
    float all = 0.0f;
#pragma unroll
    for (int part = 0; part < THREADS / WARP; ++part) all += sums[part][lane];
    u64 at = (u64)blockIdx.y * columns + c;
    y[at] = accumulate ? y[at] + all : all;
}
