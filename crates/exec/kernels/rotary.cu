// Rotary position embeddings. First cosines and sines of every position, then the rotation of each pair by them.
// Reference: src/reference/rotary.rs.

#include "common.cuh"

// Frequencies of PAIRS pairs, by value.
#define PAIRS 128
struct Frequencies {
    double at[PAIRS];
};

// table: (tokens, 2, pairs): cosines, then sines, of pairs `first` to `first + count`. A block for each position.
// Angles are computed in double precision, so that large positions keep their digits. `scalars` is null if the first
// row is at position 0.
KERNEL(PAIRS) rotary_table(Frequencies frequencies, const Scalars *scalars, float *table, int pairs, int first,
                           int count, float factor) {
    int pair = threadIdx.x;
    if (pair >= count) return;
    double position = (double)((scalars ? scalars->position : 0u) + blockIdx.x);
    // In half turns, of which even numbers change nothing.
    double halves = position * frequencies.at[pair] * 0.31830988618379067154;
    float sine, cosine;
    sincospif((float)(halves - 2.0 * rint(0.5 * halves)), &sine, &cosine);
    float *row = table + (u64)blockIdx.x * 2 * pairs;
    row[first + pair] = cosine * factor;
    row[pairs + first + pair] = sine * factor;
}

// x: (rows, heads, head_size), where heads begin with (2, pairs), or consist of it unless PARTIAL. One block per row, one
// thread for each SIZE pairs; y may overwrite x.
template <class T, int SIZE, bool PARTIAL>
__device__ __forceinline__ void turn(const T *x, const float *table, T *y, int tokens, int heads, int head_size,
                                     int pairs, float direction) {
    typedef Vector<T, SIZE> Some;
    typedef Vector<float, SIZE> Angles;
    u64 row = blockIdx.x, start = PARTIAL ? row * heads * head_size : row * heads * 2 * pairs;
    const float *cosines = table + row % tokens * 2 * pairs, *sines = cosines + pairs;
    int each = pairs / SIZE;
    for (int i = threadIdx.x; i < heads * each; i += blockDim.x) {
        int head = i / each, pair = (i - head * each) * SIZE;
        u64 at = start + (PARTIAL ? (u64)head * head_size : (u64)head * 2 * pairs) + pair;
        Angles cosine = Angles::load(cosines + pair), sine = Angles::load(sines + pair);
        Some a = Some::load(x + at), b = Some::load(x + at + pairs);
#pragma unroll
        for (int k = 0; k < SIZE; ++k) {
            float c = cosine.at[k], s = direction * sine.at[k], va = widen(a.at[k]), vb = widen(b.at[k]);
            a.at[k] = round_to<T>(va * c - vb * s);
            b.at[k] = round_to<T>(vb * c + va * s);
        }
        a.store(y + at);
        b.store(y + at + pairs);
    }
}

// Copies the rest of each head, which is not empty.
template <class T, int SIZE>
__device__ __forceinline__ void copy_rest(const T *x, T *y, int heads, int head_size, int pairs) {
    u64 start = (u64)blockIdx.x * heads * head_size + 2 * pairs;
    int each = (head_size - 2 * pairs) / SIZE;
#pragma unroll 1
    for (int i = threadIdx.x; i < heads * each; i += blockDim.x) {
        int head = i / each;
        u64 at = start + (u64)head * head_size + (i - head * each) * SIZE;
        Vector<T, SIZE>::load(x + at).store(y + at);
    }
}

#define KERNELS(suffix, T)                                                                                             \
    KERNEL(256) rotary_##suffix(const T *x, const float *table, T *y, int tokens, int heads, int pairs,                \
                                float direction) {                                                                     \
        if (pairs % 4 == 0)                                                                                            \
            turn<T, 4, false>(x, table, y, tokens, heads, 0, pairs, direction);                                        \
        else                                                                                                           \
            turn<T, 1, false>(x, table, y, tokens, heads, 0, pairs, direction);                                        \
    }                                                                                                                  \
    KERNEL(256) rotary_partial_##suffix(const T *x, const float *table, T *y, int tokens, int heads, int head_size,    \
                                        int pairs, float direction) {                                                  \
        if ((pairs | head_size) % 4 == 0) {                                                                            \
            turn<T, 4, true>(x, table, y, tokens, heads, head_size, pairs, direction);                                 \
            if (x != y) copy_rest<T, 4>(x, y, heads, head_size, pairs);                                                \
        } else {                                                                                                       \
            turn<T, 1, true>(x, table, y, tokens, heads, head_size, pairs, direction);                                 \
            if (x != y) copy_rest<T, 1>(x, y, heads, head_size, pairs);                                                \
        }                                                                                                              \
    }
FOR_FLOATS(KERNELS)
