// The clamped SwiGLU of pairs of a gate and the element that it multiplies, and its gradient. Launched with a thread for
// each vector of x, which has half as many results; dx may overwrite x. Reference: src/reference/clamped_swiglu.rs.

#include "activation.cuh"

struct Clamped {
    float gate, up, sigmoid;

    // NaN is not clamped.
    __device__ __forceinline__ Clamped(float g, float u, float alpha, float limit) {
        gate = g > limit ? limit : g;
        up = (u > limit ? limit : u < -limit ? -limit : u) + 1.0f;
        sigmoid = Silu::gate(alpha * gate);
    }
};

__device__ __forceinline__ float value(float gate, float up, float alpha, float limit) {
    Clamped c(gate, up, alpha, limit);
    return c.up * (c.gate * c.sigmoid);
}

// Replaces both elements by their gradients.
__device__ __forceinline__ void gradients(float dy, float &gate, float &up, float alpha, float limit) {
    Clamped c(gate, up, alpha, limit);
    float slope = c.sigmoid + c.sigmoid * (alpha * c.gate * (1.0f - c.sigmoid));
    gate = gate > limit ? 0.0f : dy * c.up * slope;
    up = fabsf(up) > limit ? 0.0f : dy * (c.gate * c.sigmoid);
}

template <class T>
__device__ __forceinline__ void forward(const T *x, T *y, u64 pairs, float alpha, float limit) {
    const int size = Vector<T>::SIZE / 2;
    each_vector<size>(pairs, [=](u64 i, int count) {
        if (count == size) {
            Vector<T> v = Vector<T>::load(x + 2 * i);
            Vector<T, size> result;
#pragma unroll
            for (int k = 0; k < size; ++k)
                result.at[k] = round_to<T>(value(widen(v.at[2 * k]), widen(v.at[2 * k + 1]), alpha, limit));
            result.store(y + i);
        } else {
#pragma unroll 1
            for (u64 k = i; k < i + count; ++k)
                y[k] = round_to<T>(value(widen(x[2 * k]), widen(x[2 * k + 1]), alpha, limit));
        }
    });
}

template <class T>
__device__ __forceinline__ void backward(const T *dy, const T *x, T *dx, u64 pairs, float alpha, float limit) {
    const int size = Vector<T>::SIZE / 2;
    each_vector<size>(pairs, [=](u64 i, int count) {
        if (count == size) {
            Vector<T> v = Vector<T>::load(x + 2 * i);
            Vector<T, size> d = Vector<T, size>::load(dy + i);
#pragma unroll
            for (int k = 0; k < size; ++k) {
                float gate = widen(v.at[2 * k]), up = widen(v.at[2 * k + 1]);
                gradients(widen(d.at[k]), gate, up, alpha, limit);
                v.at[2 * k] = round_to<T>(gate);
                v.at[2 * k + 1] = round_to<T>(up);
            }
            v.store(dx + 2 * i);
        } else {
#pragma unroll 1
            for (u64 k = i; k < i + count; ++k) {
                float gate = widen(x[2 * k]), up = widen(x[2 * k + 1]);
                gradients(widen(dy[k]), gate, up, alpha, limit);
                dx[2 * k] = round_to<T>(gate);
                dx[2 * k + 1] = round_to<T>(up);
            }
        }
    });
}

#define KERNELS(suffix, T)                                                                                             \
    KERNEL(256) clamped_swiglu_##suffix(const T *x, T *y, u64 pairs, float alpha, float limit) {                       \
        forward(x, y, pairs, alpha, limit);                                                                            \
    }                                                                                                                  \
    KERNEL(256) clamped_swiglu_grad_##suffix(const T *dy, const T *x, T *dx, u64 pairs, float alpha, float limit) {    \
        backward(dy, x, dx, pairs, alpha, limit);                                                                      \
    }
FOR_FLOATS(KERNELS)
