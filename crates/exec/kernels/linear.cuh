// c = alpha · a b + bias, or added to c: products of any extents and alignment, in single precision. linear.cu has the
// kernels for linear layers, their gradients and output heads, expert_linear.cu those for experts. Reference:
// src/reference/linear.rs.
//
//         columns          A block of 256 threads computes a tile of 64 by 64, a thread 4 by 4 of it, or of 128 by 128, a
//        +-------+         thread four such squares of it. Stretches along the inner extent go through shared memory,
//   rows | 4 x 4 |         whichever extent is contiguous: while one is multiplied, the next is loaded to registers, and
//        +-------+         then stored over the previous one, so that a stretch needs one barrier.
//
// Shape of the larger tile: CUTLASS' `simt_sgemm_128x128_8x2`, with its lanes in turn along rows and columns.

#pragma once
#include "matrix.cuh"

#define SMALL 64
#define LARGE 128
#define THREADS 256
// Contiguous numbers along the sides of threads' squares.
#define EACH 4
// Numbers of a stretch.
#define DEPTH_OF(TILE) ((TILE) == SMALL ? 16 : 8)
// A tile of a factor has a row for each number of the stretch. Every fourth row is followed by a gap, so that a warp's
// stores to four rows at once are in different banks.
#define ROW(TILE, k) ((k) * (TILE) + (k) / EACH * (128 / DEPTH_OF(TILE)))

// The layout of a factor: contiguous along its inner or its outer extent.
enum Layout { INNER, OUTER };

// Whether rows of squares with this stride may be loaded by one instruction.
__device__ __forceinline__ bool aligned(const void *from, u64 stride, int number) {
    u64 size = number == F32 ? 4 : 2;
    return ((u64)from | stride * size) % (EACH * size) == 0;
}

// Loads `left` contiguous numbers, at most EACH, and zeros after them; by one instruction if `vectors`.
__device__ __forceinline__ void load_each(float (&to)[EACH], const void *from, int number, int left, bool vectors) {
    if (number == F32) {
        const float *p = static_cast<const float *>(from);
        if (vectors && left >= EACH) {
            float4 four = *reinterpret_cast<const float4 *>(p);
            to[0] = four.x, to[1] = four.y, to[2] = four.z, to[3] = four.w;
        } else {
#pragma unroll
            for (int i = 0; i < EACH; ++i) to[i] = i < left ? p[i] : 0.0f;
        }
    } else {
        const u16 *p = static_cast<const u16 *>(from);
        ushort4 four = make_ushort4(0, 0, 0, 0);
        if (vectors && left >= EACH) {
            four = *reinterpret_cast<const ushort4 *>(p);
        } else {
            if (left > 0) four.x = p[0];
            if (left > 1) four.y = p[1];
            if (left > 2) four.z = p[2];
            if (left > 3) four.w = p[3];
        }
        u16 bits[EACH] = {four.x, four.y, four.z, four.w};
#pragma unroll
        for (int i = 0; i < EACH; ++i) to[i] = number == F16 ? widen(f16{bits[i]}) : widen(bf16{bits[i]});
    }
}

// Loads EACH numbers of shared memory. The compiler must not move it: it would load too many ahead of their use and run
// out of registers.
__device__ __forceinline__ void load_shared(float *to, u32 from) {
    asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(to[0]), "=f"(to[1]), "=f"(to[2]), "=f"(to[3])
                 : "r"(from)
                 : "memory");
}

// A factor whose tiles go through shared memory. For a large tile its numbers are in single precision, aligned so that
// EACH are loaded by one instruction, and groups of EACH are complete or absent.
template <Layout L, int TILE>
struct Factor {
    const void *from;   // This thread's part of the next tile.
    u32 step;           // Bytes from there to its part of the following tile.
    int outers, inners; // The rest of the factor from that part on; without inner numbers if there is no outer one.
    int number;
    int to;       // The offset of the part in a tile.
    bool vectors; // Whether EACH may be loaded by one instruction.

