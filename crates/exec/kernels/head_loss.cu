// From logits to losses and slopes, for the output head with cross-entropy. Its products are in linear.cu.
// Reference: src/reference/head_loss.rs.

#include "head_loss.cuh"

// losses[row], and in place of the row's logits the slopes of its loss in them, if `slopes`; both not scaled yet. A row
// without a target has none of either. logits: (rows, stride), of which `vocab` columns are taken.
KERNEL(THREADS) head_loss(float *logits, const int *targets, float *losses, int vocab, u64 stride, float smoothing,
                          int slopes) {
    __shared__ Softmax softmax[THREADS / WARP];
    __shared__ float part[WARP];
    int row = blockIdx.x, target = targets[row];
    logits += row * stride;
    if (target < 0) {
        if (threadIdx.x == 0) losses[row] = 0.0f;
        if (slopes)
            for (int v = threadIdx.x; v < vocab; v += THREADS) logits[v] = 0.0f;
        return;
    }
    float lse = log_sum_exp(logits, vocab, softmax), sum = 0.0f, spread = smoothing / vocab;
    if (smoothing > 0.0f) {
        // The sum of the negative log-likelihoods, which does not cancel.
        for (int v = threadIdx.x; v < vocab; v += THREADS) sum += lse - logits[v];
        sum = block_sum(sum, part);
    }
    if (threadIdx.x == 0) losses[row] = (1.0f - smoothing) * (lse - logits[target]) + spread * sum;
    __syncthreads(); // before slopes are laid over the target's logit
    if (!slopes) return;
    for (int v = threadIdx.x; v < vocab; v += THREADS)
        logits[v] = __expf(logits[v] - lse) - spread - (v == target ? 1.0f - smoothing : 0.0f);
}

KERNEL(THREADS) head_loss_sum(const float *losses, float *loss, const Scalars *scalars, int rows, int accumulate) {
    sum_losses(losses, loss, scalars, rows, accumulate);
}
