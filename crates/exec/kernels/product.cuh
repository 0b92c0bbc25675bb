// c = a b + bias, or c + a b: products on tensor cores, of any extents, strides and alignment, summed in single
// precision. product.cu has the kernels for numbers of 16 bits, product_tf32.cu those for TF32, fp8_product.cu those for
// numbers of 8 bits, expert_product.cu and expert_product_tf32.cu those for experts. Reference: src/reference/linear.rs.
//
//        columns           A block of 4 warps computes a tile of 64 or 128 squared; each warp a quarter of it. Stretches
//      +----+----+         of 64 bytes along the inner extent are copied to shared memory three deep: while one is
// rows | w0 | w1 |         multiplied, the next two are on their way. In shared memory the pieces of 16 bytes of a row
//      +----+----+         are permuted by the row's number, so that a warp's reads are from different banks.
//      | w2 | w3 |         Blocks along y have a part of the inner extent each: their results are consecutive,
//      +----+----+         to be added up by `product_join`.
//
// A stretch is two steps of 32 bytes. While a warp multiplies the matrices of a step, it loads those of the next into
// other registers, so that tensor cores wait for shared memory only at the first step. The loop has no branch, so that
// the assembler may interleave matrices, copies and products of a step.
//
// Shape of tile, warps, stages and registers: CUTLASS' `ampere_h16816gemm_128x128_32x3`, and its `MmaMultistage`.

#pragma once
#include "matrix.cuh"

#define THREADS 128
// Stages of stretches. If copies are synchronous, two stages allow twice as many blocks.
#if __CUDA_ARCH__ >= 800
#define STAGES 3
#else
#define STAGES 2
#endif
// Bytes of a stretch, and of a step, which an instruction multiplies.
#define DEPTH_BYTES 64
#define STEPS (DEPTH_BYTES / 32)
// Numbers of a copy of 16 bytes, and of a stretch along the inner extent.
#define PIECE (16 / (int)sizeof(T))
#define DEPTH (DEPTH_BYTES / (int)sizeof(T))
// Rows of tiles shared by blocks that run together, so that their data is still in the cache.
#define GROUP 8

// The layout of a factor: contiguous along its inner or its outer extent.
enum Layout { INNER, OUTER };

// The largest tile for factors of any alignment. Larger ones need rows aligned to 16 bytes.
#define ANYWHERE 64

// A factor whose tiles go through shared memory. Addresses and offsets there are in bytes.
template <class T, Layout L, int TILE>
struct Factor {
    // Pieces of a row of a tile, rows that are copied at once, and copies of a thread.
    static constexpr u32 ROW_BYTES = L == INNER ? DEPTH_BYTES : TILE * sizeof(T), PIECES = ROW_BYTES / 16;
    static constexpr u32 ROWS = THREADS / PIECES, COPIES = TILE * DEPTH_BYTES / 16 / THREADS;

    const char *from; // This thread's first piece of the next tile.
    u64 row_bytes;    // From a row to the next one.
    int rows, columns; // The rest of the factor from that piece on.
    u32 to;            // The piece's offset in a tile.
    u32 own;           // The offset of this lane's row of its warp's first matrices.
    bool aligned;      // Whether all pieces are aligned to 16 bytes.

    // `first`: the start of the block's tile along the outer extent; `outer`: the start of the warp's part within the
    // tile.
    __device__ __forceinline__ Factor(const void *factor, u64 stride, int first, int outers, int inners, u32 outer,
                                      bool is_left)
        : row_bytes(stride * sizeof(T)) {
        u32 row = threadIdx.x / PIECES, piece = threadIdx.x % PIECES;
        int first_row = row + (L == INNER ? first : 0), first_column = piece * PIECE + (L == INNER ? 0 : first);
        from = static_cast<const char *>(factor) + first_row * row_bytes + first_column * sizeof(T);
        rows = (L == INNER ? outers : inners) - first_row;
        columns = (L == INNER ? inners : outers) - first_column;
        to = place(row, piece);
        // Numbers of 8 bits are in scratch, in rows of whole vectors.
        aligned = TILE > ANYWHERE || sizeof(T) == 1 || ((u64)factor | row_bytes) % 16 == 0;
        // A left factor's matrices are ordered by halves of the outer extent first, a right one's by the inner extent.
        u32 lane = threadIdx.x % WARP, half = lane / 8 % 2, other = lane / 16;
        u32 of_outer = is_left ? half : other, of_inner = is_left ? other : half;
        if (L == INNER)
            own = place(outer + of_outer * 8 + lane % 8, of_inner);
        else if (sizeof(T) == 2)
            own = place(of_inner * 8 + lane % 8, outer / PIECE + of_outer);
        else
            own = place(lane % 4, outer / PIECE) + lane / 4 * sizeof(T);
    }