    __device__ __forceinline__ Factor(const void *factor, int number, u64 stride, int first, int all_outers, int first_inner,
                                      int all_inners)
        : number(TILE == LARGE ? F32 : number) {
        const int DEPTH = DEPTH_OF(TILE);
        static_assert(TILE * DEPTH == THREADS * EACH, "a thread fetches EACH numbers of a tile");
        u32 t = threadIdx.x;
        int outer = L == INNER ? t / (DEPTH / EACH) : t % (TILE / EACH) * EACH;
        int inner = L == INNER ? t % (DEPTH / EACH) * EACH : t / (TILE / EACH);
        u64 o = first + outer, k = first_inner + inner;
        from = element(factor, L == INNER ? o * stride + k : k * stride + o, this->number);
        step = (u32)(DEPTH * (L == INNER ? 1 : stride) * (this->number == F32 ? 4 : 2));
        outers = all_outers - first - outer;
        inners = outers > 0 ? all_inners - first_inner - inner : 0;
        to = ROW(TILE, inner) + outer;
        vectors = TILE == LARGE || aligned(factor, stride, this->number);
    }

    // Loads the part of the next tile, with zeros after the ends.
    __device__ __forceinline__ void fetch(float (&part)[EACH]) {
        if (TILE == LARGE) {
            float4 four = inners > 0 ? *static_cast<const float4 *>(from) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
            part[0] = four.x, part[1] = four.y, part[2] = four.z, part[3] = four.w;
        } else {
            load_each(part, from, number, L == INNER || inners <= 0 ? inners : outers, vectors);
        }
        from = static_cast<const char *>(from) + step;
        inners -= DEPTH_OF(TILE);
    }

    // Stores it in the tile.
    __device__ __forceinline__ void put(const float (&part)[EACH], float *tile) const {
        if (L == INNER) {
#pragma unroll
            for (int i = 0; i < EACH; ++i) tile[to + i * TILE] = part[i];
        } else {
            *reinterpret_cast<float4 *>(tile + to) = make_float4(part[0], part[1], part[2], part[3]);
        }
    }
};

// A number of an array in registers, for loops that need not be unrolled.
__device__ __forceinline__ float nth(const float (&numbers)[EACH], int n) {
    return n == 0 ? numbers[0] : n == 1 ? numbers[1] : n == 2 ? numbers[2] : numbers[3];
}

// The destination of a product.
struct Result {
    void *to;
    const void *bias;
    u64 stride;
    int rows, columns;
    int number, number_of_bias;
    int accumulate;
    float alpha;

    // The new value from a sum and the previous value: the multiplication is always rounded separately.
    __device__ __forceinline__ float finished(float sum, int column, float there) const {
        sum = __fmul_rn(alpha, sum);
        if (bias) sum += number_at(bias, column, number_of_bias);
        return accumulate ? there + sum : sum;
    }

    // Writes a sum to element `at`.
    __device__ __forceinline__ void write(float sum, u64 at, int column) const {
        set_number(to, at, finished(sum, column, accumulate ? number_at(to, at, number) : 0.0f), number);
    }

    // Writes EACH neighboring sums, or the rest of a row, to (row, column); if `vectors`, by one instruction, which the
    // compiler would split into four.
    __device__ __forceinline__ void write(const float (&sums)[EACH], int row, int column, bool vectors) const {
        int left = min(columns - column, EACH);
        u64 at = row * stride + column;
        if (vectors && left == EACH && number == F32) {
            float *four = static_cast<float *>(to) + at;
            float4 there = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
            if (accumulate) there = *reinterpret_cast<const float4 *>(four);
            asm volatile("st.global.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(__cvta_generic_to_global(four)),
                         "f"(finished(sums[0], column, there.x)), "f"(finished(sums[1], column + 1, there.y)),
                         "f"(finished(sums[2], column + 2, there.z)), "f"(finished(sums[3], column + 3, there.w))
                         : "memory");
            return;
        }
#pragma unroll 1
        for (int n = 0; n < left; ++n) write(nth(sums, n), at + n, column + n);
    }
};

// Extents of a warp's squares: 4 by 8, and the distance of a thread's squares.
#define ROWS_APART (4 * EACH)
#define COLUMNS_APART (8 * EACH)

// The position of a thread's first square in its tile. Neighboring lanes have the same columns, neighboring pairs the
// same rows: half a warp reads the same words twice, which costs nothing.
template <int SQUARES>
__device__ __forceinline__ u32 row_of(u32 thread) {
    return thread / (2 * WARP) * SQUARES * ROWS_APART + (thread % WARP / 16 * 2 + thread % 2) * EACH;
}
template <int SQUARES>
__device__ __forceinline__ u32 column_of(u32 thread) {
    return thread / WARP % 2 * SQUARES * COLUMNS_APART + thread / 2 % 8 * EACH;
}

