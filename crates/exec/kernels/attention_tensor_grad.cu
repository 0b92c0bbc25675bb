// The gradient of attention on tensor cores, after `attention_grad_results` of attention_grad_sums.cu: gradients of keys
// and values by tiles of keys, those of queries and of the bias' table by tiles of queries. No block writes what another
// writes, and probabilities are computed again from lse. Source: Dao 2023, "FlashAttention-2", algorithm 2, with its
// loop over tiles taken twice, so that gradients of queries are added up in a fixed order and not by atomics. Its
// published kernels have tiles of 64 by 64 to 128 for 8 warps and heads of up to 128 channels.

#include "attention_tensor.cuh"

#define COLUMNS 32
#define TILES (COLUMNS / 8)
#define DIAGONALS (ROWS + COLUMNS - 1)
// Rows of slopes that are stored two by two lie in different banks.
#define SLOPES_STRIDE (COLUMNS + 8)

// What a pass goes over: tiles of columns, in shared memory in one stage, or in two of which the next one is copied to
// while one is worked on. `begin(stage)` starts copies of the next tile, `work(stage)` is for the tile after the last.
template <class Begin, class Work>
__device__ __forceinline__ void each_tile(int tiles, int stages, Begin begin, Work work) {
    int ahead = stages - 1;
#pragma unroll 1
    for (int n = 0; n < tiles + ahead; ++n) {
        if (n < tiles) begin(n & ahead);
        commit_copies();
        if (ahead)
            wait_copies<1>();
        else
            wait_copies<0>();
        __syncthreads(); // the tile to work on is there
        if (n >= ahead) work((n - ahead) & ahead);
        __syncthreads(); // its stage may be overwritten
    }
}

struct QueryFacts : Facts<COLUMNS> {
    int bucket[ROWS + COLUMNS];
};

// dq, and each block's part of the table's gradient, (blocks along x, blocks along y, buckets), null if nobody wants it.
// Blocks: heads of samples along x, tiles of queries along y, spans of channels along z.
template <class T>
__device__ __forceinline__ void of_queries(const T *dy, const T *q, const T *k, const T *v, const T *table,
                                           const int *of_queries, const int *of_keys, const float *lse,
                                           const float *delta, T *dq, float *partial, const Scalars *scalars,
                                           const Shape &shape, const Starts &starts, int stages) {
    SHARED_MEMORY;
    int head = blockIdx.x % shape.heads, kv_head = head / (shape.heads / shape.kv_heads);
    u32 channels = shape.head_size, span = blockIdx.z * SPAN, bytes = row_bytes(channels);
    u32 tile_q = shared_address(shared), tile_dy = tile_q + ROWS * bytes, tile_kv = tile_dy + ROWS * bytes;
    QueryFacts *facts = reinterpret_cast<QueryFacts *>(shared + (2 * ROWS + 2 * COLUMNS * stages) * bytes);
    // Slopes of large heads lie where their values were.
    float *slopes = reinterpret_cast<float *>(channels > SPAN ? shared + (2 * ROWS + COLUMNS) * bytes
                                                              : reinterpret_cast<char *>(facts + stages));
    float *diagonal = slopes + ROWS * SLOPES_STRIDE, of_bucket = 0.0f;
    Tile tile = {(int)(blockIdx.x / shape.heads), head, (int)(gridDim.y - 1 - blockIdx.y) * ROWS, 0}, next = tile;
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
        u64 at = (u64)blockIdx.x * shape.queries + row;
        lse_of[h] = row < shape.queries ? lse[at] * LOG2_E : EMPTY_LSE;
        delta_of[h] = row < shape.queries ? delta[at] : 0.0f;
    }
    load_tile<ROWS>(tile_q, bytes, q, shape.query_stride, tile.query, shape.queries, channels);
    load_tile<ROWS>(tile_dy, bytes, dy, shape.result_stride, tile.query, shape.queries, channels);
    Sums sums = {};
    int end = shape.causal ? min(shape.keys, tile.query + ROWS) : shape.keys;
    auto begin = [&](int stage) {
        u32 tile_k = tile_kv + stage * 2 * COLUMNS * bytes;
#pragma unroll 1
        for (int which = 0; which < 2; ++which)
            load_tile<COLUMNS>(tile_k + which * COLUMNS * bytes, bytes, which ? v : k, shape.key_stride, next.key,
                               shape.keys, channels);
        gather_bias<ROWS>(facts[stage].bias, facts[stage].bucket, shape, starts, table, next);
        gather_segments(facts[stage].segment, of_keys, tile.sample, next.key, shape.keys);
        next.key += COLUMNS;
    };
    auto work = [&](int stage) {
        u32 tile_k = tile_kv + stage * 2 * COLUMNS * bytes, p[TILES / 2][4];
        float s[TILES][4], d[TILES][4];
        products<T>(s, tile_q, tile_k, bytes, channels);
        products<T>(d, tile_dy, tile_k + COLUMNS * bytes, bytes, channels);
        scale_scores<false>(s, shape, facts[stage].bias);
        u32 seen = seen_bits<false, TILES>(shape, tile, of_queries, own, facts[stage].segment);
        u32 kept = kept_bits<false, TILES>(shape, tile, scalars);
#pragma unroll
        for (int j = 0; j < TILES; ++j)
#pragma unroll
            for (int e = 0; e < 4; ++e) {
                float x = is_set(seen, j, e) ? power(s[j][e] - lse_of[e / 2]) : 0.0f;
                float slope = is_set(kept, j, e) ? d[j][e] * shape.kept : 0.0f;
                s[j][e] = x * (slope - delta_of[e / 2]);
            }
        rounded<T>(p, s);
        if (partial) {
            // Scores of a diagonal share their bias: first the sums of diagonals, then of their buckets.
            __syncthreads(); // values are read
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
        add_mixed<T>(sums, p, tile_k ^ 2 * span, bytes, channels - span);
        tile.key += COLUMNS;
    };
    each_tile((end + COLUMNS - 1) / COLUMNS, stages, begin, work);
    float factor[2] = {shape.scale, shape.scale};
    write_rows(sums, factor, tile_q, bytes, dq, shape.query_stride, tile.query, shape.queries, min(SPAN, channels - span));
    int buckets = shape.bidirectional ? 2 * shape.buckets : shape.buckets;
    u64 block = (u64)blockIdx.x * gridDim.y + gridDim.y - 1 - blockIdx.y;
    if (partial && threadIdx.x < buckets) partial[block * buckets + threadIdx.x] = of_bucket;
}

