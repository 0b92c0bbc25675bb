// Rows of a table by their tokens, and the table's gradient. Reference: src/reference/embedding.rs.

#include "common.cuh"

// A block for each token: y[row] = table[tokens[row]], as bytes.
KERNEL(256) embedding(const int *tokens, const char *table, char *y, u64 row_bytes) {
    u64 row = blockIdx.x;
    copy_bytes(table + (u64)tokens[row] * row_bytes, y + row * row_bytes, row_bytes);
}

#define ROWS 8
#define THREADS 256

// dtable[token] += dy[row], in the order of the rows, so that the bits are reproducible. Each block owns ROWS rows of
// the table and searches all tokens for them.
template <class T>
__device__ __forceinline__ void backward(const T *dy, const int *tokens, float *dtable, int count, int vocab,
                                         int columns, int accumulate) {
    __shared__ u32 mine[THREADS / WARP];
    __shared__ int seen[THREADS];
    int first = blockIdx.x * ROWS, last = min(first + ROWS, vocab);
    if (!accumulate)
        for (int row = first; row < last; ++row)
            for (int c = threadIdx.x; c < columns; c += THREADS) dtable[(u64)row * columns + c] = 0.0f;
    for (int start = 0; start < count; start += THREADS) {
        int row = start + threadIdx.x, token = row < count ? tokens[row] : -1;
        u32 found = __ballot_sync(ALL_LANES, token >= first && token < last);
        seen[threadIdx.x] = token;
        if (threadIdx.x % WARP == 0) mine[threadIdx.x / WARP] = found;
        __syncthreads();
        for (int warp = 0; warp < THREADS / WARP; ++warp) {
            for (u32 left = mine[warp]; left; left &= left - 1) {
                int at = warp * WARP + 31 - __clz(left & -left); // the lowest remaining bit
                const T *from = dy + (u64)(start + at) * columns;
                float *to = dtable + (u64)seen[at] * columns;
                // Each thread has its own columns, so it reads only its own sums.
                for (int c = threadIdx.x; c < columns; c += THREADS) to[c] += widen(from[c]);
            }
        }
        __syncthreads();
    }
}

#define KERNELS(suffix, T)                                                                                             \
    KERNEL(THREADS) embedding_grad_##suffix(const T *dy, const int *tokens, float *dtable, int count, int vocab,       \
                                            int columns, int accumulate) {                                             \
        backward(dy, tokens, dtable, count, vocab, columns, accumulate);                                               \
    }
FOR_FLOATS(KERNELS)
