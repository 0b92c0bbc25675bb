// Shared by kernels of attention in single precision: tiles of 32 queries by 32 keys of one head.
//
//            keys             A block of 128 threads. Each has 4 rows and 2 columns of a tile of scores, and of results
//          +-------+          4 rows and 2 columns of each chunk of 32 channels; 16 neighbors share a row.
//  queries | 4 x 2 |          Channels pass through shared memory a chunk at a time, so that heads may be of any size.
//          +-------+

#pragma once
#include "activation.cuh"
#include "attention.cuh"

#define TILE 32
#define CHUNK 32
// One float more than a chunk, so that the elements of a column are in different banks.
#define STRIDE (CHUNK + 1)
#define ROWS 4
#define COLUMNS 2
#define LANES_OF_ROW 16
#define DIAGONALS (2 * TILE - 1)
// Chunks of results per block: larger heads are split among blocks along z, each of which computes all scores.
#define MOST 4
#define SPAN (MOST * CHUNK)

typedef float Part[ROWS][COLUMNS];

// The type of everything except sums: if tensor cores support all types of 16 bits, these kernels are for single
// precision only.
__device__ __forceinline__ int number_of(const Shape &shape) {
#if __CUDA_ARCH__ >= 800
    return F32;
#else
    return shape.number;
#endif
}

// The thread's first row of a tile, and its first column; the others follow at distances of LANES_OF_ROW.
__device__ __forceinline__ int first_row() { return threadIdx.x / LANES_OF_ROW * ROWS; }
__device__ __forceinline__ int first_column() { return threadIdx.x % LANES_OF_ROW; }

// Loads rows `first` on of a matrix of `rows` rows, channels `channel` on of `channels`; zeros after its ends.
__device__ __forceinline__ void load_chunk(float *tile, const void *from, u64 stride, int first, int rows, int channel,
                                           int channels, int number) {
    int column = threadIdx.x % CHUNK, row = threadIdx.x / CHUNK;
    int left = channel + column < channels ? rows - first - row : 0;
    u64 at = (first + row) * stride + channel + column;
    tile += row * STRIDE + column;
    const int step = THREADS / CHUNK;
    if (number == F32) {
        const float *p = static_cast<const float *>(from) + at;
#pragma unroll 4
        for (int n = 0; n < TILE; n += step, p += step * stride) tile[n * STRIDE] = n < left ? *p : 0.0f;
    } else {
        const u16 *p = static_cast<const u16 *>(from) + at;
#pragma unroll 4
        for (int n = 0; n < TILE; n += step, p += step * stride) {
            u16 bits = n < left ? *p : 0;
            tile[n * STRIDE] = number == F16 ? widen(f16{bits}) : widen(bf16{bits});
        }
    }
}

// s += a b', of tiles (rows, channels).
__device__ __forceinline__ void add_products(Part &s, const float *a, const float *b) {
    a += first_row() * STRIDE;
    b += first_column() * STRIDE;
#pragma unroll 4
    for (int d = 0; d < CHUNK; ++d)
#pragma unroll
        for (int i = 0; i < ROWS; ++i)
#pragma unroll
            for (int j = 0; j < COLUMNS; ++j)
                s[i][j] = fmaf(a[i * STRIDE + d], b[j * LANES_OF_ROW * STRIDE + d], s[i][j]);
}

// sum += p v, of tiles p (rows, k) and v (k, channels).
__device__ __forceinline__ void add_mixed(Part &sum, const float *p, const float *v) {
    p += first_row() * STRIDE;
    v += first_column();
#pragma unroll 4
    for (int k = 0; k < TILE; ++k)
#pragma unroll
        for (int i = 0; i < ROWS; ++i)
#pragma unroll
            for (int j = 0; j < COLUMNS; ++j)
                sum[i][j] = fmaf(p[i * STRIDE + k], v[k * STRIDE + j * LANES_OF_ROW], sum[i][j]);
}

// s = a b' over all channels: rows of two matrices. Ends with a barrier.
__device__ __forceinline__ void products(Part &s, float *tile_a, float *tile_b, const void *a, u64 stride_a,
                                         int first_a, int rows_a, const void *b, u64 stride_b, int first_b,
                                         int rows_b, const Shape &shape) {
#pragma unroll
    for (int i = 0; i < ROWS; ++i)
#pragma unroll
        for (int j = 0; j < COLUMNS; ++j) s[i][j] = 0.0f;
#pragma unroll 1
    for (int channel = 0; channel < shape.head_size; channel += CHUNK) {
        load_chunk(tile_a, a, stride_a, first_a, rows_a, channel, shape.head_size, number_of(shape));
        load_chunk(tile_b, b, stride_b, first_b, rows_b, channel, shape.head_size, number_of(shape));
        __syncthreads();
        add_products(s, tile_a, tile_b);
        __syncthreads();
    }
}

// Stores a thread's part in a tile.
__device__ __forceinline__ void put(float *tile, const Part &s) {
#pragma unroll
    for (int i = 0; i < ROWS; ++i)
#pragma unroll
        for (int j = 0; j < COLUMNS; ++j)
            tile[(first_row() + i) * STRIDE + first_column() + j * LANES_OF_ROW] = s[i][j];
}

