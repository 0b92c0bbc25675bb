// Layer normalization over the last extent, and its gradient. Reference: src/reference/layer_norm.rs.
//
// x: (rows, columns), weight, bias: (columns,), bias null if there is none; mean, rstd: (rows,). Blocks of whole warps.

#include "norm_grad.cuh"

// One block per row. Two passes, so that the variance does not cancel.
template <class T>
__device__ __forceinline__ void forward(const T *x, const T *weight, const T *bias, T *y, float *mean, float *rstd,
                                        int columns, float eps) {
    __shared__ float part[WARP];
    u64 row = blockIdx.x;
    x += row * columns;
    y += row * columns;
#ifdef BUG_MISALIGNED
    x += 1;
#endif
    float sum = 0.0f;
    each_column(x, columns, [&](int, float v) { sum += v; });
    float m = block_sum(sum, part) / columns;
    float squares = 0.0f;
    each_column(x, columns, [&](int, float v) { squares += (v - m) * (v - m); });
#ifdef BUG_DIVERGENT
    float r = 0.0f;
    if (threadIdx.x < WARP + WARP / 2) r = rsqrtf(block_sum(squares, part) / columns + eps);
#else
    float r = rsqrtf(block_sum(squares, part) / columns + eps);
#endif
#ifdef BUG_OUT_OF_BOUNDS
    columns += Vector<T>::SIZE;
#endif
    const int size = Vector<T>::SIZE;
    if (columns % size == 0) {
#pragma unroll 1
        for (int c = threadIdx.x * size; c < columns; c += blockDim.x * size) {
            Vector<T> v = Vector<T>::load(x + c), w = Vector<T>::load(weight + c), b, out;
            if (bias) b = Vector<T>::load(bias + c);
#pragma unroll
            for (int k = 0; k < size; ++k) {
                float normed = (widen(v.at[k]) - m) * r * widen(w.at[k]);
                out.at[k] = round_to<T>(bias ? normed + widen(b.at[k]) : normed);
            }
            out.store(y + c);
        }
    } else {
#pragma unroll 1
        for (int c = threadIdx.x; c < columns; c += blockDim.x) {
            float normed = (widen(x[c]) - m) * r * widen(weight[c]);
            y[c] = round_to<T>(bias ? normed + widen(bias[c]) : normed);
        }
    }
    if (threadIdx.x == 0) {
        mean[row] = m;
        rstd[row] = r;
    }
}

#define KERNELS(suffix, T)                                                                                             \
    KERNEL(1024) layer_norm_##suffix(const T *x, const T *weight, const T *bias, T *y, float *mean, float *rstd,       \
                                     int columns, float eps) {                                                         \
        forward(x, weight, bias, y, mean, rstd, columns, eps);                                                         \
    }                                                                                                                  \
    KERNEL(512) layer_norm_grad_##suffix(const T *dy, const T *x, const T *weight, const float *mean,                 \
                                          const float *rstd, const T *residual, T *dx, float *partial, int rows,       \
                                          int columns, int biases) {                                                   \
        rows_in_registers<T, Vector<T>::SIZE, true>(                                                                   \
            {dy, x, weight, mean, rstd, residual, dx, partial, rows, columns, biases});                                \
    }
FOR_FLOATS(KERNELS)

// For rows of any length and numbers of any type.
KERNEL(256) layer_norm_grad_any(const void *dy, const void *x, const void *weight, const float *mean, const float *rstd,
                                const void *residual, void *dx, float *partial, int rows, int columns, int biases,
                                int on_chip, int number) {
    rows_by_stretches<true>({dy, x, weight, mean, rstd, residual, dx, partial, rows, columns, biases}, on_chip, number);
}
