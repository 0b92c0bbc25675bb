// Losses of preferences and their gradient. Reference: src/reference/preference_loss.rs.

#include "common.cuh"

#define THREADS 256
#define WARPS (THREADS / WARP)

enum Kind { SIGMOID, ROBUST, HINGE, IPO };

// log (1 + exp x).
__device__ __forceinline__ float softplus(float x) { return fmaxf(x, 0.0f) + __logf(1.0f + __expf(-fabsf(x))); }

__device__ __forceinline__ float sigmoid(float x) { return 1.0f / (1.0f + __expf(-x)); }

// The number of targets of a row, in every lane of a warp.
__device__ __forceinline__ float count(const int *targets, int tokens) {
    float sum = 0.0f;
    for (int token = threadIdx.x % WARP; token < tokens; token += WARP) sum += targets[token] >= 0 ? 1.0f : 0.0f;
    return warp_sum(sum);
}

// The loss of an example, whose answers have these log-ratios and numbers of tokens, and its slopes in both log-ratios.
__device__ __forceinline__ float of_example(int kind, float beta, float wrong, float chosen, float rejected,
                                            float tokens_chosen, float tokens_rejected, float &slope_chosen,
                                            float &slope_rejected) {
    if (kind == IPO) {
        float off = chosen / tokens_chosen - rejected / tokens_rejected - 0.5f / beta;
        slope_chosen = 2.0f * off / tokens_chosen;
        slope_rejected = -2.0f * off / tokens_rejected;
        return off * off;
    }
    float margin = beta * (chosen - rejected), loss, slope;
    if (kind == HINGE) {
        loss = fmaxf(1.0f - margin, 0.0f);
        slope = margin < 1.0f ? -1.0f : 0.0f;
    } else {
        float factor = kind == ROBUST ? 1.0f / (1.0f - 2.0f * wrong) : 1.0f, other = kind == ROBUST ? -wrong : wrong;
        loss = factor * ((1.0f - wrong) * softplus(-margin) + other * softplus(margin));
        slope = factor * (other * sigmoid(margin) - (1.0f - wrong) * sigmoid(-margin));
    }
    slope_chosen = beta * slope;
    slope_rejected = -beta * slope;
    return loss;
}

// One block, with a warp for each example. `slopes` is null if only the loss and the rewards are requested.
KERNEL(THREADS) preference_loss(const float *policy, const float *reference, const int *targets, float *loss,
                                float *rewards, float *slopes, const Scalars *scalars, int examples, int tokens,
                                int kind, float beta, float wrong, int accumulate) {
    __shared__ float part[WARPS];
    float sums[4] = {}, scale = scalars->loss_scale, slope_scale = scale * scalars->gradient_scale;
    bool is_first = threadIdx.x % WARP == 0;
#pragma unroll 1
    for (int example = threadIdx.x / WARP; example < examples; example += WARPS) {
        const int *own = targets + (u64)2 * example * tokens;
        float tokens_chosen = count(own, tokens), tokens_rejected = count(own + tokens, tokens);
        float of_chosen = 0.0f, of_rejected = 0.0f;
        if (tokens_chosen > 0.0f && tokens_rejected > 0.0f) {
            float chosen = policy[2 * example] - reference[2 * example];
            float rejected = policy[2 * example + 1] - reference[2 * example + 1];
            float of_loss = of_example(kind, beta, wrong, chosen, rejected, tokens_chosen, tokens_rejected, of_chosen,
                                       of_rejected);
            if (is_first) {
                sums[0] += of_loss;
                sums[1] += beta * chosen;
                sums[2] += beta * rejected;
                sums[3] += chosen > rejected ? 1.0f : 0.0f;
            }
        }
        if (slopes && is_first) {
            slopes[2 * example] = slope_scale * of_chosen;
            slopes[2 * example + 1] = slope_scale * of_rejected;
        }
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        float sum = scale * block_sum(sums[i], part), *to = i == 0 ? loss : rewards + i - 1;
        if (threadIdx.x == 0) *to = accumulate ? *to + sum : sum;
    }
}