// Writes a chunk of channels, times a factor, through a tile, so that neighboring threads write neighboring elements.
__device__ __forceinline__ void write(const Part &sum, float factor, float *tile, void *to, u64 stride, int first,
                                      int rows, int channel, int channels, int number) {
    __syncthreads(); // all reads of the tile are done
    put(tile, sum);
    __syncthreads();
    int column = threadIdx.x % CHUNK;
    if (channel + column >= channels) return;
#pragma unroll 1
    for (int row = threadIdx.x / CHUNK; row < TILE && first + row < rows; row += THREADS / CHUNK)
        set_number(to, (first + row) * stride + channel + column, tile[row * STRIDE + column] * factor, number);
}

// Properties of a tile of scores: biases and their buckets by diagonal; for each query, a bit for each key that it
// attends to, and for each key that is not dropped.
struct Facts {
    float bias[DIAGONALS + 1];
    int bucket[DIAGONALS + 1];
    u32 seen[TILE];
    unsigned char kept[TILE][TILE / 4];
};

// Gathers the facts of the tile at (query, key) of a head of a sample. Needs a barrier before and after.
__device__ __forceinline__ void gather(Facts &facts, const Shape &shape, const Starts &starts, const void *table,
                                       const int *of_queries, const int *of_keys, const Scalars *scalars, int sample,
                                       int head, int query, int key) {
    int t = threadIdx.x;
    if (t < DIAGONALS) {
        int bucket = bucket_of(shape, starts, key - query + t - (TILE - 1));
        facts.bucket[t] = bucket;
        facts.bias[t] = shape.buckets ? number_at(table, bucket * shape.heads + head, number_of(shape)) : 0.0f;
    }
    int j = key + t % WARP, segment = of_queries && j < shape.keys ? of_keys[(u64)sample * shape.keys + j] : 0;
#pragma unroll 1
    for (int row = t / WARP; row < TILE; row += THREADS / WARP) {
        int i = query + row;
        bool seen = i < shape.queries && j < shape.keys && j - i < shape.reach && i - j < shape.window;
        if (of_queries && i < shape.queries) seen &= of_queries[(u64)sample * shape.queries + i] == segment;
        u32 bits = __ballot_sync(ALL_LANES, seen);
        if (t % WARP == 0) facts.seen[row] = bits;
    }
    if (shape.threshold) {
        u32 site = shape.site | (u32)head << 22;
#pragma unroll 1
        for (int quad = t; quad < TILE * TILE / 4; quad += THREADS) {
            int row = quad / (TILE / 4), column = quad % (TILE / 4);
            u32 number = (u32)(query + row) * (DROPOUT_TOKENS / 4) + (u32)key / 4 + column;
            uint4 words = dropout_bits(scalars, scalars->first_sample + sample, site, number);
            facts.kept[row][column] = (words.x >= shape.threshold) | (words.y >= shape.threshold) << 1 |
                                      (words.z >= shape.threshold) << 2 | (words.w >= shape.threshold) << 3;
        }
    }
}

// `narrow` of attention.cuh for the rows of a tile of the sample, if there are segments; `facts` are not gathered yet.
__device__ __forceinline__ void narrow(int &first, int &end, Facts &facts, const int *of_rows, const int *of_columns,
                                       int sample, int row, int rows, int columns) {
    if (of_rows)
        narrow<TILE, TILE>(first, end, of_rows + (u64)sample * rows, of_columns + (u64)sample * columns, row, rows,
                           facts.bucket);
}

// A query and a key by their indices in a tile.
struct Pair {
    int query, key;

    __device__ __forceinline__ bool seen(const Facts &facts) const { return facts.seen[query] >> key & 1; }
    __device__ __forceinline__ float score(float product, const Facts &facts, const Shape &shape) const {
        return product * shape.scale + facts.bias[key - query + TILE - 1];
    }
    // The factor of the probability.
    __device__ __forceinline__ float keep(const Facts &facts, const Shape &shape) const {
        return !shape.threshold || facts.kept[query][key / 4] >> key % 4 & 1 ? shape.kept : 0.0f;
    }
};

// Replaces products by those of capped scores, if there is a cap.
__device__ __forceinline__ void cap_scores(Part &s, const Shape &shape) {
    if (shape.cap == 0.0f) return;
    float most = shape.cap / shape.scale;
#pragma unroll
    for (int i = 0; i < ROWS; ++i)
#pragma unroll
        for (int j = 0; j < COLUMNS; ++j) s[i][j] = most * tanh_exact(s[i][j] / most);
}

// The slope of the cap at a capped score; 1 without a cap.
__device__ __forceinline__ float slope_of_cap(bool capped, float score, const Shape &shape) {
    float part = score / shape.cap;
    return capped ? 1.0f - part * part : 1.0f;
}

// The sum and the maximum over the neighbors that share a row.
__device__ __forceinline__ float row_sum(float x) {
#pragma unroll
    for (int distance = LANES_OF_ROW / 2; distance > 0; distance /= 2) x += __shfl_xor_sync(ALL_LANES, x, distance);
    return x;
}
__device__ __forceinline__ float row_largest(float x) {
#pragma unroll
    for (int distance = LANES_OF_ROW / 2; distance > 0; distance /= 2)
        x = fmaxf(x, __shfl_xor_sync(ALL_LANES, x, distance));
    return x;
}
