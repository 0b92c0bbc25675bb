// Layer normalization over the last extent, and its gradient. Reference: src/reference/layer_norm.rs.
//
// x: (rows, columns), weight, bias: (columns,), bias null if there is none; mean, rstd: (rows,). Blocks of whole warps.

#include "common.cuh"

// Where rows are no multiple of 16 bytes, their beginnings are not aligned: then elements go one by one.
template <class T, class F>
__device__ __forceinline__ void each_column(const T *row, int columns, F f) {
    const int size = Vector<T>::SIZE;
    if (columns % size == 0) {
        for (int c = threadIdx.x * size; c < columns; c += blockDim.x * size) {
            Vector<T> v = Vector<T>::load(row + c);
#pragma unroll
            for (int k = 0; k < size; ++k) f(c + k, widen(v.at[k]));
        }
    } else {
#pragma unroll 1
        for (int c = threadIdx.x; c < columns; c += blockDim.x) f(c, widen(row[c]));
    }
}

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

// dx of each row, and each block's part of dweight and dbias: partial (blocks, 2, columns). Rows fall to blocks in
// turn. Dynamic shared memory: 2 · columns floats. residual is null if there is none; dx may take the place of dy or
// residual.
template <class T>
__device__ __forceinline__ void backward(const T *dy, const T *x, const T *weight, const float *mean,
                                         const float *rstd, const T *residual, T *dx, float *partial, int rows,
                                         int columns) {
    __shared__ float part[WARP];
    extern __shared__ float sums[];
    // Each thread reads and writes the sums of its own columns only.
    for (int c = threadIdx.x; c < columns; c += blockDim.x) sums[c] = sums[columns + c] = 0.0f;
    for (int row = blockIdx.x; row < rows; row += gridDim.x) {
        u64 start = (u64)row * columns;
        float m = mean[row], r = rstd[row], slopes = 0.0f, products = 0.0f;
        for (int c = threadIdx.x; c < columns; c += blockDim.x) {
            float d = widen(dy[start + c]), normed = (widen(x[start + c]) - m) * r, slope = d * widen(weight[c]);
            slopes += slope;
            products += slope * normed;
            sums[c] += d * normed;
            sums[columns + c] += d;
        }
        slopes = block_sum(slopes, part) / columns;
        products = block_sum(products, part) / columns;
        for (int c = threadIdx.x; c < columns; c += blockDim.x) {
            float normed = (widen(x[start + c]) - m) * r;
            float d = (widen(dy[start + c]) * widen(weight[c]) - slopes - normed * products) * r;
            dx[start + c] = round_to<T>(residual ? d + widen(residual[start + c]) : d);
        }
    }
    // The sums are handed out anew, so that neighbors write to neighbors.
    __syncthreads();
    for (int c = threadIdx.x; c < 2 * columns; c += blockDim.x) partial[(u64)blockIdx.x * 2 * columns + c] = sums[c];
}

KERNEL(1024) layer_norm_f32(const float *x, const float *weight, const float *bias, float *y, float *mean, float *rstd,
                            int columns, float eps) {
    forward(x, weight, bias, y, mean, rstd, columns, eps);
}
KERNEL(1024) layer_norm_f16(const f16 *x, const f16 *weight, const f16 *bias, f16 *y, float *mean, float *rstd,
                            int columns, float eps) {
    forward(x, weight, bias, y, mean, rstd, columns, eps);
}
KERNEL(1024) layer_norm_bf16(const bf16 *x, const bf16 *weight, const bf16 *bias, bf16 *y, float *mean, float *rstd,
                             int columns, float eps) {
    forward(x, weight, bias, y, mean, rstd, columns, eps);
}
KERNEL(1024) layer_norm_grad_f32(const float *dy, const float *x, const float *weight, const float *mean,
                                 const float *rstd, const float *residual, float *dx, float *partial, int rows,
                                 int columns) {
    backward(dy, x, weight, mean, rstd, residual, dx, partial, rows, columns);
}
KERNEL(1024) layer_norm_grad_f16(const f16 *dy, const f16 *x, const f16 *weight, const float *mean, const float *rstd,
                                 const f16 *residual, f16 *dx, float *partial, int rows, int columns) {
    backward(dy, x, weight, mean, rstd, residual, dx, partial, rows, columns);
}
KERNEL(1024) layer_norm_grad_bf16(const bf16 *dy, const bf16 *x, const bf16 *weight, const float *mean,
                                  const float *rstd, const bf16 *residual, bf16 *dx, float *partial, int rows,
                                  int columns) {
    backward(dy, x, weight, mean, rstd, residual, dx, partial, rows, columns);
}

// dweight and dbias from the blocks' parts, added up in their order. A thread for each column; dbias is null if there
// is none.
KERNEL(256) layer_norm_grad_sum(const float *partial, float *dweight, float *dbias, int blocks, int columns,
                                int accumulate) {
    int c = blockIdx.x * blockDim.x + threadIdx.x;
    if (c >= columns) return;
    float weights = 0.0f, biases = 0.0f;
    for (int block = 0; block < blocks; ++block) {
        weights += partial[(u64)block * 2 * columns + c];
        biases += partial[((u64)block * 2 + 1) * columns + c];
    }
    dweight[c] = accumulate ? dweight[c] + weights : weights;
    if (dbias) dbias[c] = accumulate ? dbias[c] + biases : biases;
}
