// Attention that never stores more than a tile of scores, on tensor cores. Blocks: heads of samples in groups along x
// and z, tiles of queries along y, those with the most keys first, spans of channels along z. Source: Dao 2023,
// "FlashAttention-2", algorithm 1; Milakov & Gimelshein 2018 for the running maximum.

#include "attention_tensor.cuh"

#define KEYS 64
#define TILES (KEYS / 8)

// The state of a query: its largest product so far, and the sum of exponentials relative to it.
struct Running {
    float largest[2], sum[2];
};

// Turns products of a tile into exponentials relative to the new largest product. Returns the factor for exponentials
// of earlier tiles. Scores in powers of two are `scale` times products.
template <int COUNT>
__device__ __forceinline__ void exponentials(float (&s)[COUNT][4], float (&shrink)[2], Running &running, float scale) {
    float top[2] = {running.largest[0], running.largest[1]}, base[2];
#pragma unroll
    for (int j = 0; j < COUNT; ++j)
#pragma unroll
        for (int e = 0; e < 4; ++e) top[e / 2] = fmaxf(top[e / 2], s[j][e]);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        top[h] = fmaxf(top[h], __shfl_xor_sync(ALL_LANES, top[h], 1));
        top[h] = fmaxf(top[h], __shfl_xor_sync(ALL_LANES, top[h], 2));
        // While no key is visible, any value works.
        base[h] = top[h] == NOTHING ? 0.0f : top[h] * scale;
        shrink[h] = power(running.largest[h] * scale - base[h]);
        running.largest[h] = top[h];
        running.sum[h] *= shrink[h];
    }
#pragma unroll
    for (int j = 0; j < COUNT; ++j)
#pragma unroll
        for (int e = 0; e < 4; ++e) {
            s[j][e] = power(fmaf(s[j][e], scale, -base[e / 2]));
            running.sum[e / 2] += s[j][e];
        }
}

