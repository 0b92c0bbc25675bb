// From logits to the sums of each row's log-probabilities and back, for the output head. The losses of tokens are those
// of head_loss.cu. Reference: src/reference/head_log_probs.rs.

#include "head_loss.cuh"

// Replaces a token's logits by the slopes of its log-probability times that of its row, in the type `number`. Both are
// zero for a token without a target. logits: (tokens of the chunk, stride), of which `vocab` columns are used; `first`
// is the chunk's first token, and `tokens` the number of those of a row.
template <bool CAPPED>
__device__ __forceinline__ void of_token(float *logits, const int *targets, const float *of_rows, int first, int tokens,
                                         int vocab, u64 stride, float cap, int number) {
    __shared__ Softmax softmax[THREADS / WARP];
    int target = targets[blockIdx.x];
    logits += blockIdx.x * stride;
    if (target < 0) {
        lay_scaled_slopes({logits}, vocab, number, 0.0f, [](int, const float (&)[1], float (&)[1]) {});
        return;
    }
    if (CAPPED) cap_logits(logits, vocab, cap);
    float lse = log_sum_exp(logits, vocab, softmax), of_row = of_rows[(first + blockIdx.x) / tokens];
    lay_scaled_slopes({logits}, vocab, number, of_row, [=](int v, const float (&logit)[1], float (&slope)[1]) {
        slope[0] = ((v == target ? 1.0f : 0.0f) - __expf(logit[0] - lse)) * slope_of_cap<CAPPED>(logit[0], cap);
    });
}

#define OF(name, capped)                                                                                               \
    KERNEL(THREADS) name(float *logits, const int *targets, const float *of_rows, int first, int tokens, int vocab,    \
                         u64 stride, float cap, int number) {                                                          \
        of_token<capped>(logits, targets, of_rows, first, tokens, vocab, stride, cap, number);                         \
    }
OF(head_log_probs_grad, false)
OF(head_log_probs_grad_capped, true)

// sums[row] = minus the sum of the losses of the row's tokens. A block for each row.
KERNEL(THREADS) head_log_probs_sum(const float *losses, float *sums, int tokens) {
    __shared__ float part[WARP];
    losses += (u64)blockIdx.x * tokens;
    float sum = 0.0f;
    for (int token = threadIdx.x; token < tokens; token += blockDim.x) sum -= losses[token];
    sum = block_sum(sum, part);
    if (threadIdx.x == 0) sums[blockIdx.x] = sum;
}
