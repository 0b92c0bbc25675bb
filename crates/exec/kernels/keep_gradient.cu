// kept = gradient, or kept + gradient, rounded stochastically. Launched with a thread for each 8 elements. Reference:
// src/reference/keep_gradient.rs.

#include "rounding.cuh"

KERNEL(256) keep_gradient(const float *gradient, bf16 *kept, const Scalars *scalars, u64 elements, int accumulate,
                          u32 site) {
    const int stretch = Fours<float>::STRETCH;
    u64 number = ((u64)blockIdx.x * blockDim.x + threadIdx.x) / WARP, first = number * stretch;
    // Whole warps return.
    if (first >= elements) return;
    int count = elements - first < stretch ? (int)(elements - first) : stretch;
    Fours<float> sum = Fours<float>::load(gradient + first, count);
    if (accumulate) {
        Fours<bf16> before = Fours<bf16>::load(kept + first, count);
#pragma unroll
        for (int k = 0; k < Fours<float>::SIZE; ++k) sum.at[k] += widen(before.at[k]);
    }
    u64 sample = scalars->first_sample;
    uint3 rest = make_uint3(site, (u32)sample, (u32)(sample >> 32));
    rounded_at_random(sum, lane_bits(number, rest, step_key(scalars, GRADIENT))).store(kept + first, count);
}
