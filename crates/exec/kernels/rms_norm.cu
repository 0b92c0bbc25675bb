// Normalization by the root of the mean square over the last extent, and its gradient.
// Reference: src/reference/rms_norm.rs.
//
// x: (rows, columns), weight: (columns,), rstd: (rows,). Blocks of whole warps.

#include "norm_grad.cuh"

// One block per row.
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
#pragma unroll 1
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

#define KERNELS(suffix, T)                                                                                             \
    KERNEL(1024) rms_norm_##suffix(const T *x, const T *weight, T *y, float *rstd, int columns, float eps) {           \
        forward(x, weight, y, rstd, columns, eps);                                                                     \
    }                                                                                                                  \
    KERNEL(512) rms_norm_grad_##suffix(const T *dy, const T *x, const T *weight, const float *rstd,                   \
                                        const T *residual, T *dx, float *partial, int rows, int columns) {             \
        rows_in_registers<T, Vector<T>::SIZE, false>(                                                                  \
            {dy, x, weight, nullptr, rstd, residual, dx, partial, rows, columns, 0});                                  \
    }
FOR_FLOATS(KERNELS)

// For rows of any length and numbers of any type.
KERNEL(256) rms_norm_grad_any(const void *dy, const void *x, const void *weight, const float *rstd, const void *residual,
                              void *dx, float *partial, int rows, int columns, int on_chip, int number) {
    rows_by_stretches<false>({dy, x, weight, nullptr, rstd, residual, dx, partial, rows, columns, 0}, on_chip, number);
}
