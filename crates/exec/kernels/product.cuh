// c = a b + bias, or c + a b: products on tensor cores, of any extents, strides and alignment, summed in single precision.
// The kernels are product.cu's, of numbers of 16 bits, and product_tf32.cu's. Reference: src/reference/linear.rs.
//
//        columns           A block of 4 warps makes a tile of 64 or 128 squared; each warp a quarter of it. Stretches of
//      +----+----+         64 bytes along the inner extent are copied to shared memory three deep: while one is
// rows | w0 | w1 |         multiplied, the next two are on their way. In shared memory the pieces of 16 bytes of a row
//      +----+----+         change places by the row's number, so that what a warp reads at once lies in different banks.
//      | w2 | w3 |         Blocks along y have a part of the inner extent each: their results lie one behind the other,
//      +----+----+         to be added up by `product_join`.
//
// Shape of tile, warps and stages: CUTLASS' `ampere_h16816gemm_128x128_32x3`.

#pragma once
#include "matrix.cuh"

#define THREADS 128
#define STAGES 3
// Numbers of a copy of 16 bytes, and of a stretch along the inner extent.
#define PIECE (16 / (int)sizeof(T))
#define DEPTH (64 / (int)sizeof(T))
// Rows of tiles that blocks that run together share, so that what they read is still in the cache.
#define GROUP 8

// How a factor lies: with its inner extent closest, or with its outer one.
enum Layout { INNER, OUTER };

// A factor of which tiles go through shared memory.
template <class T, Layout L, int TILE>
struct Factor {
    // Pieces of a row of a tile, and rows that are copied at once.
    static constexpr u32 PIECES = (L == INNER ? DEPTH : TILE) / PIECE, ROWS = THREADS / PIECES;

    const T *from; // This thread's first piece of the tile that is copied next.
    u64 stride;    // Numbers from a row to the next one.
    int rows, columns; // What is left of the factor from that piece on.
    u32 to;            // The piece's place in a tile.
    bool aligned;      // Whether all pieces are at multiples of 16 bytes.

    __device__ __forceinline__ Factor(const void *factor, u64 stride, int first, int outers, int inners) : stride(stride) {
        u32 row = threadIdx.x / PIECES, piece = threadIdx.x % PIECES;
        int first_row = row + (L == INNER ? first : 0), first_column = piece * PIECE + (L == INNER ? 0 : first);
        from = static_cast<const T *>(factor) + first_row * stride + first_column;
        rows = (L == INNER ? outers : inners) - first_row;
        columns = (L == INNER ? inners : outers) - first_column;
        to = place(row, piece);
        aligned = ((u64)factor | stride * sizeof(T)) % 16 == 0;
    }

    // Where a piece of a row of a tile lies in it. It is the same for rows that lie ROWS apart but for whole rows.
    static __device__ __forceinline__ u32 place(u32 row, u32 piece) {
#ifndef BUG_BANK_CONFLICTS
        piece ^= L == INNER ? row / 2 % PIECES : sizeof(T) == 2 ? row % 8 : row % 4 * 2;
#endif
        return (row * PIECES + piece) * PIECE;
    }

    // Begins the copy of the next tile, zeros beyond the ends.
    __device__ __forceinline__ void copy_next(T *tile) {
        const u32 COPIES = TILE * DEPTH / PIECE / THREADS;
        int there = min(max(columns, 0), PIECE);
        tile += to;
        if (aligned) {
#pragma unroll
            for (u32 i = 0; i < COPIES; ++i) {
                int left = (int)(i * ROWS) < rows ? there : 0;
                copy16(shared_address(tile + i * THREADS * PIECE), left ? from + i * ROWS * stride : from,
                       left * (int)sizeof(T));
            }
        } else {
#pragma unroll 1
            for (u32 i = 0; i < COPIES; ++i) {
                int left = (int)(i * ROWS) < rows ? there : 0;
#pragma unroll 1
                for (int n = 0; n < PIECE; ++n)
                    tile[i * THREADS * PIECE + n] = n < left ? from[i * ROWS * stride + n] : T{0};
            }
        }
        from += L == INNER ? DEPTH : DEPTH * stride;
        (L == INNER ? columns : rows) -= DEPTH;
    }

