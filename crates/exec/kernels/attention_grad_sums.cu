// Sums of the gradient of attention, in single precision and on tensor cores: products of results with their gradients
// before its passes, and the gradient of the bias' table after them.
// Source: Dao et al. 2022, "FlashAttention", appendix B.2.

#include "attention.cuh"

// delta[sample, head, query] = y · dy. y, dy: (tokens, heads, channels), `queries` tokens a sample. A warp for each.
KERNEL(THREADS) attention_grad_results(const void *dy, const void *y, float *delta, int samples, Shape shape) {
    u64 at = (u64)blockIdx.x * (THREADS / WARP) + threadIdx.x / WARP;
    if (at >= (u64)samples * shape.queries * shape.heads) return;
    u64 token = at / shape.heads, sample = token / shape.queries, first = at * shape.head_size;
    int head = at % shape.heads, lane = threadIdx.x % WARP;
    float sum = 0.0f;
    for (int c = lane; c < shape.head_size; c += WARP)
        sum += number_at(y, first + c, shape.number) * number_at(dy, first + c, shape.number);
    sum = warp_sum(sum);
    if (lane == 0) delta[(sample * shape.heads + head) * shape.queries + token % shape.queries] = sum;
}

// dtable[bucket, head], or what is there and that: parts added up in their order. partial: (samples, heads, tiles,
// buckets). A thread for each.
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
