// Normalization by the root of the mean square, and its gradient. Reference: src/reference/rms_norm.rs.
//
// x: (rows, columns), weight: (columns,), rstd: (rows,). A row is a group of channels. Blocks of whole warps. Kernels
// with `offset` in their names multiply by 1 + weight; those for short rows add `offset`, 0 or 1, to the weight.

#include "norm_grad.cuh"

// One block per row.
template <class T, bool UNIT_OFFSET>
__device__ __forceinline__ void forward(const T *x, const T *weight, T *y, float *rstd, int columns, float eps) {
    __shared__ float part[WARP];
    u64 row = blockIdx.x;
    x += row * columns;
    y += row * columns;
    float squares = 0.0f;
    each_column(x, columns, [&](int, float v) { squares += v * v; });
    float r = rsqrtf(block_sum(squares, part) / columns + eps);
    const int size = Vector<T>::SIZE;
    if (columns % size == 0) {
#pragma unroll 1
        for (int c = threadIdx.x * size; c < columns; c += blockDim.x * size) {
            Vector<T> v = Vector<T>::load(x + c), w = Vector<T>::load(weight + c);
#pragma unroll
            for (int k = 0; k < size; ++k)
                v.at[k] = round_to<T>(widen(v.at[k]) * r * factor<UNIT_OFFSET>(widen(w.at[k])));
            v.store(y + c);
        }
    } else {
#pragma unroll 1
        for (int c = threadIdx.x; c < columns; c += blockDim.x)
            y[c] = round_to<T>(widen(x[c]) * r * factor<UNIT_OFFSET>(widen(weight[c])));
    }
    if (threadIdx.x == 0) rstd[row] = r;
}

// The sum over 2^bits neighboring lanes, in each of them.
__device__ __forceinline__ float lane_sum(float x, int bits) {
    for (int bit = 0; bit < bits; ++bit) x += __shfl_xor_sync(ALL_LANES, x, 1 << bit);
    return x;
}

// Rows of at most WARP vectors: 2^lane_bits lanes for each row, and a vector for each lane.
template <class T>
__device__ __forceinline__ void forward_short(const T *x, const T *weight, T *y, float *rstd, int rows, int columns,
                                              int lane_bits, float eps, float offset) {
    typedef Vector<T> Columns;
    u64 row = ((u64)blockIdx.x * blockDim.x + threadIdx.x) >> lane_bits;
    int c = (threadIdx.x & ((1 << lane_bits) - 1)) * Columns::SIZE;
    bool mine = row < rows && c < columns;
    u64 at = row * columns + c;
    Columns v = {}, w = {};
    if (mine) {
        v = Columns::load(x + at);
        w = Columns::load(weight + c);
    }
    float squares = 0.0f;
#pragma unroll
    for (int k = 0; k < Columns::SIZE; ++k) squares += widen(v.at[k]) * widen(v.at[k]);
    float r = rsqrtf(lane_sum(squares, lane_bits) / columns + eps);
    if (!mine) return;
#pragma unroll
    for (int k = 0; k < Columns::SIZE; ++k) v.at[k] = round_to<T>(widen(v.at[k]) * r * (widen(w.at[k]) + offset));
    v.store(y + at);
    if (c == 0) rstd[row] = r;
}

#define SHORT_THREADS 256

