// A vector for each sample: the mean of its tokens, or its first token; and the gradient. Segments are 0 for padding.
// Blocks: rows along x, stretches of columns along y. Reference: src/reference/pool.rs.

#include "common.cuh"

// y[sample]. x: (B, T, C). A block for each sample, a thread for each column.
template <class T>
__device__ __forceinline__ void forward(const T *x, const int *segments, float *y, int tokens, int columns, int first) {
    u64 sample = blockIdx.x;
    int c = blockIdx.y * blockDim.x + threadIdx.x, counted = first ? 1 : tokens;
    if (c >= columns) return;
    x += sample * tokens * columns + c;
    segments += sample * tokens;
    float sum = 0.0f, count = 0.0f;
#pragma unroll 4
    for (int t = 0; t < counted; ++t) {
        float present = segments[t] ? 1.0f : 0.0f;
        count += present;
        sum += segments[t] ? widen(x[(u64)t * columns]) : 0.0f;
    }
    y[sample * columns + c] = sum / fmaxf(count, 1.0f);
}

// dx[sample, token]. A block for each token.
template <class T>
__device__ __forceinline__ void backward(const float *dy, const int *segments, T *dx, int tokens, int columns,
                                         int first) {
    __shared__ float part[WARP];
    u64 row = blockIdx.x, sample = row / tokens;
    int token = row % tokens, c = blockIdx.y * blockDim.x + threadIdx.x;
    segments += sample * tokens;
    float count = 0.0f;
    for (int t = threadIdx.x; t < (first ? 1 : tokens); t += blockDim.x) count += segments[t] ? 1.0f : 0.0f;
    count = block_sum(count, part);
    bool counts = segments[token] && (!first || token == 0);
    if (c < columns) dx[row * columns + c] = round_to<T>(counts ? dy[sample * columns + c] / count : 0.0f);
}

#define KERNELS(suffix, T)                                                                                             \
    KERNEL(256) pool_##suffix(const T *x, const int *segments, float *y, int tokens, int columns, int first) {         \
        forward(x, segments, y, tokens, columns, first);                                                               \
    }                                                                                                                  \
    KERNEL(256) pool_grad_##suffix(const float *dy, const int *segments, T *dx, int tokens, int columns, int first) {  \
        backward(dy, segments, dx, tokens, columns, first);                                                            \
    }
FOR_FLOATS(KERNELS)
