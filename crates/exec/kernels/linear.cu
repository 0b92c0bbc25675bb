// c = alpha · a b + bias, or c + that: the products of linear layers, of their gradients and of output heads, of any
// extents and alignment, in single precision. Reference: src/reference/linear.rs.
//
//         columns          A block of 256 threads makes a tile of 64 by 64, a thread 4 by 4 of it. Stretches of 16 along
//        +-------+         the inner extent go through shared memory, whichever extent lies closer in memory; while one
//   rows | 4 x 4 |         is multiplied the next is fetched to registers.
//        +-------+

#include "common.cuh"

#define TILE 64
#define DEPTH 16
#define THREADS 256
// Rows of 16 bytes more, so that those that are written together lie in other banks.
#define STRIDE (TILE + 4)
#define EACH 4

// How a factor lies: with its inner extent closest, or with its outer one.
enum Layout { INNER, OUTER };

// A thread's part of a tile of a factor: EACH numbers that lie side by side.
template <Layout L>
struct Part {
    // Where the part lies in its tile.
    int outer, inner;

    __device__ __forceinline__ Part() {
        int t = threadIdx.x;
        outer = L == INNER ? t / (DEPTH / EACH) : t % (TILE / EACH) * EACH;
        inner = L == INNER ? t % (DEPTH / EACH) * EACH : t / (TILE / EACH);
    }

