// Norms of the rows of a matrix to which a low-rank product is added. Reference: src/reference/low_rank_norm.rs.

#include "common.cuh"

#define THREADS 256
#define WARPS (THREADS / WARP)

// y = sqrt(norms² + 2 · scale · the sum of sums[k] · up[.., k]). norms, y: (outputs,), sums: (rank, outputs), up: (outputs,
// rank). Blocks of WARP outputs, one for each lane; warps share the terms. Tiles of `up` are transposed in shared memory,
// so that lanes read neighbors of both matrices.
template <class T>
__device__ __forceinline__ void low_rank_norm(const float *norms, const T *sums, const T *up, float *y, int outputs,
                                              int rank, float scale) {
    __shared__ float tile[WARP][WARP + 1];
    __shared__ float parts[WARPS][WARP];
    int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, first = blockIdx.x * WARP, o = first + lane;
    float sum = 0.0f;
#pragma unroll 1
    for (int start = 0; start < rank; start += WARP) {
#pragma unroll
        for (int row = warp; row < WARP; row += WARPS) {
            bool there = first + row < outputs && start + lane < rank;
            tile[row][lane] = there ? widen(up[(u64)(first + row) * rank + start + lane]) : 0.0f;
        }
        __syncthreads();
#pragma unroll
        for (int k = warp; k < WARP; k += WARPS)
            if (o < outputs && start + k < rank) sum += widen(sums[(u64)(start + k) * outputs + o]) * tile[lane][k];
        __syncthreads();
    }
    parts[warp][lane] = sum;
    __syncthreads();
    if (warp != 0 || o >= outputs) return;
    float product = 0.0f;
#pragma unroll
    for (int part = 0; part < WARPS; ++part) product += parts[part][lane];
    float norm = norms[o];
    y[o] = sqrtf(fmaxf(norm * norm + 2.0f * scale * product, 0.0f));
}

#define KERNELS(suffix, T)                                                                                             \
    KERNEL(THREADS) low_rank_norm_##suffix(const float *norms, const T *sums, const T *up, float *y, int outputs,      \
                                           int rank, float scale) {                                                    \
        low_rank_norm(norms, sums, up, y, outputs, rank, scale);                                                       \
    }
FOR_FLOATS(KERNELS)
