// y = x in another precision, rounded to nearest, ties to even. Launched with a thread for each 8 elements.
// Reference: `Cast` of the graph; values are of one precision in src/reference.

#include "common.cuh"

// So many elements that the narrower of two types fills a vector.
#define EACH 8


template <class From, class To>
__device__ __forceinline__ void cast(const From *x, To *y, u64 elements) {
    each_vector<EACH>(elements, [=](u64 i, int count) {
        if (count == EACH) {
            float values[EACH];
#pragma unroll
            for (int p = 0; p < EACH; p += Vector<From>::SIZE) {
                Vector<From> v = Vector<From>::load(x + i + p);
#pragma unroll
                for (int k = 0; k < Vector<From>::SIZE; ++k) values[p + k] = widen(v.at[k]);
            }
#pragma unroll
            for (int p = 0; p < EACH; p += Vector<To>::SIZE) {
                Vector<To> v;
#pragma unroll
                for (int k = 0; k < Vector<To>::SIZE; ++k) v.at[k] = round_to<To>(values[p + k]);
                v.store(y + i + p);
            }
        } else {
#pragma unroll 1
            for (int k = 0; k < count; ++k) y[i + k] = round_to<To>(widen(x[i + k]));
        }
    });
}

KERNEL(256) cast_f32_f16(const float *x, f16 *y, u64 elements) { cast(x, y, elements); }
KERNEL(256) cast_f32_bf16(const float *x, bf16 *y, u64 elements) { cast(x, y, elements); }
KERNEL(256) cast_f16_f32(const f16 *x, float *y, u64 elements) { cast(x, y, elements); }
KERNEL(256) cast_f16_bf16(const f16 *x, bf16 *y, u64 elements) { cast(x, y, elements); }
KERNEL(256) cast_bf16_f32(const bf16 *x, float *y, u64 elements) { cast(x, y, elements); }
KERNEL(256) cast_bf16_f16(const bf16 *x, f16 *y, u64 elements) { cast(x, y, elements); }