struct KeyFacts : Facts<COLUMNS> {
    float lse[COLUMNS], delta[COLUMNS]; // lse in powers of two
};

// dk and dv. Blocks: heads of keys of samples along x, tiles of keys along y, spans of channels along z. Rows of tiles
// are keys, columns queries of each of the heads that the keys are for.
template <class T>
__device__ __forceinline__ void of_keys(const T *dy, const T *q, const T *k, const T *v, const T *table,
                                        const int *of_queries, const int *of_keys, const float *lse,
                                        const float *delta, T *dk, T *dv, const Scalars *scalars, const Shape &shape,
                                        const Starts &starts, int stages) {
    SHARED_MEMORY;
    int sample = blockIdx.x / shape.kv_heads, kv_head = blockIdx.x % shape.kv_heads, group = shape.heads / shape.kv_heads;
    u32 channels = shape.head_size, span = blockIdx.z * SPAN, bytes = row_bytes(channels);
    u32 tile_k = shared_address(shared), tile_v = tile_k + ROWS * bytes, tile_of_head = tile_v + ROWS * bytes;
    KeyFacts *facts = reinterpret_cast<KeyFacts *>(shared + (2 * ROWS + 2 * COLUMNS * stages) * bytes);
    int key = blockIdx.y * ROWS, first = shape.causal ? key : 0;
    Tile tile = {sample, kv_head * group, first, key}, next = tile;
    u64 of_tokens = sample * (u64)shape.keys * shape.key_stride + (u64)kv_head * channels;
    k += of_tokens;
    v += of_tokens;
    dk += of_tokens + span;
    dv += of_tokens + span;
    q += sample * (u64)shape.queries * shape.query_stride;
    dy += sample * (u64)shape.queries * shape.result_stride;

    int own[2];
    own_segments(own, of_keys, sample, key, shape.keys);
#pragma unroll 1
    for (int which = 0; which < 2; ++which)
        load_tile<ROWS>(which ? tile_v : tile_k, bytes, which ? v : k, shape.key_stride, key, shape.keys, channels);
    Sums sums_k = {}, sums_v = {};
    auto advance = [&](Tile &at) {
        at.query += COLUMNS;
        if (at.query >= shape.queries) at.query = first, ++at.head;
    };
    auto begin = [&](int stage) {
        u32 tile_q = tile_of_head + stage * 2 * COLUMNS * bytes;
#pragma unroll 1
        for (int which = 0; which < 2; ++which)
            load_tile<COLUMNS>(tile_q + which * COLUMNS * bytes, bytes,
                               (which ? dy : q) + (u64)next.head * channels,
                               which ? shape.result_stride : shape.query_stride, next.query, shape.queries, channels);
        gather_bias<COLUMNS>(facts[stage].bias, nullptr, shape, starts, table, next);
        gather_segments(facts[stage].segment, of_queries, sample, next.query, shape.queries);
        if (threadIdx.x < COLUMNS) {
            int query = next.query + threadIdx.x;
            u64 at = ((u64)sample * shape.heads + next.head) * shape.queries + query;
            facts[stage].lse[threadIdx.x] = query < shape.queries ? lse[at] * LOG2_E : EMPTY_LSE;
            facts[stage].delta[threadIdx.x] = query < shape.queries ? delta[at] : 0.0f;
        }
        advance(next);
    };
    auto work = [&](int stage) {
        u32 tile_q = tile_of_head + stage * 2 * COLUMNS * bytes, tile_dy = tile_q + COLUMNS * bytes, p[TILES / 2][4];
        float s[TILES][4], d[TILES][4];
        products<T>(s, tile_k, tile_q, bytes, channels);
        products<T>(d, tile_v, tile_dy, bytes, channels);
        scale_scores<true>(s, shape, facts[stage].bias);
        u32 seen = seen_bits<true, TILES>(shape, tile, of_queries, own, facts[stage].segment);
        u32 kept = kept_bits<true, TILES>(shape, tile, scalars);
#pragma unroll
        for (int j = 0; j < TILES; ++j)
#pragma unroll
            for (int e = 0; e < 4; ++e) {
                int column = own_column() + 8 * j + e % 2;
                float x = is_set(seen, j, e) ? power(s[j][e] - facts[stage].lse[column]) : 0.0f;
                bool keep = is_set(kept, j, e);
                d[j][e] = x * ((keep ? d[j][e] * shape.kept : 0.0f) - facts[stage].delta[column]);
                s[j][e] = keep ? x : 0.0f;
            }
        rounded<T>(p, s);
        add_mixed<T>(sums_v, p, tile_dy ^ 2 * span, bytes, channels - span);
        rounded<T>(p, d);
        add_mixed<T>(sums_k, p, tile_q ^ 2 * span, bytes, channels - span);
        advance(tile);
    };
    each_tile(group * ((shape.queries - first + COLUMNS - 1) / COLUMNS), stages, begin, work);
    u32 width = min(SPAN, channels - span);
    float factor_k[2] = {shape.scale, shape.scale}, factor_v[2] = {shape.kept, shape.kept};
    write_rows(sums_k, factor_k, tile_k, bytes, dk, shape.key_stride, key, shape.keys, width);
    write_rows(sums_v, factor_v, tile_v, bytes, dv, shape.key_stride, key, shape.keys, width);
}

#define OF(suffix, T)                                                                                                  \
    KERNEL(THREADS) attention_tensor_grad_queries_##suffix(                                                            \
        const T *dy, const T *q, const T *k, const T *v, const T *table, const int *s, const int *t, const float *lse, \
        const float *delta, T *dq, float *partial, const Scalars *scalars, Shape shape, Starts starts, int stages) {   \
        of_queries(dy, q, k, v, table, s, t, lse, delta, dq, partial, scalars, shape, starts, stages);                 \
    }                                                                                                                  \
    KERNEL(THREADS) attention_tensor_grad_keys_##suffix(                                                               \
        const T *dy, const T *q, const T *k, const T *v, const T *table, const int *s, const int *t, const float *lse, \
        const float *delta, T *dk, T *dv, const Scalars *scalars, Shape shape, Starts starts, int stages) {            \
        of_keys(dy, q, k, v, table, s, t, lse, delta, dk, dv, scalars, shape, starts, stages);                         \
    }
FOR_HALVES(OF)