// y and lse. table and segments are null if there are none. The tile's values are copied while scores are computed, and
// the next tile's keys while the values are multiplied.
template <class T>
__device__ __forceinline__ void forward(const T *q, const T *k, const T *v, const T *table, const int *of_queries,
                                        const int *of_keys, const T *sinks, T *y, float *lse,
                                        const Scalars *scalars, const Shape &shape, const Starts &starts) {
    SHARED_MEMORY;
    u32 channels = shape.head_size, span = span_of_head(channels), width = min(SPAN, channels - span);
    u32 block = head_of_samples(channels);
    int head = block % shape.heads, kv_head = head / (shape.heads / shape.kv_heads);
    // Queries that move to registers are in the memory of the values.
    u32 tile_k = shared_address(shared), tile_v = tile_k + tile_bytes(KEYS, channels);
    u32 tile_q = SMALL ? tile_v : tile_v + KEYS * ROW_BYTES;
    Facts<KEYS> &facts = *reinterpret_cast<Facts<KEYS> *>(shared + (tile_q - tile_k) + tile_bytes(ROWS, channels));
    Tile tile = {(int)(block / shape.heads), head, (int)(gridDim.y - 1 - blockIdx.y) * ROWS, 0};
    u64 of_tokens = tile.sample * (u64)shape.keys * shape.key_stride + (u64)kv_head * channels;
    q += tile.sample * (u64)shape.queries * shape.query_stride + (u64)head * channels;
    k += of_tokens;
    v += of_tokens + span;
    y += tile.sample * (u64)shape.queries * shape.result_stride + (u64)head * channels + span;

    int own[2];
    own_segments(own, of_queries, tile.sample, tile.query, shape.queries);
    load_tile<ROWS>(tile_q, q + tile.query * shape.query_stride, shape.query_stride, shape.queries - tile.query,
                    channels);
    commit_copies();
    Rows rows;
    Sums mixed = {};
    u32 p[TILES / 2][4] = {};
    Running running = {{NOTHING, NOTHING}, {}};
    float scale = 1.0f;
    int first = first_seen(shape, tile.query, KEYS);
    int end = end_of_seen(shape, tile.query + ROWS - 1);
    if (of_queries)
        narrow<ROWS, KEYS>(first, end, of_queries + (u64)tile.sample * shape.queries,
                           of_keys + (u64)tile.sample * shape.keys, tile.query, shape.queries, facts.segment);
    tile.key = first;
    k += first * shape.key_stride;
    v += first * shape.key_stride;
#pragma unroll 1
    for (;; tile.key += KEYS) {
        if (tile.key < end) {
            load_tile<KEYS>(tile_k, k, shape.key_stride, shape.keys - tile.key, channels);
            k += KEYS * shape.key_stride;
            gather_bias<ROWS>(facts.bias, nullptr, shape, starts, table, tile);
            gather_segments(facts.segment, of_keys, tile.sample, tile.key, shape.keys);
        }
        commit_copies();
        if (tile.key > first) {
            add_mixed<T>(mixed, p, tile_v, width);
        } else {
            wait_copies<1>();
            __syncthreads(); // queries have arrived
            rows.hold(tile_q);
        }
        if (tile.key >= end) break;
        wait_copies<0>();
        __syncthreads(); // keys and facts have arrived, and the last values were read
        load_tile<KEYS>(tile_v, v, shape.key_stride, shape.keys - tile.key, width);
        v += KEYS * shape.key_stride;
        commit_copies();
        float s[TILES][4], shrink[2];
        products<T>(s, rows, tile_k, channels);
        scale = scale_scores<false>(s, shape, facts.bias);
        hide<false>(s, shape, tile, of_queries, own, facts.segment);
        exponentials(s, shrink, running, scale);
        rounded<T>(p, s);
        if (shape.threshold) drop(p, kept_bits<false, TILES>(shape, tile, scalars));
#pragma unroll
        for (int j = 0; j < WIDTH / 8; ++j)
#pragma unroll
            for (int e = 0; e < 4; ++e) mixed[j][e] *= shrink[e / 2];
        wait_copies<0>();
        __syncthreads(); // values have arrived, keys and facts were read
    }
    float factor[2], lse_of[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        running.sum[h] += __shfl_xor_sync(ALL_LANES, running.sum[h], 1);
        running.sum[h] += __shfl_xor_sync(ALL_LANES, running.sum[h], 2);
        float sum = running.sum[h];
        factor[h] = sum > 0.0f ? shape.kept / sum : 0.0f;
        lse_of[h] = sum > 0.0f ? running.largest[h] * scale * LOG_2 + logf(sum) : EMPTY_LSE;
        if (sinks && sum > 0.0f) join_sink(lse_of[h], factor[h], number_at(sinks, head, shape.number));
    }
    // Of the lanes that share two rows, two lanes write one row each.
    u32 h = threadIdx.x % 4, row = tile.query + own_row() + 8 * h;
    if (h < 2 && row < shape.queries && span == 0)
        lse[(u64)block * shape.queries + row] = h ? lse_of[1] : lse_of[0];
    write_rows(mixed, factor, tile_k, y, shape.result_stride, tile.query, shape.queries, width);
}

#define NAMED(head, suffix) attention_tensor_##head##_##suffix
#define NAME(head, suffix) NAMED(head, suffix)
#define OF(suffix, T)                                                                                                  \
    KERNEL_BLOCKS(THREADS, __CUDA_ARCH__ >= 800 ? 4 : 1)                                                               \
    NAME(HEAD, suffix)(const T *q, const T *k, const T *v, const T *table, const int *of_queries, const int *of_keys,  \
                       const T *sinks, T *y, float *lse, const Scalars *scalars, Shape shape, Starts starts) {         \
        forward(q, k, v, table, of_queries, of_keys, sinks, y, lse, scalars, shape, starts);                           \
    }
FOR_HALVES(OF)
