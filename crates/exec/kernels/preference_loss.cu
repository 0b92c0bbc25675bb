// Losses of preferences and their gradient. Reference: src/reference/preference_loss.rs.

#include "common.cuh"

#define THREADS 256
#define WARPS (THREADS / WARP)

enum Kind { SIGMOID, ROBUST, HINGE, IPO, ORPO, SINGLE };

// The largest mean log-probability whose odds are computed.
#define MOST (-1.0f / (1 << 20))

// log (1 + exp x).
__device__ __forceinline__ float softplus(float x) { return fmaxf(x, 0.0f) + __logf(1.0f + __expf(-fabsf(x))); }

__device__ __forceinline__ float sigmoid(float x) { return 1.0f / (1.0f + __expf(-x)); }

// The number of targets of a row of the first group, and in `other` that of the second one, in every lane of a warp.
__device__ __forceinline__ float count(const int *targets, int tokens, float &other) {
    float first = 0.0f, second = 0.0f;
    for (int token = threadIdx.x % WARP; token < tokens; token += WARP) {
        int target = targets[token];
        first += target >= 0 ? 1.0f : 0.0f;
        second += target < -1 ? 1.0f : 0.0f;
    }
    other = warp_sum(second);
    return warp_sum(first);
}

// The term of the odds of an example, whose answers have these mean log-probabilities, and its slopes in both of them.
__device__ __forceinline__ float of_odds(float beta, float chosen, float rejected, float &slope_chosen,
                                         float &slope_rejected) {
    float good = fminf(chosen, MOST), bad = fminf(rejected, MOST);
    float of_good = -expm1f(good), of_bad = -expm1f(bad);
    float margin = (good - __logf(of_good)) - (bad - __logf(of_bad)), pull = beta * sigmoid(-margin);
    slope_chosen = -pull / of_good;
    slope_rejected = pull / of_bad;
    return beta * softplus(-margin);
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

// A single answer's loss with this reward, relative to the reference point, and its slope in the reward.
__device__ __forceinline__ float of_single(bool is_liked, float weight, float above, float &slope) {
    float up = sigmoid(above), down = sigmoid(-above);
    slope = (is_liked ? -weight : weight) * up * down;
    return weight * (is_liked ? down : up);
}

// One block, with a warp for each example. `slopes` is null if only the loss and the rewards are requested. ORPO has no
// reference, and two log-probabilities for each row: those of the answer and of the prompt.
KERNEL(THREADS) preference_loss(const float *policy, const float *reference, const int *targets, float *loss,
                                float *rewards, float *slopes, const Scalars *scalars, int examples, int tokens,
                                int kind, float beta, float wrong, float liked, float disliked, int accumulate) {
    __shared__ float part[WARPS];
    float sums[4] = {}, scale = scalars->loss_scale, slope_scale = scale * scalars->gradient_scale;
    bool is_first = threadIdx.x % WARP == 0;
    if (kind == SINGLE) {
#pragma unroll 1
        for (int row = threadIdx.x / WARP; row < examples; row += WARPS) {
            float of_second, of_first = count(targets + (u64)row * tokens, tokens, of_second);
            if (!is_first) continue;
            float slope = 0.0f;
            if (of_first + of_second > 0.0f) {
                bool is_liked = of_first > 0.0f;
                float reward = beta * (policy[row] - reference[row]);
                float above = reward - scalars->reference_point;
                sums[0] += of_single(is_liked, is_liked ? liked : disliked, above, slope);
                sums[is_liked ? 1 : 2] += reward;
                if (is_liked) sums[3] += 1.0f;
            }
            if (slopes) slopes[row] = slope_scale * beta * slope;
        }
        examples = 0;
    }
#pragma unroll 1
    for (int example = threadIdx.x / WARP; example < examples; example += WARPS) {
        const int *own = targets + (u64)2 * example * tokens;
        float tokens_prompt, none;
        float tokens_chosen = count(own, tokens, tokens_prompt), tokens_rejected = count(own + tokens, tokens, none);
        float of_chosen = 0.0f, of_rejected = 0.0f, of_prompt = 0.0f;
        if (tokens_chosen > 0.0f && tokens_rejected > 0.0f) {
            float chosen, rejected, of_loss;
            if (kind == ORPO) {
                const float *sums = policy + 4 * example;
                chosen = sums[0] / tokens_chosen;
                rejected = sums[2] / tokens_rejected;
                float all = tokens_chosen + tokens_prompt;
                of_loss = of_odds(beta, chosen, rejected, of_chosen, of_rejected) - (sums[0] + sums[1]) / all;
                of_prompt = -1.0f / all;
                of_chosen = of_chosen / tokens_chosen + of_prompt;
                of_rejected /= tokens_rejected;
            } else {
                chosen = policy[2 * example] - reference[2 * example];
                rejected = policy[2 * example + 1] - reference[2 * example + 1];
                of_loss = of_example(kind, beta, wrong, chosen, rejected, tokens_chosen, tokens_rejected, of_chosen,
                                     of_rejected);
            }
            if (is_first) {
                sums[0] += of_loss;
                sums[1] += beta * chosen;
                sums[2] += beta * rejected;
                sums[3] += chosen > rejected ? 1.0f : 0.0f;
            }
        }
        if (slopes && is_first) {
            if (kind == ORPO) {
                float *to = slopes + 4 * example;
                to[0] = slope_scale * of_chosen, to[1] = slope_scale * of_prompt;
                to[2] = slope_scale * of_rejected, to[3] = 0.0f;
            } else {
                slopes[2 * example] = slope_scale * of_chosen;
                slopes[2 * example + 1] = slope_scale * of_rejected;
            }
        }
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        float sum = scale * block_sum(sums[i], part), *to = i == 0 ? loss : rewards + i - 1;
        if (threadIdx.x == 0) *to = accumulate ? *to + sum : sum;
    }
}
