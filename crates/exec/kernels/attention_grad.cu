// The gradient of attention, after `attention_grad_results` of attention_grad_sums.cu, in passes whose blocks write
// disjoint memory: gradients of keys and values by tiles of keys, those of queries and of the bias' table by tiles of
// queries. Probabilities are recomputed from lse. Source: Dao et al. 2022, "FlashAttention", appendix B.2.

#include "attention_single.cuh"

// dq, and each block's part of the table's gradient, (blocks along x, blocks along y, buckets), null if it is not
// requested. Blocks: heads of samples along x, tiles of queries along y, spans of channels along z.
KERNEL(THREADS) attention_grad_queries(const void *dy, const void *q, const void *k, const void *v, const void *table,
                                       const int *of_queries, const int *of_keys, const float *lse,
                                       const float *delta, void *dq, float *partial, const Scalars *scalars,
                                       Shape shape, Starts starts) {
    __shared__ float tile_a[TILE * STRIDE], tile_b[TILE * STRIDE], slopes[TILE * STRIDE];
    __shared__ float diagonal[DIAGONALS + 1];
    __shared__ Facts facts;
    int sample = blockIdx.x / shape.heads, head = blockIdx.x % shape.heads, query = blockIdx.y * TILE;
    int channels = shape.head_size, kv_head = head / (shape.heads / shape.kv_heads);
    int span = blockIdx.z * SPAN, width = min(SPAN, channels - span);
    u64 of_head = sample * (u64)shape.queries * shape.query_stride + (u64)head * channels;
    u64 of_tokens = sample * (u64)shape.keys * shape.key_stride + (u64)kv_head * channels;
    q = element(q, of_head, number_of(shape));
    dq = element(dq, of_head + span, number_of(shape));
    k = element(k, of_tokens, number_of(shape));
    v = element(v, of_tokens, number_of(shape));
    dy = element(dy, sample * (u64)shape.queries * shape.result_stride + (u64)head * channels, number_of(shape));

    if (span) partial = nullptr;
    Part sums[MOST] = {};
    float lse_of[ROWS], delta_of[ROWS], of_bucket[2] = {};
#pragma unroll
    for (int i = 0; i < ROWS; ++i) {
        int row = query + first_row() + i;
        lse_of[i] = row < shape.queries ? lse[(u64)blockIdx.x * shape.queries + row] : EMPTY_LSE;
        delta_of[i] = row < shape.queries ? delta[(u64)blockIdx.x * shape.queries + row] : 0.0f;
    }
    int first = first_seen(shape, query, TILE), end = end_of_seen(shape, query + TILE - 1);
    narrow(first, end, facts, of_queries, of_keys, sample, query, shape.queries, shape.keys);
    for (int key = first; key < end; key += TILE) {
        Part s, d;
        gather(facts, shape, starts, table, of_queries, of_keys, scalars, sample, head, query, key);
        products(s, tile_a, tile_b, q, shape.query_stride, query, shape.queries, k, shape.key_stride, key, shape.keys,
                 shape);
        products(d, tile_a, tile_b, dy, shape.result_stride, query, shape.queries, v, shape.key_stride, key,
                 shape.keys, shape);
        cap_scores(s, shape);
        auto weigh = [&](bool capped) {
#pragma unroll
            for (int i = 0; i < ROWS; ++i)
#pragma unroll
                for (int j = 0; j < COLUMNS; ++j) {
                    Pair pair = {first_row() + i, first_column() + j * LANES_OF_ROW};
                    float score = pair.score(s[i][j], facts, shape);
                    float p = pair.seen(facts) ? __expf(score - lse_of[i]) : 0.0f;
                    float slope = slope_of_cap(capped, score, shape);
                    s[i][j] = p * (pair.keep(facts, shape) * d[i][j] - delta_of[i]) * slope;
                }
        };
        shape.cap == 0.0f ? weigh(false) : weigh(true);
        put(slopes, s);
#pragma unroll
        for (int c = 0; c < MOST; ++c) {
            if (c * CHUNK >= width) break;
            load_chunk(tile_b, k, shape.key_stride, key, shape.keys, span + c * CHUNK, channels, number_of(shape));
            __syncthreads();
            add_mixed(sums[c], slopes, tile_b);
            __syncthreads();
        }
        if (partial) {
            // Scores of a diagonal share their bias: first the sums of diagonals, then of their buckets.
            int t = threadIdx.x;
            if (t < DIAGONALS) {
                float sum = 0.0f;
                for (int row = max(TILE - 1 - t, 0); row < min(TILE, DIAGONALS - t); ++row)
                    sum += slopes[row * STRIDE + row + t - (TILE - 1)];
                diagonal[t] = sum;
            }
            __syncthreads();
#pragma unroll
            for (int i = 0; i < 2; ++i)
                for (int at = 0; at < DIAGONALS; ++at)
                    if (facts.bucket[at] == t + i * THREADS) of_bucket[i] += diagonal[at];
            __syncthreads(); // before facts and slopes are overwritten
        }
    }
#pragma unroll
    for (int c = 0; c < MOST; ++c) {
        if (c * CHUNK >= width) break;
        write(sums[c], shape.scale, tile_a, dq, shape.query_stride, query, shape.queries, c * CHUNK, width,
              number_of(shape));
    }
    if (partial) {
        int buckets = shape.bidirectional ? 2 * shape.buckets : shape.buckets;
        u64 block = (u64)blockIdx.x * gridDim.y + blockIdx.y;
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            int bucket = threadIdx.x + i * THREADS;
            if (bucket < buckets) partial[block * buckets + bucket] = of_bucket[i];
        }
    }
}

