// Philox4x32-10: the same random bits as src/philox.rs.
// Source: Salmon, Moraes, Dror & Shaw 2011, "Parallel random numbers: as easy as 1, 2, 3", section 4.

#pragma once
#include "common.cuh"

__device__ __forceinline__ uint4 philox(uint4 counter, uint2 key) {
#pragma unroll
    for (int round = 0; round < 10; ++round) {
        u32 high0 = __umulhi(0xD2511F53u, counter.x), low0 = 0xD2511F53u * counter.x;
        u32 high1 = __umulhi(0xCD9E8D57u, counter.z), low1 = 0xCD9E8D57u * counter.z;
        counter = make_uint4(high1 ^ counter.y ^ key.x, low1, high0 ^ counter.w ^ key.y, low0);
        key.x += 0x9E3779B9u;
        key.y += 0xBB67AE85u;
    }
    return counter;
}

// What random words of a step are for.
#define DROPOUT 0xD80Fu
#define GRADIENT 0x6AD5u

__device__ __forceinline__ uint2 step_key(const Scalars *scalars, u32 purpose) {
    u32 step = (u32)scalars->step;
    return make_uint2((u32)scalars->seed ^ __funnelshift_l(step, step, 16),
                      (u32)(scalars->seed >> 32) ^ step ^ purpose);
}

// The random words for elements 4 · quad to 4 · quad + 3 of a sample at a dropout site.
__device__ __forceinline__ uint4 dropout_bits(const Scalars *scalars, u64 sample, u32 site, u32 quad) {
    uint2 key = step_key(scalars, DROPOUT);
    return philox(make_uint4(quad, site, (u32)sample, (u32)(sample >> 32)), key);
}
