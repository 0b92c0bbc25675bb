// Causal attention of new tokens to all earlier ones, whose keys and values are cached. A block for each new token and
// head; its warps split the keys and join their results in order. Reference: src/reference/cached_attention.rs.

#include "activation.cuh"
#include "attention.cuh"

#define WARPS (THREADS / WARP)

// Copies the new tokens' keys or values to the cache, as numbers of 4 or 2 bytes. A block for each token.
KERNEL(THREADS) cached_attention_keep(const char *fed, u64 stride_bytes, char *cache, const Scalars *scalars,
                                      int tokens, int capacity, u64 row_bytes) {
    u64 sample = blockIdx.x / tokens, row = scalars->position + blockIdx.x % tokens;
    copy_bytes(fed + blockIdx.x * stride_bytes, cache + (sample * capacity + row) * row_bytes, row_bytes);
}

// y of a token and head. MOST: the most channels of a head, in multiples of a warp; GENERAL: whether there may be sinks
// or a cap.
template <int MOST, bool GENERAL>
__device__ __forceinline__ void attend(const void *q, const void *keys, const void *values, const void *table,
                                       const void *sinks, void *y, const Scalars *scalars, const Shape &shape,
                                       const Starts &starts) {
    __shared__ float largest_of[WARPS], sum_of[WARPS], mixed_of[WARPS][MOST * WARP];
    int token = blockIdx.x / shape.heads, head = blockIdx.x % shape.heads, warp = threadIdx.x / WARP;
    int lane = threadIdx.x % WARP, channels = shape.head_size, kv_head = head / (shape.heads / shape.kv_heads);
    int place = scalars->position + token % shape.queries;
    u64 sample = token / shape.queries;
    u64 of_tokens = sample * shape.keys * shape.key_stride + (u64)kv_head * channels;
    q = element(q, token * shape.query_stride + (u64)head * channels, shape.number);
    keys = element(keys, of_tokens, shape.number);
    values = element(values, of_tokens, shape.number);
    float query[MOST], mixed[MOST] = {}, largest = __int_as_float(0xff800000), sum = 0.0f;
#pragma unroll
    for (int c = 0; c < MOST; ++c) query[c] = c * WARP + lane < channels ? number_at(q, c * WARP + lane, shape.number) : 0.0f;
    for (int key = first_seen(shape, place, 1) + warp; key <= place; key += WARPS) {
        float dot = 0.0f;
#pragma unroll
        for (int c = 0; c < MOST; ++c)
            if (c * WARP + lane < channels)
                dot = fmaf(query[c], number_at(keys, key * shape.key_stride + c * WARP + lane, shape.number), dot);
        float score = warp_sum(dot) * shape.scale;
        if (GENERAL && shape.cap != 0.0f)
            score = shape.cap * tanh_exact(score / shape.cap);
        else if (shape.buckets)
            score += number_at(table, bucket_of(shape, starts, key - place) * shape.heads + head, shape.number);
        float top = fmaxf(largest, score), shrink = __expf(largest - top), p = __expf(score - top);
        sum = sum * shrink + p;
        largest = top;
#pragma unroll
        for (int c = 0; c < MOST; ++c)
            if (c * WARP + lane < channels)
                mixed[c] = fmaf(p, number_at(values, key * shape.key_stride + c * WARP + lane, shape.number), mixed[c] * shrink);
    }
    if (lane == 0) {
        largest_of[warp] = largest;
        sum_of[warp] = sum;
    }
#pragma unroll
    for (int c = 0; c < MOST; ++c) mixed_of[warp][c * WARP + lane] = mixed[c];
    __syncthreads();
    float top = largest_of[0], total = 0.0f, parts[WARPS];
    for (int w = 1; w < WARPS; ++w) top = fmaxf(top, largest_of[w]);
    if (GENERAL && sinks) {
        float sink = number_at(sinks, head, shape.number);
        top = fmaxf(top, sink);
        total = __expf(sink - top);
    }
#pragma unroll
    for (int w = 0; w < WARPS; ++w) {
        // A warp without a key adds nothing.
        parts[w] = sum_of[w] > 0.0f ? __expf(largest_of[w] - top) : 0.0f;
        total += sum_of[w] * parts[w];
    }
    for (int c = threadIdx.x; c < channels; c += THREADS) {
        float result = 0.0f;
#pragma unroll
        for (int w = 0; w < WARPS; ++w) result += mixed_of[w][c] * parts[w];
        set_number(y, token * shape.result_stride + (u64)head * channels + c, result / total, shape.number);
    }
}

#define OF(name, channels, general)                                                                                    \
    KERNEL(THREADS) cached_attention_##name(const void *q, const void *keys, const void *values, const void *table,    \
                                            const void *sinks, void *y, const Scalars *scalars, Shape shape,           \
                                            Starts starts) {                                                           \
        attend<channels / WARP, general>(q, keys, values, table, sinks, y, scalars, shape, starts);                    \
    }
OF(64, 64, false)
OF(256, 256, false)
OF(64_general, 64, true)
OF(256_general, 256, true)