    // The offset of a piece of a row in a tile. Rows at distances of ROWS differ only by whole rows.
    static __device__ __forceinline__ u32 place(u32 row, u32 piece) {
#ifndef BUG_BANK_CONFLICTS
        piece ^= L == INNER ? row / 2 % PIECES : sizeof(T) == 2 ? row % 8 : row % 4 * 2;
#endif
        return row * ROW_BYTES + piece * 16;
    }

    // Starts `count` of this thread's copies of the next tile from number `i` on, with zeros after the ends.
    __device__ __forceinline__ void copy(u32 tile, u32 i, u32 count) const {
#pragma unroll
        for (u32 end = i + count; i < end; ++i) {
            int there = (int)(i * ROWS) < rows ? min(max(columns, 0), PIECE) : 0;
            const char *piece = from + i * ROWS * row_bytes;
            u32 at = tile + to + i * THREADS * 16;
            if (aligned) {
                copy16(at, piece, there * (int)sizeof(T));
                continue;
            }
            if constexpr (sizeof(T) > 1) {
#pragma unroll 1
                for (int n = 0; n < PIECE; ++n)
                    put_number(at + n * sizeof(T), n < there ? reinterpret_cast<const T *>(piece)[n] : T{0});
            }
        }
    }

    // Moves on to the next stretch.
    __device__ __forceinline__ void advance() {
        from += L == INNER ? DEPTH_BYTES : DEPTH * row_bytes;
        (L == INNER ? columns : rows) -= DEPTH;
    }

    // Matrices of 16 along the outer extent, the `i`th of the warp's, by 32 bytes along the inner one, of step `k`.
    template <bool LEFT>
    __device__ __forceinline__ void load(u32 (&r)[4], u32 tile, u32 i, u32 k) const {
        if constexpr (L == INNER) {
            load_matrices(r, tile + (own ^ k * 32) + i * 16 * ROW_BYTES);
        } else if constexpr (sizeof(T) == 2) {
            load_matrices_transposed(r, tile + (own ^ i * 32) + k * 16 * ROW_BYTES);
        } else {
            // No instruction transposes numbers of 32 bits. `place` permutes rows by eights.
#pragma unroll
            for (u32 n = 0; n < 4; ++n) {
                u32 inner = k * 2 * PIECE + (LEFT ? n / 2 : n % 2) * PIECE, outer = i * 16 + (LEFT ? n % 2 : n / 2) * 8;
                r[n] = load_word(tile + (own ^ outer % 32 * 4) + outer / 32 * 128 + inner * ROW_BYTES);
            }
        }
    }
};

// Matrices loaded from shared memory, ready for the product.
template <class T>
__device__ __forceinline__ void prepare(u32 (&r)[4]) {
    if constexpr (sizeof(T) == 4) {
#pragma unroll
        for (int n = 0; n < 4; ++n) r[n] = round_to_tf32(r[n]);
    }
}

// The destination of a product.
struct Result {
    void *to;
    const void *bias; // Of the result's type.
    u64 stride;
    int rows, columns;
    int number;
    int accumulate;
    float alpha; // Factor of sums of numbers of 32 or 8 bits.
};

// Two neighbors by one instruction, which the compiler may split.
__device__ __forceinline__ void put_two(u32 to, float first, float second) {
    asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(to), "f"(first), "f"(second) : "memory");
}

// A sum as it is added to the rest: the multiplication is always rounded separately.
template <class T>
__device__ __forceinline__ float scaled(const Result &result, float sum) {
    return sizeof(T) == 2 ? sum : __fmul_rn(result.alpha, sum);
}

// Numbers of 16 bits in a vector.
#define EIGHT 8