// The tile of a product from (first_row, first_column) on, over the terms from first_inner to `inners`. Part `part` of a
// divided product has its own result in single precision.
template <Layout LA, Layout LB, int TILE>
__device__ __forceinline__ void product_tile(const void *a, const void *b, Result c, int first_row, int first_column,
                                             int first_inner, int inners, u32 part, u64 stride_a, u64 stride_b,
                                             int number_a, int number_b) {
    // Squares along a side of a thread's part, which are apart, and numbers of that side.
    const int SQUARES = TILE / SMALL, SIDE = SQUARES * EACH, DEPTH = DEPTH_OF(TILE);
    // Unrolled numbers of a stretch: as many as all targets have registers for.
#if __CUDA_ARCH__ >= 800
    const int UNROLLED = LA == INNER || TILE == SMALL ? 8 : 4;
#else
    const int UNROLLED = LB == INNER || TILE == SMALL ? 8 : 4;
#endif
    __shared__ __align__(16) float tiles[2][2][ROW(TILE, DEPTH)];
    Factor<LA, TILE> left(a, number_a, stride_a, first_row, c.rows, first_inner, inners);
    Factor<LB, TILE> right(b, number_b, stride_b, first_column, c.columns, first_inner, inners);
    u32 own_row = row_of<SQUARES>(threadIdx.x), own_column = column_of<SQUARES>(threadIdx.x);
    float next_a[EACH], next_b[EACH], sums[SIDE][SIDE] = {};
    left.fetch(next_a), right.fetch(next_b);
    left.put(next_a, tiles[0][0]), right.put(next_b, tiles[0][1]);
    __syncthreads();
    int now = 0;
#pragma unroll 1
    for (int stretches = (inners - first_inner + DEPTH - 1) / DEPTH; stretches > 0; --stretches) {
        // After the last tiles this loads zeros.
        left.fetch(next_a), right.fetch(next_b);
        u32 at_a = shared_address(tiles[now][0] + own_row), at_b = shared_address(tiles[now][1] + own_column);
#pragma unroll UNROLLED
        for (int k = 0; k < DEPTH; ++k) {
            float xs[SIDE], ys[SIDE];
#pragma unroll
            for (int n = 0; n < SQUARES; ++n) {
                load_shared(xs + n * EACH, at_a + 4 * (ROW(TILE, k) + n * ROWS_APART));
                load_shared(ys + n * EACH, at_b + 4 * (ROW(TILE, k) + n * COLUMNS_APART));
            }
#pragma unroll
            for (int i = 0; i < SIDE; ++i)
#pragma unroll
                for (int j = 0; j < SIDE; ++j) sums[i][j] = fmaf(xs[i], ys[j], sums[i][j]);
        }
        now ^= 1;
        left.put(next_a, tiles[now][0]), right.put(next_b, tiles[now][1]);
        __syncthreads(); // the next tiles have arrived, and all reads of these are done
    }
    c.to = element(c.to, part * (c.rows * c.stride), F32);
    // Computed again to free its register during the loop.
    u32 thread;
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
    int row = first_row + row_of<SQUARES>(thread), column = first_column + column_of<SQUARES>(thread);
    bool vectors = aligned(c.to, c.stride, F32);
#pragma unroll 1
    for (int i = 0; i < SIDE; ++i) {
        int to_row = row + i / EACH * ROWS_APART + i % EACH;
        if (to_row >= c.rows) continue;
#pragma unroll
        for (int n = 0; n < SQUARES; ++n) {
            int to_column = column + n * COLUMNS_APART;
            float four[EACH];
#pragma unroll
            for (int j = 0; j < EACH; ++j) {
                four[j] = sums[0][n * EACH + j];
#pragma unroll
                for (int m = 1; m < SIDE; ++m) four[j] = i == m ? sums[m][n * EACH + j] : four[j];
            }
            if (to_column < c.columns) c.write(four, to_row, to_column, vectors);
        }
    }
}

// The block's tile of a product. Each block along z has a part of the inner extent.
template <Layout LA, Layout LB, int TILE>
__device__ __forceinline__ void product(const void *a, const void *b, Result c, int inners, int each, u64 stride_a,
                                        u64 stride_b, int number_a, int number_b) {
    int first_row = blockIdx.y * TILE, first_column = blockIdx.x * TILE, first_inner = blockIdx.z * each;
    inners = min(inners, first_inner + each);
    product_tile<LA, LB, TILE>(a, b, c, first_row, first_column, first_inner, inners, blockIdx.z, stride_a, stride_b,
                               number_a, number_b);
}
