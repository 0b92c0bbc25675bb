// Rows of logits to losses and slopes: what output heads share. A block for each row.

#pragma once
#include "common.cuh"

#define THREADS 256

// The largest of what was seen, and the sum of exponentials over it.
struct Softmax {
    float largest, sum;

    __device__ __forceinline__ void take(float x) {
        if (x > largest) {
            sum = sum * __expf(largest - x) + 1.0f;
            largest = x;
        } else {
            sum += __expf(x - largest);
        }
    }

    __device__ __forceinline__ void join(Softmax other) {
        float top = fmaxf(largest, other.largest);
        // Of what saw nothing there is nothing to add.
        sum = (sum > 0.0f ? sum * __expf(largest - top) : 0.0f) +
              (other.sum > 0.0f ? other.sum * __expf(other.largest - top) : 0.0f);
        largest = top;
    }
};

// The log of the sum of the exponentials of a row, in every thread. `part` has a place for each warp.
__device__ __forceinline__ float log_sum_exp(const float *logits, int vocab, Softmax *part) {
    Softmax mine = {__int_as_float(0xff800000), 0.0f};
    for (int v = threadIdx.x; v < vocab; v += THREADS) mine.take(logits[v]);
#pragma unroll
    for (int distance = WARP / 2; distance > 0; distance /= 2) {
        Softmax other = {__shfl_xor_sync(ALL_LANES, mine.largest, distance),
                         __shfl_xor_sync(ALL_LANES, mine.sum, distance)};
        mine.join(other);
    }
    __syncthreads(); // whoever read the parts before is done
    if (threadIdx.x % WARP == 0) part[threadIdx.x / WARP] = mine;
    __syncthreads();
    Softmax all = part[0];
    for (int warp = 1; warp < THREADS / WARP; ++warp) all.join(part[warp]);
    return all.largest + __logf(all.sum);
}

// loss = the sum of the rows' losses times the loss's scale, or what is there and that. One block.
__device__ __forceinline__ void sum_losses(const float *losses, float *loss, const Scalars *scalars, int rows,
                                           int accumulate) {
    __shared__ float part[WARP];
    float sum = 0.0f;
    for (int row = threadIdx.x; row < rows; row += THREADS) sum += losses[row];
    sum = block_sum(sum, part) * scalars->loss_scale;
    if (threadIdx.x == 0) *loss = accumulate ? *loss + sum : sum;
}
