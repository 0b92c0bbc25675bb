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

// What an attention is, by value.
struct Shape {
    u64 query_stride; // Elements from a token's queries to the next one's.
    u64 key_stride;   // The same of keys and values.
    u64 result_stride; // The same of results.
    int queries, keys, head_size, heads, kv_heads;
    int number; // How all but sums lie.
    int causal;
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
