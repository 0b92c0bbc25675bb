// What all kernels of attention share: what an attention is, and the buckets of its bias.
// Reference: src/reference/attention.rs.

#pragma once
#include "philox.cuh"

#define THREADS 128
// The lse of a query that sees nothing: any score's exponential over it is zero.
#define EMPTY_LSE 1e30f
// Queries and keys are numbered by so many where probabilities are dropped out.
#define DROPOUT_TOKENS 131072u
#define MOST_BUCKETS 128
// The window of an attention that has none: more than there are keys, and half of what an int holds.
#define ALL_KEYS (1 << 30)

// What an attention is, by value.
struct Shape {
    u64 query_stride; // Elements from a token's queries to the next one's.
    u64 key_stride;   // The same of keys and values.
    u64 result_stride; // The same of results.
    int queries, keys, head_size, heads, kv_heads;
    int number; // How all but sums lie.
    int causal;
    int window; // A query sees the last so many keys up to its own, ALL_KEYS or fewer. Causal attention alone has one.
    float scale;
    // Buckets of one direction, 0 if there is no bias, and whether keys behind the query have buckets of their own.
    int buckets, bidirectional;
    // Below this a random word drops a probability, 0: none is dropped; what is kept is multiplied by `kept`.
    u32 threshold;
    float kept;
    u32 site;
};

// The smallest distance of each bucket, in ascending order, by value.
struct Starts {
    int at[MOST_BUCKETS];
};

// The bucket of a key that lies so far ahead of the query.
__device__ __forceinline__ int bucket_of(const Shape &shape, const Starts &starts, int ahead) {
    int distance = shape.bidirectional ? abs(ahead) : max(-ahead, 0), bucket = 0;
#pragma unroll 1
    for (int step = MOST_BUCKETS / 2; step > 0; step /= 2)
        if (bucket + step < shape.buckets && starts.at[bucket + step] <= distance) bucket += step;
    return bucket + (shape.bidirectional && ahead > 0 ? shape.buckets : 0);
}

// The first key that a query sees, rounded down to a tile of `tile` keys; and the end of the queries that see key `last`.
__device__ __forceinline__ int first_seen(const Shape &shape, int query, int tile) {
    return max(query + 1 - shape.window, 0) / tile * tile;
}
__device__ __forceinline__ int end_of_seeing(const Shape &shape, int last) {
    return min(shape.queries, last + shape.window);
}

// Where a segment stands in the order that rows are packed in: 0, which is padding, comes last.
__device__ __forceinline__ u32 rank_of(int segment) { return (u32)segment - 1; }

// A number that all lanes have, from where compilers know that they do.
__device__ __forceinline__ u32 uniform(u32 x) { return __ballot_sync(ALL_LANES, x >> threadIdx.x % WARP & 1); }

// Narrows `first` to `end`, columns that ROWS rows from `row` on may see or be seen by, to those from the first to the last
// whose segment lies between two of the rows', in any order of segments. What is left out is hidden from all the rows:
// their results are the same bits without it. `first` stays a multiple of TILE, in which columns are worked on. `places`
// has room for 2 of each warp, and may be read or written by nobody else before the call or in it.
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