// Two results in half precision: in the factors' type, or in the named one if factors have 8 bits.
template <class T>
__device__ __forceinline__ u32 two_halves(float low, float high, int number) {
    if constexpr (sizeof(T) == 2)
        return pack<T>(low, high);
    else
        return number == F16 ? pack<f16>(low, high) : pack<bf16>(low, high);
}

// Writes neighboring sums of 16 bytes, or the rest of a row, to (row, column) of the result.
template <class T>
__device__ __forceinline__ void finish(const Result &result, const float *sums, int row, int column, int size, bool aligned) {
    int left = min(result.columns - column, size);
    u64 at = row * result.stride + column;
    const float4 *fours = reinterpret_cast<const float4 *>(sums);
    if (left == size && aligned && size == 4) {
        float4 *to = reinterpret_cast<float4 *>(static_cast<float *>(result.to) + at);
        float4 four = fours[0];
        float all[4] = {scaled<T>(result, four.x), scaled<T>(result, four.y), scaled<T>(result, four.z),
                        scaled<T>(result, four.w)};
        if (result.bias) {
#pragma unroll
            for (int n = 0; n < 4; ++n) all[n] += number_at(result.bias, column + n, F32);
        }
        float4 there = result.accumulate ? *to : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        *to = make_float4(there.x + all[0], there.y + all[1], there.z + all[2], there.w + all[3]);
        return;
    }
    if constexpr (sizeof(T) < 4) {
        if (left == size && aligned && !result.accumulate) {
            // Every second group of 4 lanes begins with the other half, so that 8 lanes read from different banks.
            bool flip = threadIdx.x / 4 % 2;
            float4 first = fours[flip], second = fours[!flip], low = flip ? second : first, high = flip ? first : second;
            float all[EIGHT] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
            for (int n = 0; n < EIGHT; ++n) all[n] = scaled<T>(result, all[n]);
            if (result.bias) {
                // The half is a runtime value: kernels for both types differ only in the type's name.
                int half = result.number == F16 ? F16 : BF16;
#pragma unroll
                for (int n = 0; n < EIGHT; ++n) all[n] += number_at(result.bias, column + n, half);
            }
            uint4 words = make_uint4(
                two_halves<T>(all[0], all[1], result.number), two_halves<T>(all[2], all[3], result.number),
                two_halves<T>(all[4], all[5], result.number), two_halves<T>(all[6], all[7], result.number));
            if constexpr (sizeof(T) == 2)
                *reinterpret_cast<uint4 *>(static_cast<T *>(result.to) + at) = words;
            else
                store_global(static_cast<u16 *>(result.to) + at, words);
            return;
        }
    }
#pragma unroll 1
    for (int n = 0; n < left; ++n) {
        float sum = scaled<T>(result, sums[n]) + (result.bias ? number_at(result.bias, column + n, result.number) : 0.0f);
        if (result.accumulate) sum += number_at(result.to, at + n, result.number);
        if (result.number == F32)
            static_cast<float *>(result.to)[at + n] = sum;
        else if constexpr (sizeof(T) > 1)
            static_cast<T *>(result.to)[at + n] = round_to<T>(sum);
        else
            set_number(result.to, at + n, sum, result.number);
    }
}

