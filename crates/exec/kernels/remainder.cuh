// Weights in bf16 and their 16-bit remainders, as in src/cpu/remainder.rs, which has a drawing of them.

#pragma once

#include "common.cuh"

__device__ __forceinline__ float joined(bf16 weight, short remainder) {
    return __uint_as_float(((u32)weight.bits << 16) + (u32)(int)remainder);
}

// The nearest weight, with ties away from zero. Rounding up could turn NaN into zero.
__device__ __forceinline__ bf16 rounded_weight(float x) {
    u32 bits = __float_as_uint(x);
    return {(u16)(x != x ? bits >> 16 | 0x40 : (bits + 0x8000) >> 16)};
}

__device__ __forceinline__ short remainder_of(float x) { return x != x ? 0 : (short)__float_as_uint(x); }