// dk and dv. Blocks: heads of keys of samples along x, tiles of keys along y, spans of channels along z. Tiles of
// scores are transposed. Three blocks on a multiprocessor are enough: for more of them, assemblers would spill.
KERNEL_BLOCKS(THREADS, 3)
attention_grad_keys(const void *dy, const void *q, const void *k, const void *v, const void *table,
                    const int *of_queries, const int *of_keys, const float *lse, const float *delta, void *dk, void *dv,
                    const Scalars *scalars, Shape shape, Starts starts) {
    __shared__ float tile_a[TILE * STRIDE], tile_b[TILE * STRIDE], mixing[TILE * STRIDE];
    __shared__ float lse_of[TILE], delta_of[TILE];
    __shared__ Facts facts;
    int sample = blockIdx.x / shape.kv_heads, kv_head = blockIdx.x % shape.kv_heads, key = blockIdx.y * TILE;
    int channels = shape.head_size, group = shape.heads / shape.kv_heads;
    int span = blockIdx.z * SPAN, width = min(SPAN, channels - span);
    u64 keys = sample * (u64)shape.keys * shape.key_stride + (u64)kv_head * channels;
    k = element(k, keys, number_of(shape));
    v = element(v, keys, number_of(shape));
    dk = element(dk, keys + span, number_of(shape));
    dv = element(dv, keys + span, number_of(shape));

    int first = first_seeing(shape, key, TILE), end = end_of_seeing(shape, key + TILE - 1);
    narrow(first, end, facts, of_keys, of_queries, sample, key, shape.keys, shape.queries);
    Part sums_k[MOST] = {}, sums_v[MOST] = {};
    for (int head = kv_head * group; head < (kv_head + 1) * group; ++head) {
        u64 of_query = sample * (u64)shape.queries * shape.query_stride + (u64)head * channels;
        u64 of_result = sample * (u64)shape.queries * shape.result_stride + (u64)head * channels;
        const void *of_head = element(q, of_query, number_of(shape)), *slope = element(dy, of_result, number_of(shape));
        u64 rows = ((u64)sample * shape.heads + head) * shape.queries;
        for (int query = first; query < end; query += TILE) {
            Part s, d;
            if (threadIdx.x < TILE) {
                int row = query + threadIdx.x;
                lse_of[threadIdx.x] = row < shape.queries ? lse[rows + row] : EMPTY_LSE;
                delta_of[threadIdx.x] = row < shape.queries ? delta[rows + row] : 0.0f;
            }
            gather(facts, shape, starts, table, of_queries, of_keys, scalars, sample, head, query, key);
            products(s, tile_a, tile_b, k, shape.key_stride, key, shape.keys, of_head, shape.query_stride, query,
                     shape.queries, shape);
            products(d, tile_a, tile_b, v, shape.key_stride, key, shape.keys, slope, shape.result_stride, query,
                     shape.queries, shape);
            cap_scores(s, shape);
            auto weigh = [&](bool capped) {
#pragma unroll
                for (int i = 0; i < ROWS; ++i)
#pragma unroll
                    for (int j = 0; j < COLUMNS; ++j) {
                        Pair pair = {first_column() + j * LANES_OF_ROW, first_row() + i};
                        float score = pair.score(s[i][j], facts, shape);
                        float p = pair.seen(facts) ? __expf(score - lse_of[pair.query]) : 0.0f;
                        float keep = pair.keep(facts, shape);
                        d[i][j] = p * (keep * d[i][j] - delta_of[pair.query]) * slope_of_cap(capped, score, shape);
                        s[i][j] = p * keep;
                    }
            };
            shape.cap == 0.0f ? weigh(false) : weigh(true);
            put(mixing, s);
#pragma unroll
            for (int c = 0; c < MOST; ++c) {
                if (c * CHUNK >= width) break;
                load_chunk(tile_b, slope, shape.result_stride, query, shape.queries, span + c * CHUNK, channels,
                           number_of(shape));
                __syncthreads();
                add_mixed(sums_v[c], mixing, tile_b);
                __syncthreads();
            }
            put(mixing, d);
#pragma unroll
            for (int c = 0; c < MOST; ++c) {
                if (c * CHUNK >= width) break;
                load_chunk(tile_b, of_head, shape.query_stride, query, shape.queries, span + c * CHUNK, channels,
                           number_of(shape));
                __syncthreads();
                add_mixed(sums_k[c], mixing, tile_b);
                __syncthreads();
            }
        }
    }
#pragma unroll
    for (int c = 0; c < MOST; ++c) {
        if (c * CHUNK >= width) break;
        write(sums_k[c], shape.scale, tile_a, dk, shape.key_stride, key, shape.keys, c * CHUNK, width,
              number_of(shape));
        write(sums_v[c], 1.0f, tile_a, dv, shape.key_stride, key, shape.keys, c * CHUNK, width,
              number_of(shape));
    }
}
