// average = decay · average + (1 - decay) · weight, unless the factor is NaN. A thread for each element. Reference:
// src/reference/moving_average.rs.

#include "remainder.cuh"

__device__ __forceinline__ float approached(float average, float weight, float decay) {
    return fmaf(1.0f - decay, weight - average, average);
}

template <class T>
__device__ __forceinline__ void update(const T *weight, const float *factor, float *average, u64 elements,
                                       float decay) {
    u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= elements || *factor != *factor) return;
    average[i] = approached(average[i], widen(weight[i]), decay);
}

#define KERNELS(suffix, T)                                                                                             \
    KERNEL(256) moving_average_##suffix(const T *weight, const float *factor, float *average, u64 elements,            \
                                        float decay) {                                                                 \
        update(weight, factor, average, elements, decay);                                                              \
    }
FOR_FLOATS(KERNELS)

// For weights with remainders.
KERNEL(256) moving_average_joined(const bf16 *weight, const float *factor, const short *remainder, float *average,
                                  u64 elements, float decay) {
    u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= elements || *factor != *factor) return;
    average[i] = approached(average[i], joined(weight[i], remainder[i]), decay);
}
