// The gradient of attention on tensor cores, after `attention_grad_results` of attention_grad_sums.cu: gradients of
// keys and values by tiles of keys, those of queries and of the bias' table by tiles of queries. Blocks write disjoint
// memory, and probabilities are recomputed from lse. Source: Dao 2023, "FlashAttention-2", algorithm 2, with its loop
// over tiles run twice, so that gradients of queries are summed in a fixed order and not by atomics. Its published
// kernels have tiles of 64 by 64 to 128 for 8 warps and heads of up to 128 channels.

#include "attention_tensor.cuh"

#define COLUMNS (SMALL && __CUDA_ARCH__ >= 800 ? 64 : 32)
#define TILES (COLUMNS / 8)
#define DIAGONALS (ROWS + COLUMNS - 1)
// Rows of slopes that are stored in pairs are in different banks.
#define SLOPES_STRIDE (COLUMNS + 8)

// The loop of a pass over tiles of columns, which are in shared memory in one stage, or in two, one of which receives
// the next tile while the other is processed. `begin(stage)` starts copies of the next tile, `work(stage)` processes a
// tile. First, `hold` loads the rows of small heads from the last stage into registers.
template <class Hold, class Begin, class Work>
__device__ __forceinline__ void each_tile(int tiles, int stages, Hold hold, Begin begin, Work work) {
    int ahead = stages - 1;
    if (!SMALL) hold();
#pragma unroll 1
    for (int n = 0; n < tiles + ahead; ++n) {
        wait_copies<0>();
        __syncthreads(); // the previous tile has arrived, and the one before it was read
        if (SMALL && n == ahead) {
            hold();
            __syncthreads(); // the rows in registers were read
        }
        if (n < tiles) begin(n & ahead);
        commit_copies();
        if (!ahead) {
            wait_copies<0>();
            __syncthreads(); // the current tile has arrived
        }
        if (n >= ahead) work((n - ahead) & ahead);
    }
    commit_copies();
    wait_copies<0>(); // without tiles, the copies before the first one
    __syncthreads();  // the last tile was read
}

// The address of the block's own two tiles: after all stages, or in the last stage if they are in registers later.
#define OWN_STAGE (SMALL ? stages - 1 : stages)

struct QueryFacts : Facts<COLUMNS> {
    int bucket[ROWS + COLUMNS];
};