// The tile of a product from (first_row, first_column) on.
template <class T, Layout LA, Layout LB, int TILE>
__device__ __forceinline__ void product_tile(const void *a, const void *b, Result result, int first_row, int first_column,
                                             int inners, u64 stride_a, u64 stride_b) {
    // A warp's tile, and matrices of 16 and of 8 along its sides.
    const int SIDE = TILE / 2, SLABS = SIDE / 16, STRIPS = SIDE / 8, STAGED = SIDE + 8;
    const u32 TILE_BYTES = TILE * DEPTH_BYTES, STAGE_BYTES = 2 * TILE_BYTES, TILES_BYTES = STAGES * STAGE_BYTES;
    __shared__ __align__(128) char tiles[TILES_BYTES];
    static_assert(sizeof(tiles) >= 4 * 16 * STAGED * sizeof(float), "results go by way of the tiles");
    u32 lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    u32 warp_row = warp / 2 * SIDE, warp_column = warp % 2 * SIDE;
    typedef Factor<T, LA, TILE> Left;
    typedef Factor<T, LB, TILE> Right;
    Left left(a, stride_a, first_row, result.rows, inners, warp_row, true);
    Right right(b, stride_b, first_column, result.columns, inners, warp_column, false);

    // Addresses of the stages: the one being multiplied, and the one to overwrite next.
    u32 first = shared_address(tiles), last = first + TILES_BYTES - STAGE_BYTES, now = first, next = last;
#pragma unroll 1
    for (u32 stage = first; stage < last; stage += STAGE_BYTES) {
        left.copy(stage, 0, Left::COPIES), right.copy(stage + TILE_BYTES, 0, Right::COPIES);
        left.advance(), right.advance();
        commit_copies();
    }
    wait_copies<STAGES - 2>();
    __syncthreads(); // the first tiles have arrived
    float sums[SLABS][STRIPS][4] = {};
    // Matrices of steps with even numbers, and of those with odd ones.
    u32 of_a[2][SLABS][4], of_b[2][SLABS][4];
#pragma unroll
    for (int i = 0; i < SLABS; ++i) {
        left.template load<true>(of_a[0][i], now, i, 0);
        right.template load<false>(of_b[0][i], now + TILE_BYTES, i, 0);
    }
#pragma unroll 1
    for (int inner = 0; inner < inners; inner += DEPTH) {
#pragma unroll
        for (int k = 0; k < STEPS; ++k) {
            if (k == STEPS - 1) {
                now = now == last ? first : now + STAGE_BYTES;
#ifndef BUG_NO_WAIT
                wait_copies<STAGES - 2>();
#endif
#ifndef BUG_NO_BARRIER
                __syncthreads(); // the next tiles have arrived, and all reads of these, which are overwritten next, are done
#endif
            }
#pragma unroll
            for (int i = 0; i < SLABS; ++i) {
                // After the last tiles this loads zeros.
                left.template load<true>(of_a[(k + 1) % 2][i], now, i, (k + 1) % STEPS);
                right.template load<false>(of_b[(k + 1) % 2][i], now + TILE_BYTES, i, (k + 1) % STEPS);
                if (k == 0) {
                    const u32 A = Left::COPIES / SLABS, B = Right::COPIES / SLABS;
                    left.copy(next, i * A, A), right.copy(next + TILE_BYTES, i * B, B);
                }
                prepare<T>(of_a[k % 2][i]);
#pragma unroll
                for (int j = 0; j < STRIPS; ++j) {
                    u32(&b)[4] = of_b[k % 2][j / 2];
                    if (i == 0 && j % 2 == 0) prepare<T>(b);
                    multiply<T>(sums[i][j], of_a[k % 2][i], b[j % 2 * 2], b[j % 2 * 2 + 1]);
                }
            }
            if (k == 0) {
                left.advance(), right.advance();
                next = next == last ? first : next + STAGE_BYTES;
                commit_copies();
            }
        }
    }
    wait_copies<0>();
    __syncthreads(); // before results overwrite the tiles
    // Through shared memory, 16 rows of each warp at a time, so that contiguous elements are written together.
    float *staged = reinterpret_cast<float *>(tiles) + warp * 16 * STAGED;
    int size = result.number == F32 ? 4 : EIGHT; // sums that make 16 bytes
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

// The block's tile of a product. `each`: numbers of a part of the inner extent, a multiple of vectors.
template <class T, Layout LA, Layout LB, int TILE>
__device__ __forceinline__ void product(const void *a, const void *b, Result result, int inners, int each, u64 stride_a,
                                        u64 stride_b) {
    // Blocks with neighboring numbers share a group of rows of tiles.
    int across = (result.columns + TILE - 1) / TILE, down = (result.rows + TILE - 1) / TILE;
    int group = blockIdx.x / (GROUP * across), high = min(down - group * GROUP, GROUP);
    int in_group = blockIdx.x % (GROUP * across);
    int first_row = (group * GROUP + in_group % high) * TILE, first_column = in_group / high * TILE;
    u64 part = blockIdx.y, first_inner = part * each;
    inners = min(inners - (int)first_inner, each);
    a = static_cast<const T *>(a) + first_inner * (LA == INNER ? 1 : stride_a);
    b = static_cast<const T *>(b) + first_inner * (LB == INNER ? 1 : stride_b);
    result.to = static_cast<float *>(result.to) + part * result.rows * result.stride;
    product_tile<T, LA, LB, TILE>(a, b, result, first_row, first_column, inners, stride_a, stride_b);
}
