// The gradient of normalizations over the last extent, shared by layer_norm.cu and rms_norm.cu.

#pragma once
#include "common.cuh"

// Rows that a block processes at once, so that their loads overlap.
#define AT_ONCE 2

// A block's arguments. dy, x: (rows, columns), weight: (columns,), mean, rstd: (rows,), mean null for norms without
// centering; residual null if there is none. dx may overwrite dy or residual. partial: (blocks, 1 or 2, columns), each
// block's part of dweight and, if there are `biases`, of dbias; null if not requested. Blocks take rows in turn,
// AT_ONCE of them.
template <class From, class To>
struct NormGrad {
    From *dy, *x, *weight;
    const float *mean, *rstd;
    From *residual;
    To *dx;
    float *partial;
    int rows, columns;
    int biases;
};

// The factor of a normalized column with this weight.
template <bool UNIT_OFFSET>
__device__ __forceinline__ float factor(float weight) {
    return UNIT_OFFSET ? weight + 1.0f : weight;
}

// Writes a sum for each column of a row, of which each thread has COUNT neighbors. If those are two fours, a pair of
// lanes first writes the fours of one lane, then those of the other.
template <int COUNT>
__device__ __forceinline__ void store_sums(float *to, const float (&sums)[COUNT], int columns) {
    typedef Vector<float, 4> Four;
    bool odd = COUNT > 4 && threadIdx.x % 2;
    int c = threadIdx.x * COUNT - odd * (COUNT - 4);
    Four of_even, of_odd;
#pragma unroll
    for (int k = 0; k < 4; ++k) {
        of_even.at[k] = sums[k];
        if (COUNT == 4) continue;
        float other = __shfl_xor_sync(ALL_LANES, odd ? sums[k] : sums[COUNT - 4 + k], 1);
        of_even.at[k] = odd ? other : sums[k];
        of_odd.at[k] = odd ? sums[COUNT - 4 + k] : other;
    }
    if (c < columns) of_even.store(to + c);
    if (COUNT > 4 && c + COUNT < columns) of_odd.store(to + c + COUNT);
}

// With COUNT neighboring columns for each thread, which together are the whole row: values and sums stay in registers.
template <class T, int COUNT, bool CENTERED, bool UNIT_OFFSET = false>
__device__ __forceinline__ void rows_in_registers(const NormGrad<const T, T> &of) {
    typedef Vector<T, COUNT> Columns;
    // Separate for even and odd turns, so that one barrier per turn is enough.
    __shared__ float part[2][2 * AT_ONCE][WARP];
    int c = threadIdx.x * COUNT, warps = blockDim.x / WARP, turn = 0;
    bool mine = c < of.columns;
    // Threads without columns or row load another's data and ignore it.
    if (!mine) c = 0;
    Columns w = Columns::load(of.weight + c);
    float dweight[COUNT] = {}, dbias[COUNT] = {};
#pragma unroll 1
    for (int first = blockIdx.x * AT_ONCE; first < of.rows; first += gridDim.x * AT_ONCE, turn ^= 1) {
        Columns dy[AT_ONCE], x[AT_ONCE], residual[AT_ONCE] = {};
        float mean[AT_ONCE], rstd[AT_ONCE];
#pragma unroll
        for (int i = 0; i < AT_ONCE; ++i) {
            int row = min(first + i, of.rows - 1);
            u64 at = (u64)row * of.columns + c;
            dy[i] = Columns::load(of.dy + at);
            x[i] = Columns::load(of.x + at);
            mean[i] = CENTERED ? of.mean[row] : 0.0f;
            rstd[i] = of.rstd[row];
        }
        // After all other loads, so that none of them waits for the branch.
        if (of.residual)
#pragma unroll
            for (int i = 0; i < AT_ONCE; ++i)
                residual[i] = Columns::load(of.residual + (u64)min(first + i, of.rows - 1) * of.columns + c);
#pragma unroll
        for (int i = 0; i < AT_ONCE; ++i) {
            float slopes = 0.0f, products = 0.0f;
            bool counts = mine && first + i < of.rows;
#pragma unroll
            for (int k = 0; k < COUNT; ++k) {
                float d = counts ? widen(dy[i].at[k]) : 0.0f, normed = (widen(x[i].at[k]) - mean[i]) * rstd[i];
                float slope = d * factor<UNIT_OFFSET>(widen(w.at[k]));
                slopes += slope;
                products += slope * normed;
                dweight[k] += d * normed;
                dbias[k] += d;
            }
            products = warp_sum(products);
            if (CENTERED) slopes = warp_sum(slopes);
            if (threadIdx.x % WARP == 0) {
                part[turn][2 * i][threadIdx.x / WARP] = products;
                part[turn][2 * i + 1][threadIdx.x / WARP] = slopes;
            }
        }
        __syncthreads();
#pragma unroll
        for (int i = 0; i < AT_ONCE; ++i) {
            float slopes = 0.0f, products = 0.0f;
#pragma unroll 1
            for (int warp = 0; warp < warps; ++warp) {
                products += part[turn][2 * i][warp];
                if (CENTERED) slopes += part[turn][2 * i + 1][warp];
            }
            products /= of.columns;
            slopes /= of.columns;
            if (!mine || first + i >= of.rows) continue;
            Columns dx;
#pragma unroll
            for (int k = 0; k < COUNT; ++k) {
                float normed = (widen(x[i].at[k]) - mean[i]) * rstd[i];
                float d = (widen(dy[i].at[k]) * factor<UNIT_OFFSET>(widen(w.at[k])) - slopes - normed * products) *
                          rstd[i];
                dx.at[k] = round_to<T>(d + widen(residual[i].at[k]));
            }
            dx.store(of.dx + (u64)(first + i) * of.columns + c);
        }
    }
    if (!of.partial) return;
    float *partial = of.partial + (u64)blockIdx.x * (1 + of.biases) * of.columns;
    store_sums(partial, dweight, of.columns);
    if (of.biases) store_sums(partial + of.columns, dbias, of.columns);
}