// dq, and each block's part of the table's gradient, (heads of samples, blocks along y, buckets), null if it is not
// requested. Blocks: heads of samples in groups along x and z, tiles of queries along y, spans of channels along z.
template <class T>
__device__ __forceinline__ void of_queries(const T *dy, const T *q, const T *k, const T *v, const T *table,
                                           const int *of_queries, const int *of_keys, const float *lse,
                                           const float *delta, T *dq, float *partial, const Scalars *scalars,
                                           const Shape &shape, const Starts &starts, int stages) {
    SHARED_MEMORY;
    u32 channels = shape.head_size, block = head_of_samples(channels), span = span_of_head(channels);
    int head = block % shape.heads, kv_head = head / (shape.heads / shape.kv_heads);
    u32 tile_kv = shared_address(shared), columns_bytes = tile_bytes(COLUMNS, channels);
    u32 tile_q = tile_kv + 2 * OWN_STAGE * columns_bytes, tile_dy = tile_q + tile_bytes(ROWS, channels);
    QueryFacts *facts = reinterpret_cast<QueryFacts *>(shared + (tile_dy - tile_kv) + tile_bytes(ROWS, channels));
    // Slopes of large heads overwrite their values.
    float *slopes = reinterpret_cast<float *>(channels > SPAN ? shared + columns_bytes
                                                              : reinterpret_cast<char *>(facts + stages));
    float *diagonal = slopes + ROWS * SLOPES_STRIDE, of_bucket = 0.0f;
    Tile tile = {(int)(block / shape.heads), head, (int)(gridDim.y - 1 - blockIdx.y) * ROWS, 0}, next = tile;
    u64 of_head = tile.sample * (u64)shape.queries * shape.query_stride + (u64)head * channels;
    u64 of_tokens = tile.sample * (u64)shape.keys * shape.key_stride + (u64)kv_head * channels;
    q += of_head;
    dq += of_head + span;
    k += of_tokens;
    v += of_tokens;
    dy += tile.sample * (u64)shape.queries * shape.result_stride + (u64)head * channels;
    if (span) partial = nullptr;

    int own[2];
    own_segments(own, of_queries, tile.sample, tile.query, shape.queries);
    float lse_of[2], delta_of[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        int row = tile.query + own_row() + 8 * h;
        u64 at = (u64)block * shape.queries + row;
        lse_of[h] = row < shape.queries ? lse[at] * LOG2_E : EMPTY_LSE;
        delta_of[h] = row < shape.queries ? delta[at] : 0.0f;
    }
    load_tiles<ROWS>(tile_q, q + tile.query * shape.query_stride, shape.query_stride,
                     dy + tile.query * shape.result_stride, shape.result_stride, shape.queries - tile.query, channels);
    Sums sums = {};
    Rows rows_q, rows_dy;
    int first = first_seen(shape, tile.query, COLUMNS);
    int end = end_of_seen(shape, tile.query + ROWS - 1);
    if (of_queries)
        narrow<ROWS, COLUMNS>(first, end, of_queries + (u64)tile.sample * shape.queries,
                              of_keys + (u64)tile.sample * shape.keys, tile.query, shape.queries, facts->segment);
    // Without this, assemblers for 9.0 spill with large heads; with it, they spill with small heads.
    if (!SMALL) first = uniform(first);
    tile.key = next.key = first;
    k += first * shape.key_stride;
    v += first * shape.key_stride;
    auto begin = [&](int stage) {
        u32 tile_k = tile_kv + 2 * stage * columns_bytes;
        load_tiles<COLUMNS>(tile_k, k, shape.key_stride, v, shape.key_stride, shape.keys - next.key, channels);
        k += COLUMNS * shape.key_stride;
        v += COLUMNS * shape.key_stride;
        gather_bias<ROWS>(facts[stage].bias, facts[stage].bucket, shape, starts, table, next);
        gather_segments(facts[stage].segment, of_keys, tile.sample, next.key, shape.keys);
        next.key += COLUMNS;
    };
    auto work = [&](int stage) {
        u32 tile_k = tile_kv + 2 * stage * columns_bytes, p[TILES / 2][4];
        float s[TILES][4], d[TILES][4];
        products<T>(s, rows_q, tile_k, channels);
        products<T>(d, rows_dy, tile_k + columns_bytes, channels);
        float scale = scale_scores<false>(s, shape, facts[stage].bias);
        hide<false>(s, shape, tile, of_queries, own, facts[stage].segment);
        if (shape.threshold) drop(d, kept_bits<false, TILES>(shape, tile, scalars));
        auto weigh = [&](bool capped) {
#pragma unroll
            for (int j = 0; j < TILES; ++j)
#pragma unroll
                for (int e = 0; e < 4; ++e)
                    s[j][e] = power(fmaf(s[j][e], scale, -lse_of[e / 2])) *
                              fmaf(d[j][e], shape.kept, -delta_of[e / 2]) * slope_of_cap(capped, s[j][e], shape);
        };
        shape.cap == 0.0f ? weigh(false) : weigh(true);
        rounded<T>(p, s);
        if (partial) {
            // Scores of a diagonal share their bias: first the sums of diagonals, then of their buckets.
            __syncthreads(); // values were read
#pragma unroll
            for (int j = 0; j < TILES; ++j)
#pragma unroll
                for (int h = 0; h < 2; ++h)
                    *reinterpret_cast<float2 *>(
                        &slopes[(own_row() + 8 * h) * SLOPES_STRIDE + own_column() + 8 * j]) =
                        make_float2(s[j][2 * h], s[j][2 * h + 1]);
            __syncthreads();
            int t = threadIdx.x;
            if (t < DIAGONALS) {
                float sum = 0.0f;
#pragma unroll 1
                for (int row = 0; row < ROWS; ++row) {
                    int column = row + t - (ROWS - 1);
                    if (column >= 0 && column < COLUMNS) sum += slopes[row * SLOPES_STRIDE + column];
                }
                diagonal[t] = sum;
            }
            __syncthreads();
#pragma unroll 1
            for (int at = 0; at < DIAGONALS; ++at)
                if (facts[stage].bucket[at] == t) of_bucket += diagonal[at];
        }
        add_mixed<T>(sums, p, tile_k + span / SPAN * COLUMNS * ROW_BYTES, channels - span);
        tile.key += COLUMNS;
    };
    auto hold = [&] { rows_q.hold(tile_q), rows_dy.hold(tile_dy); };
    each_tile((end - first + COLUMNS - 1) / COLUMNS, stages, hold, begin, work);
    float factor[2] = {shape.scale, shape.scale};
    write_rows(sums, factor, tile_q, dq, shape.query_stride, tile.query, shape.queries, min(SPAN, channels - span));
    int buckets = shape.bidirectional ? 2 * shape.buckets : shape.buckets;
    u64 part = (u64)block * gridDim.y + gridDim.y - 1 - blockIdx.y;
    if (partial && threadIdx.x < buckets) partial[part * buckets + threadIdx.x] = of_bucket;
}

