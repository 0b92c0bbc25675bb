// Attention that never stores more than a tile of scores. Blocks: heads of samples along x, tiles of queries along y,
// spans of channels along z. Source: Dao et al. 2022, "FlashAttention", algorithm 1; Milakov & Gimelshein 2018 for the
// running maximum.

#include "attention_single.cuh"

// y and lse. table, segments and sinks are null if there are none. GENERAL: whether there may be sinks or a cap, which
// take registers.
template <bool GENERAL>
__device__ __forceinline__ void forward(const void *q, const void *k, const void *v, const void *table,
                                        const int *of_queries, const int *of_keys, const void *sinks, void *y,
                                        float *lse, const Scalars *scalars, const Shape &shape, const Starts &starts) {
    __shared__ float tile_a[TILE * STRIDE], tile_b[TILE * STRIDE];
    __shared__ Facts facts;
    int sample = blockIdx.x / shape.heads, head = blockIdx.x % shape.heads, query = blockIdx.y * TILE;
    int channels = shape.head_size, kv_head = head / (shape.heads / shape.kv_heads);
    int span = blockIdx.z * SPAN, width = min(SPAN, channels - span);
    u64 of_tokens = sample * (u64)shape.keys * shape.key_stride + (u64)kv_head * channels;
    q = element(q, sample * (u64)shape.queries * shape.query_stride + (u64)head * channels, number_of(shape));
    k = element(k, of_tokens, number_of(shape));
    v = element(v, of_tokens + span, number_of(shape));
    y = element(y, sample * (u64)shape.queries * shape.result_stride + (u64)head * channels + span, number_of(shape));

    Part mixed[MOST] = {};
    float largest[ROWS], sum[ROWS] = {};
#pragma unroll
    for (int i = 0; i < ROWS; ++i) largest[i] = __int_as_float(0xff800000);
    int first = first_seen(shape, query, TILE), end = end_of_seen(shape, query + TILE - 1);
    narrow(first, end, facts, of_queries, of_keys, sample, query, shape.queries, shape.keys);
    for (int key = first; key < end; key += TILE) {
        Part s;
        gather(facts, shape, starts, table, of_queries, of_keys, scalars, sample, head, query, key);
        products(s, tile_a, tile_b, q, shape.query_stride, query, shape.queries, k, shape.key_stride, key, shape.keys,
                 shape);
        if (GENERAL) cap_scores(s, shape);
#pragma unroll
        for (int i = 0; i < ROWS; ++i) {
            float top = largest[i];
            bool seen[COLUMNS];
#pragma unroll
            for (int j = 0; j < COLUMNS; ++j) {
                Pair pair = {first_row() + i, first_column() + j * LANES_OF_ROW};
                seen[j] = pair.seen(facts);
                s[i][j] = pair.score(s[i][j], facts, shape);
                if (seen[j]) top = fmaxf(top, s[i][j]);
            }
            top = row_largest(top);
            // No key was visible until now.
            float shrink = largest[i] == top ? 1.0f : __expf(largest[i] - top), more = 0.0f;
#pragma unroll
            for (int j = 0; j < COLUMNS; ++j) {
                Pair pair = {first_row() + i, first_column() + j * LANES_OF_ROW};
                float p = seen[j] ? __expf(s[i][j] - top) : 0.0f;
                more += p;
                s[i][j] = p * pair.keep(facts, shape);
            }
            sum[i] = sum[i] * shrink + row_sum(more);
            largest[i] = top;
#pragma unroll
            for (int c = 0; c < MOST; ++c)
#pragma unroll
                for (int j = 0; j < COLUMNS; ++j) mixed[c][i][j] *= shrink;
        }
        put(tile_a, s);
#pragma unroll
        for (int c = 0; c < MOST; ++c) {
            if (c * CHUNK >= width) break;
            load_chunk(tile_b, v, shape.key_stride, key, shape.keys, c * CHUNK, width, number_of(shape));
            __syncthreads();
            add_mixed(mixed[c], tile_a, tile_b);
            __syncthreads();
        }
    }
#pragma unroll
    for (int i = 0; i < ROWS; ++i) {
        float factor = sum[i] > 0.0f ? 1.0f / sum[i] : 0.0f;
        float lse_of = sum[i] > 0.0f ? largest[i] + logf(sum[i]) : EMPTY_LSE;
        if (GENERAL && sinks && sum[i] > 0.0f) join_sink(lse_of, factor, number_at(sinks, head, number_of(shape)));
        int row = query + first_row() + i;
        if (first_column() == 0 && row < shape.queries && span == 0)
            lse[(u64)blockIdx.x * shape.queries + row] = lse_of;
#pragma unroll
        for (int c = 0; c < MOST; ++c)
#pragma unroll
            for (int j = 0; j < COLUMNS; ++j) mixed[c][i][j] *= factor;
    }
#pragma unroll
    for (int c = 0; c < MOST; ++c) {
        if (c * CHUNK >= width) break;
        write(mixed[c], 1.0f, tile_a, y, shape.result_stride, query, shape.queries, c * CHUNK, width,
              number_of(shape));
    }
}

#define OF(name, general, blocks)                                                                                      \
    KERNEL_BLOCKS(THREADS, blocks)                                                                                     \
    name(const void *q, const void *k, const void *v, const void *table, const int *of_queries, const int *of_keys,    \
         const void *sinks, void *y, float *lse, const Scalars *scalars, Shape shape, Starts starts) {                 \
        forward<general>(q, k, v, table, of_queries, of_keys, sinks, y, lse, scalars, shape, starts);                  \
    }
OF(attention, false, __CUDA_ARCH__ >= 800 ? 5 : 4)
OF(attention_general, true, 4)