    // Fetches the part of the tile at (first, k0), zeros beyond the ends.
    __device__ __forceinline__ void fetch(float (&to)[EACH], const void *from, int number, int first, int outers, int k0,
                                          int inners, u64 stride, bool vectors) const {
        int o = first + outer, k = k0 + inner;
        u64 at = L == INNER ? o * stride + k : k * stride + o;
        bool there = L == INNER ? o < outers : k < inners;
        int left = there ? (L == INNER ? inners - k : outers - o) : 0;
        if (number == F32) {
            const float *p = static_cast<const float *>(from) + at;
            if (vectors && left >= EACH) {
                float4 four = *reinterpret_cast<const float4 *>(p);
                to[0] = four.x, to[1] = four.y, to[2] = four.z, to[3] = four.w;
            } else {
#pragma unroll
                for (int i = 0; i < EACH; ++i) to[i] = i < left ? p[i] : 0.0f;
            }
        } else {
            const u16 *p = static_cast<const u16 *>(from) + at;
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

    // Lays it into the tile, (DEPTH, STRIDE).
    __device__ __forceinline__ void put(const float (&part)[EACH], float *tile) const {
        if (L == INNER) {
#pragma unroll
            for (int i = 0; i < EACH; ++i) tile[(inner + i) * STRIDE + outer] = part[i];
        } else {
            *reinterpret_cast<float4 *>(tile + inner * STRIDE + outer) = make_float4(part[0], part[1], part[2], part[3]);
        }
    }
};

// Whether parts of rows of this stride may be loaded at once.
__device__ __forceinline__ bool aligned(const void *from, u64 stride, int number) {
    u64 size = number == F32 ? 4 : 2;
    return ((u64)from | stride * size) % (EACH * size) == 0;
}

template <Layout LA, Layout LB>
__device__ __forceinline__ void product(const void *a, const void *b, void *c, const void *bias,
                                        const Scalars *scalars, int rows, int columns, int inners, int each,
                                        u64 stride_a, u64 stride_b, u64 stride_c, int number_a, int number_b, int number_c,
                                        int accumulate) {
    __shared__ __align__(16) float tile_a[DEPTH * STRIDE], tile_b[DEPTH * STRIDE];
    int first_row = blockIdx.y * TILE, first_column = blockIdx.x * TILE;
    // A part of the inner extent for each block along z, and a result of its own in single precision.
    int first_inner = blockIdx.z * each;
    inners = min(inners, first_inner + each);
    bool vectors_a = aligned(a, stride_a, number_a), vectors_b = aligned(b, stride_b, number_b);
    Part<LA> of_a;
    Part<LB> of_b;
    float next_a[EACH], next_b[EACH], sums[EACH][EACH] = {};
    of_a.fetch(next_a, a, number_a, first_row, rows, first_inner, inners, stride_a, vectors_a);
    of_b.fetch(next_b, b, number_b, first_column, columns, first_inner, inners, stride_b, vectors_b);
    int row = threadIdx.x / (TILE / EACH) * EACH, column = threadIdx.x % (TILE / EACH) * EACH;
    for (int k0 = first_inner; k0 < inners; k0 += DEPTH) {
        of_a.put(next_a, tile_a);
        of_b.put(next_b, tile_b);
        __syncthreads();
        if (k0 + DEPTH < inners) {
            of_a.fetch(next_a, a, number_a, first_row, rows, k0 + DEPTH, inners, stride_a, vectors_a);
            of_b.fetch(next_b, b, number_b, first_column, columns, k0 + DEPTH, inners, stride_b, vectors_b);
        }
#pragma unroll 8
        for (int k = 0; k < DEPTH; ++k) {
            float4 x = *reinterpret_cast<const float4 *>(tile_a + k * STRIDE + row);
            float4 y = *reinterpret_cast<const float4 *>(tile_b + k * STRIDE + column);
            float xs[EACH] = {x.x, x.y, x.z, x.w}, ys[EACH] = {y.x, y.y, y.z, y.w};
#pragma unroll
            for (int i = 0; i < EACH; ++i)
#pragma unroll
                for (int j = 0; j < EACH; ++j) sums[i][j] = fmaf(xs[i], ys[j], sums[i][j]);
        }
        __syncthreads(); // before the next tiles are laid over these
    }
    float alpha = scalars ? scalars->loss_scale * scalars->gradient_scale : 1.0f;
    c = element(c, blockIdx.z * (rows * stride_c), F32);
    // By way of shared memory, a row of each thread at a time, so that neighbors write to neighbors.
#pragma unroll 1
    for (int i = 0; i < EACH; ++i) {
#pragma unroll
        for (int j = 0; j < EACH; ++j)
            tile_a[row / EACH * STRIDE + column + j] =
                i == 0 ? sums[0][j] : i == 1 ? sums[1][j] : i == 2 ? sums[2][j] : sums[3][j];
        __syncthreads();
#pragma unroll 1
        for (int at = threadIdx.x; at < TILE / EACH * TILE; at += THREADS) {
            int r = first_row + at / TILE * EACH + i, s = first_column + at % TILE;
            if (r >= rows || s >= columns) continue;
            float sum = alpha * tile_a[at / TILE * STRIDE + at % TILE];
            if (bias) sum += number_at(bias, s, number_b);
            u64 to = r * stride_c + s;
            set_number(c, to, accumulate ? number_at(c, to, number_c) + sum : sum, number_c);
        }
        __syncthreads();
    }
}

// bias is null if there is none, scalars where alpha is one. Names say how the factors lie: n as they are written, (rows,
// inner) and (inner, columns), t the other way round.
#define OF(name, LA, LB)                                                                                               \
    KERNEL(THREADS) product_##name(const void *a, const void *b, void *c, const void *bias, const Scalars *scalars,    \
                                   int rows, int columns, int inners, int each, u64 stride_a, u64 stride_b,            \
                                   u64 stride_c,                                                                       \
                                   int number_a, int number_b, int number_c, int accumulate) {                         \
        product<LA, LB>(a, b, c, bias, scalars, rows, columns, inners, each, stride_a, stride_b, stride_c, number_a,   \
                        number_b, number_c, accumulate);                                                               \
    }
OF(nn, INNER, OUTER)
OF(nt, INNER, INNER)
OF(tn, OUTER, OUTER)

// c = alpha · the sum of the parts + bias, or c + that. parts: (count, rows, columns), which are added up in their order.
// A thread for each EACH results.
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
#pragma unroll
    for (int i = 0; i < EACH; ++i) {
        if (i >= left) break;
        int row = (int)((first + i) / columns), column = (int)((first + i) % columns);
        float sum = __fmul_rn(alpha, sums[i]) + (bias ? number_at(bias, column, number_bias) : 0.0f);
        u64 to = row * stride_c + column;
        set_number(c, to, accumulate ? number_at(c, to, number_c) + sum : sum, number_c);
    }
}
