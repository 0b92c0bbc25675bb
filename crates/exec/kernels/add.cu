// y = a + b, element by element. Launched with a thread for each vector of 16 bytes. y may take the place of a or b.
// Reference: src/reference/add.rs.

#include "common.cuh"

template <class T>
__device__ __forceinline__ void add(const T *a, const T *b, T *y, u64 elements) {
    each_vector<Vector<T>::SIZE>(elements, [=](u64 i, int count) {
        if (count == Vector<T>::SIZE) {
            Vector<T> va = Vector<T>::load(a + i), vb = Vector<T>::load(b + i), vy;
#pragma unroll
            for (int k = 0; k < Vector<T>::SIZE; ++k) vy.at[k] = round_to<T>(widen(va.at[k]) + widen(vb.at[k]));
            vy.store(y + i);
        } else {
#pragma unroll 1
            for (int k = 0; k < count; ++k) y[i + k] = round_to<T>(widen(a[i + k]) + widen(b[i + k]));
        }
    });
}

KERNEL(256) add_f32(const float *a, const float *b, float *y, u64 elements) { add(a, b, y, elements); }
KERNEL(256) add_f16(const f16 *a, const f16 *b, f16 *y, u64 elements) { add(a, b, y, elements); }
KERNEL(256) add_bf16(const bf16 *a, const bf16 *b, bf16 *y, u64 elements) { add(a, b, y, elements); }
