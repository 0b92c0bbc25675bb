// y = x · keep / (1 - rate). x: (samples, elements of a sample). y may overwrite x. Launched with a thread for each
// four elements that share a draw. Reference: src/reference/dropout.rs.

#include "philox.cuh"

template <class T>
__device__ __forceinline__ void dropout(const T *x, T *y, const Scalars *scalars, u64 samples, u64 per_sample,
                                        u32 site, u32 threshold, float scale) {
    u64 quads = (per_sample + 3) / 4, at = (u64)blockIdx.x * blockDim.x + threadIdx.x;
    if (at >= samples * quads) return;
    u64 sample = at / quads, quad = at - sample * quads;
    uint4 words = dropout_bits(scalars, scalars->first_sample + sample, site, (u32)quad);
    float factors[4] = {words.x >= threshold ? scale : 0.0f, words.y >= threshold ? scale : 0.0f,
                        words.z >= threshold ? scale : 0.0f, words.w >= threshold ? scale : 0.0f};
    u64 first = sample * per_sample + 4 * quad;
    int count = per_sample - 4 * quad < 4 ? (int)(per_sample - 4 * quad) : 4;
    if (per_sample % 4 == 0) {
        Vector<T, 4> four = Vector<T, 4>::load(x + first);
#pragma unroll
        for (int k = 0; k < 4; ++k)
            four.at[k] = round_to<T>(factors[k] == 0.0f ? 0.0f : widen(four.at[k]) * factors[k]);
        four.store(y + first);
    } else {
#pragma unroll
        for (int k = 0; k < 4; ++k)
            if (k < count) y[first + k] = round_to<T>(factors[k] == 0.0f ? 0.0f : widen(x[first + k]) * factors[k]);
    }
}

#define KERNELS(suffix, T)                                                                                             \
    KERNEL(256) dropout_##suffix(const T *x, T *y, const Scalars *scalars, u64 samples, u64 per_sample, u32 site,      \
                                 u32 threshold, float scale) {                                                         \
        dropout(x, y, scalars, samples, per_sample, site, threshold, scale);                                           \
    }
FOR_FLOATS(KERNELS)
