// From logits to the sums of each row's log-probabilities and back, for the output head.
// Reference: src/reference/head_log_probs.rs.

#include "head_loss.cuh"

// The id of a target, or a negative number without one. Targets below -1 are of the second group.
__device__ __forceinline__ int id_of(int target) { return target < -1 ? -2 - target : target; }

// The position of the sum that a target of a row belongs to.
__device__ __forceinline__ int sum_of(int row, int target, int split) {
    return split ? 2 * row + (target < -1 ? 1 : 0) : row;
}

// losses[token] = minus the log-probability of its target, or 0 without one. logits: (tokens, stride), of which `vocab`
// columns are used.
template <bool CAPPED>
__device__ __forceinline__ void loss_of_token(float *logits, const int *targets, float *losses, int vocab, u64 stride,
                                              float cap) {
    __shared__ Softmax softmax[THREADS / WARP];
    int target = id_of(targets[blockIdx.x]);
    logits += blockIdx.x * stride;
    if (target < 0) {
        if (threadIdx.x == 0) losses[blockIdx.x] = 0.0f;
        return;
    }
    if (CAPPED) cap_logits(logits, vocab, cap);
    float lse = log_sum_exp(logits, vocab, softmax);
    if (threadIdx.x == 0) losses[blockIdx.x] = lse - logits[target];
}

#define OF(name, capped)                                                                                               \
    KERNEL(THREADS) name(float *logits, const int *targets, float *losses, int vocab, u64 stride, float cap) {         \
        loss_of_token<capped>(logits, targets, losses, vocab, stride, cap);                                            \
    }
OF(head_log_probs, false)
OF(head_log_probs_capped, true)
#undef OF

// Replaces a token's logits by the slopes of its log-probability times that of its sum, in the type `number`. Both are
// zero for a token without a target. logits: (tokens of the chunk, stride), of which `vocab` columns are used; `first`
// is the chunk's first token, and `tokens` the number of those of a row.
template <bool CAPPED>
__device__ __forceinline__ void of_token(float *logits, const int *targets, const float *of_sums, int first, int tokens,
                                         int vocab, u64 stride, float cap, int split, int number) {
    __shared__ Softmax softmax[THREADS / WARP];
    int grouped = targets[blockIdx.x], target = id_of(grouped);
    logits += blockIdx.x * stride;
    if (target < 0) {
        lay_scaled_slopes({logits}, vocab, number, 0.0f, [](int, const float (&)[1], float (&)[1]) {});
        return;
    }
    if (CAPPED) cap_logits(logits, vocab, cap);
    float lse = log_sum_exp(logits, vocab, softmax);
    float of_sum = of_sums[sum_of((first + blockIdx.x) / tokens, grouped, split)];
    lay_scaled_slopes({logits}, vocab, number, of_sum, [=](int v, const float (&logit)[1], float (&slope)[1]) {
        slope[0] = ((v == target ? 1.0f : 0.0f) - __expf(logit[0] - lse)) * slope_of_cap<CAPPED>(logit[0], cap);
    });
}

#define OF(name, capped)                                                                                               \
    KERNEL(THREADS) name(float *logits, const int *targets, const float *of_sums, int first, int tokens, int vocab,    \
                         u64 stride, float cap, int split, int number) {                                               \
        of_token<capped>(logits, targets, of_sums, first, tokens, vocab, stride, cap, split, number);                  \
    }
OF(head_log_probs_grad, false)
OF(head_log_probs_grad_capped, true)

// sums[row] = minus the sum of the losses of the row's tokens; if `split`, a sum for each group of targets. A block for
// each row.
KERNEL(THREADS) head_log_probs_sum(const float *losses, const int *targets, float *sums, int tokens, int split) {
    __shared__ float part[WARP];
    u64 first = (u64)blockIdx.x * tokens;
    float own[2] = {};
    for (int token = threadIdx.x; token < tokens; token += blockDim.x) {
        float loss = losses[first + token];
        if (split && targets[first + token] < -1)
            own[1] -= loss;
        else
            own[0] -= loss;
    }
    float sum = block_sum(own[0], part), other = block_sum(own[1], part);
    if (threadIdx.x == 0) {
        sums[sum_of(blockIdx.x, 0, split)] = sum;
        if (split) sums[sum_of(blockIdx.x, -2, split)] = other;
    }
}