    // Matrices of 16 along the outer extent by 32 bytes along the inner one, `at` from a multiple of 32 along the outer
    // one: as a left factor, halves of the outer extent first; as a right one, halves of the inner extent first.
    template <bool LEFT>
    static __device__ __forceinline__ void load(u32 (&r)[4], const T *tile, u32 outer, u32 at, u32 inner) {
        u32 lane = threadIdx.x % WARP, row = lane % 8, half = lane / 8 % 2, other = lane / 16;
        u32 of_outer = outer + at + (LEFT ? half : other) * 8, of_inner = inner + (LEFT ? other : half) * PIECE;
        if constexpr (L == INNER) {
            load_matrices(r, shared_address(tile + place(of_outer + row, of_inner / PIECE)));
        } else if constexpr (sizeof(T) == 2) {
            load_matrices_transposed(r, shared_address(tile + place(of_inner + row, of_outer / PIECE)));
        } else {
            // No instruction transposes numbers of 32 bits. Where rows change places by `place` they do so by eights.
            const T *own = tile + lane % 4 * TILE + outer + lane / 4;
#pragma unroll
            for (int n = 0; n < 4; ++n) {
                int k = (int)inner + (LEFT ? n / 2 : n % 2) * PIECE, o = (int)at + (LEFT ? n % 2 : n / 2) * 8;
                r[n] = __float_as_uint((own + (o % 32 ^ (int)lane % 4 * 8))[k * TILE + o / 32 * 32]);
            }
        }
        if constexpr (sizeof(T) == 4) {
#pragma unroll
            for (int n = 0; n < 4; ++n) r[n] = round_to_tf32(r[n]);
        }
    }
};

// Where and how a product is written.
struct Result {
    void *to;
    const void *bias;
    u64 stride;
    int rows, columns;
    int number;
    int accumulate;
    float alpha; // What sums of numbers of 32 bits are multiplied by.
};

// Two neighbors at once, which the compiler makes two of now and then.
__device__ __forceinline__ void put_two(u32 to, float first, float second) {
    asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(to), "f"(first), "f"(second) : "memory");
}

// A sum as it is added to the rest: the multiplication is rounded by itself, wherever it stands.
template <class T>
__device__ __forceinline__ float scaled(const Result &result, float sum) {
    return sizeof(T) == 4 ? __fmul_rn(result.alpha, sum) : sum;
}

// Writes as many neighboring sums as make 16 bytes, or what is left of a row, to (row, column) of the result.
template <class T>
__device__ __forceinline__ void finish(const Result &result, const float *sums, int row, int column, int size, bool aligned) {
    int left = min(result.columns - column, size);
    u64 at = row * result.stride + column;
    const T *bias = static_cast<const T *>(result.bias);
    const float4 *fours = reinterpret_cast<const float4 *>(sums);
    if (left == size && aligned && size == 4) {
        float4 *to = reinterpret_cast<float4 *>(static_cast<float *>(result.to) + at);
        float4 four = fours[0];
        float all[4] = {scaled<T>(result, four.x), scaled<T>(result, four.y), scaled<T>(result, four.z),
                        scaled<T>(result, four.w)};
        if (bias) {
#pragma unroll
            for (int n = 0; n < 4; ++n) all[n] += widen(bias[column + n]);
        }
        float4 there = result.accumulate ? *to : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        *to = make_float4(there.x + all[0], there.y + all[1], there.z + all[2], there.w + all[3]);
        return;
    }
    if constexpr (sizeof(T) == 2) {
        if (left == size && aligned && !result.accumulate) {
            // Each second group of 4 lanes begins with the other half, so that 8 lanes read from different banks.
            bool flip = threadIdx.x / 4 % 2;
            float4 first = fours[flip], second = fours[!flip], low = flip ? second : first, high = flip ? first : second;
            float all[PIECE] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
            if (bias) {
#pragma unroll
                for (int n = 0; n < PIECE; ++n) all[n] += widen(bias[column + n]);
            }
            *reinterpret_cast<uint4 *>(static_cast<T *>(result.to) + at) = make_uint4(
                pack<T>(all[0], all[1]), pack<T>(all[2], all[3]), pack<T>(all[4], all[5]), pack<T>(all[6], all[7]));
            return;
        }
    }
#pragma unroll 1
    for (int n = 0; n < left; ++n) {
        float sum = scaled<T>(result, sums[n]) + (bias ? widen(bias[column + n]) : 0.0f);
        if (result.accumulate) sum += number_at(result.to, at + n, result.number);
        set_number(result.to, at + n, sum, result.number);
    }
}

