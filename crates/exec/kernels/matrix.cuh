// Shared by kernels on tensor cores: asynchronous copies to shared memory, tiles whose rows are in different banks,
// matrices of 8 by 8 numbers of 16 bits in a warp's registers, and their products in single precision. Source: PTX ISA,
// "Matrix fragments for mma.m16n8k16" and "ldmatrix". For T f16 from compute capability 7.5 on, bf16 from 8.0 on;
// before 8.0 copies are synchronous, and a product is two of half the depth.

#pragma once
#include "common.cuh"

// An address in the form of instructions on shared memory.
__device__ __forceinline__ u32 shared_address(const void *p) { return (u32)__cvta_generic_to_shared(p); }

// Copies an even number of bytes, up to 16, to shared memory, followed by zeros. Both addresses are multiples of 16
// bytes.
__device__ __forceinline__ void copy16(u32 to, const void *from, int bytes_there) {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(__cvta_generic_to_global(from)),
                 "r"(bytes_there)
                 : "memory");
#else
    uint4 words = make_uint4(0, 0, 0, 0);
    if (bytes_there == 16) {
        words = *static_cast<const uint4 *>(from);
    } else if (bytes_there) {
        const u16 *numbers = static_cast<const u16 *>(from);
        u32 parts[4] = {};
#pragma unroll
        for (int n = 0; n < 7; ++n)
            if (2 * n < bytes_there) parts[n / 2] |= (u32)numbers[n] << (n % 2 * 16);
        words = make_uint4(parts[0], parts[1], parts[2], parts[3]);
    }
    asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(words.x), "r"(words.y), "r"(words.z),
                 "r"(words.w)
                 : "memory");
#endif
}

// Copies a word to shared memory. Both addresses are multiples of 4 bytes.
__device__ __forceinline__ void copy4(u32 to, const void *from) {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(to), "l"(__cvta_generic_to_global(from)) : "memory");
#else
    asm volatile("st.shared.u32 [%0], %1;" ::"r"(to), "r"(*static_cast<const u32 *>(from)) : "memory");
#endif
}

// A word of shared memory.
__device__ __forceinline__ u32 load_word(u32 address) {
    u32 word;
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(word) : "r"(address) : "memory");
    return word;
}

// Stores a number in shared memory.
__device__ __forceinline__ void put_number(u32 to, float number) {
    asm volatile("st.shared.f32 [%0], %1;" ::"r"(to), "f"(number) : "memory");
}
template <class T>
__device__ __forceinline__ void put_number(u32 to, T number) {
    asm volatile("st.shared.u16 [%0], %1;" ::"r"(to), "h"(number.bits) : "memory");
}

// Ends a group of this thread's copies.
__device__ __forceinline__ void commit_copies() {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

// Waits until all of this thread's groups of copies but the last N have arrived. Others see them after a barrier.
template <int N>
__device__ __forceinline__ void wait_copies() {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
#endif
}

// The address of 8 neighboring numbers of a tile whose rows have a multiple of 128 bytes: the 16-byte pieces of a
// row are permuted by the row's number, so that those of 8 consecutive rows are in different banks. If the tile
// begins at a multiple of `row_bytes`, a power of two, then column + k is at the address of column ^ 2k for k a
// multiple of 16.
__device__ __forceinline__ u32 place(u32 tile, u32 row, u32 column, u32 row_bytes) {
    return tile + row * row_bytes + ((column / 8 ^ row % 8) * 16);
}

// Four matrices of 8 by 8. Lanes 8 m to 8 m + 7 address the rows of matrix m; a lane gets two neighbors of a row.
__device__ __forceinline__ void load_matrices(u32 (&r)[4], u32 address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address)
                 : "memory");
}

// The same, transposed: a lane gets two neighbors of a column.
__device__ __forceinline__ void load_matrices_transposed(u32 (&r)[4], u32 address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address)
                 : "memory");
}

// c (16, 8) += a (16, 16) b (16, 8). c: the lane has columns 2 (lane % 4) and the next of rows lane / 4 and 8 below.
template <class T>
__device__ __forceinline__ void multiply(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1);

#if __CUDA_ARCH__ >= 800
#define MULTIPLY(T)                                                                                                    \
    template <>                                                                                                        \
    __device__ __forceinline__ void multiply<T>(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {                    \
        asm("mma.sync.aligned.m16n8k16.row.col.f32." #T "." #T ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "   \
            "{%0, %1, %2, %3};"                                                                                        \
            : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])                                                           \
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));                                           \
    }
MULTIPLY(f16)
MULTIPLY(bf16)
#undef MULTIPLY

// The same with a (16, 8) and b (8, 8) of TF32: a register has one number.
template <>
__device__ __forceinline__ void multiply<float>(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
#else
template <>
__device__ __forceinline__ void multiply<f16>(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    const u32 b[2] = {b0, b1};
#pragma unroll
    for (int half = 0; half < 2; ++half)
        asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
            : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
            : "r"(a[2 * half]), "r"(a[2 * half + 1]), "r"(b[half]));
}
#endif

// The bits of a number in single precision, rounded to TF32: to nearest, halves away from zero. From compute capability
// 8.0 on.
__device__ __forceinline__ u32 round_to_tf32(u32 bits) {
    u32 rounded;
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(rounded) : "f"(__uint_as_float(bits)));
    return rounded;
}

// Two numbers of 16 bits, rounded to nearest, in a register.
template <class T>
__device__ __forceinline__ u32 pack(float low, float high) {
    return round_to<T>(low).bits | (u32)round_to<T>(high).bits << 16;
}
#if __CUDA_ARCH__ >= 800
template <>
__device__ __forceinline__ u32 pack<f16>(float low, float high) {
    u32 both;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
    return both;
}
template <>
__device__ __forceinline__ u32 pack<bf16>(float low, float high) {
    u32 both;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
    return both;
}
#endif

// Defines the kernels of a template for each type that tensor cores support: `M(suffix of their names, type)`.
#if __CUDA_ARCH__ >= 800
#define FOR_HALVES(M) M(f16, f16) M(bf16, bf16)
#else
#define FOR_HALVES(M) M(f16, f16)
#endif
