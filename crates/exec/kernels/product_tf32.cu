// c = alpha · a b + bias, or added to c: products of numbers in single precision, rounded to TF32 (10 stored bits,
// halves away from zero) before they are multiplied, on tensor cores of compute capability 8.0 and newer. How:
// product.cuh.

#include "product.cuh"

#if __CUDA_ARCH__ >= 800
// bias is null if there is none, scalars if alpha is one. Names contain the factors' layouts: n for (rows, inner) and
// (inner, columns), t for the transposed ones.
#define OF(name, LA, LB, TILE)                                                                                         \
    KERNEL(THREADS) product_##name##_tf32_##TILE(const void *a, const void *b, void *c, const void *bias,              \
                                                 const Scalars *scalars, int rows, int columns, int inners, int each,  \
                                                 u64 stride_a, u64 stride_b, u64 stride_c, int accumulate) {           \
        float alpha = scalars ? scalars->loss_scale * scalars->gradient_scale : 1.0f;                                  \
        product<float, LA, LB, TILE>(a, b, {c, bias, stride_c, rows, columns, F32, accumulate, alpha}, inners,         \
                                     each, stride_a, stride_b);                                                              \
    }
OF(nn, INNER, OUTER, 64)
OF(nn, INNER, OUTER, 128)
OF(nt, INNER, INNER, 64)
OF(nt, INNER, INNER, 128)
OF(tn, OUTER, OUTER, 64)
OF(tn, OUTER, OUTER, 128)
#endif
