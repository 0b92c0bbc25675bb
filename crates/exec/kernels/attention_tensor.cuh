// Shared by kernels of attention on tensor cores, for numbers of 16 bits: tiles of 64 rows by 32 or 64 columns of one
// head's scores. Rows are queries, or keys for the gradients of keys.
//
//            columns         A block of 4 warps. Each has 16 rows of a tile of scores with all their columns, as products
//          +---------+       leave them in registers: 4 neighbors share a row. They are the left factor of the next product
//   warp 0 |         |       without going through memory. Rows of the block's own tiles stay in registers
//   warp 1 |         |       if heads are small, else in shared memory; tiles of columns pass through it.
//   warp 2 |         |
//   warp 3 |         |
//          +---------+

#pragma once
#include "attention.cuh"
#include "matrix.cuh"

#define ROWS_OF_WARP 16
#define ROWS (THREADS / WARP * ROWS_OF_WARP)
// Channels per product; padded with zeros to a multiple.
#define DEPTH 32
// Channels of results per block: larger heads are split among blocks along z, each of which computes all scores.
#define SPAN 128
// Kernels are compiled for two classes of heads: HEAD, the most channels of one, is 64 or 256. WIDTH is a span's.
#define SMALL (HEAD <= 64)
#define WIDTH (SMALL ? HEAD : SPAN)
#define LOG2_E 1.4426950408889634f
#define LOG_2 0.6931471805599453f
#define NOTHING __int_as_float(0xff800000)

// All of a block's shared memory is dynamic: src/cuda/ops/attention_tensor.rs has its size and layout.
#define SHARED_MEMORY extern __shared__ __align__(1024) char shared[]

// The first of the warp's rows of a tile; the first of the thread's two rows, the other is 8 below; and the thread's
// first column, which is followed by another, and then by two in each of the next 8 columns.
__device__ __forceinline__ u32 warp_row() { return threadIdx.x / WARP * ROWS_OF_WARP; }
__device__ __forceinline__ u32 own_row() { return warp_row() + threadIdx.x % WARP / 4; }
__device__ __forceinline__ u32 own_column() { return threadIdx.x % 4 * 2; }

// Heads of samples, or of keys of samples, are in groups along z, so that the data that the blocks of a group read
// stays in the cache that all multiprocessors share; the spans of a group follow one another.
__device__ __forceinline__ u32 spans(u32 channels) { return SMALL || channels <= SPAN ? 1 : 2; }
__device__ __forceinline__ u32 head_of_samples(u32 channels) {
    return blockIdx.z / spans(channels) * gridDim.x + blockIdx.x;
}
__device__ __forceinline__ u32 span_of_head(u32 channels) { return blockIdx.z % spans(channels) * SPAN; }

// Rows of a tile in shared memory have a span's size, and a tile's spans follow one another.
#define ROW_BYTES (2 * WIDTH)
__device__ __forceinline__ u32 tile_bytes(u32 rows, u32 channels) { return spans(channels) * rows * ROW_BYTES; }

// Stores and loads by addresses in shared memory.
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

// Copies COUNT rows of `channels` to a tile, with zeros after the last of `rows`, and after the channels.
template <int COUNT, class T>
__device__ __forceinline__ void copy_tile(u32 tile, const T *from, u64 stride, int rows, int channels) {
    const int step = THREADS / 8;
    int row = threadIdx.x / 8, column = threadIdx.x % 8 * 8;
    u32 to = place(tile, row, column, ROW_BYTES);
    from += row * stride + column;
#pragma unroll 1
    for (int span = 0; span < (SMALL ? 1 : channels); span += SPAN, from += SPAN, to += COUNT * ROW_BYTES) {
        const T *source = from;
#pragma unroll
        for (int n = 0; n < COUNT; n += step, source += step * stride)
#pragma unroll
            for (int c = 0; c < WIDTH; c += 64)
                copy16(to + n * ROW_BYTES + 2 * c, source + c,
                       n < rows - row && span + c < channels - column ? 16 : 0);
    }
}

