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

// sums[block] = the sum of the squares of the block's `each` elements, in double precision, where squares are exact.
KERNEL(THREADS) grad_norm_squares(const float *gradient, double *sums, u64 elements, int each) {
    __shared__ double part[THREADS];
    u64 first = (u64)blockIdx.x * each, last = first + each < elements ? first + each : elements;
    double sum = 0.0;
    for (u64 i = first + threadIdx.x; i < last; i += THREADS) {
        double x = gradient[i];
        sum += x * x;
    }
    sum = block_sum(sum, part);
    if (threadIdx.x == 0) sums[blockIdx.x] = sum;
}

// Adds the square of an operand's norm, rounded to single precision, to the total; the last operand's call writes the
// norm.
KERNEL(THREADS) grad_norm_join(const double *sums, double *total, float *norm, int blocks, int first, int last) {
    __shared__ double part[THREADS];
    double sum = 0.0;
    for (int i = threadIdx.x; i < blocks; i += THREADS) sum += sums[i];
    sum = block_sum(sum, part);
    if (threadIdx.x > 0) return;
    double rounded = (float)sqrt(sum), squares = (first ? 0.0 : *total) + rounded * rounded;
    *total = squares;
    if (last) *norm = (float)sqrt(squares);
}

// One thread. `limit` is negative if there is none. The factor is NaN unless the norm is finite.
KERNEL(1) grad_clip(const float *norm, float *factor, const Scalars *scalars, float limit) {
    float scale = scalars->gradient_scale, size = *norm / scale;
    float clipped = limit < 0.0f ? 1.0f : fminf(limit / (size + 1e-6f), 1.0f);
    *factor = isfinite(*norm) ? clipped / scale : __int_as_float(0x7fffffff);
}
