// GELU with the normal distribution itself, and its gradient. Launched with a thread for each vector of 16 bytes. y may
// overwrite x, dx may overwrite dy or x. Reference: src/reference/exact_gelu.rs.

#include "activation.cuh"

#define KERNELS(suffix, T)                                                                                             \
    KERNEL(256) exact_gelu_##suffix(const T *x, T *y, u64 elements) {                                                  \
        map(x, y, elements, [](float x) { return Gelu::value(x); });                                                   \
    }                                                                                                                  \
    KERNEL(256) exact_gelu_grad_##suffix(const T *dy, const T *x, T *dx, u64 elements) {                               \
        map<Vector<T>::SIZE>(dy, x, dx, elements, [](float dy, float x) { return dy * Gelu::slope(x); });              \
    }
FOR_FLOATS(KERNELS)
