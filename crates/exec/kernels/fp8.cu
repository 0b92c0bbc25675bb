// Rounds a factor of a product to numbers of 8 bits: first the largest number of each part of it, then all numbers, times the
// largest power of two for which none exceeds the format's range. Each row of the result has the terms of a sum, and zeros up to
// its stride. Reference: src/reference/fp8_linear.rs. From compute capability 8.9 on.

#include "common.cuh"

#if __CUDA_ARCH__ >= 890

typedef unsigned char u8;

#define THREADS 256
// Numbers of a vector of results.
#define PIECE 16
// Rows and columns of a tile that is transposed, and bytes from one of its columns to the next in shared memory.
#define TILE 64
#define PITCH (TILE + 4)

// `format_number` of src/cuda/ops/fp8_linear.rs.
enum Format { E4M3, E5M2 };

// The absolute value of a number in single precision as an integer: its order is that of the values, and NaN is the largest.
__device__ __forceinline__ u32 magnitude(float x) { return __float_as_uint(x) & 0x7fffffffu; }

// The largest over a warp, in every lane.
__device__ __forceinline__ u32 warp_max(u32 x) {
#pragma unroll
    for (int distance = WARP / 2; distance > 0; distance /= 2) x = max(x, __shfl_xor_sync(ALL_LANES, x, distance));
    return x;
}

// The largest over a block, in every thread.
__device__ __forceinline__ u32 block_max(u32 x) {
    __shared__ u32 part[THREADS / WARP];
    x = warp_max(x);
    if (threadIdx.x % WARP == 0) part[threadIdx.x / WARP] = x;
    __syncthreads();
#pragma unroll
    for (int warp = 0; warp < THREADS / WARP; ++warp) x = max(x, part[warp]);
    return x;
}

// The largest magnitude of each part of `each` numbers, a multiple of vectors. A block has a part.
template <class T>
__device__ __forceinline__ void largest_of_part(const T *x, u64 elements, u64 each, u32 *largest) {
    const int size = Vector<T>::SIZE;
    u64 end = min((blockIdx.x + 1) * each, elements);
    u32 most = 0;
    for (u64 i = blockIdx.x * each + threadIdx.x * size; i < end; i += THREADS * size) {
        if (i + size <= end) {
            Vector<T> v = Vector<T>::load(x + i);
#pragma unroll
            for (int k = 0; k < size; ++k) most = max(most, magnitude(widen(v.at[k])));
        } else {
            for (u64 k = i; k < end; ++k) most = max(most, magnitude(widen(x[k])));
        }
    }
    most = block_max(most);
    if (threadIdx.x == 0) largest[blockIdx.x] = most;
}

// The power of two for a tensor whose largest magnitude is this: a format's largest number is 1.75 times a power of two. NaN if
// a number isn't finite, one if all are zero.
__device__ __forceinline__ float scale_of(u32 largest, int format) {
    if (largest >= 0x7f800000u) return __uint_as_float(0x7fc00000u);
    if (largest == 0) return 1.0f;
    int exponent = (int)(largest >> 23) - 127 + ((largest & 0x7fffffu) > 0x600000u);
    int scale = min(max((format == E4M3 ? 8 : 15) - exponent, -126), 126);
    return __uint_as_float((u32)(scale + 127) << 23);
}

// The scale of a tensor, from the largest magnitudes of its parts, of which there are at most as many as threads. The first block
// stores its reciprocal.
__device__ __forceinline__ float shared_scale(const u32 *largest, u32 parts, int format, float *reciprocal) {
    float scale = scale_of(block_max(threadIdx.x < parts ? largest[threadIdx.x] : 0), format);
    // The reciprocal of a power of two is exact, and that of NaN is NaN.
    if (blockIdx.x == 0 && threadIdx.x == 0) *reciprocal = __frcp_rn(scale);
    return scale;
}

// Two numbers, the first in the lower byte.
__device__ __forceinline__ u32 round_two(float first, float second, int format) {
    u16 both;
    if (format == E4M3)
        asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(both) : "f"(second), "f"(first));
    else
        asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(both) : "f"(second), "f"(first));
    return both;
}

