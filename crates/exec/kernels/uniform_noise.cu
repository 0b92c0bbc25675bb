// y = x + factor · u, where u is a random signed word. x: (samples, elements of a sample). y may overwrite x. Launched with
// a thread for each four elements that share a draw. Reference: src/reference/uniform_noise.rs.

#include "philox.cuh"

template <class T>
__device__ __forceinline__ void uniform_noise(const T *x, T *y, const Scalars *scalars, u64 samples, u64 per_sample,
                                              u32 site, float factor) {
    u64 quads = (per_sample + 3) / 4, at = (u64)blockIdx.x * blockDim.x + threadIdx.x;
    if (at >= samples * quads) return;
    u64 sample = at / quads, quad = at - sample * quads;
    uint4 words = dropout_bits(scalars, scalars->first_sample + sample, site, (u32)quad);
    float noise[4] = {factor * (int)words.x, factor * (int)words.y, factor * (int)words.z, factor * (int)words.w};
    u64 first = sample * per_sample + 4 * quad;
    int count = per_sample - 4 * quad < 4 ? (int)(per_sample - 4 * quad) : 4;
    if (per_sample % 4 == 0) {
        Vector<T, 4> four = Vector<T, 4>::load(x + first);
#pragma unroll
        for (int k = 0; k < 4; ++k) four.at[k] = round_to<T>(widen(four.at[k]) + noise[k]);
        four.store(y + first);
    } else {
#pragma unroll
        for (int k = 0; k < 4; ++k)
            if (k < count) y[first + k] = round_to<T>(widen(x[first + k]) + noise[k]);
    }
}

#define KERNELS(suffix, T)                                                                                             \
    KERNEL(256) uniform_noise_##suffix(const T *x, T *y, const Scalars *scalars, u64 samples, u64 per_sample,          \
                                       u32 site, float factor) {                                                       \
        uniform_noise(x, y, scalars, samples, per_sample, site, factor);                                               \
    }
FOR_FLOATS(KERNELS)
