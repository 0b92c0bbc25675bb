// y = x + a row of the table for each position, and the table's gradient. x: (B, T, C).
// Blocks: rows along x, stretches of columns along y. y may overwrite x. Reference: src/reference/positions.rs.

#include "common.cuh"

template <class T>
__device__ __forceinline__ void forward(const T *x, const T *table, T *y, const Scalars *scalars, int tokens,
                                        int columns) {
    const int size = Vector<T>::SIZE;
    u64 row = blockIdx.x, place = row % tokens + (scalars ? scalars->position : 0);
    x += row * columns;
    y += row * columns;
    table += place * columns;
    if (columns % size == 0) {
        int c = (blockIdx.y * blockDim.x + threadIdx.x) * size;
        if (c >= columns) return;
        Vector<T> v = Vector<T>::load(x + c), p = Vector<T>::load(table + c);
#pragma unroll
        for (int k = 0; k < size; ++k) v.at[k] = round_to<T>(widen(v.at[k]) + widen(p.at[k]));
        v.store(y + c);
    } else {
        int first = blockIdx.y * blockDim.x * size, last = min(first + (int)blockDim.x * size, columns);
        for (int c = first + threadIdx.x; c < last; c += blockDim.x) y[c] = round_to<T>(widen(x[c]) + widen(table[c]));
    }
}

// Rows from `tokens` on are zero. A thread for each column of each row of the table.
template <class T>
__device__ __forceinline__ void backward(const T *dy, float *dtable, int samples, int tokens, int columns,
                                         int accumulate) {
    int row = blockIdx.x, c = blockIdx.y * blockDim.x + threadIdx.x;
    if (c >= columns) return;
    u64 at = (u64)row * columns + c;
    float sum = accumulate ? dtable[at] : 0.0f;
    if (row < tokens)
        for (int sample = 0; sample < samples; ++sample)
            sum += widen(dy[((u64)sample * tokens + row) * columns + c]);
    dtable[at] = sum;
}

// `scalars` is null if the first row is at position 0.
#define KERNELS(suffix, T)                                                                                             \
    KERNEL(256) positions_##suffix(const T *x, const T *table, T *y, const Scalars *scalars, int tokens,               \
                                   int columns) {                                                                      \
        forward(x, table, y, scalars, tokens, columns);                                                                \
    }                                                                                                                  \
    KERNEL(256) positions_grad_##suffix(const T *dy, float *dtable, int samples, int tokens, int columns,              \
                                        int accumulate) {                                                              \
        backward(dy, dtable, samples, tokens, columns, accumulate);                                                    \
    }
FOR_FLOATS(KERNELS)
