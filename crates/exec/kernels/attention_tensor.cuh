// What kernels of attention on tensor cores share, for numbers of 16 bits: tiles of 64 rows by 32 or 64 columns of one
// head's scores. Rows are queries, or keys where the gradients of keys are made.
//
//            columns         A block of 4 warps. Each has 16 rows of a tile of scores with all their columns, as products
//          +---------+       leave them in registers: 4 neighbors have a row together. So they go on into the next product
//   warp 0 |         |       as its left factor, and never lie in memory. Rows of the block's own tiles stay in shared
//   warp 1 |         |       memory; tiles of columns pass through it.
//   warp 2 |         |
//   warp 3 |         |
//          +---------+

#pragma once
#include "attention.cuh"
#include "matrix.cuh"

#define ROWS 64
#define ROWS_OF_WARP 16
// Channels are multiplied so many at a time, and there are zeros up to the next multiple.
#define DEPTH 32
// Channels of results that a block makes: larger heads are shared out to blocks along z, which compute scores each.
#define SPAN 128
// Copies of a thread that are fetched at once where they are not on their way by themselves.
#if __CUDA_ARCH__ >= 800
#define COPIES_AHEAD 1
#else
#define COPIES_AHEAD 4
#endif
#define LOG2_E 1.4426950408889634f
#define LOG_2 0.6931471805599453f
#define NOTHING __int_as_float(0xff800000)

// All of a block's shared memory is dynamic: how much there is and how it is shared out, src/cuda/ops/attention_tensor.rs
// says.
#define SHARED_MEMORY extern __shared__ __align__(1024) char shared[]

// The first of the warp's rows of a tile; the first of the thread's two, of which the other lies 8 below; and the
// thread's first column, beside which lies one more, and then two in each of the next 8 columns.
__device__ __forceinline__ u32 warp_row() { return threadIdx.x / WARP * ROWS_OF_WARP; }
__device__ __forceinline__ u32 own_row() { return warp_row() + threadIdx.x % WARP / 4; }
__device__ __forceinline__ u32 own_column() { return threadIdx.x % 4 * 2; }

// Bytes of a row of a tile in shared memory.
__device__ __forceinline__ u32 row_bytes(u32 channels) { return channels <= 64 ? 128 : channels <= 128 ? 256 : 512; }

// Stores and loads by addresses as matrices are named by.
__device__ __forceinline__ void store_shared(u32 to, u32 word) {
    asm volatile("st.shared.u32 [%0], %1;" ::"r"(to), "r"(word) : "memory");
}
__device__ __forceinline__ void store_shared(u32 to, u16 half) {
    asm volatile("st.shared.u16 [%0], %1;" ::"r"(to), "h"(half) : "memory");
}
__device__ __forceinline__ uint4 load_shared(u32 from) {
    uint4 words;
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(words.x), "=r"(words.y), "=r"(words.z), "=r"(words.w)
                 : "r"(from)
                 : "memory");
    return words;
}
__device__ __forceinline__ u16 load_shared_half(u32 from) {
    u16 half;
    asm volatile("ld.shared.u16 %0, [%1];" : "=h"(half) : "r"(from) : "memory");
    return half;
}

// Rows `first` on of a matrix of `rows` rows of `channels`, COUNT of them, with zeros beyond its ends. Heads that are no
// multiple of 16 bytes go element by element.
template <int COUNT, class T>
__device__ __forceinline__ void load_tile(u32 tile, u32 bytes, const T *from, u64 stride, u32 first, u32 rows,
                                          u32 channels) {
    const u32 step = THREADS / 8;
    u32 row = threadIdx.x / 8;
#pragma unroll 1
    for (u32 column = threadIdx.x % 8 * 8; column < (channels + DEPTH - 1) / DEPTH * DEPTH; column += 64) {
        u32 to = place(tile, row, column, bytes), left = column < channels ? channels - column : 0;
        const T *source = from + (first + row) * stride + column;
        if (channels % 8 == 0) {
#pragma unroll COPIES_AHEAD
            for (u32 n = 0; n < COUNT; n += step, source += step * stride) {
                bool there = left && first + row + n < rows;
                copy16(to + n * bytes, there ? source : from, there ? 16 : 0);
            }
        } else {
#pragma unroll 1
            for (u32 n = 0; n < COUNT; n += step, source += step * stride)
#pragma unroll 1
                for (u32 i = 0; i < 8; ++i)
                    store_shared(to + n * bytes + 2 * i,
                                 first + row + n < rows && i < left ? source[i].bits : (u16)0);
        }
    }
}