// `each`: numbers of a part of the inner extent, a multiple of vectors.
template <class T, Layout LA, Layout LB, int TILE>
__device__ __forceinline__ void product(const void *a, const void *b, Result result, int inners, int each, u64 stride_a,
                                        u64 stride_b) {
    const int SIDE = TILE / 2, SLABS = SIDE / 16, STRIPS = SIDE / 8, STAGED = SIDE + 8;
    __shared__ __align__(16) T tiles[STAGES][2][TILE * DEPTH];
    static_assert(sizeof(tiles) >= 4 * 16 * STAGED * sizeof(float), "results go by way of the tiles");
    // Blocks with neighboring numbers have a group of rows of tiles together.
    int across = (result.columns + TILE - 1) / TILE, down = (result.rows + TILE - 1) / TILE;
    int group = blockIdx.x / (GROUP * across), high = min(down - group * GROUP, GROUP);
    int in_group = blockIdx.x % (GROUP * across);
    int first_row = (group * GROUP + in_group % high) * TILE, first_column = in_group / high * TILE;
    u64 part = blockIdx.y, first_inner = part * each;
    inners = min(inners - (int)first_inner, each);
    a = static_cast<const T *>(a) + first_inner * (LA == INNER ? 1 : stride_a);
    b = static_cast<const T *>(b) + first_inner * (LB == INNER ? 1 : stride_b);
    result.to = static_cast<float *>(result.to) + part * result.rows * result.stride;
    Factor<T, LA, TILE> left(a, stride_a, first_row, result.rows, inners);
    Factor<T, LB, TILE> right(b, stride_b, first_column, result.columns, inners);

    u32 lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    u32 warp_row = warp / 2 * SIDE, warp_column = warp % 2 * SIDE;
    float sums[SLABS][STRIPS][4] = {};
    int steps = (inners + DEPTH - 1) / DEPTH;
    // Tiles that are multiplied and copied next.
    int now = 0, next = 0;
    // As many steps as tiles are on their way at once do nothing but copy.
    int step = 1 - STAGES;
#pragma unroll 1
    do {
        if (step >= 0) {
#ifndef BUG_NO_WAIT
            wait_copies<STAGES - 2>();
#endif
#ifndef BUG_NO_BARRIER
            __syncthreads(); // the tiles are there, and nobody reads those that are copied over next
#endif
        }
        if (step + STAGES - 1 < steps) {
            left.copy_next(tiles[next][0]);
            right.copy_next(tiles[next][1]);
            next = next == STAGES - 1 ? 0 : next + 1;
        }
        commit_copies();
        if (step < 0) continue;
        const T *tile_a = tiles[now][0], *tile_b = tiles[now][1];
        now = now == STAGES - 1 ? 0 : now + 1;
#pragma unroll
        for (u32 inner = 0; inner < DEPTH; inner += 2 * PIECE) {
            u32 of_a[SLABS][4], of_b[STRIPS / 2][4];
#pragma unroll
            for (int i = 0; i < SLABS; ++i) left.template load<true>(of_a[i], tile_a, warp_row, i * 16, inner);
#pragma unroll
            for (int j = 0; j < STRIPS / 2; ++j)
                right.template load<false>(of_b[j], tile_b, warp_column, j * 16, inner);
#pragma unroll
            for (int i = 0; i < SLABS; ++i)
#pragma unroll
                for (int j = 0; j < STRIPS; ++j)
                    multiply<T>(sums[i][j], of_a[i], of_b[j / 2][j % 2 * 2], of_b[j / 2][j % 2 * 2 + 1]);
        }
    } while (++step < steps);
    wait_copies<0>();
    __syncthreads(); // before results are laid over the tiles
    // By way of shared memory, 16 rows of each warp at a time, so that what lies together is written together.
    float *staged = reinterpret_cast<float *>(tiles) + warp * 16 * STAGED;
    int size = result.number == F32 ? 4 : PIECE; // sums that make 16 bytes
    bool aligned = ((u64)result.to | result.stride * (16 / size)) % 16 == 0;
#pragma unroll 1
    for (int slab = 0; slab < SLABS; ++slab) {
        u32 to = shared_address(staged + lane / 4 * STAGED + lane % 4 * 2);
#pragma unroll
        for (int i = 0; i < SLABS; ++i) {
            if (i != slab) continue;
#pragma unroll
            for (int j = 0; j < STRIPS; ++j) {
                put_two(to + j * 8 * sizeof(float), sums[i][j][0], sums[i][j][1]);
                put_two(to + (j * 8 + 8 * STAGED) * sizeof(float), sums[i][j][2], sums[i][j][3]);
            }
        }
        __syncwarp();
#pragma unroll 1
        for (u32 at = lane * size; at < 16 * SIDE; at += WARP * size) {
            u32 row = at / SIDE, column = at % SIDE;
            int to_row = first_row + warp_row + slab * 16 + row, to_column = first_column + warp_column + column;
            if (to_row < result.rows && to_column < result.columns)
                finish<T>(result, staged + row * STAGED + column, to_row, to_column, size, aligned);
        }
        __syncwarp();
    }
}
