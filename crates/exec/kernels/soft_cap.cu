// y = cap · tanh(x / cap), and its gradient dy · (1 - (y / cap)²). y may overwrite x, dx may overwrite dy or y.
// Reference: src/reference/soft_cap.rs.

#include "activation.cuh"

__device__ __forceinline__ float slope(float y, float cap) {
    float part = y / cap;
    return 1.0f - part * part;
}

#define KERNELS(suffix, T)                                                                                             \
    KERNEL(256) soft_cap_##suffix(const T *x, T *y, u64 elements, float cap) {                                         \
        map(x, y, elements, [=](float x) { return cap * tanh_exact(x / cap); });                                       \
    }                                                                                                                  \
    KERNEL(256) soft_cap_grad_##suffix(const T *dy, const T *y, T *dx, u64 elements, float cap) {                      \
        map<Vector<T>::SIZE>(dy, y, dx, elements, [=](float dy, float y) { return dy * slope(y, cap); });              \
    }
FOR_FLOATS(KERNELS)
