// y = x in another precision, rounded to nearest: ties to even, or away from zero for bf16, as for weights. Launched
// with a thread for each 8 elements. Reference: src/reference/cast.rs.

#include "remainder.cuh"

template <class To>
__device__ __forceinline__ To rounded(float x) {
    return round_to<To>(x);
}
template <>
__device__ __forceinline__ bf16 rounded<bf16>(float x) {
    return rounded_weight(x);
}

template <class From, class To>
__device__ __forceinline__ void cast(const From *x, To *y, u64 elements) {
    const int stretch = Fours<From>::STRETCH;
    u64 first = ((u64)blockIdx.x * blockDim.x + threadIdx.x) / WARP * stretch;
    if (first >= elements) return;
    int count = elements - first < stretch ? (int)(elements - first) : stretch;
    Fours<From> from = Fours<From>::load(x + first, count);
    Fours<To> to;
#pragma unroll
    for (int k = 0; k < Fours<To>::SIZE; ++k) to.at[k] = rounded<To>(widen(from.at[k]));
    to.store(y + first, count);
}

KERNEL(256) cast_f32_f16(const float *x, f16 *y, u64 elements) { cast(x, y, elements); }
KERNEL(256) cast_f32_bf16(const float *x, bf16 *y, u64 elements) { cast(x, y, elements); }
KERNEL(256) cast_f16_f32(const f16 *x, float *y, u64 elements) { cast(x, y, elements); }
KERNEL(256) cast_f16_bf16(const f16 *x, bf16 *y, u64 elements) { cast(x, y, elements); }
KERNEL(256) cast_bf16_f32(const bf16 *x, float *y, u64 elements) { cast(x, y, elements); }
KERNEL(256) cast_bf16_f16(const bf16 *x, f16 *y, u64 elements) { cast(x, y, elements); }