// Where the lane's row of matrices lies: of 16 rows of a left factor from `row` on, or of a right factor whose rows are
// added up over, to be transposed; and of 16 rows of a right factor whose rows become columns.
__device__ __forceinline__ u32 left_place(u32 tile, u32 row, u32 bytes) {
    u32 lane = threadIdx.x % WARP;
    return place(tile, row + lane % 16, lane / 16 * 8, bytes);
}
__device__ __forceinline__ u32 right_place(u32 tile, u32 bytes) {
    u32 lane = threadIdx.x % WARP;
    return place(tile, lane % 8 + lane / 16 * 8, lane / 8 % 2 * 8, bytes);
}

// s = a b' over channels: the warp's 16 rows of a, and 8 rows of b for each 8 columns of s.
template <class T, int TILES>
__device__ __forceinline__ void products(float (&s)[TILES][4], u32 a, u32 b, u32 bytes, u32 channels) {
    a = left_place(a, warp_row(), bytes);
    b = right_place(b, bytes);
#pragma unroll
    for (int j = 0; j < TILES; ++j)
#pragma unroll
        for (int e = 0; e < 4; ++e) s[j][e] = 0.0f;
#pragma unroll 1
    for (u32 channel = 0; channel < channels; channel += DEPTH) {
#pragma unroll
        for (u32 c = 0; c < DEPTH; c += 16) {
            u32 left[4], right[4], at = b ^ 2 * (channel + c);
            load_matrices(left, a ^ 2 * (channel + c));
#pragma unroll
            for (int j = 0; j < TILES; j += 2, at += 16 * bytes) {
                load_matrices(right, at);
                multiply<T>(s[j], left, right[0], right[1]);
                multiply<T>(s[j + 1], left, right[2], right[3]);
            }
        }
    }
}

// A block's part of results: the warp's 16 rows.
typedef float Sums[SPAN / 8][4];

// sums += p b for `channels` of the span: p as `rounded` gives it, and a row of b for each of its columns.
template <class T, int STEPS>
__device__ __forceinline__ void add_mixed(Sums &sums, const u32 (&p)[STEPS][4], u32 b, u32 bytes, u32 channels) {
    b = left_place(b, 0, bytes);
#pragma unroll
    for (u32 channel = 0; channel < SPAN; channel += DEPTH) {
        if (channel >= channels) break;
#pragma unroll
        for (u32 c = channel; c < channel + DEPTH; c += 16) {
            u32 right[4], at = b ^ 2 * c;
#pragma unroll
            for (int step = 0; step < STEPS; ++step, at += 16 * bytes) {
                load_matrices_transposed(right, at);
                multiply<T>(sums[c / 8], p[step], right[0], right[1]);
                multiply<T>(sums[c / 8 + 1], p[step], right[2], right[3]);
            }
        }
    }
}

// A tile of scores as the left factor of a product, 16 columns a step: what a lane has of the one it has of the other.
template <class T, int TILES>
__device__ __forceinline__ void rounded(u32 (&p)[TILES / 2][4], const float (&s)[TILES][4]) {
#pragma unroll
    for (int j = 0; j < TILES; ++j) {
        p[j / 2][j % 2 * 2] = pack<T>(s[j][0], s[j][1]);
        p[j / 2][j % 2 * 2 + 1] = pack<T>(s[j][2], s[j][3]);
    }
}

