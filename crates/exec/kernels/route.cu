// Routers of mixtures of experts: the choices of each token, their order by expert, and the gradient of the logits.
// Reference: src/reference/route.rs.
//
// Three kernels, since places need the counts of all tokens: each block of `route` chooses for a part of the tokens and
// counts its choices; one block of `route_bounds` turns the counts into the first place of each expert's choices in
// each part; each block of `route_places` numbers the choices of its part from there, in the order of the tokens. So
// the order of places does not depend on the order of blocks.

#include "common.cuh"

#define THREADS 256
#define WARPS (THREADS / WARP)

// A logit as an integer in the same order; NaN is above infinity.
__device__ __forceinline__ u32 order_of(float logit) {
    // Adding zero turns minus zero into zero.
    u32 bits = logit != logit ? 0x7fc00000 : __float_as_uint(logit + 0.0f);
    return bits ^ ((int)bits < 0 ? 0xffffffff : 0x80000000);
}

// The largest number of a warp, in every lane.
__device__ __forceinline__ u64 warp_most(u64 x) {
#pragma unroll
    for (int distance = WARP / 2; distance > 0; distance /= 2) {
        u64 other = (u64)__shfl_xor_sync(ALL_LANES, (u32)(x >> 32), distance) << 32 |
                    __shfl_xor_sync(ALL_LANES, (u32)x, distance);
        x = other > x ? other : x;
    }
    return x;
}

// Calls `f(i)` in order for each choice i in [first, last) of `expert`, with all threads of a block, each with its own
// expert.
template <class F>
__device__ __forceinline__ void each_choice(const int *experts, int first, int last, int expert, F f) {
    __shared__ int some[THREADS];
#pragma unroll 1
    for (int start = first; start < last; start += THREADS) {
        __syncthreads(); // all reads of the previous choices are done
        if (start + threadIdx.x < last) some[threadIdx.x] = experts[start + threadIdx.x];
        __syncthreads();
        int count = min(last - start, THREADS);
#pragma unroll 4
        for (int i = 0; i < count; ++i)
            if (some[i] == expert) f(start + i);
    }
}

// A warp for each token: the experts with the largest logits, the lower index first among equals, and their weights.
// `sums_of_parts` is null if sums are not wanted; else dynamic shared memory has a row of experts for each warp.
KERNEL(THREADS) route(const void *logits, float *weights, int *experts, int *counts, float *sums_of_parts, int tokens,
                      int each, int count, int chosen, int normalized, int number) {
    extern __shared__ float sums_of_warps[];
    int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    int first = blockIdx.x * each, last = min(first + each, tokens);
    float *sums = sums_of_warps + warp * count;
#pragma unroll 1
    for (int e = lane; sums_of_parts && e < count; e += WARP) sums[e] = 0.0f;
#pragma unroll 1
    for (int token = first + warp; token < last; token += WARPS) {
        const void *row = element(logits, (u64)token * count, number);
        u64 choice = (u64)token * chosen, previous = ~0ull;
        float largest = 0.0f, total = 0.0f;
#pragma unroll 1
        for (int k = 0; k < chosen; ++k) {
            u64 most = 0;
#pragma unroll 2
            for (int e = lane; e < count; e += WARP) {
                u64 key = (u64)order_of(number_at(row, e, number)) << 32 | ~(u32)e;
                if (key < previous && key > most) most = key;
            }
            previous = warp_most(most);
            int expert = (int)~(u32)previous;
            float logit = number_at(row, expert, number);
            if (k == 0) largest = logit;
            float exponential = __expf(logit - largest);
            total += exponential;
            if (lane == 0) {
                experts[choice + k] = expert;
                weights[choice + k] = exponential;
            }
        }
        if (!normalized || sums_of_parts) {
            float sum = 0.0f;
#pragma unroll 1
            for (int e = lane; e < count; e += WARP) sum += __expf(number_at(row, e, number) - largest);
            float all = warp_sum(sum);
            if (!normalized) total = all;
#pragma unroll 1
            for (int e = lane; sums_of_parts && e < count; e += WARP)
                sums[e] += __expf(number_at(row, e, number) - largest) / all;
        }
        __syncwarp();
#pragma unroll 1
        for (int k = lane; k < chosen; k += WARP) weights[choice + k] /= total;
    }
    __syncthreads();
    u64 part = (u64)blockIdx.x * count;
#pragma unroll 1
    for (int e = threadIdx.x; e - (int)threadIdx.x < count; e += THREADS) {
        int found = 0;
        each_choice(experts, first * chosen, last * chosen, e, [&](int) { ++found; });
        if (e >= count) continue;
        counts[part + e] = found;
        if (sums_of_parts) {
            float sum = 0.0f;
#pragma unroll 1
            for (int warp = 0; warp < WARPS; ++warp) sum += sums_of_warps[warp * count + e];
            sums_of_parts[part + e] = sum;
        }
    }
}

