// Decodes part of a weight in codes, for a product: the same values as src/weight_codes. A thread decodes a vector of 16
// bytes. The decoded part (rows, columns) is contiguous; the weight has rows of `stride` numbers, and the matrix of each
// expert has scales of its own. Reference: src/reference/quantized_linear.rs.

#include "common.cuh"

typedef unsigned char u8;

#define THREADS 256
// Weights per scale, and scales per scale of scales.
#define BLOCK 64
#define NESTED 256

// The values of the codes, and of the codes of scales.
struct Levels {
    float of_weights[16], of_scales[256];
};

// The part of a weight. Rows are counted over all matrices.
struct Place {
    // Bounds of the rows of each expert in the product, or null: weights of an expert without rows are not decoded.
    const int *bounds;
    u64 stride;
    u32 matrix_rows, first_row, first_column, rows, columns;
};

// A weight.
struct Weight {
    u32 matrix, row;
    // In its matrix, and over all matrices.
    u64 in_matrix, index;

    // Number `i` of the part.
    __device__ __forceinline__ Weight(const Place &place, u32 i) {
        row = place.first_row + i / place.columns;
        u32 column = place.first_column + i % place.columns;
        matrix = row / place.matrix_rows;
        in_matrix = row % place.matrix_rows * place.stride + column;
        index = row * place.stride + column;
    }
    __device__ __forceinline__ bool is_used(const Place &place) const {
        return !place.bounds || place.bounds[matrix] < place.bounds[matrix + 1];
    }
};

// Codes of 4 bits, the first weight of a byte in its higher bits.
struct Nf4 {
    const u8 *codes, *absmax;
    const float *nested_absmax, *offset;
    // Blocks of a matrix.
    u32 blocks;
    const float *of_weights, *of_scales;

    template <int COUNT>
    struct Bytes {
        enum { SIZE = COUNT / 2 };
    };
    __device__ __forceinline__ float scale(const Weight &weight) const {
        u32 block = weight.in_matrix / BLOCK;
        u64 first = (u64)weight.matrix * blocks, first_nested = (u64)weight.matrix * ((blocks + NESTED - 1) / NESTED);
        float nested = nested_absmax[first_nested + block / NESTED];
        // bitsandbytes rounds the product before it adds.
        return __fadd_rn(__fmul_rn(of_scales[absmax[first + block]], nested), offset[weight.matrix]);
    }
    __device__ __forceinline__ const u8 *at(u64 index) const { return codes + index / 2; }
    // Weight k of those whose codes begin at this byte.
    __device__ __forceinline__ float weight(const u8 *bytes, u32 k, float scale) const {
        return of_weights[k % 2 ? bytes[k / 2] & 15 : bytes[k / 2] >> 4] * scale;
    }
    __device__ __forceinline__ static u32 first_in_byte(u64 index) { return index % 2; }
};

// Integers of 8 bits, with a scale per row.
struct Int8 {
    const u8 *codes;
    const float *absmax;

    template <int COUNT>
    struct Bytes {
        enum { SIZE = COUNT };
    };
    __device__ __forceinline__ float scale(const Weight &weight) const { return absmax[weight.row]; }
    __device__ __forceinline__ const u8 *at(u64 index) const { return codes + index; }
    __device__ __forceinline__ float weight(const u8 *bytes, u32 k, float scale) const {
        return (float)(signed char)bytes[k] * scale * (1.0f / 127.0f);
    }
    __device__ __forceinline__ static u32 first_in_byte(u64 index) { return 0; }
};

template <class T, class Format>
__device__ __forceinline__ void decode(const Format &format, T *to, const Place &place) {
    const u32 size = Vector<T>::SIZE;
    u32 elements = place.rows * place.columns;
    u32 first = (blockIdx.x * THREADS + threadIdx.x) * size;
    if (first >= elements) return;
    if ((place.columns | (u32)place.stride | (u32)place.first_column) % size == 0) {
        // The vector is in one row and in one block.
        Weight weight(place, first);
        if (!weight.is_used(place)) return;
        union {
            typename Words<Format::template Bytes<size>::SIZE>::Type words;
            u8 bytes[Format::template Bytes<size>::SIZE];
        } codes;
        codes.words = *reinterpret_cast<const decltype(codes.words) *>(format.at(weight.index));
        float scale = format.scale(weight);
        Vector<T> vector;
#pragma unroll
        for (int k = 0; k < size; ++k) vector.at[k] = round_to<T>(format.weight(codes.bytes, k, scale));
        vector.store(to + first);
    } else {
#pragma unroll 1
        for (u32 i = first; i < min(first + size, elements); ++i) {
            Weight weight(place, i);
            if (!weight.is_used(place)) continue;
            const u8 *bytes = format.at(weight.index);
            to[i] = round_to<T>(format.weight(bytes, Format::first_in_byte(weight.index), format.scale(weight)));
        }
    }
}

#define KERNELS(suffix, T)                                                                                             \
    KERNEL(THREADS)                                                                                                    \
    decode_nf4_##suffix(const u8 *codes, const u8 *absmax, const float *nested_absmax, const float *offset, T *to,     \
                        Place place, Levels levels) {                                                                  \
        __shared__ Levels shared;                                                                                      \
        if (threadIdx.x < 16) shared.of_weights[threadIdx.x] = levels.of_weights[threadIdx.x];                         \
        shared.of_scales[threadIdx.x] = levels.of_scales[threadIdx.x];                                                 \
        __syncthreads();                                                                                               \
        u32 blocks = (place.matrix_rows * place.stride + BLOCK - 1) / BLOCK;                                           \
        Nf4 format = {codes, absmax, nested_absmax, offset, blocks, shared.of_weights, shared.of_scales};              \
        decode<T>(format, to, place);                                                                                  \
    }                                                                                                                  \
    KERNEL(THREADS) decode_int8_##suffix(const u8 *codes, const float *absmax, T *to, Place place) {                   \
        decode<T>(Int8{codes, absmax}, to, place);                                                                     \
    }
FOR_FLOATS(KERNELS)