// Rounds a matrix (rows, terms). A thread has a vector of results.
template <class T>
__device__ __forceinline__ void round_rows(const T *x, u32 rows, u32 terms, u32 stride, const u32 *largest, u32 parts,
                                           int format, u8 *to, float *reciprocal) {
    float scale = shared_scale(largest, parts, format, reciprocal);
    u32 pieces = stride / PIECE;
    u64 i = (u64)blockIdx.x * THREADS + threadIdx.x;
    u32 row = i / pieces, first = i % pieces * PIECE;
    if (row >= rows) return;
    const T *from = x + (u64)row * terms + first;
    const int size = Vector<T>::SIZE;
    float all[PIECE];
    if (terms % PIECE == 0) {
#pragma unroll
        for (int k = 0; k < PIECE; k += size) {
            Vector<T> v = Vector<T>::load(from + k);
#pragma unroll
            for (int n = 0; n < size; ++n) all[k + n] = widen(v.at[n]);
        }
    } else {
#pragma unroll
        for (int k = 0; k < PIECE; ++k) all[k] = first + k < terms ? widen(from[k]) : 0.0f;
    }
    u32 words[4];
#pragma unroll
    for (int k = 0; k < 4; ++k)
        words[k] = round_two(all[4 * k] * scale, all[4 * k + 1] * scale, format) |
                   round_two(all[4 * k + 2] * scale, all[4 * k + 3] * scale, format) << 16;
    store_global(to + (u64)row * stride + first, make_uint4(words[0], words[1], words[2], words[3]));
}

// Rounds the columns of a matrix (terms, columns) to rows. A block has a tile.
template <class T>
__device__ __forceinline__ void round_columns(const T *x, u32 terms, u32 columns, u32 stride, const u32 *largest,
                                              u32 parts, int format, u8 *to, float *reciprocal) {
    __shared__ __align__(16) u8 tile[TILE * PITCH];
    float scale = shared_scale(largest, parts, format, reciprocal);
    u32 across = (columns + TILE - 1) / TILE;
    u32 first_column = blockIdx.x % across * TILE, first_term = blockIdx.x / across * TILE;
    const u32 size = Vector<T>::SIZE, vectors = TILE / size;
    // Neighbors in two rows become neighbors in a row of the result.
#pragma unroll
    for (u32 i = threadIdx.x; i < TILE / 2 * vectors; i += THREADS) {
        u32 row = i / vectors * 2, column = i % vectors * size;
        Vector<T> two[2] = {};
#pragma unroll
        for (u32 n = 0; n < 2; ++n) {
            u32 term = first_term + row + n;
            const T *from = x + (u64)term * columns + first_column + column;
            if (term >= terms) continue;
            if (columns % size == 0) {
                if (first_column + column < columns) two[n] = Vector<T>::load(from);
            } else {
#pragma unroll
                for (u32 k = 0; k < size; ++k)
                    if (first_column + column + k < columns) two[n].at[k] = from[k];
            }
        }
#pragma unroll
        for (u32 k = 0; k < size; ++k) {
            u32 both = round_two(widen(two[0].at[k]) * scale, widen(two[1].at[k]) * scale, format);
            *reinterpret_cast<u16 *>(tile + (column + k) * PITCH + row) = both;
        }
    }
    __syncthreads();
    u32 column = threadIdx.x / (TILE / PIECE), term = threadIdx.x % (TILE / PIECE) * PIECE;
    if (first_column + column >= columns || first_term + term >= stride) return;
    const u32 *words = reinterpret_cast<const u32 *>(tile + column * PITCH + term);
    store_global(to + (u64)(first_column + column) * stride + first_term + term,
                 make_uint4(words[0], words[1], words[2], words[3]));
}

#define KERNELS(suffix, T)                                                                                             \
    KERNEL(THREADS) fp8_largest_##suffix(const T *x, u64 elements, u64 each, u32 *largest) {                           \
        largest_of_part(x, elements, each, largest);                                                                   \
    }                                                                                                                  \
    KERNEL(THREADS)                                                                                                    \
    fp8_rows_##suffix(const T *x, const u32 *largest, u8 *to, float *reciprocal, u32 rows, u32 terms, u32 stride,      \
                      u32 parts, int format) {                                                                         \
        round_rows(x, rows, terms, stride, largest, parts, format, to, reciprocal);                                    \
    }                                                                                                                  \
    KERNEL(THREADS)                                                                                                    \
    fp8_columns_##suffix(const T *x, const u32 *largest, u8 *to, float *reciprocal, u32 terms, u32 columns,            \
                         u32 stride, u32 parts, int format) {                                                          \
        round_columns(x, terms, columns, stride, largest, parts, format, to, reciprocal);                              \
    }
FOR_FLOATS(KERNELS)

#endif