// For rows of any length and this type of number. The sums are in dynamic shared memory, with the size of a block's
// part, if they are `on_chip`, else in the final memory.
template <bool CENTERED, bool UNIT_OFFSET = false>
__device__ __forceinline__ void rows_by_stretches(const NormGrad<const void, void> &of, int on_chip, int number) {
    __shared__ float part[WARP];
    extern __shared__ float chip[];
    const int columns = of.columns;
    float *partial = of.partial + (u64)blockIdx.x * (1 + of.biases) * columns, *sums = on_chip ? chip : partial;
    bool wanted = of.partial != nullptr;
    // Each thread reads and writes only the sums of its own columns.
    if (wanted)
#pragma unroll 1
        for (int set = 0; set <= of.biases; ++set)
#pragma unroll 1
            for (int c = threadIdx.x; c < columns; c += blockDim.x) sums[set * columns + c] = 0.0f;
    for (int row = blockIdx.x; row < of.rows; row += gridDim.x) {
        u64 start = (u64)row * columns;
        float m = CENTERED ? of.mean[row] : 0.0f, r = of.rstd[row], slopes = 0.0f, products = 0.0f;
#pragma unroll 1
        for (int c = threadIdx.x; c < columns; c += blockDim.x) {
            float d = number_at(of.dy, start + c, number), normed = (number_at(of.x, start + c, number) - m) * r;
            float slope = d * factor<UNIT_OFFSET>(number_at(of.weight, c, number));
            slopes += slope;
            products += slope * normed;
            if (wanted) {
                sums[c] += d * normed;
                if (of.biases) sums[columns + c] += d;
            }
        }
        slopes = CENTERED ? block_sum(slopes, part) / columns : 0.0f;
        products = block_sum(products, part) / columns;
#pragma unroll 1
        for (int c = threadIdx.x; c < columns; c += blockDim.x) {
            float normed = (number_at(of.x, start + c, number) - m) * r;
            float slope = number_at(of.dy, start + c, number) * factor<UNIT_OFFSET>(number_at(of.weight, c, number));
            float d = (slope - slopes - normed * products) * r;
            if (of.residual) d += number_at(of.residual, start + c, number);
            set_number(of.dx, start + c, d, number);
        }
    }
    if (wanted && on_chip)
#pragma unroll 1
        for (int set = 0; set <= of.biases; ++set)
#pragma unroll 1
            for (int c = threadIdx.x; c < columns; c += blockDim.x) partial[set * columns + c] = sums[set * columns + c];
}
