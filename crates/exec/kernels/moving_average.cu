// average = decay · average + (1 - decay) · weight, unless the factor is not a number. A thread for each element.
// Reference: src/reference/moving_average.rs.

#include "common.cuh"

template <class T>
__device__ __forceinline__ void update(const T *weight, const float *factor, float *average, u64 elements,
                                       float decay) {
    u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= elements || *factor != *factor) return;
    average[i] = fmaf(1.0f - decay, widen(weight[i]) - average[i], average[i]);
}

#define KERNELS(suffix, T)                                                                                             \
    KERNEL(256) moving_average_##suffix(const T *weight, const float *factor, float *average, u64 elements,            \
                                        float decay) {                                                                 \
        update(weight, factor, average, elements, decay);                                                              \
    }
FOR_FLOATS(KERNELS)
