// y = max(x, 0), and its gradient: dy where y is above zero. y may overwrite x, dx may overwrite dy or y. Reference:
// src/reference/relu.rs.

#include "common.cuh"

#define KERNELS(suffix, T)                                                                                             \
    KERNEL(256) relu_##suffix(const T *x, T *y, u64 elements) {                                                        \
        map(x, y, elements, [](float x) { return x > 0.0f ? x : 0.0f; });                                              \
    }                                                                                                                  \
    KERNEL(256) relu_grad_##suffix(const T *dy, const T *y, T *dx, u64 elements) {                                     \
        map<Vector<T>::SIZE>(dy, y, dx, elements, [](float dy, float y) { return y > 0.0f ? dy : 0.0f; });             \
    }
FOR_FLOATS(KERNELS)
