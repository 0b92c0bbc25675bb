// Shared by all kernels of attention: its description, and the buckets of its bias. Reference:
// src/reference/attention.rs.

#pragma once
#include "philox.cuh"

#define THREADS 128
// The lse of a query that attends to no key: the exponential of any score minus it is zero.
#define EMPTY_LSE 1e30f
// Number of keys per query in the numbering of probabilities for dropout.
#define DROPOUT_TOKENS 131072u
#define MOST_BUCKETS 128
// The window of an attention without one: more than the number of keys, and half of the largest int.
#define ALL_KEYS (1 << 30)

// The description of an attention, by value.
struct Shape {
    u64 query_stride; // Elements from a token's queries to the next token's.
    u64 key_stride;   // The same of keys and values.
    u64 result_stride; // The same of results.
    int queries, keys, head_size, heads, kv_heads;
    int number; // The type of everything except sums.
    int reach;  // Number of keys from its own on that a query sees: 1 if attention is causal, at most ALL_KEYS.
    int window; // Number of keys up to its own that a query sees, at most ALL_KEYS.
    float scale;
    float cap; // The limit of scores; 0 without one. Not with a bias.
    // Number of buckets of one direction (0 without a bias), and whether keys after the query have separate buckets.
    int buckets, bidirectional;
    // A random word below this drops a probability (0: no dropout); kept probabilities are multiplied by `kept`.
    u32 threshold;
    float kept;
    u32 site;
};

// The smallest distance of each bucket, in ascending order, by value.
struct Starts {
    int at[MOST_BUCKETS];
};

// Adds the exponential of a head's sink to a row's sum: takes the logs of both and the row's factor, the reciprocal of
// its sum.
__device__ __forceinline__ void join_sink(float &lse, float &factor, float sink) {
    float both = fmaxf(lse, sink) + logf(1.0f + __expf(-fabsf(lse - sink)));
    factor *= __expf(lse - both);
    lse = both;
}

// The bucket of a key that is this far before the query.
__device__ __forceinline__ int bucket_of(const Shape &shape, const Starts &starts, int ahead) {
    int distance = shape.bidirectional ? abs(ahead) : max(-ahead, 0), bucket = 0;
#pragma unroll 1
    for (int step = MOST_BUCKETS / 2; step > 0; step /= 2)
        if (bucket + step < shape.buckets && starts.at[bucket + step] <= distance) bucket += step;
    return bucket + (shape.bidirectional && ahead > 0 ? shape.buckets : 0);
}

// The first key that a query attends to, rounded down to a tile of `tile` keys, and the end of those that query `last`
// attends to; the first query that attends to a key, rounded down to a tile, and the end of those that attend to key
// `last`.
__device__ __forceinline__ int first_seen(const Shape &shape, int query, int tile) {
    return max(query + 1 - shape.window, 0) / tile * tile;
}
__device__ __forceinline__ int end_of_seen(const Shape &shape, int last) {
    return min(shape.keys, last + shape.reach);
}
__device__ __forceinline__ int first_seeing(const Shape &shape, int key, int tile) {
    return max(key + 1 - shape.reach, 0) / tile * tile;
}
__device__ __forceinline__ int end_of_seeing(const Shape &shape, int last) {
    return min(shape.queries, last + shape.window);
}

// The position of a segment in the order of packed rows: 0, which is padding, comes last.
__device__ __forceinline__ u32 rank_of(int segment) { return (u32)segment - 1; }

// Returns a number that is the same in all lanes in a form that makes this known to the compiler.
__device__ __forceinline__ u32 uniform(u32 x) { return __ballot_sync(ALL_LANES, x >> threadIdx.x % WARP & 1); }

// Narrows `first` to `end`, the columns that ROWS rows from `row` on may attend to (or, if rows are keys, the queries
// that may attend to them), to the range from the first to the last column whose segment is between two of the rows'
// segments. All other columns are hidden from all rows, so results have the same bits without them. `first` stays a
// multiple of TILE. `places` has 2 elements for each warp, and no other code may use it before or during the call.
template <int ROWS, int TILE>
__device__ __forceinline__ void narrow(int &first, int &end, const int *of_rows, const int *of_columns, int row,
                                       int rows, int *places) {
    int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, from = end, till = first;
    u32 lowest = ~0u, highest = 0;
#pragma unroll
    for (int n = lane; n < ROWS; n += WARP)
        if (row + n < rows) {
            u32 rank = rank_of(of_rows[row + n]);
            lowest = min(lowest, rank);
            highest = max(highest, rank);
        }
#pragma unroll
    for (int distance = WARP / 2; distance > 0; distance /= 2) {
        lowest = min(lowest, __shfl_xor_sync(ALL_LANES, lowest, distance));
        highest = max(highest, __shfl_xor_sync(ALL_LANES, highest, distance));
    }
#pragma unroll 4
    for (int at = first + warp * WARP; at < end; at += THREADS) {
        bool met = at + lane < end && rank_of(of_columns[at + lane]) - lowest <= highest - lowest;
        if (!__any_sync(ALL_LANES, met)) continue;
        from = min(from, at);
        till = min(at + WARP, end);
    }
    if (lane == 0) places[2 * warp] = from, places[2 * warp + 1] = till;
    __syncthreads();
#pragma unroll
    for (int w = 0; w < THREADS / WARP; ++w) from = min(from, places[2 * w]), till = max(till, places[2 * w + 1]);
    __syncthreads(); // places are read
    first = uniform(from / TILE * TILE);
    end = uniform(max(till, first));
}
