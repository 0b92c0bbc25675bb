// The contrastive loss of sentence encoders and its gradient, in single precision. Vectors: `rows` anchors and `count`
// candidates of `columns` numbers. Blocks of THREADS. Reference: src/reference/contrastive_loss.rs.

#include "common.cuh"

#define THREADS 256
#define WARPS (THREADS / WARP)

// A row of anchors, or of candidates after them.
__device__ __forceinline__ const float *vector_at(const float *anchors, const float *candidates, int row, int rows,
                                                  int columns) {
    return row < rows ? anchors + (u64)row * columns : candidates + (u64)(row - rows) * columns;
}

// The dot product of two vectors, in every lane of a warp.
__device__ __forceinline__ float dot(const float *a, const float *b, int columns) {
    float sum = 0.0f;
#pragma unroll 4
    for (int c = threadIdx.x % WARP; c < columns; c += WARP) sum = fmaf(a[c], b[c], sum);
    return warp_sum(sum);
}

// inverse[row] = the reciprocal of each vector's length, 0 if it has none. A warp for each vector.
KERNEL(THREADS) contrastive_loss_lengths(const float *anchors, const float *candidates, float *inverse, int rows,
                                         int count, int columns) {
    int row = blockIdx.x * WARPS + threadIdx.x / WARP;
    if (row >= rows + count) return;
    const float *own = vector_at(anchors, candidates, row, rows, columns);
    float squares = dot(own, own, columns);
    if (threadIdx.x % WARP == 0) inverse[row] = squares > 0.0f ? 1.0f / sqrtf(squares) : 0.0f;
}

// losses[row], not scaled yet, and the scores of the row: similarities, or if `slopes` their slopes. Both are zero for
// a row without a sample. A block for each anchor.
KERNEL(THREADS) contrastive_loss_rows(const float *anchors, const float *candidates, const int *present,
                                      const float *inverse, float *scores, float *losses, const Scalars *scalars,
                                      int rows, int count, int columns, float scale, int slopes) {
    __shared__ float part[WARP];
    int row = blockIdx.x, warp = threadIdx.x / WARP;
    scores += (u64)row * count;
    if (present[row] < 0) {
        if (threadIdx.x == 0) losses[row] = 0.0f;
        for (int j = threadIdx.x; j < count; j += THREADS) scores[j] = 0.0f;
        return;
    }
    const float *own = anchors + (u64)row * columns;
    float factor = scale * inverse[row];
    for (int j = warp; j < count; j += WARPS) {
        float similarity = factor * inverse[rows + j] * dot(own, candidates + (u64)j * columns, columns);
        if (threadIdx.x % WARP == 0) scores[j] = present[j % rows] < 0 ? __int_as_float(0xff800000) : similarity;
    }
    __syncthreads();
    float sum = 0.0f, wanted = scores[row], top = wanted;
    for (int j = threadIdx.x; j < count; j += THREADS) top = fmaxf(top, scores[j]);
#pragma unroll
    for (int distance = WARP / 2; distance > 0; distance /= 2)
        top = fmaxf(top, __shfl_xor_sync(ALL_LANES, top, distance));
    if (threadIdx.x % WARP == 0) part[warp] = top;
    __syncthreads();
    for (int w = 0; w < WARPS; ++w) top = fmaxf(top, part[w]);
    for (int j = threadIdx.x; j < count; j += THREADS) sum += __expf(scores[j] - top);
    sum = block_sum(sum, part);
    float lse = top + __logf(sum);
    if (threadIdx.x == 0) losses[row] = lse - wanted;
    if (!slopes) return;
    factor = scale * scalars->loss_scale * scalars->gradient_scale;
    for (int j = threadIdx.x; j < count; j += THREADS)
        scores[j] = factor * (__expf(scores[j] - lse) - (j == row ? 1.0f : 0.0f));
}

// The gradient of each vector, from the slopes of its scores: that of its direction, without what only lengthens it.
// A block for each vector.
KERNEL(THREADS) contrastive_loss_grad(const float *anchors, const float *candidates, const float *inverse,
                                      const float *slopes, float *danchors, float *dcandidates, int rows, int count,
                                      int columns) {
    __shared__ float part[WARP];
    int row = blockIdx.x;
    bool is_anchor = row < rows;
    const float *own = vector_at(anchors, candidates, row, rows, columns);
    const float *others = is_anchor ? candidates : anchors, *of_others = is_anchor ? inverse + rows : inverse;
    float *to = is_anchor ? danchors + (u64)row * columns : dcandidates + (u64)(row - rows) * columns;
    u64 stride = is_anchor ? 1 : count;
    int terms = is_anchor ? count : rows;
    slopes += is_anchor ? (u64)row * count : row - rows;
    float along = 0.0f, of_own = inverse[row];
    for (int c = threadIdx.x; c < columns; c += THREADS) {
        float sum = 0.0f;
#pragma unroll 4
        for (int n = 0; n < terms; ++n) sum = fmaf(slopes[n * stride] * of_others[n], others[(u64)n * columns + c], sum);
        to[c] = sum;
        along = fmaf(sum, own[c], along);
    }
    along = block_sum(along, part) * of_own * of_own;
    for (int c = threadIdx.x; c < columns; c += THREADS) to[c] = of_own * (to[c] - along * own[c]);
}
