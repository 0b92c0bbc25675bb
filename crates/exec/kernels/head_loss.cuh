// From rows of logits to losses and slopes, shared by output heads. One block per row, in which a thread processes four
// neighboring logits at a time. With large vocabularies blocks have the largest size, so that few rows are processed at
// once and the second read of a row is still in the cache.
//
// Slopes replace the row's logits. In single precision they are at the logits' addresses, not scaled yet. In half
// precision, which tensor cores multiply, they are contiguous from the row's beginning, and already include the scale
// of losses and gradients, which keeps them in range.

#pragma once
#include "activation.cuh"

// Largest number of threads of a block.
#define THREADS 1024
// Logits that a thread processes at a time. Rows are aligned for loads of this many.
#define EACH 4
#define MINUS_INFINITY __int_as_float(0xff800000)

// The largest logit so far, and the sum of exponentials relative to it.
struct Softmax {
    float largest, sum;

    __device__ __forceinline__ void take(const float (&x)[EACH]) {
        float top = fmaxf(fmaxf(x[0], x[1]), fmaxf(x[2], x[3]));
        if (top > largest) {
            sum *= __expf(largest - top);
            largest = top;
        }
#pragma unroll
        for (int i = 0; i < EACH; ++i) sum += __expf(x[i] - largest);
    }

    __device__ __forceinline__ void join(Softmax other) {
        float top = fmaxf(largest, other.largest);
        // An empty state adds nothing.
        sum = (sum > 0.0f ? sum * __expf(largest - top) : 0.0f) +
              (other.sum > 0.0f ? other.sum * __expf(other.largest - top) : 0.0f);
        largest = top;
    }
};

// Logits of columns v on, which is a multiple of EACH; minus infinity after the row's end.
__device__ __forceinline__ void load_logits(float (&x)[EACH], const float *logits, int v, int vocab) {
    if (v + EACH <= vocab) {
        float4 four = *reinterpret_cast<const float4 *>(logits + v);
        x[0] = four.x, x[1] = four.y, x[2] = four.z, x[3] = four.w;
    } else {
#pragma unroll
        for (int i = 0; i < EACH; ++i) x[i] = v + i < vocab ? logits[v + i] : MINUS_INFINITY;
    }
}

// The log of the sum of the exponentials of a row, in every thread. `part` has an element for each warp.
__device__ __forceinline__ float log_sum_exp(const float *logits, int vocab, Softmax *part) {
    Softmax mine = {MINUS_INFINITY, 0.0f};
#pragma unroll 2
    for (int v = threadIdx.x * EACH; v < vocab; v += blockDim.x * EACH) {
        float x[EACH];
        load_logits(x, logits, v, vocab);
        mine.take(x);
    }
#pragma unroll
    for (int distance = WARP / 2; distance > 0; distance /= 2) {
        Softmax other = {__shfl_xor_sync(ALL_LANES, mine.largest, distance),
                         __shfl_xor_sync(ALL_LANES, mine.sum, distance)};
        mine.join(other);
    }
    __syncthreads(); // all reads of the previous parts are done
    if (threadIdx.x % WARP == 0) part[threadIdx.x / WARP] = mine;
    __syncthreads();
    Softmax all = part[0];
    for (int warp = 1; warp < blockDim.x / WARP; ++warp) all.join(part[warp]);
    return all.largest + __logf(all.sum);
}

// Writes `count` numbers to columns v on, which is a multiple of EACH.
__device__ __forceinline__ void set_numbers(void *row, int v, const float (&x)[EACH], int count, int number) {
    if (count < EACH) {
#pragma unroll
        for (int i = 0; i < EACH; ++i)
            if (i < count) set_number(row, v + i, x[i], number);
    } else if (number == F32) {
        *reinterpret_cast<float4 *>(static_cast<float *>(row) + v) = make_float4(x[0], x[1], x[2], x[3]);
    } else {
        u32 bits[EACH];
#pragma unroll
        for (int i = 0; i < EACH; ++i) bits[i] = number == F16 ? round_to<f16>(x[i]).bits : round_to<bf16>(x[i]).bits;
        *reinterpret_cast<uint2 *>(static_cast<u16 *>(row) + v) = make_uint2(bits[0] | bits[1] << 16, bits[2] | bits[3] << 16);
    }
}

// Replaces a row's logits by capped ones.
__device__ __forceinline__ void cap_logits(float *logits, int vocab, float cap) {
#pragma unroll 1
    for (int v = threadIdx.x * EACH; v < vocab; v += blockDim.x * EACH) {
        float x[EACH];
        load_logits(x, logits, v, vocab);
#pragma unroll
        for (int i = 0; i < EACH; ++i) x[i] = cap * tanh_exact(x[i] / cap);
        set_numbers(logits, v, x, min(vocab - v, EACH), F32);
    }
    __syncthreads();
}

// The slope of the cap at a capped logit; 1 without a cap.
template <bool CAPPED>
__device__ __forceinline__ float slope_of_cap(float logit, float cap) {
    float part = logit / cap;
    return CAPPED ? 1.0f - part * part : 1.0f;
}

// Replaces the draws' rows by `scale` times the slopes that `slopes(v, logits, slopes)` computes from the logits of column v
// of each draw, in the type `number`. All other reads of the rows are done before.
template <int DRAWS, class F>
__device__ __forceinline__ void lay_scaled_slopes(float *const (&rows)[DRAWS], int vocab, int number, float scale,
                                                  F slopes) {
#pragma unroll 1
    for (int first = 0; first < vocab; first += blockDim.x * EACH) {
        int v = first + threadIdx.x * EACH, count = min(max(vocab - v, 0), EACH);
        float x[DRAWS][EACH] = {};
        if (count > 0) {
#pragma unroll
            for (int draw = 0; draw < DRAWS; ++draw) load_logits(x[draw], rows[draw], v, vocab);
#pragma unroll
            for (int i = 0; i < EACH; ++i) {
                float logits[DRAWS], of_column[DRAWS] = {};
#pragma unroll
                for (int draw = 0; draw < DRAWS; ++draw) logits[draw] = x[draw][i];
                slopes(v + i, logits, of_column);
#pragma unroll
                for (int draw = 0; draw < DRAWS; ++draw) x[draw][i] = scale * of_column[draw];
            }
        }
        __syncthreads(); // slopes overwrite logits of this stretch, or ones that were read before
        if (count > 0) {
#pragma unroll
            for (int draw = 0; draw < DRAWS; ++draw) set_numbers(rows[draw], v, x[draw], count, number);
        }
    }
}

// The same with the scale of losses and gradients in half precision, and without a scale in single precision.
template <int DRAWS, class F>
__device__ __forceinline__ void lay_slopes(float *const (&rows)[DRAWS], int vocab, int number, const Scalars *scalars,
                                           F slopes) {
    float scale = number == F32 ? 1.0f : scalars->loss_scale * scalars->gradient_scale;
    lay_scaled_slopes(rows, vocab, number, scale, slopes);
}

// loss = the sum of the rows' losses times the loss's scale, added to the previous value if `accumulate`. One block.
__device__ __forceinline__ void sum_losses(const float *losses, float *loss, const Scalars *scalars, int rows,
                                           int accumulate) {
    __shared__ float part[WARP];
    float sum = 0.0f;
    for (int row = threadIdx.x; row < rows; row += blockDim.x) sum += losses[row];
    sum = block_sum(sum, part) * scalars->loss_scale;
    if (threadIdx.x == 0) *loss = accumulate ? *loss + sum : sum;
}