// The gradient of such rows. Groups of lanes take rows in turn, and a block adds the sums of its groups at the end. Its
// sums are in shared memory by a lane's column, then by thread; the padding keeps the lanes of a warp that read
// neighboring columns in separate banks.
template <class T>
__device__ __forceinline__ void backward_short(const NormGrad<const T, T> &of, int lane_bits, float offset) {
    typedef Vector<T> Columns;
    const int count = Columns::SIZE;
    __shared__ float sums[count][SHORT_THREADS + WARP / count];
    int groups = SHORT_THREADS >> lane_bits, c = (threadIdx.x & ((1 << lane_bits) - 1)) * count;
    bool mine = c < of.columns;
    Columns w = {};
    if (mine) w = Columns::load(of.weight + c);
    float dweight[count] = {};
#pragma unroll 1
    for (int first = blockIdx.x * groups; first < of.rows; first += gridDim.x * groups) {
        int row = first + (threadIdx.x >> lane_bits);
        u64 at = (u64)row * of.columns + c;
        bool counts = mine && row < of.rows;
        Columns dy = {}, x = {}, residual = {};
        float rstd = 0.0f, products = 0.0f;
        if (counts) {
            dy = Columns::load(of.dy + at);
            x = Columns::load(of.x + at);
            rstd = of.rstd[row];
            if (of.residual) residual = Columns::load(of.residual + at);
        }
#pragma unroll
        for (int k = 0; k < count; ++k) {
            float d = widen(dy.at[k]), normed = widen(x.at[k]) * rstd;
            products += d * (widen(w.at[k]) + offset) * normed;
            dweight[k] += d * normed;
        }
        products = lane_sum(products, lane_bits) / of.columns;
        if (!counts) continue;
#pragma unroll
        for (int k = 0; k < count; ++k) {
            float slope = widen(dy.at[k]) * (widen(w.at[k]) + offset);
            float d = (slope - widen(x.at[k]) * rstd * products) * rstd;
            x.at[k] = round_to<T>(d + widen(residual.at[k]));
        }
        x.store(of.dx + at);
    }
    if (!of.partial) return;
#pragma unroll
    for (int k = 0; k < count; ++k) sums[k][threadIdx.x] = dweight[k];
    __syncthreads();
    // There are at most as many columns as threads.
    int column = threadIdx.x;
    if (column >= of.columns) return;
    float sum = 0.0f;
#pragma unroll 1
    for (int group = 0; group < groups; ++group) sum += sums[column % count][(group << lane_bits) + column / count];
    of.partial[(u64)blockIdx.x * of.columns + column] = sum;
}

#define OF(name, UNIT_OFFSET, suffix, T)                                                                               \
    KERNEL(1024) name##_##suffix(const T *x, const T *weight, T *y, float *rstd, int columns, float eps) {             \
        forward<T, UNIT_OFFSET>(x, weight, y, rstd, columns, eps);                                                     \
    }                                                                                                                  \
    KERNEL(512) name##_grad_##suffix(const T *dy, const T *x, const T *weight, const float *rstd, const T *residual,   \
                                     T *dx, float *partial, int rows, int columns) {                                   \
        rows_in_registers<T, Vector<T>::SIZE, false, UNIT_OFFSET>(                                                     \
            {dy, x, weight, nullptr, rstd, residual, dx, partial, rows, columns, 0});                                  \
    }
#define KERNELS(suffix, T)                                                                                             \
    OF(rms_norm, false, suffix, T)                                                                                     \
    OF(rms_norm_offset, true, suffix, T)                                                                               \
    KERNEL(SHORT_THREADS) rms_norm_short_##suffix(const T *x, const T *weight, T *y, float *rstd, int rows,            \
                                                  int columns, int lane_bits, float eps, float offset) {               \
        forward_short(x, weight, y, rstd, rows, columns, lane_bits, eps, offset);                                      \
    }                                                                                                                  \
    KERNEL(SHORT_THREADS) rms_norm_grad_short_##suffix(const T *dy, const T *x, const T *weight, const float *rstd,    \
                                                       const T *residual, T *dx, float *partial, int rows,             \
                                                       int columns, int lane_bits, float offset) {                     \
        backward_short<T>({dy, x, weight, nullptr, rstd, residual, dx, partial, rows, columns, 0}, lane_bits, offset); \
    }
FOR_FLOATS(KERNELS)

// For rows of any length and numbers of any type.
#define ANY(name, UNIT_OFFSET)                                                                                         \
    KERNEL(256) name##_grad_any(const void *dy, const void *x, const void *weight, const float *rstd,                  \
                                const void *residual, void *dx, float *partial, int rows, int columns, int on_chip,    \
                                int number) {                                                                          \
        rows_by_stretches<false, UNIT_OFFSET>(                                                                         \
            {dy, x, weight, nullptr, rstd, residual, dx, partial, rows, columns, 0}, on_chip, number);                 \
    }
ANY(rms_norm, false)
ANY(rms_norm_offset, true)
