// Layer normalization over the last extent, and its gradient. Reference: src/reference/layer_norm.rs.
//
// x: (rows, columns), weight, bias: (columns,), bias null if there is none; mean, rstd: (rows,). Blocks of whole warps.

#include "common.cuh"

// A block for each row. Two passes, so that the variance does not cancel.
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

// dx of each row, and each block's part of dweight and, if there are `biases`, of dbias: partial (blocks, 1 or 2,
// columns), or null if nobody wants them. Rows fall to blocks in turn. The sums lie in dynamic shared memory, as many
// floats as a block's part has, if they are `on_chip`, else where they are written to in the end. residual is null if
// there is none; dx may take the place of dy or residual.
template <class T>
__device__ __forceinline__ void backward(const T *dy, const T *x, const T *weight, const float *mean,
                                         const float *rstd, const T *residual, T *dx, float *partial, int rows,
                                         int columns, int biases, int on_chip) {
    __shared__ float part[WARP];
    extern __shared__ float chip[];
    int length = (1 + biases) * columns;
    bool wanted = partial != nullptr;
    partial += (u64)blockIdx.x * length;
    float *sums = on_chip ? chip : partial;
    // Each thread reads and writes the sums of its own columns only.
    if (wanted)
        for (int set = 0; set <= biases; ++set)
            for (int c = threadIdx.x; c < columns; c += blockDim.x) sums[set * columns + c] = 0.0f;
    for (int row = blockIdx.x; row < rows; row += gridDim.x) {
        u64 start = (u64)row * columns;
        float m = mean[row], r = rstd[row], slopes = 0.0f, products = 0.0f;
        for (int c = threadIdx.x; c < columns; c += blockDim.x) {
            float d = widen(dy[start + c]), normed = (widen(x[start + c]) - m) * r, slope = d * widen(weight[c]);
            slopes += slope;
            products += slope * normed;
            if (wanted) {
                sums[c] += d * normed;
                if (biases) sums[columns + c] += d;
            }
        }
        slopes = block_sum(slopes, part) / columns;
        products = block_sum(products, part) / columns;
        for (int c = threadIdx.x; c < columns; c += blockDim.x) {
            float normed = (widen(x[start + c]) - m) * r;
            float d = (widen(dy[start + c]) * widen(weight[c]) - slopes - normed * products) * r;
            dx[start + c] = round_to<T>(residual ? d + widen(residual[start + c]) : d);
        }
    }
    if (wanted && on_chip)
        for (int set = 0; set <= biases; ++set)
            for (int c = threadIdx.x; c < columns; c += blockDim.x) partial[set * columns + c] = sums[set * columns + c];
}

#define KERNELS(suffix, T)                                                                                             \
    KERNEL(1024) layer_norm_##suffix(const T *x, const T *weight, const T *bias, T *y, float *mean, float *rstd,       \
                                     int columns, float eps) {                                                         \
        forward(x, weight, bias, y, mean, rstd, columns, eps);                                                         \
    }                                                                                                                  \
    KERNEL(1024) layer_norm_grad_##suffix(const T *dy, const T *x, const T *weight, const float *mean,                 \
                                          const float *rstd, const T *residual, T *dx, float *partial, int rows,       \
                                          int columns, int biases, int on_chip) {                                      \
        backward(dy, x, weight, mean, rstd, residual, dx, partial, rows, columns, biases, on_chip);                    \
    }
FOR_FLOATS(KERNELS)
