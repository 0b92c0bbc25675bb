// Activations of gates and layers, each with its slope. Reference: src/reference/gated.rs.

#pragma once
#include "common.cuh"

#define SQRT_2_OVER_PI 0.7978845608f
#define CUBIC 0.044715f

// tanh by e^2x, to a few units in the last place of single precision; the hardware's own instruction has only 11 bits.
__device__ __forceinline__ float tanh_exact(float x) {
    float size = fabsf(x);
    // The series, for sizes at which e^2x - 1 would cancel.
    float square = x * x;
    float series = x * (1.0f + square * (-0.33333333f + square * (0.13333333f - square * 0.05396825f)));
    float far = copysignf(1.0f - 2.0f / (__expf(2.0f * size) + 1.0f), x);
    return size < 0.1f ? series : far;
}

struct GeluTanh {
    __device__ __forceinline__ static float value(float x) {
        return 0.5f * x * (1.0f + tanh_exact(SQRT_2_OVER_PI * (x + CUBIC * x * x * x)));
    }
    __device__ __forceinline__ static float slope(float x) {
        float t = tanh_exact(SQRT_2_OVER_PI * (x + CUBIC * x * x * x));
        float inner = SQRT_2_OVER_PI * (1.0f + 3.0f * CUBIC * x * x);
        return 0.5f * (1.0f + t) + 0.5f * x * (1.0f - t * t) * inner;
    }
};

struct Gelu {
    __device__ __forceinline__ static float below(float x) { return 0.5f * (1.0f + erff(x * 0.70710678f)); }
    __device__ __forceinline__ static float value(float x) { return x * below(x); }
    __device__ __forceinline__ static float slope(float x) {
        return below(x) + x * __expf(-0.5f * x * x) * 0.3989422804f;
    }
};

struct Silu {
    __device__ __forceinline__ static float gate(float x) { return 1.0f / (1.0f + __expf(-x)); }
    __device__ __forceinline__ static float value(float x) { return x * gate(x); }
    __device__ __forceinline__ static float slope(float x) {
        float s = gate(x);
        return s + x * s * (1.0f - s);
    }
};

struct Relu {
    __device__ __forceinline__ static float value(float x) { return x > 0.0f ? x : 0.0f; }
    __device__ __forceinline__ static float slope(float x) { return x > 0.0f ? 1.0f : 0.0f; }
};
