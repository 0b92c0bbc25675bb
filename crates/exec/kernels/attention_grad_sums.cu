// Sums of the gradient of attention, in single precision and on tensor cores: products of results with their gradients
// before its passes, and the gradients of the bias' table and of sinks after them.
// Source: Dao et al. 2022, "FlashAttention", appendix B.2.

#include "attention.cuh"

// Number of lanes that sum a row of channels together: `lanes_of_row` of src/cuda/ops/attention.rs.
__device__ __forceinline__ int lanes_of_row(int channels) {
    int lanes = 1;
    while (lanes < WARP && lanes * 8 < channels) lanes *= 2;
    return lanes;
}

// delta[sample, head, query] = y · dy. y, dy: (tokens, heads, channels), with `queries` tokens per sample.
KERNEL(THREADS) attention_grad_results(const void *dy, const void *y, float *delta, int samples, Shape shape) {
    int lanes = lanes_of_row(shape.head_size), lane = threadIdx.x % lanes;
    u64 at = ((u64)blockIdx.x * THREADS + threadIdx.x) / lanes;
    u64 token = at / shape.heads, sample = token / shape.queries, first = at * shape.head_size;
    bool there = at < (u64)samples * shape.queries * shape.heads;
    float sum = 0.0f;
    if (there && shape.number != F32 && shape.head_size % 8 == 0) {
        if (lane * 8 < shape.head_size) {
            typedef Vector<u16> Numbers;
            Numbers a = Numbers::load(static_cast<const u16 *>(y) + first + lane * 8);
            Numbers b = Numbers::load(static_cast<const u16 *>(dy) + first + lane * 8);
#pragma unroll
            for (int i = 0; i < 8; ++i) sum += number_at(a.at, i, shape.number) * number_at(b.at, i, shape.number);
        }
    } else if (there) {
        for (int c = lane; c < shape.head_size; c += lanes)
            sum += number_at(y, first + c, shape.number) * number_at(dy, first + c, shape.number);
    }
    for (int distance = lanes / 2; distance > 0; distance /= 2) sum += __shfl_xor_sync(ALL_LANES, sum, distance);
    if (there && lane == 0)
        delta[(sample * shape.heads + at % shape.heads) * shape.queries + token % shape.queries] = sum;
}

// dsinks[head] = -sum of exp(sink - lse) · delta over the head's rows, added to the previous values if `accumulate`.
// lse, delta: (samples, heads, queries). A block for each head.
KERNEL(THREADS) attention_grad_sinks(const float *lse, const float *delta, const void *sinks, float *dsinks,
                                     int samples, int accumulate, Shape shape) {
    __shared__ float part[THREADS / WARP];
    int head = blockIdx.x;
    float sink = number_at(sinks, head, shape.number), sum = 0.0f;
    for (int sample = 0; sample < samples; ++sample) {
        u64 row = ((u64)sample * shape.heads + head) * shape.queries;
        for (int query = threadIdx.x; query < shape.queries; query += THREADS)
            sum -= __expf(sink - lse[row + query]) * delta[row + query];
    }
    sum = block_sum(sum, part);
    if (threadIdx.x == 0) dsinks[head] = accumulate ? dsinks[head] + sum : sum;
}

// dtable[bucket, head] = the sum of the parts in their order, added to the previous values if `accumulate`. partial:
// (samples, heads, tiles, buckets). A thread for each.
KERNEL(THREADS) attention_grad_table(const float *partial, float *dtable, int samples, int heads, int tiles,
                                     int buckets, int accumulate) {
    int at = blockIdx.x * THREADS + threadIdx.x, bucket = at / heads, head = at % heads;
    if (bucket >= buckets) return;
    float sum = 0.0f;
    for (int sample = 0; sample < samples; ++sample)
        for (int tile = 0; tile < tiles; ++tile)
            sum += partial[(((u64)sample * heads + head) * tiles + tile) * buckets + bucket];
    dtable[at] = accumulate ? dtable[at] + sum : sum;
}
