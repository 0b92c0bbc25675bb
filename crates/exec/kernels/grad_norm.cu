// The norm of all gradients, and the factor that keeps it within a limit. Reference: src/reference/grad_norm.rs,
// src/reference/grad_clip.rs.

#include "common.cuh"

#define THREADS 256

// The sum over a block in a fixed order, in every thread. `part` has an element for each thread.
__device__ __forceinline__ double block_sum(double x, double *part) {
    part[threadIdx.x] = x;
#pragma unroll
    for (int distance = THREADS / 2; distance > 0; distance /= 2) {
        __syncthreads();
        if (threadIdx.x < distance) part[threadIdx.x] += part[threadIdx.x + distance];
    }
    __syncthreads();
    return part[0];
}

// Gradients whose sums fit into scratch together: `LISTED` of src/cuda/ops/grad_norm.rs.
#define LISTED 64

// A gradient, and the number of its first block among those of all gradients of the list.
struct Listed {
    const void *gradient;
    u64 elements, first;
    // Whether it is in bf16; else in single precision.
    u64 is_rounded;
};

// `blocks` is the number of all blocks.
struct List {
    Listed at[LISTED];
    u64 count, blocks;
};

// The gradient with this block.
__device__ __forceinline__ u32 with_block(const List &list, u64 block) {
    u32 at = 0, end = (u32)list.count;
    while (end - at > 1) {
        u32 middle = (at + end) / 2;
        if (list.at[middle].first <= block)
            at = middle;
        else
            end = middle;
    }
    return at;
}

// sums[block] = the sum of the squares of the block's `each` elements, in double precision, where squares are exact.
KERNEL(THREADS) grad_norm_squares(double *sums, int each, List list) {
    __shared__ double part[THREADS];
    const Listed &listed = list.at[with_block(list, blockIdx.x)];
    u64 first = (blockIdx.x - listed.first) * each;
    u64 last = first + each < listed.elements ? first + each : listed.elements;
    double sum = 0.0;
    for (u64 i = first + threadIdx.x; i < last; i += THREADS) {
        double x = listed.is_rounded ? widen(static_cast<const bf16 *>(listed.gradient)[i])
                                     : static_cast<const float *>(listed.gradient)[i];
        sum += x * x;
    }
    sum = block_sum(sum, part);
    if (threadIdx.x == 0) sums[blockIdx.x] = sum;
}

// The sum of a gradient's sums replaces the first of them. A block for each gradient.
KERNEL(THREADS) grad_norm_join(double *sums, List list) {
    __shared__ double part[THREADS];
    u64 at = blockIdx.x, first = list.at[at].first, end = at + 1 < list.count ? list.at[at + 1].first : list.blocks;
    double sum = 0.0;
    for (u64 i = first + threadIdx.x; i < end; i += THREADS) sum += sums[i];
    // All threads have read the sums when they know theirs.
    sum = block_sum(sum, part);
    if (threadIdx.x == 0) sums[first] = sum;
}

// One thread. Adds the squares of the gradients' norms, rounded to single precision, to the total in order; the last list's call
// writes the norm.
KERNEL(1) grad_norm_total(const double *sums, double *total, float *norm, int first, int last, List list) {
    double squares = first ? 0.0 : *total;
    for (u64 at = 0; at < list.count; ++at) {
        double rounded = (float)sqrt(sums[list.at[at].first]);
        squares += rounded * rounded;
    }
    *total = squares;
    if (last) *norm = (float)sqrt(squares);
}

// One thread. `limit` is negative if there is none. The factor is NaN unless the norm is finite.
KERNEL(1) grad_clip(const float *norm, float *factor, const Scalars *scalars, float limit) {
    float scale = scalars->gradient_scale, size = *norm / scale;
    float clipped = limit < 0.0f ? 1.0f : fminf(limit / (size + 1e-6f), 1.0f);
    *factor = isfinite(*norm) ? clipped / scale : __int_as_float(0x7fffffff);
}