// The same element by element, for heads that are not a multiple of 16 bytes.
template <int COUNT, class T>
__device__ __forceinline__ void store_tile(u32 tile, const T *from, u64 stride, int rows, int channels) {
#pragma unroll 1
    for (int at = threadIdx.x; at < spans(channels) * COUNT * WIDTH; at += THREADS) {
        int row = at / WIDTH % COUNT, column = at % WIDTH, channel = at / (COUNT * WIDTH) * WIDTH + column;
        store_shared(place(tile, at / WIDTH, column, ROW_BYTES) + column % 8 * 2,
                     row < rows && channel < channels ? from[row * stride + channel].bits : (u16)0);
    }
}

template <int COUNT, class T>
__device__ __forceinline__ void load_tile(u32 tile, const T *from, u64 stride, int rows, int channels) {
    if (channels % 8 == 0)
        copy_tile<COUNT>(tile, from, stride, rows, channels);
    else
        store_tile<COUNT>(tile, from, stride, rows, channels);
}

// Copies two consecutive tiles.
template <int COUNT, class T>
__device__ __forceinline__ void load_tiles(u32 tile, const T *first, u64 first_stride, const T *second,
                                           u64 second_stride, int rows, int channels) {
    u32 bytes = tile_bytes(COUNT, channels);
    if (channels % 8 == 0) {
        copy_tile<COUNT>(tile, first, first_stride, rows, channels);
        copy_tile<COUNT>(tile + bytes, second, second_stride, rows, channels);
    } else {
#pragma unroll 1
        for (int which = 0; which < 2; ++which)
            store_tile<COUNT>(tile + which * bytes, which ? second : first, which ? second_stride : first_stride, rows,
                              channels);
    }
}

// The address of the lane's row of matrices: of 16 rows of a left factor from `row` on, or of a right factor whose rows
// are summed over, to be transposed; and of 16 rows of a right factor whose rows become columns.
__device__ __forceinline__ u32 left_place(u32 tile, u32 row) {
    u32 lane = threadIdx.x % WARP;
    return place(tile, row + lane % 16, lane / 16 * 8, ROW_BYTES);
}
__device__ __forceinline__ u32 right_place(u32 tile) {
    u32 lane = threadIdx.x % WARP;
    return place(tile, lane % 8 + lane / 16 * 8, lane / 8 % 2 * 8, ROW_BYTES);
}

// The warp's 16 rows of a left factor: in registers for small heads, in shared memory for larger ones.
struct Rows {
#if SMALL
    u32 at[HEAD / 16][4];

    __device__ __forceinline__ void hold(u32 tile) {
        u32 from = left_place(tile, warp_row());
#pragma unroll
        for (int c = 0; c < HEAD / 16; ++c) load_matrices(at[c], from ^ 32 * c);
    }
    __device__ __forceinline__ void get(u32 (&left)[4], u32 span, u32 channel) const {
#pragma unroll
        for (int n = 0; n < 4; ++n) left[n] = at[channel / 16][n];
    }
#else
    u32 from;

    __device__ __forceinline__ void hold(u32 tile) { from = left_place(tile, warp_row()); }
    __device__ __forceinline__ void get(u32 (&left)[4], u32 span, u32 channel) const {
        load_matrices(left, (from ^ 2 * channel) + span * ROWS * ROW_BYTES);
    }
#endif
};

// s += a b' over COUNT channels of a span, from `channel` on; b as `right_place` gives it, for that span.
template <class T, int COUNT, int TILES>
__device__ __forceinline__ void add_products(float (&s)[TILES][4], const Rows &a, u32 b, u32 span, u32 channel) {
#pragma unroll
    for (u32 c = channel; c < channel + COUNT; c += 16) {
        u32 left[4], right[4];
        a.get(left, span, c);
#pragma unroll
        for (int j = 0; j < TILES; j += 2) {
            load_matrices(right, (b ^ 2 * c) + 8 * j * ROW_BYTES);
            multiply<T>(s[j], left, right[0], right[1]);
            multiply<T>(s[j + 1], left, right[2], right[3]);
        }
    }
}