// One block. Bounds of the experts; replaces the counts by the first place of each expert's choices in each part; and
// adds up the sums of the parts, unless they are null.
KERNEL(THREADS) route_bounds(int *counts, const float *sums_of_parts, int *bounds, float *sums, int parts, int count) {
#pragma unroll 1
    for (int e = threadIdx.x; e < count; e += THREADS) {
        int total = 0;
#pragma unroll 4
        for (int part = 0; part < parts; ++part) total += counts[(u64)part * count + e];
        bounds[e + 1] = total;
    }
    __syncthreads();
    if (threadIdx.x < WARP) {
        int before = 0;
#pragma unroll 1
        for (int start = 0; start < count; start += WARP) {
            int e = start + threadIdx.x, sum = e < count ? bounds[e + 1] : 0;
#pragma unroll
            for (int distance = 1; distance < WARP; distance *= 2) {
                int other = __shfl_up_sync(ALL_LANES, sum, distance);
                if (threadIdx.x >= distance) sum += other;
            }
            if (e < count) bounds[e + 1] = before + sum;
            before += __shfl_sync(ALL_LANES, sum, WARP - 1);
        }
        if (threadIdx.x == 0) bounds[0] = 0;
    }
    __syncthreads();
#pragma unroll 1
    for (int e = threadIdx.x; e < count; e += THREADS) {
        int place = bounds[e];
        float sum = 0.0f;
#pragma unroll 4
        for (int part = 0; part < parts; ++part) {
            u64 at = (u64)part * count + e;
            int found = counts[at];
            counts[at] = place;
            place += found;
            if (sums) sum += sums_of_parts[at];
        }
        if (sums) sums[e] = sum;
    }
}

// A thread for each expert numbers its choices of a part.
KERNEL(THREADS) route_places(const int *experts, const int *first_places, int *places, int tokens, int each, int count,
                             int chosen) {
    int first = blockIdx.x * each, last = min(first + each, tokens);
#pragma unroll 1
    for (int e = threadIdx.x; e - (int)threadIdx.x < count; e += THREADS) {
        int place = e < count ? first_places[(u64)blockIdx.x * count + e] : 0;
        each_choice(experts, first * chosen, last * chosen, e, [&](int choice) { places[choice] = place++; });
    }
}

// A warp for each token. That of a softmax is p · (dp - Σ p · dp): of probabilities over all experts, and of weights
// over all experts or, if normalized, over the chosen ones. `dsums` is null if sums have no gradient.
KERNEL(THREADS) route_grad(const void *logits, const int *experts, const float *dweights, const float *dsums,
                           void *dlogits, int tokens, int count, int chosen, int normalized, int number) {
    int lane = threadIdx.x % WARP, token = blockIdx.x * WARPS + threadIdx.x / WARP;
    if (token >= tokens) return;
    logits = element(logits, (u64)token * count, number), dlogits = element(dlogits, (u64)token * count, number);
    experts += (u64)token * chosen, dweights += (u64)token * chosen;
    float largest = number_at(logits, experts[0], number), all = 0.0f, of_sums = 0.0f, total = 0.0f, of_weights = 0.0f;
#pragma unroll 1
    for (int e = lane; e < count; e += WARP) {
        float x = __expf(number_at(logits, e, number) - largest);
        all += x;
        if (dsums) of_sums += x * dsums[e];
    }
#pragma unroll 1
    for (int k = lane; k < chosen; k += WARP) {
        float x = __expf(number_at(logits, experts[k], number) - largest);
        total += x;
        of_weights += x * dweights[k];
    }
    all = warp_sum(all);
    total = warp_sum(total);
    if (!normalized) total = all;
    of_sums = warp_sum(of_sums) / all;
    of_weights = warp_sum(of_weights) / total;
    float mean = of_sums + (normalized ? 0.0f : of_weights), subtracted = normalized ? of_weights : 0.0f;
#pragma unroll 1
    for (int e = lane; e < count; e += WARP) {
        float x = __expf(number_at(logits, e, number) - largest), slope = x / all * ((dsums ? dsums[e] : 0.0f) - mean);
#pragma unroll 1
        for (int k = 0; k < chosen; ++k)
            if (experts[k] == e) slope += x / total * (dweights[k] - subtracted);
        set_number(dlogits, e, slope, number);
    }
}
