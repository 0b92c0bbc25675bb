// Columns times magnitudes over norms, and the gradient. Reference: src/reference/column_scale.rs.
//
// x: (rows, columns). Blocks: stretches of WARP vectors of columns along x, parts of the rows along y. Each warp has a
// row of the stretch at a time, and each lane keeps the factors of its columns.

#include "common.cuh"

#define THREADS 256
// Rows that a block reads at once.
#define ROWS (THREADS / WARP)

__device__ __forceinline__ float over(float number, float norm) { return norm > 0.0f ? number / norm : 0.0f; }

// The rows of a block's part.
struct Rows {
    int first, last;
    __device__ __forceinline__ Rows(int rows) {
        int each = (rows + gridDim.y - 1) / gridDim.y;
        first = blockIdx.y * each;
        last = min(first + each, rows);
    }
};

// A number for each column of a stretch, by the vector and the column in it. Padded, so that neighboring columns, which are
// COUNT apart from lane to lane, are in different banks.
template <int COUNT>
struct OfColumns {
    float at[COUNT][WARP + WARP / COUNT];
    // The number of a thread's column.
    __device__ __forceinline__ float &mine() { return at[threadIdx.x % COUNT][threadIdx.x / COUNT]; }
};

// Sets the factors of a stretch that begins at column `start`: a thread for each column, so that neighboring threads read
// neighboring elements. Returns the norm of the thread's column.
template <int COUNT>
__device__ __forceinline__ float set_factors(OfColumns<COUNT> &factors, const float *magnitude, const float *norm,
                                            int start, int columns) {
    int c = start + threadIdx.x;
    if (threadIdx.x >= WARP * COUNT || c >= columns) return 0.0f;
    float of_column = norm[c];
    factors.mine() = over(magnitude[c], of_column);
    return of_column;
}

// y = x · magnitude / norm + bias; bias is null if there is none. y may overwrite x.
template <class T, int COUNT>
__device__ __forceinline__ void forward(const T *x, const float *magnitude, const float *norm, const T *bias, T *y,
                                        int rows, int columns) {
    typedef Vector<T, COUNT> Columns;
    __shared__ OfColumns<COUNT> factors, offsets;
    int lane = threadIdx.x % WARP, start = blockIdx.x * WARP * COUNT, c = start + lane * COUNT;
    set_factors(factors, magnitude, norm, start, columns);
    if (threadIdx.x < WARP * COUNT && start + threadIdx.x < columns)
        offsets.mine() = bias ? widen(bias[start + threadIdx.x]) : 0.0f;
    __syncthreads();
    if (c >= columns) return;
    float factor[COUNT], offset[COUNT];
#pragma unroll
    for (int k = 0; k < COUNT; ++k) factor[k] = factors.at[k][lane], offset[k] = offsets.at[k][lane];
    Rows part(rows);
#pragma unroll 4
    for (int row = part.first + threadIdx.x / WARP; row < part.last; row += ROWS) {
        u64 at = (u64)row * columns + c;
        Columns v = Columns::load(x + at);
#pragma unroll
        for (int k = 0; k < COUNT; ++k) v.at[k] = round_to<T>(widen(v.at[k]) * factor[k] + offset[k]);
        v.store(y + at);
    }
}

// dx = dy · magnitude / norm, and partial[part] = the sum of dy · x / norm over the part's rows; partial is null if the
// magnitude has no gradient. dx may overwrite dy.
template <class T, int COUNT>
__device__ __forceinline__ void backward(const T *dy, const T *x, const float *magnitude, const float *norm, T *dx,
                                         float *partial, int rows, int columns) {
    typedef Vector<T, COUNT> Columns;
    __shared__ OfColumns<COUNT> factors;
    // Padded as the factors.
    __shared__ float sums[COUNT][ROWS * WARP + WARP / COUNT];
    int lane = threadIdx.x % WARP, start = blockIdx.x * WARP * COUNT, c = start + lane * COUNT;
    float own_norm = set_factors(factors, magnitude, norm, start, columns);
    __syncthreads();
    float factor[COUNT], sum[COUNT] = {};
    Rows part(rows);
    if (c < columns) {
#pragma unroll
        for (int k = 0; k < COUNT; ++k) factor[k] = factors.at[k][lane];
#pragma unroll 2
        for (int row = part.first + threadIdx.x / WARP; row < part.last; row += ROWS) {
            u64 at = (u64)row * columns + c;
            Columns d = Columns::load(dy + at), v = {};
            if (partial) v = Columns::load(x + at);
#pragma unroll
            for (int k = 0; k < COUNT; ++k) {
                sum[k] += widen(d.at[k]) * widen(v.at[k]);
                d.at[k] = round_to<T>(widen(d.at[k]) * factor[k]);
            }
            d.store(dx + at);
        }
    }
    if (!partial) return;
#pragma unroll
    for (int k = 0; k < COUNT; ++k) sums[k][threadIdx.x] = sum[k];
    __syncthreads();
    // A thread for each column again.
    int of_stretch = threadIdx.x;
    c = start + of_stretch;
    if (of_stretch >= WARP * COUNT || c >= columns) return;
    float all = 0.0f;
#pragma unroll
    for (int row = 0; row < ROWS; ++row) all += sums[of_stretch % COUNT][row * WARP + of_stretch / COUNT];
    partial[(u64)blockIdx.y * columns + c] = over(all, own_norm);
}

#define OF(form, suffix, T, COUNT)                                                                                     \
    KERNEL(THREADS) column_scale##form##_##suffix(const T *x, const float *magnitude, const float *norm,               \
                                                  const T *bias, T *y, int rows, int columns) {                        \
        forward<T, COUNT>(x, magnitude, norm, bias, y, rows, columns);                                                 \
    }                                                                                                                  \
    KERNEL(THREADS) column_scale_grad##form##_##suffix(const T *dy, const T *x, const float *magnitude,                \
                                                       const float *norm, T *dx, float *partial, int rows,             \
                                                       int columns) {                                                  \
        backward<T, COUNT>(dy, x, magnitude, norm, dx, partial, rows, columns);                                        \
    }
#define KERNELS(suffix, T)                                                                                             \
    OF(, suffix, T, 1)                                                                                                 \
    OF(_vectors, suffix, T, Vector<T>::SIZE)
FOR_FLOATS(KERNELS)
