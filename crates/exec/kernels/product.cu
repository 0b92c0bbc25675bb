// Products of numbers of 16 bits on tensor cores. How: product.cuh. TF32: product_tf32.cu. Single precision: linear.cu.

#include "product.cuh"

// bias, a number per column in the factors' type, is null if there is none. Names contain the factors' layouts: n for
// (rows, inner) and (inner, columns), t for the transposed ones.
#define OF(name, T, LA, LB, TILE)                                                                                      \
    KERNEL(THREADS) product_##name(const void *a, const void *b, void *c, const void *bias, int rows, int columns,     \
                                   int inners, int each, u64 stride_a, u64 stride_b, u64 stride_c, int number_c,       \
                                   int accumulate) {                                                                   \
        product<T, LA, LB, TILE>(a, b, {c, bias, stride_c, rows, columns, number_c, accumulate, 1.0f}, inners, each,   \
                                 stride_a, stride_b);                                                                  \
    }
#define OF_TILES(name, T, LA, LB) OF(name##_64, T, LA, LB, 64) OF(name##_128, T, LA, LB, 128)
#define OF_TYPE(suffix, T)                                                                                             \
    OF_TILES(nn_##suffix, T, INNER, OUTER)                                                                             \
    OF_TILES(nt_##suffix, T, INNER, INNER)                                                                             \
    OF_TILES(tn_##suffix, T, OUTER, OUTER)

OF_TYPE(f16, f16)
#if __CUDA_ARCH__ >= 800
OF_TYPE(bf16, bf16)
#endif