struct KeyFacts : Facts<COLUMNS> {
    float lse[COLUMNS], delta[COLUMNS];
};

// dk and dv. Blocks: heads of keys of samples in groups along x and z, tiles of keys along y, spans of channels along
// z. Rows of tiles are keys, columns queries of each of the heads that the keys are for.
template <class T>
__device__ __forceinline__ void of_keys(const T *dy, const T *q, const T *k, const T *v, const T *table,
                                        const int *of_queries, const int *of_keys, const float *lse,
                                        const float *delta, T *dk, T *dv, const Scalars *scalars, const Shape &shape,
                                        const Starts &starts, int stages) {
    SHARED_MEMORY;
    u32 channels = shape.head_size, block = head_of_samples(channels), span = span_of_head(channels);
    int sample = block / shape.kv_heads, kv_head = block % shape.kv_heads, group = shape.heads / shape.kv_heads;
    u32 tile_of_head = shared_address(shared), columns_bytes = tile_bytes(COLUMNS, channels);
    u32 tile_k = tile_of_head + 2 * OWN_STAGE * columns_bytes, tile_v = tile_k + tile_bytes(ROWS, channels);
    KeyFacts *facts = reinterpret_cast<KeyFacts *>(shared + (tile_v - tile_of_head) + tile_bytes(ROWS, channels));
    int key = blockIdx.y * ROWS, first = first_seeing(shape, key, COLUMNS);
    int end = end_of_seeing(shape, key + ROWS - 1);
    u64 of_tokens = sample * (u64)shape.keys * shape.key_stride + (u64)kv_head * channels;
    k += of_tokens;
    v += of_tokens;
    dk += of_tokens + span;
    dv += of_tokens + span;
    q += sample * (u64)shape.queries * shape.query_stride;
    dy += sample * (u64)shape.queries * shape.result_stride;

    int own[2];
    own_segments(own, of_keys, sample, key, shape.keys);
    load_tiles<ROWS>(tile_k, k + key * shape.key_stride, shape.key_stride, v + key * shape.key_stride,
                     shape.key_stride, shape.keys - key, channels);
    if (of_queries)
        narrow<ROWS, COLUMNS>(first, end, of_keys + (u64)sample * shape.keys, of_queries + (u64)sample * shape.queries,
                              key, shape.keys, facts->segment);
    Tile tile = {sample, kv_head * group, first, key}, next = tile;
    Sums sums_k = {}, sums_v = {};
    Rows rows_k, rows_v;
    auto advance = [&](Tile &at) {
        at.query += COLUMNS;
        if (at.query >= end) at.query = first, ++at.head;
    };
    // The address of the next tile's queries.
    const T *next_q = nullptr, *next_dy = nullptr;
    u64 next_row = 0;
    auto begin = [&](int stage) {
        if (next.query == first) {
            next_q = q + first * shape.query_stride + (u64)next.head * channels;
            next_dy = dy + first * shape.result_stride + (u64)next.head * channels;
            next_row = ((u64)sample * shape.heads + next.head) * shape.queries + first;
        }
        int rows = shape.queries - next.query, t = threadIdx.x;
        load_tiles<COLUMNS>(tile_of_head + 2 * stage * columns_bytes, next_q, shape.query_stride, next_dy,
                            shape.result_stride, rows, channels);
        gather_bias<COLUMNS>(facts[stage].bias, nullptr, shape, starts, table, next);
        gather_segments(facts[stage].segment, of_queries, sample, next.query, shape.queries);
        if (t < min(COLUMNS, rows)) {
            copy4(shared_address(&facts[stage].lse[t]), lse + next_row + t);
            copy4(shared_address(&facts[stage].delta[t]), delta + next_row + t);
        } else if (t < COLUMNS) {
            facts[stage].lse[t] = EMPTY_LSE;
            facts[stage].delta[t] = 0.0f;
        }
        next_q += COLUMNS * shape.query_stride;
        next_dy += COLUMNS * shape.result_stride;
        next_row += COLUMNS;
        advance(next);
    };
    auto work = [&](int stage) {
        u32 tile_q = tile_of_head + 2 * stage * columns_bytes, tile_dy = tile_q + columns_bytes, p[TILES / 2][4];
        float s[TILES][4], d[TILES][4];
        products<T>(s, rows_k, tile_q, channels);
        products<T>(d, rows_v, tile_dy, channels);
        float scale = scale_scores<true>(s, shape, facts[stage].bias);
        hide<true>(s, shape, tile, of_queries, own, facts[stage].segment);
        u32 kept = shape.threshold ? kept_bits<true, TILES>(shape, tile, scalars) : ~0u;
        if (shape.threshold) drop(d, kept);
        auto weigh = [&](bool capped) {
#pragma unroll
            for (int j = 0; j < TILES; ++j)
#pragma unroll
                for (int k = 0; k < 2; ++k) {
                    int column = own_column() + 8 * j + k;
                    float lse_of = facts[stage].lse[column] * LOG2_E, delta_of = facts[stage].delta[column];
#pragma unroll
                    for (int e = k; e < 4; e += 2) {
                        float slope = slope_of_cap(capped, s[j][e], shape);
                        s[j][e] = power(fmaf(s[j][e], scale, -lse_of));
                        d[j][e] = s[j][e] * fmaf(d[j][e], shape.kept, -delta_of) * slope;
                    }
                }
        };
        shape.cap == 0.0f ? weigh(false) : weigh(true);
        rounded<T>(p, s);
        if (shape.threshold) drop(p, kept);
        add_mixed<T>(sums_v, p, tile_dy + span / SPAN * COLUMNS * ROW_BYTES, channels - span);
        rounded<T>(p, d);
        add_mixed<T>(sums_k, p, tile_q + span / SPAN * COLUMNS * ROW_BYTES, channels - span);
        advance(tile);
    };
    auto hold = [&] { rows_k.hold(tile_k), rows_v.hold(tile_v); };
    each_tile(group * ((end - first + COLUMNS - 1) / COLUMNS), stages, hold, begin, work);
    u32 width = min(SPAN, channels - span);
    float factor_k[2] = {shape.scale, shape.scale}, factor_v[2] = {shape.kept, shape.kept};
    write_rows(sums_k, factor_k, tile_k, dk, shape.key_stride, key, shape.keys, width);
    write_rows(sums_v, factor_v, tile_v, dv, shape.key_stride, key, shape.keys, width);
}

#define NAMED(pass, head, suffix) attention_tensor_grad_##pass##_##head##_##suffix
#define NAME(pass, head, suffix) NAMED(pass, head, suffix)
#define OF(suffix, T)                                                                                                  \
    KERNEL_BLOCKS(THREADS, 3)                                                                                          \
    NAME(queries, HEAD, suffix)(const T *dy, const T *q, const T *k, const T *v, const T *table, const int *s,         \
                                const int *t, const float *lse, const float *delta, T *dq, float *partial,             \
                                const Scalars *scalars, Shape shape, Starts starts, int stages) {                      \
        of_queries(dy, q, k, v, table, s, t, lse, delta, dq, partial, scalars, shape, starts, stages);                 \
    }                                                                                                                  \
    KERNEL(THREADS)                                                                                                    \
    NAME(keys, HEAD, suffix)(const T *dy, const T *q, const T *k, const T *v, const T *table, const int *s,            \
                             const int *t, const float *lse, const float *delta, T *dk, T *dv, const Scalars *scalars, \
                             Shape shape, Starts starts, int stages) {                                                 \
        of_keys(dy, q, k, v, table, s, t, lse, delta, dk, dv, scalars, shape, starts, stages);                         \
    }
FOR_HALVES(OF)
