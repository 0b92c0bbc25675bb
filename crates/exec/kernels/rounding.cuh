// Stochastic rounding to bf16 by a warp: the same random bits as src/cpu/rounding.rs.

#pragma once

#include "philox.cuh"

// Random bits for a lane's elements of stretch `number` of a tensor. Eight neighbors, which two lanes have, share a draw: of
// each pair the even lane draws for the first fours of both, the odd one for the second. `rest`: the counter after the
// number of the eight.
__device__ __forceinline__ uint4 lane_bits(u64 number, uint3 rest, uint2 key) {
    const int eights = Fours<float>::STRETCH / 8;
    u32 lane = threadIdx.x % WARP, odd = lane % 2, eight = (u32)number * eights + odd * (WARP / 2) + lane / 2;
    uint4 words = philox(make_uint4(eight, rest.x, rest.y, rest.z), key);
    u32 one = __shfl_xor_sync(ALL_LANES, odd ? words.x : words.z, 1);
    u32 other = __shfl_xor_sync(ALL_LANES, odd ? words.y : words.w, 1);
    return odd ? make_uint4(one, other, words.z, words.w) : make_uint4(words.x, words.y, one, other);
}

// One of the two nearest values, chosen at random so that the mean is exact.
__device__ __forceinline__ bf16 round_at_random(float x, u32 random) {
    u32 word = __float_as_uint(x);
    if (!isfinite(x)) return {(u16)(word >> 16 | (x != x ? 1 : 0))};
    return {(u16)((word + (random & 0xffff)) >> 16)};
}

__device__ __forceinline__ Fours<bf16> rounded_at_random(const Fours<float> &values, uint4 words) {
    u32 each[4] = {words.x, words.y, words.z, words.w};
    Fours<bf16> some;
#pragma unroll
    for (int k = 0; k < Fours<float>::SIZE; ++k)
        some.at[k] = round_at_random(values.at[k], each[k / 2] >> 16 * (k % 2));
    return some;
}
