// The loss on the balance of experts, and its gradient. Layers are added up one by one, since a kernel has a fixed number
// of operands. Reference: src/reference/router_loss.rs.

#include "common.cuh"

#define THREADS 256

// Adds a layer's sums of probabilities and numbers of choices to the totals, or sets them. A thread for each expert.
KERNEL(THREADS) router_loss_add(const float *sums, const int *bounds, float *total_sums, int *total_choices, int experts,
                                int is_first) {
    int e = blockIdx.x * THREADS + threadIdx.x;
    if (e >= experts) return;
    int choices = bounds[e + 1] - bounds[e];
    total_sums[e] = is_first ? sums[e] : total_sums[e] + sums[e];
    total_choices[e] = is_first ? choices : total_choices[e] + choices;
}

// One block. `factor` is the coefficient times the number of experts, divided by the square of the number of layers and
// multiplied by that of the experts per token; `bounds` are a layer's, whose last is the number of choices.
KERNEL(THREADS) router_loss(const float *total_sums, const int *total_choices, const int *bounds, float *loss, float *dsums,
                            const Scalars *scalars, int experts, float factor, int accumulate) {
    __shared__ float part[THREADS / WARP];
    float rows = bounds[experts], scale = scalars->micro_batch_share * factor / (rows * rows), sum = 0.0f;
#pragma unroll 1
    for (int e = threadIdx.x; e < experts; e += THREADS) {
        float slope = scale * total_choices[e];
        sum += slope * total_sums[e];
        dsums[e] = slope * scalars->gradient_scale;
    }
    sum = block_sum(sum, part);
    if (threadIdx.x == 0) *loss = accumulate ? *loss + sum : sum;
}
