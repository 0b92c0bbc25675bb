// Normalization by the root of the mean square over the last extent, and its gradient.
// Reference: src/reference/rms_norm.rs.
//
// x: (rows, columns), weight: (columns,), rstd: (rows,). Blocks of whole warps.

#include "common.cuh"

// A block for each row.
template <class T>
__device__ __forceinline__ void forward(const T *x, const T *weight, T *y, float *rstd, int columns, float eps) {
    __shared__ float part[WARP];
    u64 row = blockIdx.x;
    x += row * columns;
    y += row * columns;
    float squares = 0.0f;
    each_column(x, columns, [&](int, float v) { squares += v * v; });
    float r = rsqrtf(block_sum(squares, part) / columns + eps);
    const int size = Vector<T>::SIZE;
    if (columns % size == 0) {
        for (int c = threadIdx.x * size; c < columns; c += blockDim.x * size) {
            Vector<T> v = Vector<T>::load(x + c), w = Vector<T>::load(weight + c);
#pragma unroll
            for (int k = 0; k < size; ++k) v.at[k] = round_to<T>(widen(v.at[k]) * r * widen(w.at[k]));
            v.store(y + c);
        }
    } else {
#pragma unroll 1
        for (int c = threadIdx.x; c < columns; c += blockDim.x) y[c] = round_to<T>(widen(x[c]) * r * widen(weight[c]));
    }
    if (threadIdx.x == 0) rstd[row] = r;
}

// dx of each row, and each block's part of dweight: partial (blocks, columns), or null if nobody wants it. Rows fall to
// blocks in turn. The sums lie in dynamic shared memory, a float for each column, if they are `on_chip`, else where they
// are written to in the end. residual is null if there is none; dx may take the place of dy or residual.
template <class T>
__device__ __forceinline__ void backward(const T *dy, const T *x, const T *weight, const float *rstd,
                                         const T *residual, T *dx, float *partial, int rows, int columns,
                                         int on_chip) {
    __shared__ float part[WARP];
    extern __shared__ float chip[];
    bool wanted = partial != nullptr;
    partial += (u64)blockIdx.x * columns;
    float *sums = on_chip ? chip : partial;
    // Each thread reads and writes the sums of its own columns only.
    if (wanted)
        for (int c = threadIdx.x; c < columns; c += blockDim.x) sums[c] = 0.0f;
    for (int row = blockIdx.x; row < rows; row += gridDim.x) {
        u64 start = (u64)row * columns;
        float r = rstd[row], products = 0.0f;
        for (int c = threadIdx.x; c < columns; c += blockDim.x) {
            float d = widen(dy[start + c]), normed = widen(x[start + c]) * r;
            products += d * widen(weight[c]) * normed;
            if (wanted) sums[c] += d * normed;
        }
        products = block_sum(products, part) / columns;
        for (int c = threadIdx.x; c < columns; c += blockDim.x) {
            float normed = widen(x[start + c]) * r;
            float d = (widen(dy[start + c]) * widen(weight[c]) - normed * products) * r;
            dx[start + c] = round_to<T>(residual ? d + widen(residual[start + c]) : d);
        }
    }
    if (wanted && on_chip)
        for (int c = threadIdx.x; c < columns; c += blockDim.x) partial[c] = sums[c];
}

#define KERNELS(suffix, T)                                                                                             \
    KERNEL(1024) rms_norm_##suffix(const T *x, const T *weight, T *y, float *rstd, int columns, float eps) {           \
        forward(x, weight, y, rstd, columns, eps);                                                                     \
    }                                                                                                                  \
    KERNEL(1024) rms_norm_grad_##suffix(const T *dy, const T *x, const T *weight, const float *rstd,                   \
                                        const T *residual, T *dx, float *partial, int rows, int columns,               \
                                        int on_chip) {                                                                 \
        backward(dy, x, weight, rstd, residual, dx, partial, rows, columns, on_chip);                                  \
    }
FOR_FLOATS(KERNELS)
