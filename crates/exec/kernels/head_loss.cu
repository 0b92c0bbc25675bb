// From logits to losses and slopes, for the output head with cross-entropy. Its products are in linear.cu and product.cu.
// Reference: src/reference/head_loss.rs.

#include "head_loss.cuh"

// losses[row], not scaled yet; if `slopes`, replaces the row's logits by the slopes of its loss, in the type `number`.
// Both are zero for a row without a target. logits: (rows, stride), of which `vocab` columns are used.
template <bool CAPPED>
__device__ __forceinline__ void of_row(float *logits, const int *targets, float *losses, const Scalars *scalars,
                                       int vocab, u64 stride, float smoothing, float cap, int slopes, int number) {
    __shared__ Softmax softmax[THREADS / WARP];
    __shared__ float part[WARP];
    int row = blockIdx.x, target = targets[row];
    logits += row * stride;
    if (target < 0) {
        if (threadIdx.x == 0) losses[row] = 0.0f;
        if (slopes)
            lay_slopes({logits}, vocab, number, scalars, [](int, const float (&)[1], float (&)[1]) {});
        return;
    }
    if (CAPPED) cap_logits(logits, vocab, cap);
    float lse = log_sum_exp(logits, vocab, softmax), sum = 0.0f, spread = smoothing / vocab;
    if (smoothing > 0.0f) {
        // The sum of the negative log-likelihoods, which does not cancel.
        for (int v = threadIdx.x; v < vocab; v += blockDim.x) sum += lse - logits[v];
        sum = block_sum(sum, part);
    }
    if (threadIdx.x == 0) losses[row] = (1.0f - smoothing) * (lse - logits[target]) + spread * sum;
    if (!slopes) return;
    lay_slopes({logits}, vocab, number, scalars, [=](int v, const float (&logit)[1], float (&slope)[1]) {
        float of_loss = __expf(logit[0] - lse) - spread - (v == target ? 1.0f - smoothing : 0.0f);
        slope[0] = of_loss * slope_of_cap<CAPPED>(logit[0], cap);
    });
}

#define OF(name, capped)                                                                                               \
    KERNEL(THREADS) name(float *logits, const int *targets, float *losses, const Scalars *scalars, int vocab,          \
                         u64 stride, float smoothing, float cap, int slopes, int number) {                             \
        of_row<capped>(logits, targets, losses, scalars, vocab, stride, smoothing, cap, slopes, number);               \
    }
OF(head_loss, false)
OF(head_loss_capped, true)

KERNEL(THREADS) head_loss_sum(const float *losses, float *loss, const Scalars *scalars, int rows, int accumulate) {
    sum_losses(losses, loss, scalars, rows, accumulate);
}
