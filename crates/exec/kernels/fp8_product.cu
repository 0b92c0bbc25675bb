// Products of numbers of 8 bits on tensor cores, from compute capability 8.9 on. How: product.cuh. Each row of both factors has
// the terms of a sum; `scale_a` and `scale_b` are the numbers that the factors' codes are multiplied by.

#if __CUDA_ARCH__ >= 890

#include "product.cuh"

// The types of both factors' numbers.
struct e4m3_e4m3 {
    unsigned char bits;
};
struct e4m3_e5m2 {
    unsigned char bits;
};
struct e5m2_e4m3 {
    unsigned char bits;
};

#define MULTIPLY(A, B)                                                                                                 \
    template <>                                                                                                        \
    __device__ __forceinline__ void multiply<A##_##B>(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {              \
        asm("mma.sync.aligned.m16n8k32.row.col.f32." #A "." #B ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "   \
            "{%0, %1, %2, %3};"                                                                                        \
            : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])                                                           \
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));                                           \
    }
MULTIPLY(e4m3, e4m3)
MULTIPLY(e4m3, e5m2)
MULTIPLY(e5m2, e4m3)

// bias, a number per column in the result's type, is null if there is none.
#define OF(T, TILE)                                                                                                    \
    KERNEL(THREADS) product_nt_##T##_##TILE(const void *a, const void *b, void *c, const void *bias,                      \
                                         const float *scale_a, const float *scale_b, int rows, int columns,            \
                                         int inners, int each, u64 stride_a, u64 stride_b, u64 stride_c,               \
                                         int number_c, int accumulate) {                                               \
        product<T, INNER, INNER, TILE>(a, b, {c, bias, stride_c, rows, columns, number_c, accumulate,                  \
                                              *scale_a * *scale_b},                                                    \
                                       inners, each, stride_a, stride_b);                                              \
    }
#define OF_TILES(T) OF(T, 64) OF(T, 128)
OF_TILES(e4m3_e4m3)
OF_TILES(e4m3_e5m2)
OF_TILES(e5m2_e4m3)

#endif