// 2 to the power of x.
__device__ __forceinline__ float power(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// What is known of a tile's COUNT columns and their diagonals besides their vectors.
template <int COUNT>
struct Facts {
    float bias[ROWS + COUNT];
    int segment[COUNT];
};

// A tile's place.
struct Tile {
    int sample, head, query, key;
};

// The bias of each diagonal of a tile, in powers of two, and if wanted its bucket: from that of the last of QUERIES and
// the first key on.
template <int QUERIES, int COUNT, class T>
__device__ __forceinline__ void gather_bias(float (&bias)[COUNT], int *buckets, const Shape &shape,
                                            const Starts &starts, const T *table, const Tile &tile) {
    int t = threadIdx.x;
    if (!shape.buckets || t >= COUNT - 1) return;
    int bucket = bucket_of(shape, starts, tile.key - tile.query + t - (QUERIES - 1));
    if (buckets) buckets[t] = bucket;
    bias[t] = widen(table[bucket * shape.heads + tile.head]) * LOG2_E;
}

// The segments of a tile's columns.
template <int COUNT>
__device__ __forceinline__ void gather_segments(int (&to)[COUNT], const int *segments, int sample, int first,
                                                int columns) {
    int t = threadIdx.x;
    if (segments && t < COUNT) to[t] = first + t < columns ? segments[(u64)sample * columns + first + t] : 0;
}

// The segments of the thread's two rows.
__device__ __forceinline__ void own_segments(int (&own)[2], const int *segments, int sample, int first, int rows) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        int row = first + own_row() + 8 * h;
        own[h] = segments && row < rows ? segments[(u64)sample * rows + row] : 0;
    }
}

// Products into scores: in powers of two.
template <bool ROWS_ARE_KEYS, int TILES>
__device__ __forceinline__ void scale_scores(float (&s)[TILES][4], const Shape &shape, const float *bias) {
    float scale = shape.scale * LOG2_E;
    int ahead = (int)(own_column() - own_row());
    bias += ROWS_ARE_KEYS ? 8 * TILES - 1 - ahead : ROWS - 1 + ahead;
#pragma unroll
    for (int j = 0; j < TILES; ++j)
#pragma unroll
        for (int e = 0; e < 4; ++e) s[j][e] *= scale;
    if (!shape.buckets) return;
#pragma unroll
    for (int j = 0; j < TILES; ++j)
#pragma unroll
        for (int e = 0; e < 4; ++e) {
            const int to = 8 * j + e % 2 - e / 2 * 8;
            s[j][e] += bias[ROWS_ARE_KEYS ? -to : to];
        }
}

// Which of the thread's scores are seen: a bit for each, 4 for each 8 columns, in their order.
template <bool ROWS_ARE_KEYS, int TILES>
__device__ __forceinline__ u32 seen_bits(const Shape &shape, const Tile &tile, bool segmented, const int (&own)[2],
                                         const int *of_columns) {
    const int columns = 8 * TILES;
    int queries_end = tile.query + (ROWS_ARE_KEYS ? columns : ROWS), keys_end = tile.key + (ROWS_ARE_KEYS ? ROWS : columns);
    bool within = queries_end <= shape.queries && keys_end <= shape.keys;
    if (within && !segmented && (!shape.causal || keys_end <= tile.query + 1)) return ~0u;
    u32 seen = 0;
#pragma unroll 1
    for (u32 i = 0; i < 4 * TILES; ++i) {
        int row = own_row() + i / 2 % 2 * 8, column = own_column() + i / 4 * 8 + i % 2;
        int query = tile.query + (ROWS_ARE_KEYS ? column : row), key = tile.key + (ROWS_ARE_KEYS ? row : column);
        bool is = query < shape.queries && key < shape.keys && (!shape.causal || key <= query);
        if (segmented) is &= (i / 2 % 2 ? own[1] : own[0]) == of_columns[column];
        seen |= (u32)is << i;
    }
    return seen;
}

