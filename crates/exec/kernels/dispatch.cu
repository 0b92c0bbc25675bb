// Tokens to the rows of their experts and back, with a block for each token. Reference: src/reference/dispatch.rs.

#include "common.cuh"

#define THREADS 256

// rows[places[token, k]] = x[token], times its weight unless `weights` is null.
template <class T, int COUNT>
__device__ __forceinline__ void dispatch(const T *x, const int *places, const float *weights, T *rows, int columns,
                                         int chosen) {
    typedef Vector<T, COUNT> V;
    u64 token = blockIdx.x;
    x += token * columns, places += token * chosen;
    if (weights) weights += token * chosen;
#pragma unroll 1
    for (int c = threadIdx.x * COUNT; c < columns; c += blockDim.x * COUNT) {
        V v = V::load(x + c);
#pragma unroll 1
        for (int k = 0; k < chosen; ++k) {
            float weight = weights ? weights[k] : 1.0f;
            V scaled;
#pragma unroll
            for (int i = 0; i < COUNT; ++i) scaled.at[i] = round_to<T>(widen(v.at[i]) * weight);
            scaled.store(rows + (u64)places[k] * columns + c);
        }
    }
}

// y[token] = the sum of its rows in the order of k, times their weights unless `weights` is null.
template <class T, int COUNT>
__device__ __forceinline__ void combine(const T *rows, const int *places, const float *weights, T *y, int columns,
                                        int chosen) {
    typedef Vector<T, COUNT> V;
    u64 token = blockIdx.x;
    y += token * columns, places += token * chosen;
    if (weights) weights += token * chosen;
#pragma unroll 1
    for (int c = threadIdx.x * COUNT; c < columns; c += blockDim.x * COUNT) {
        float sums[COUNT] = {};
#pragma unroll 2
        for (int k = 0; k < chosen; ++k) {
            V v = V::load(rows + (u64)places[k] * columns + c);
            float weight = weights ? weights[k] : 1.0f;
#pragma unroll
            for (int i = 0; i < COUNT; ++i) sums[i] = fmaf(widen(v.at[i]), weight, sums[i]);
        }
        V all;
#pragma unroll
        for (int i = 0; i < COUNT; ++i) all.at[i] = round_to<T>(sums[i]);
        all.store(y + c);
    }
}

// dweights[token, k] = x[token] · rows[places[token, k]], a warp for each.
template <class T, int COUNT>
__device__ __forceinline__ void weight_grad(const T *x, const T *rows, const int *places, float *dweights, int columns,
                                            int chosen) {
    typedef Vector<T, COUNT> V;
    u64 token = blockIdx.x;
    x += token * columns;
    int lane = threadIdx.x % WARP;
#pragma unroll 1
    for (int k = threadIdx.x / WARP; k < chosen; k += THREADS / WARP) {
        const T *row = rows + (u64)places[token * chosen + k] * columns;
        float sum = 0.0f;
#pragma unroll 2
        for (int c = lane * COUNT; c < columns; c += WARP * COUNT) {
            V a = V::load(x + c), b = V::load(row + c);
#pragma unroll
            for (int i = 0; i < COUNT; ++i) sum = fmaf(widen(a.at[i]), widen(b.at[i]), sum);
        }
        sum = warp_sum(sum);
        if (lane == 0) dweights[token * chosen + k] = sum;
    }
}

// With `_vectors`, rows are multiples of 16 bytes.
#define OF(suffix, T, COUNT)                                                                                           \
    KERNEL(THREADS) dispatch_##suffix(const T *x, const int *places, const float *weights, T *rows, int columns,       \
                                      int chosen) {                                                                    \
        dispatch<T, COUNT>(x, places, weights, rows, columns, chosen);                                                 \
    }                                                                                                                  \
    KERNEL(THREADS) combine_##suffix(const T *rows, const int *places, const float *weights, T *y, int columns,        \
                                     int chosen) {                                                                     \
        combine<T, COUNT>(rows, places, weights, y, columns, chosen);                                                  \
    }                                                                                                                  \
    KERNEL(THREADS) combine_weight_grad_##suffix(const T *x, const T *rows, const int *places, float *dweights,        \
                                                 int columns, int chosen) {                                            \
        weight_grad<T, COUNT>(x, rows, places, dweights, columns, chosen);                                             \
    }
#define KERNELS(suffix, T) OF(suffix, T, 1) OF(vectors_##suffix, T, Vector<T>::SIZE)
FOR_FLOATS(KERNELS)
