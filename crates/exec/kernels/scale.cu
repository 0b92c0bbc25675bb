// y = factor · x. y may overwrite x. Reference: src/reference/scale.rs.

#include "common.cuh"

#define KERNELS(suffix, T)                                                                                             \
    KERNEL(256) scale_##suffix(const T *x, T *y, u64 elements, float factor) {                                         \
        map(x, y, elements, [=](float x) { return factor * x; });                                                      \
    }
FOR_FLOATS(KERNELS)
