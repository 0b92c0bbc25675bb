// Rows of logits to losses and slopes: what output heads share. A block for each row, in which a thread has four neighbors
// at a time. With large vocabularies blocks are as large as can be, so that few rows are at work at once and what is read
// of one a second time is still in the cache.
//
// Slopes take the place of the row's logits. In single precision they lie where the logits lay, not scaled yet. In half
// precision, which tensor cores multiply, they follow one another from the row's beginning, and bear the scale of losses
// and gradients already, which keeps them in range.

#pragma once
#include "common.cuh"

// The most of a block.
#define THREADS 1024
// Logits that a thread has at a time. Rows begin where as many may be loaded at once.
#define EACH 4
#define MINUS_INFINITY __int_as_float(0xff800000)

// The largest of what was seen, and the sum of exponentials over it.
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
        // Of what saw nothing there is nothing to add.
        sum = (sum > 0.0f ? sum * __expf(largest - top) : 0.0f) +
              (other.sum > 0.0f ? other.sum * __expf(other.largest - top) : 0.0f);
        largest = top;
    }
};

// Logits of columns v on, which is a multiple of EACH; minus infinity beyond the row's end.
__device__ __forceinline__ void load_logits(float (&x)[EACH], const float *logits, int v, int vocab) {
    if (v + EACH <= vocab) {
        float4 four = *reinterpret_cast<const float4 *>(logits + v);
        x[0] = four.x, x[1] = four.y, x[2] = four.z, x[3] = four.w;
    } else {
#pragma unroll
        for (int i = 0; i < EACH; ++i) x[i] = v + i < vocab ? logits[v + i] : MINUS_INFINITY;
    }
}

// The log of the sum of the exponentials of a row, in every thread. `part` has a place for each warp.
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
    __syncthreads(); // whoever read the parts before is done
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

// Lays the slopes of `slopes(v, logits, slopes)`, made of the logits of column v of each draw, over the draws' rows;
// `number` is what they are. Whatever else is read of the rows has been read before.
template <int DRAWS, class F>
__device__ __forceinline__ void lay_slopes(float *const (&rows)[DRAWS], int vocab, int number, const Scalars *scalars,
                                           F slopes) {
    float scale = number == F32 ? 1.0f : scalars->loss_scale * scalars->gradient_scale;
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
        __syncthreads(); // slopes lie over logits of this stretch, or over those that were read before
        if (count > 0) {
#pragma unroll
            for (int draw = 0; draw < DRAWS; ++draw) set_numbers(rows[draw], v, x[draw], count, number);
        }
    }
}

// loss = the sum of the rows' losses times the loss's scale, or what is there and that. One block.
__device__ __forceinline__ void sum_losses(const float *losses, float *loss, const Scalars *scalars, int rows,
                                           int accumulate) {
    __shared__ float part[WARP];
    float sum = 0.0f;
    for (int row = threadIdx.x; row < rows; row += blockDim.x) sum += losses[row];
    sum = block_sum(sum, part) * scalars->loss_scale;
    if (threadIdx.x == 0) *loss = accumulate ? *loss + sum : sum;
}
