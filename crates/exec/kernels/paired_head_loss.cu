// From the logits of two draws to losses and slopes: cross-entropy of both, and their divergence. Products are in
// linear.cu and product.cu. Reference: src/reference/paired_head_loss.rs.

#include "head_loss.cuh"

// losses[row], not scaled yet; if `slopes`, replaces the row's logits by the slopes of its loss, in the type `number`.
// Both are zero for a row without a target. first, second: (rows, stride), of which `vocab` columns are used.
template <bool CAPPED>
__device__ __forceinline__ void of_row(float *first, float *second, const int *targets, float *losses,
                                       const Scalars *scalars, int vocab, u64 stride, float smoothing, float alpha,
                                       float cap, int slopes, int number) {
    __shared__ Softmax softmax[THREADS / WARP];
    __shared__ float part[WARP];
    int row = blockIdx.x, target = targets[row];
    first += row * stride;
    second += row * stride;
    if (target < 0) {
        if (threadIdx.x == 0) losses[row] = 0.0f;
        if (slopes)
            lay_slopes({first, second}, vocab, number, scalars, [](int, const float (&)[2], float (&)[2]) {});
        return;
    }
    if (CAPPED) {
        cap_logits(first, vocab, cap);
        cap_logits(second, vocab, cap);
    }
    float lse1 = log_sum_exp(first, vocab, softmax), lse2 = log_sum_exp(second, vocab, softmax);
    // The divergences of each draw from the other, and the sum of all negative log-likelihoods.
    float apart1 = 0.0f, apart2 = 0.0f, sum = 0.0f, spread = smoothing / vocab;
    for (int v = threadIdx.x; v < vocab; v += blockDim.x) {
        float log1 = first[v] - lse1, log2 = second[v] - lse2;
        apart1 += __expf(log1) * (log1 - log2);
        apart2 += __expf(log2) * (log2 - log1);
        sum -= log1 + log2;
    }
    apart1 = block_sum(apart1, part);
    apart2 = block_sum(apart2, part);
    sum = block_sum(sum, part);
    if (threadIdx.x == 0) {
        float of_target = lse1 - first[target] + lse2 - second[target];
        losses[row] = 0.5f * ((1.0f - smoothing) * of_target + spread * sum) + 0.5f * alpha * (apart1 + apart2);
    }
    if (!slopes) return;
    lay_slopes({first, second}, vocab, number, scalars, [=](int v, const float (&logit)[2], float (&slope)[2]) {
        float log1 = logit[0] - lse1, log2 = logit[1] - lse2, p = __expf(log1), q = __expf(log2);
        float wanted = spread + (v == target ? 1.0f - smoothing : 0.0f), far = log1 - log2;
        slope[0] = 0.5f * (p - wanted) + 0.5f * alpha * (p * (far - apart1) + p - q);
        slope[1] = 0.5f * (q - wanted) + 0.5f * alpha * (q * (-far - apart2) + q - p);
        slope[0] *= slope_of_cap<CAPPED>(logit[0], cap);
        slope[1] *= slope_of_cap<CAPPED>(logit[1], cap);
    });
}

#define OF(name, capped)                                                                                               \
    KERNEL(THREADS) name(float *first, float *second, const int *targets, float *losses, const Scalars *scalars,       \
                         int vocab, u64 stride, float smoothing, float alpha, float cap, int slopes, int number) {     \
        of_row<capped>(first, second, targets, losses, scalars, vocab, stride, smoothing, alpha, cap, slopes, number); \
    }
OF(paired_head_loss, false)
OF(paired_head_loss_capped, true)

KERNEL(THREADS) paired_head_loss_sum(const float *losses, float *loss, const Scalars *scalars, int rows,
                                     int accumulate) {
    sum_losses(losses, loss, scalars, rows, accumulate);
}
