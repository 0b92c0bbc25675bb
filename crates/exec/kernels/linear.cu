// c = alpha · a b + bias, or added to c: the products of linear layers, of their gradients and of output heads, of any
// extents and alignment, in single precision. How: linear.cuh. On tensor cores: product.cu, product_tf32.cu.

#include "linear.cuh"

// bias is null if there is none, scalars if alpha is one. Names contain the factors' layouts: n for (rows, inner) and
// (inner, columns), t for the transposed ones. With the larger tile everything is in single precision, and factors'
// addresses, rows and extents are multiples of EACH numbers.
#define OF(name, LA, LB, TILE, BLOCKS)                                                                                 \
    extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) product_##name##_##TILE(                             \
        const void *a, const void *b, void *c, const void *bias, const Scalars *scalars, int rows, int columns,        \
        int inners, int each, u64 stride_a, u64 stride_b, u64 stride_c, int number_a, int number_b, int number_c,      \
        int accumulate) {                                                                                              \
        float alpha = scalars ? scalars->loss_scale * scalars->gradient_scale : 1.0f;                                  \
        bool is_any = TILE == 64;                                                                                      \
        Result result{c,          bias, stride_c, rows, columns, is_any ? number_c : F32, is_any ? number_b : F32,     \
                      accumulate, alpha};                                                                              \
        product<LA, LB, TILE>(a, b, result, inners, each, stride_a, stride_b, number_a, number_b);                     \
    }
#define OF_TILES(name, LA, LB) OF(name, LA, LB, 64, 3) OF(name, LA, LB, 128, 2)
OF_TILES(nn, INNER, OUTER)
OF_TILES(nt, INNER, INNER)
OF_TILES(tn, OUTER, OUTER)

// c = alpha · the sum of the parts + bias, or added to c. parts: (count, rows, columns), which are summed in their
// order. A thread for each EACH results.
KERNEL(THREADS) product_join(const float *parts, void *c, const void *bias, const Scalars *scalars, int count, int rows,
                             int columns, u64 stride_c, int number_c, int number_bias, int accumulate) {
    u64 results = (u64)rows * columns, first = ((u64)blockIdx.x * THREADS + threadIdx.x) * EACH;
    if (first >= results) return;
    float alpha = scalars ? scalars->loss_scale * scalars->gradient_scale : 1.0f, sums[EACH] = {};
    int left = results - first < EACH ? (int)(results - first) : EACH;
    bool vectors = results % EACH == 0;
#pragma unroll 1
    for (int part = 0; part < count; ++part) {
        const float *from = parts + part * results + first;
        if (vectors) {
            float4 four = *reinterpret_cast<const float4 *>(from);
            sums[0] += four.x, sums[1] += four.y, sums[2] += four.z, sums[3] += four.w;
        } else {
#pragma unroll
            for (int i = 0; i < EACH; ++i) sums[i] += i < left ? from[i] : 0.0f;
        }
    }
    Result result{c, bias, stride_c, rows, columns, number_c, number_bias, accumulate, alpha};
    int row = (int)(first / columns), column = (int)(first % columns);
    if (columns % EACH == 0) {
        result.write(sums, row, column, aligned(c, stride_c, F32));
        return;
    }
#pragma unroll 1
    for (int i = 0; i < left; ++i) {
        result.write(nth(sums, i), row * stride_c + column, column);
        if (++column == columns) column = 0, ++row;
    }
}
