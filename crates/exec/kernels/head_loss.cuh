// Rows of logits to losses and slopes: what output heads share. A block for each row.
//
// Slopes take the place of the row's logits. In single precision they lie where the logits lay, not scaled yet. In half
// precision, which tensor cores multiply, they follow one another from the row's beginning, and bear the scale of losses
// and gradients already, which keeps them in range.

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

// Lays the slopes `x` of `slopes(v, x)`, made of the logits of column v of each draw, over the draws' rows; `number` is
// what they are. Whatever else is read of the rows has been read before.
template <int DRAWS, class F>
__device__ __forceinline__ void lay_slopes(float *const (&rows)[DRAWS], int vocab, int number, const Scalars *scalars,
                                           F slopes) {
    float scale = number == F32 ? 1.0f : scalars->loss_scale * scalars->gradient_scale;
#pragma unroll 1
    for (int first = 0; first < vocab; first += THREADS) {
        int v = first + threadIdx.x;
        float x[DRAWS] = {};
        if (v < vocab) slopes(v, x);
        __syncthreads(); // slopes lie over logits of this stretch, or over those that were read before
#pragma unroll
        for (int draw = 0; draw < DRAWS; ++draw)
            if (v < vocab) set_number(rows[draw], v, scale * x[draw], number);
    }
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
