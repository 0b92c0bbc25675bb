// Products of experts on tensor cores: those of product.cuh, for the rows of each expert. expert_product.cu has the
// kernels for numbers of 16 bits, expert_product_tf32.cu those for TF32. Rows are contiguous. Reference:
// src/reference/expert_linear.rs.

#pragma once
#include "experts.cuh"
#include "product.cuh"

// c = a b + bias for the rows of each expert, of which b has a matrix and bias, unless null, a row.
template <class T, Layout LB, int TILE>
__device__ __forceinline__ void of_rows(const void *a, const void *b, void *c, const void *bias, const int *bounds,
                                        int experts, int columns, int inners, int number) {
    int across = (columns + TILE - 1) / TILE, first_column = blockIdx.x % across * TILE;
    ExpertRows own = rows_of_tile<TILE>(bounds, experts, blockIdx.x / across);
    if (own.rows == 0) return;
    a = static_cast<const T *>(a) + (u64)own.start * inners;
    b = static_cast<const T *>(b) + (u64)own.expert * columns * inners;
    c = static_cast<T *>(c) + (u64)own.start * columns;
    if (bias) bias = static_cast<const T *>(bias) + (u64)own.expert * columns;
    product_tile<T, INNER, LB, TILE>(a, b, {c, bias, (u64)columns, own.rows, columns, number, 0, 1.0f}, own.first_row,
                                     first_column, inners, inners, LB == INNER ? inners : columns);
}

// c = aᵀ b over the rows of each expert, which is blockIdx.y, or added to c, which has a matrix in single precision for
// each expert.
template <class T, int TILE>
__device__ __forceinline__ void over_rows(const void *a, const void *b, float *c, const int *bounds, int rows,
                                          int columns, int accumulate) {
    u64 expert = blockIdx.y;
    int across = (columns + TILE - 1) / TILE, start = bounds[expert], inners = bounds[expert + 1] - start;
    a = static_cast<const T *>(a) + (u64)start * rows;
    b = static_cast<const T *>(b) + (u64)start * columns;
    Result result{c + expert * rows * columns, nullptr, (u64)columns, rows, columns, F32, accumulate, 1.0f};
    product_tile<T, OUTER, OUTER, TILE>(a, b, result, blockIdx.x / across * TILE, blockIdx.x % across * TILE, inners,
                                        rows, columns);
}

// Kernels of a type and a tile. Names contain the factors' layouts: n for (rows, inner) and (inner, columns), t for the
// transposed ones.
#define OF(suffix, T, TILE)                                                                                            \
    KERNEL(THREADS) experts_nn_##suffix##_##TILE(const void *a, const void *b, void *c, const void *bias,              \
                                                 const int *bounds, int experts, int columns, int inners,              \
                                                 int number) {                                                         \
        of_rows<T, OUTER, TILE>(a, b, c, bias, bounds, experts, columns, inners, number);                              \
    }                                                                                                                  \
    KERNEL(THREADS) experts_nt_##suffix##_##TILE(const void *a, const void *b, void *c, const void *bias,              \
                                                 const int *bounds, int experts, int columns, int inners,              \
                                                 int number) {                                                         \
        of_rows<T, INNER, TILE>(a, b, c, bias, bounds, experts, columns, inners, number);                              \
    }                                                                                                                  \
    KERNEL(THREADS) experts_tn_##suffix##_##TILE(const void *a, const void *b, float *c, const int *bounds, int rows,  \
                                                 int columns, int accumulate) {                                        \
        over_rows<T, TILE>(a, b, c, bounds, rows, columns, accumulate);                                                \
    }