// Which of the thread's probabilities are kept, in the order of `seen_bits`. Random words decide on 4 neighboring keys
// of a query: each lane draws those of one such quad, and lanes that have keys of it hand them on.
template <bool ROWS_ARE_KEYS, int TILES>
__device__ __forceinline__ u32 kept_bits(const Shape &shape, const Tile &tile, const Scalars *scalars) {
    if (!shape.threshold) return ~0u;
    u32 kept = 0, lane = threadIdx.x % WARP, site = shape.site | (u32)tile.head << 22, query, key;
    // Where rows are keys, 4 lanes have a quad of keys each of two neighboring queries, and two such 8 below.
    const u32 turn = lane / 4 % 4;
    if (ROWS_ARE_KEYS) {
        query = tile.query + own_column() + turn % 2;
        key = tile.key + warp_row() + lane / 16 * 4 + turn / 2 * 8;
    } else {
        query = tile.query + own_row() + lane % 2 * 8;
        key = tile.key + lane % 4 / 2 * 4;
    }
#pragma unroll 1
    for (u32 j = 0; j < TILES; ++j) {
        u32 number = query * (DROPOUT_TOKENS / 4) + key / 4;
        uint4 words = dropout_bits(scalars, scalars->first_sample + tile.sample, site, number);
        u32 quad = (words.x >= shape.threshold) | (words.y >= shape.threshold) << 1 |
                   (words.z >= shape.threshold) << 2 | (words.w >= shape.threshold) << 3;
        u32 bits;
        if (ROWS_ARE_KEYS) {
            bits = quad << 4 * turn;
            bits |= __shfl_xor_sync(ALL_LANES, bits, 4);
            bits |= __shfl_xor_sync(ALL_LANES, bits, 8);
            // One of each quad's bits is the thread's.
            bits = bits >> turn & 0x1111;
            bits = (bits | bits >> 3) & 0x0303;
            bits = (bits | bits >> 6) & 0xf;
            query += 8;
        } else {
            u32 other = __shfl_xor_sync(ALL_LANES, quad, 1), first = lane % 2 * 2;
            bits = (lane % 2 ? other : quad) >> first & 3 | ((lane % 2 ? quad : other) >> first & 3) << 2;
            key += 8;
        }
        kept |= bits << 4 * j;
    }
    return kept;
}

// Whether one of the bits of `seen_bits` or `kept_bits` is set.
__device__ __forceinline__ bool is_set(u32 bits, int tile, int element) { return bits >> (4 * tile + element) & 1; }

// Writes `channels` of the warp's 16 rows, times a factor for each of the thread's two rows, by way of its rows of a
// tile that nobody else reads, so that neighbors write to neighbors.
template <class T>
__device__ __forceinline__ void write_rows(const Sums &sums, const float (&factor)[2], u32 tile, u32 bytes, T *to,
                                           u64 stride, u32 first, u32 rows, u32 channels) {
    u32 lane = threadIdx.x % WARP, own = place(tile, own_row(), 0, bytes) + own_column() * 2;
    __syncwarp(); // whoever reads the rows is done
#pragma unroll
    for (int j = 0; j < SPAN / 8; ++j) {
        if (j % (DEPTH / 8) == 0 && j * 8 >= channels) break;
        store_shared(own ^ 16 * j, pack<T>(sums[j][0] * factor[0], sums[j][1] * factor[0]));
        store_shared((own ^ 16 * j) + 8 * bytes, pack<T>(sums[j][2] * factor[1], sums[j][3] * factor[1]));
    }
    __syncwarp();
#pragma unroll 1
    for (u32 column = lane % 8 * 8; column < channels; column += 64) {
#pragma unroll 1
        for (u32 row = warp_row() + lane / 8; row < warp_row() + ROWS_OF_WARP && first + row < rows; row += 4) {
            u32 from = place(tile, row, column, bytes);
            T *target = to + (first + row) * stride + column;
            if (channels % 8 == 0) {
                *reinterpret_cast<uint4 *>(target) = load_shared(from);
            } else {
#pragma unroll 1
                for (u32 i = 0; i < min(8, channels - column); ++i) target[i].bits = load_shared_half(from + 2 * i);
            }
        }
    }
}
