// y = a + b, element by element. Launched with a thread for each vector of 16 bytes. y may overwrite a or b.
// Reference: src/reference/add.rs.

#include "common.cuh"

#define KERNELS(suffix, T)                                                                                             \
    KERNEL(256) add_##suffix(const T *a, const T *b, T *y, u64 elements) {                                             \
        map<Vector<T>::SIZE>(a, b, y, elements, [](float a, float b) { return a + b; });                               \
    }
FOR_FLOATS(KERNELS)
