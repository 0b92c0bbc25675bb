// Attention that never holds more than a tile of scores, on tensor cores. Blocks: heads of samples along x, tiles of
// queries along y, those that see the most keys first, spans of channels along z.
// Source: Dao 2023, "FlashAttention-2", algorithm 1; Milakov & Gimelshein 2018 for the running maximum. A tile is of 64
// queries by 64 keys for 4 warps, as in its published kernels for heads of 256 channels; for smaller heads theirs are of
// 128 queries, 32 a warp, for which each matrix of keys and values is read from shared memory half as often.

#include "attention_tensor.cuh"

#define KEYS 64
#define TILES (KEYS / 8)

// y and lse. table and segments are null if there are none. While scores are computed, the tile's values are on their
// way; while those are mixed, the next tile's keys are.
template <class T>
__device__ __forceinline__ void forward(const T *q, const T *k, const T *v, const T *table, const int *of_queries,
                                        const int *of_keys, T *y, float *lse, const Scalars *scalars,
                                        const Shape &shape, const Starts &starts) {
    SHARED_MEMORY;
    int head = blockIdx.x % shape.heads, kv_head = head / (shape.heads / shape.kv_heads);
    u32 channels = shape.head_size, span = blockIdx.z * SPAN, width = min(SPAN, channels - span);
    u32 bytes = row_bytes(channels), bytes_v = row_bytes(width);
    u32 tile_q = shared_address(shared), tile_k = tile_q + ROWS * bytes, tile_v = tile_k + KEYS * bytes;
    Facts<KEYS> &facts = *reinterpret_cast<Facts<KEYS> *>(shared + (ROWS + KEYS) * bytes + KEYS * bytes_v);
    Tile tile = {(int)(blockIdx.x / shape.heads), head, (int)(gridDim.y - 1 - blockIdx.y) * ROWS, 0};
    u64 of_tokens = tile.sample * (u64)shape.keys * shape.key_stride + (u64)kv_head * channels;
    q += tile.sample * (u64)shape.queries * shape.query_stride + (u64)head * channels;
    k += of_tokens;
    v += of_tokens + span;
    y += tile.sample * (u64)shape.queries * shape.result_stride + (u64)head * channels + span;

    int own[2];
    own_segments(own, of_queries, tile.sample, tile.query, shape.queries);
    load_tile<ROWS>(tile_q, bytes, q, shape.query_stride, tile.query, shape.queries, channels);
    Sums mixed = {};
    u32 p[TILES / 2][4] = {};
    float largest[2] = {NOTHING, NOTHING}, sum[2] = {};
    int end = shape.causal ? min(shape.keys, tile.query + ROWS) : shape.keys;
#pragma unroll 1
    for (;; tile.key += KEYS) {
        if (tile.key < end) {
            load_tile<KEYS>(tile_k, bytes, k, shape.key_stride, tile.key, shape.keys, channels);
            gather_bias<ROWS>(facts.bias, nullptr, shape, starts, table, tile);
            gather_segments(facts.segment, of_keys, tile.sample, tile.key, shape.keys);
        }
        commit_copies();
        if (tile.key > 0) add_mixed<T>(mixed, p, tile_v, bytes_v, width);
        if (tile.key >= end) break;
        wait_copies<0>();
        __syncthreads(); // keys and facts are there, and the last values are read
        load_tile<KEYS>(tile_v, bytes_v, v, shape.key_stride, tile.key, shape.keys, width);
        commit_copies();
        float s[TILES][4];
        products<T>(s, tile_q, tile_k, bytes, channels);
        scale_scores<false>(s, shape, facts.bias);
        u32 seen = seen_bits<false, TILES>(shape, tile, of_queries, own, facts.segment);
        u32 kept = kept_bits<false, TILES>(shape, tile, scalars);
        float top[2] = {largest[0], largest[1]}, base[2], shrink[2];
#pragma unroll
        for (int j = 0; j < TILES; ++j)
#pragma unroll
            for (int e = 0; e < 4; ++e) {
                if (!is_set(seen, j, e)) s[j][e] = NOTHING;
                top[e / 2] = fmaxf(top[e / 2], s[j][e]);
            }
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            top[h] = fmaxf(top[h], __shfl_xor_sync(ALL_LANES, top[h], 1));
            top[h] = fmaxf(top[h], __shfl_xor_sync(ALL_LANES, top[h], 2));
            // As long as nothing is seen, any will do.
            base[h] = top[h] == NOTHING ? 0.0f : top[h];
            shrink[h] = power(largest[h] - base[h]);
            largest[h] = top[h];
            sum[h] *= shrink[h];
        }
#pragma unroll
        for (int j = 0; j < TILES; ++j)
#pragma unroll
            for (int e = 0; e < 4; ++e) {
                float x = power(s[j][e] - base[e / 2]);
                sum[e / 2] += x;
                s[j][e] = is_set(kept, j, e) ? x : 0.0f;
            }
        rounded<T>(p, s);
#pragma unroll
        for (int j = 0; j < SPAN / 8; ++j) {
            if (j % (DEPTH / 8) == 0 && j * 8 >= width) break;
#pragma unroll
            for (int e = 0; e < 4; ++e) mixed[j][e] *= shrink[e / 2];
        }
        wait_copies<0>();
        __syncthreads(); // values are there, keys and facts are read
    }
    float factor[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        sum[h] += __shfl_xor_sync(ALL_LANES, sum[h], 1);
        sum[h] += __shfl_xor_sync(ALL_LANES, sum[h], 2);
        factor[h] = sum[h] > 0.0f ? shape.kept / sum[h] : 0.0f;
    }
    // Of the lanes that have two rows together, two write the one and the other.
    u32 h = threadIdx.x % 4, row = tile.query + own_row() + 8 * h;
    if (h < 2 && row < shape.queries && span == 0) {
        float total = h ? sum[1] : sum[0], top = h ? largest[1] : largest[0];
        lse[(u64)blockIdx.x * shape.queries + row] = total > 0.0f ? top * LOG_2 + logf(total) : EMPTY_LSE;
    }
    write_rows(mixed, factor, tile_q, bytes, y, shape.result_stride, tile.query, shape.queries, width);
}

#define OF(suffix, T)                                                                                                  \
    KERNEL(THREADS) attention_tensor_##suffix(const T *q, const T *k, const T *v, const T *table,                      \
                                              const int *of_queries, const int *of_keys, T *y, float *lse,             \
                                              const Scalars *scalars, Shape shape, Starts starts) {                    \
        forward(q, k, v, table, of_queries, of_keys, y, lse, scalars, shape, starts);                                  \
    }
FOR_HALVES(OF)