// s = a b' over channels: the warp's 16 rows of a, and 8 rows of b for each 8 columns of s.
template <class T, int TILES>
__device__ __forceinline__ void products(float (&s)[TILES][4], const Rows &a, u32 b, u32 channels) {
    b = right_place(b);
#pragma unroll
    for (int j = 0; j < TILES; ++j)
#pragma unroll
        for (int e = 0; e < 4; ++e) s[j][e] = 0.0f;
#if SMALL
    add_products<T, WIDTH>(s, a, b, 0, 0);
#else
    u32 span = 0;
#if __CUDA_ARCH__ >= 800
#pragma unroll 1
    for (; channels >= SPAN; channels -= SPAN, ++span, b += 8 * TILES * ROW_BYTES)
        add_products<T, SPAN>(s, a, b, span, 0);
#endif
    // The part that is not a whole span; before 8.0, where heads have at most one span, everything.
#pragma unroll 1
    for (u32 channel = 0; channel < channels; channel += DEPTH) add_products<T, DEPTH>(s, a, b, span, channel);
#endif
}

// A block's part of results: the warp's 16 rows.
typedef float Sums[WIDTH / 8][4];

// sums += p b for `channels` of the span: p from `rounded`, and a row of b for each of its columns.
template <class T, int STEPS>
__device__ __forceinline__ void add_mixed(Sums &sums, const u32 (&p)[STEPS][4], u32 b, u32 channels) {
    b = left_place(b, 0);
#pragma unroll
    for (int channel = 0; channel < WIDTH; channel += DEPTH) {
        if (!SMALL && channel && channel >= channels) break;
#pragma unroll
        for (int step = 0; step < STEPS; ++step)
#pragma unroll
            for (int c = channel; c < channel + DEPTH; c += 16) {
                u32 right[4];
                load_matrices_transposed(right, (b ^ 2 * c) + step * 16 * ROW_BYTES);
                multiply<T>(sums[c / 8], p[step], right[0], right[1]);
                multiply<T>(sums[c / 8 + 1], p[step], right[2], right[3]);
            }
    }
}

// A tile of scores as the left factor of a product, 16 columns a step: a lane's elements are the same in both.
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

// The facts of a tile's COUNT columns and of their diagonals.
template <int COUNT>
struct Facts {
    float bias[ROWS + COUNT];
    int segment[COUNT];
};

// A tile's position.
struct Tile {
    int sample, head, query, key;
};

// The bias of each diagonal of a tile, in powers of two, and its bucket if requested: from the diagonal of the last of
// QUERIES and the first key on.
template <int QUERIES, int COUNT, class T>
__device__ __forceinline__ void gather_bias(float (&bias)[COUNT], int *buckets, const Shape &shape,
                                            const Starts &starts, const T *table, const Tile &tile) {
    int t = threadIdx.x;
    if (!shape.buckets || t >= COUNT - 1) return;
    int bucket = bucket_of(shape, starts, tile.key - tile.query + t - (QUERIES - 1));
    if (buckets) buckets[t] = bucket;
    bias[t] = number_at(table, bucket * shape.heads + tile.head, shape.number) * LOG2_E;
}

// The segments of a tile's columns.
template <int COUNT>
__device__ __forceinline__ void gather_segments(int (&to)[COUNT], const int *segments, int sample, int first,
                                                int columns) {
    int t = threadIdx.x;
    if (!segments || t >= COUNT) return;
    if (first + t < columns)
        copy4(shared_address(&to[t]), segments + (u64)sample * columns + first + t);
    else
        to[t] = 0;
}

