// GELU by its tanh form, and its gradient. Launched with a thread for each vector of 16 bytes.
// y may take the place of x, dx that of dy. Reference: src/reference/gelu.rs.

#include "common.cuh"

#define SQRT_2_OVER_PI 0.7978845608f
#define CUBIC 0.044715f

// tanh through e^2x, to a few units in the last place of single precision; the hardware's own instruction is good for
// 11 bits only.
__device__ __forceinline__ float tanh_exact(float x) {
    float size = fabsf(x);
    // Where e^2x - 1 would cancel, the series does not.
    float square = x * x;
    float series = x * (1.0f + square * (-0.33333333f + square * (0.13333333f - square * 0.05396825f)));
    float far = copysignf(1.0f - 2.0f / (__expf(2.0f * size) + 1.0f), x);
    return size < 0.1f ? series : far;
}

__device__ __forceinline__ float gelu(float x) {
    return 0.5f * x * (1.0f + tanh_exact(SQRT_2_OVER_PI * (x + CUBIC * x * x * x)));
}

__device__ __forceinline__ float gelu_slope(float x) {
    float t = tanh_exact(SQRT_2_OVER_PI * (x + CUBIC * x * x * x));
    float inner = SQRT_2_OVER_PI * (1.0f + 3.0f * CUBIC * x * x);
    return 0.5f * (1.0f + t) + 0.5f * x * (1.0f - t * t) * inner;
}

template <class T>
__device__ __forceinline__ void forward(const T *x, T *y, u64 elements) {
    each_vector<Vector<T>::SIZE>(elements, [=](u64 i, int count) {
        if (count == Vector<T>::SIZE) {
            Vector<T> v = Vector<T>::load(x + i);
#pragma unroll
            for (int k = 0; k < Vector<T>::SIZE; ++k) v.at[k] = round_to<T>(gelu(widen(v.at[k])));
            v.store(y + i);
        } else {
#pragma unroll 1
            for (int k = 0; k < count; ++k) y[i + k] = round_to<T>(gelu(widen(x[i + k])));
        }
    });
}

template <class T>
__device__ __forceinline__ void backward(const T *dy, const T *x, T *dx, u64 elements) {
    each_vector<Vector<T>::SIZE>(elements, [=](u64 i, int count) {
        if (count == Vector<T>::SIZE) {
            Vector<T> v = Vector<T>::load(x + i), d = Vector<T>::load(dy + i);
#pragma unroll
            for (int k = 0; k < Vector<T>::SIZE; ++k)
                d.at[k] = round_to<T>(widen(d.at[k]) * gelu_slope(widen(v.at[k])));
            d.store(dx + i);
        } else {
#pragma unroll 1
            for (int k = 0; k < count; ++k) dx[i + k] = round_to<T>(widen(dy[i + k]) * gelu_slope(widen(x[i + k])));
        }
    });
}

KERNEL(256) gelu_f32(const float *x, float *y, u64 elements) { forward(x, y, elements); }
KERNEL(256) gelu_f16(const f16 *x, f16 *y, u64 elements) { forward(x, y, elements); }
KERNEL(256) gelu_bf16(const bf16 *x, bf16 *y, u64 elements) { forward(x, y, elements); }
KERNEL(256) gelu_grad_f32(const float *dy, const float *x, float *dx, u64 elements) { backward(dy, x, dx, elements); }
KERNEL(256) gelu_grad_f16(const f16 *dy, const f16 *x, f16 *dx, u64 elements) { backward(dy, x, dx, elements); }
KERNEL(256) gelu_grad_bf16(const bf16 *dy, const bf16 *x, bf16 *dx, u64 elements) { backward(dy, x, dx, elements); }