// The segments of the thread's two rows.
__device__ __forceinline__ void own_segments(int (&own)[2], const int *segments, int sample, int first, int rows) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        int row = first + own_row() + 8 * h;
        own[h] = segments && row < rows ? segments[(u64)sample * rows + row] : 0;
    }
}

// 1 / x.
__device__ __forceinline__ float reciprocal(float x) {
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// Adds biases to products, or caps them. Returns the factor from these sums to scores in powers of two.
template <bool ROWS_ARE_KEYS, int TILES>
__device__ __forceinline__ float scale_scores(float (&s)[TILES][4], const Shape &shape, const float *bias) {
    float scale = shape.scale * LOG2_E;
    // With a negative scale, the largest product is not the largest score.
    bool adds = shape.buckets || scale <= 0.0f;
    if (!adds && shape.cap == 0.0f) return scale;
    if (shape.cap != 0.0f) {
        // cap · tanh x = cap · (1 - 2 / (e^2x + 1)). Near zero the error is small only compared to the cap. Probabilities
        // depend on differences of scores, so a small error relative to x would not make them more exact.
        float cap = shape.cap * LOG2_E, twice = 2.0f * scale / shape.cap;
#pragma unroll
        for (int j = 0; j < TILES; ++j)
#pragma unroll
            for (int e = 0; e < 4; ++e) s[j][e] = fmaf(-2.0f * cap, reciprocal(power(twice * s[j][e]) + 1.0f), cap);
        return 1.0f;
    }
#pragma unroll
    for (int j = 0; j < TILES; ++j)
#pragma unroll
        for (int e = 0; e < 4; ++e) s[j][e] *= scale;
    if (!shape.buckets) return 1.0f;
    int ahead = (int)(own_column() - own_row());
    bias += ROWS_ARE_KEYS ? 8 * TILES - 1 - ahead : ROWS - 1 + ahead;
#pragma unroll
    for (int j = 0; j < TILES; ++j)
#pragma unroll
        for (int e = 0; e < 4; ++e) {
            const int to = 8 * j + e % 2 - e / 2 * 8;
            s[j][e] += bias[ROWS_ARE_KEYS ? -to : to];
        }
    return 1.0f;
}

// The slope of the cap at a capped score in powers of two: 0 at hidden scores, and 1 without a cap.
__device__ __forceinline__ float slope_of_cap(bool capped, float score, const Shape &shape) {
    float part = fmaxf(score * (LOG_2 / shape.cap), -1.0f);
    return capped ? fmaf(-part, part, 1.0f) : 1.0f;
}

// Hides scores of keys after the last one, keys after the reach, keys before the window, and keys of other segments. Rows and
// queries after their ends do not matter.
template <bool ROWS_ARE_KEYS, int TILES>
__device__ __forceinline__ void hide(float (&s)[TILES][4], const Shape &shape, const Tile &tile, bool segmented,
                                     const int (&own)[2], const int *of_columns) {
    int ahead = tile.key - tile.query, row = own_row(), column = own_column(), of_warp = warp_row();
    bool later = ahead + (ROWS_ARE_KEYS ? of_warp + ROWS_OF_WARP : 8 * TILES - of_warp) > shape.reach;
    // Whether the warp's last query is after the window of the warp's first key.
    bool earlier = ahead + shape.window < (ROWS_ARE_KEYS ? 8 * TILES - of_warp : of_warp + ROWS_OF_WARP);
    if (ROWS_ARE_KEYS && (later || earlier)) {
        int till = ahead + row - column + shape.window, from = till - shape.window + 1 - shape.reach;
#pragma unroll
        for (int j = 0; j < TILES; ++j)
#pragma unroll
            for (int e = 0; e < 4; ++e) {
                const int at = 8 * j + e % 2 - e / 2 * 8;
                if (at < from || at >= till) s[j][e] = NOTHING;
            }
    }
    if (!ROWS_ARE_KEYS && (later || earlier || tile.key + 8 * TILES > shape.keys)) {
        int last = shape.keys - tile.key - column, till = row - ahead - column + shape.reach;
        int from = till - shape.reach + 1 - shape.window, end[2] = {min(last, till), min(last, till + 8)};
#pragma unroll
        for (int j = 0; j < TILES; ++j)
#pragma unroll
            for (int e = 0; e < 4; ++e) {
                const int at = 8 * j + e % 2;
                if (at >= end[e / 2] || at < from + e / 2 * 8) s[j][e] = NOTHING;
            }
    }
    if (!segmented) return;
#pragma unroll
    for (int j = 0; j < TILES; ++j)
#pragma unroll
        for (int e = 0; e < 4; ++e)
            if (own[e / 2] != of_columns[column + 8 * j + e % 2]) s[j][e] = NOTHING;
}

// Which of the thread's probabilities are kept: a bit for each, 4 for each 8 columns, in order. A random draw is for 4
// neighboring keys of a query: each lane draws for one such quad, and lanes with keys of it exchange the words.
template <bool ROWS_ARE_KEYS, int TILES>
__device__ __forceinline__ u32 kept_bits(const Shape &shape, const Tile &tile, const Scalars *scalars) {
    u32 kept = 0, lane = threadIdx.x % WARP, site = shape.site | (u32)tile.head << 22, query, key;
    // If rows are keys, 4 lanes have a quad of keys for each of two neighboring queries, and two more 8 below.
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

// The same without dropped probabilities.
template <int STEPS>
__device__ __forceinline__ void drop(u32 (&p)[STEPS][4], u32 kept) {
#pragma unroll
    for (int step = 0; step < STEPS; ++step)
#pragma unroll
        for (int n = 0; n < 4; ++n) {
            u32 two = kept >> (8 * step + 2 * n);
            p[step][n] &= (two & 1 | (two & 2) << 15) * 0xffff;
        }
}

// Zeroes the elements at dropped probabilities.
template <int TILES>
__device__ __forceinline__ void drop(float (&s)[TILES][4], u32 kept) {
#pragma unroll
    for (int j = 0; j < TILES; ++j)
#pragma unroll
        for (int e = 0; e < 4; ++e)
            if (!(kept >> (4 * j + e) & 1)) s[j][e] = 0.0f;
}

// Writes `channels` of the warp's 16 rows, times a factor for each of the thread's two rows, through its rows of a tile
// that no other warp reads, so that neighboring threads write neighboring elements.
template <class T>
__device__ __forceinline__ void write_rows(const Sums &sums, const float (&factor)[2], u32 tile, T *to,
                                           u64 stride, u32 first, u32 rows, u32 channels) {
    u32 lane = threadIdx.x % WARP, own = place(tile, own_row(), 0, ROW_BYTES) + own_column() * 2;
    __syncwarp(); // all reads of the rows are done
#pragma unroll
    for (int j = 0; j < WIDTH / 8; ++j) {
        if (!SMALL && j % (DEPTH / 8) == 0 && j * 8 >= channels) break;
        store_shared(own ^ 16 * j, pack<T>(sums[j][0] * factor[0], sums[j][1] * factor[0]));
        store_shared((own ^ 16 * j) + 8 * ROW_BYTES, pack<T>(sums[j][2] * factor[1], sums[j][3] * factor[1]));
    }
    __syncwarp();
#pragma unroll 1
    for (u32 column = lane % 8 * 8; column < channels; column += 64) {
#pragma unroll 1
        for (u32 row = warp_row() + lane / 8; row < warp_row() + ROWS_OF_WARP && first + row < rows; row += 4) {
            u32 from = place(tile, row, column, ROW_BYTES);
            T *target = to + (first + row) * stride + column;
            if (channels % 8 == 0) {
                store_global(target, load_shared(from));
            } else {
#pragma unroll 1
                for (u32 i = 0; i < min(8, channels - column); ++i) target[i].bits = load_shared_half(from + 2 * i);
            }
        }
    }
}
