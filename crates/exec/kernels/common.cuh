// Shared by all kernels: numbers of 16 bits, vectors of 16 bytes, sums over warps and blocks in a fixed order. NVRTC
// has no headers; these few lines are all that the kernels need.
//
// BUG_… macros plant the bugs that crates/fake-cuda must find; released builds never define them.

#pragma once

typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

#define KERNEL(threads) extern "C" __global__ void __launch_bounds__(threads)
// A kernel whose registers allow at least this many blocks on a multiprocessor.
#define KERNEL_BLOCKS(threads, blocks) extern "C" __global__ void __launch_bounds__(threads, blocks)
#define WARP 32
#define ALL_LANES 0xffffffffu

struct f16 {
    u16 bits;
};
struct bf16 {
    u16 bits;
};

// The run's scalars: values that differ between steps are in device memory, so that a captured step can be reused.
// `device_scalars` of src/cuda/launch.rs.
struct Scalars {
    u64 seed;
    u64 step;
    u64 update;
    u64 first_sample;
    float learning_rate;
    float loss_scale;
    float gradient_scale;
    u32 position;
    u32 row;
    float micro_batch_share;
    float reference_point;
    u32 unused;
};

// All are exact except `round_to`, which rounds to nearest, ties to even.
__device__ __forceinline__ float widen(float x) { return x; }
__device__ __forceinline__ float widen(bf16 x) { return __uint_as_float((u32)x.bits << 16); }
__device__ __forceinline__ float widen(f16 x) {
    float y;
    asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x.bits));
    return y;
}

template <class T>
__device__ __forceinline__ T round_to(float x);
template <>
__device__ __forceinline__ float round_to<float>(float x) {
    return x;
}
template <>
__device__ __forceinline__ f16 round_to<f16>(float x) {
    f16 y;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y.bits) : "f"(x));
    return y;
}
template <>
__device__ __forceinline__ bf16 round_to<bf16>(float x) {
    bf16 y;
#if __CUDA_ARCH__ >= 800
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(y.bits) : "f"(x));
#else
    u32 bits = __float_as_uint(x);
    // NaN stays NaN, whatever its lower bits.
    y.bits = x != x ? 0x7fff : (u16)((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
#endif
    return y;
}

// The type of numbers for kernels that get it as an argument: `number` of src/cuda/ops/shape.rs.
enum Number { F32, F16, BF16 };

__device__ __forceinline__ float number_at(const void *from, u64 i, int number) {
    if (number == F32) return static_cast<const float *>(from)[i];
    u16 bits = static_cast<const u16 *>(from)[i];
    return number == F16 ? widen(f16{bits}) : widen(bf16{bits});
}

__device__ __forceinline__ void set_number(void *to, u64 i, float x, int number) {
    if (number == F32)
        static_cast<float *>(to)[i] = x;
    else
        static_cast<u16 *>(to)[i] = number == F16 ? round_to<f16>(x).bits : round_to<bf16>(x).bits;
}

// The address of an element.
__device__ __forceinline__ const void *element(const void *from, u64 i, int number) {
    return static_cast<const char *>(from) + i * (number == F32 ? 4 : 2);
}
__device__ __forceinline__ void *element(void *from, u64 i, int number) {
    return static_cast<char *>(from) + i * (number == F32 ? 4 : 2);
}

// Numbers that one instruction loads or stores: 16, 8, 4 or 2 bytes, with the same alignment.
template <int BYTES>
struct Words;
template <>
struct Words<2> {
    typedef u16 Type;
};
template <>
struct Words<4> {
    typedef u32 Type;
};
template <>
struct Words<16> {
    typedef uint4 Type;
};
template <>
struct Words<8> {
    typedef uint2 Type;
};

// Stores by one instruction each: the compiler may split a store in C++ into several.
__device__ __forceinline__ void store_global(void *to, uint4 words) {
    asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(__cvta_generic_to_global(to)), "r"(words.x),
                 "r"(words.y), "r"(words.z), "r"(words.w)
                 : "memory");
}
__device__ __forceinline__ void store_global(void *to, uint2 words) {
    asm volatile("st.global.v2.u32 [%0], {%1, %2};" ::"l"(__cvta_generic_to_global(to)), "r"(words.x), "r"(words.y)
                 : "memory");
}
__device__ __forceinline__ void store_global(void *to, u32 word) {
    asm volatile("st.global.u32 [%0], %1;" ::"l"(__cvta_generic_to_global(to)), "r"(word) : "memory");
}
__device__ __forceinline__ void store_global(void *to, u16 half) {
    asm volatile("st.global.u16 [%0], %1;" ::"l"(__cvta_generic_to_global(to)), "h"(half) : "memory");
}

template <class T, int COUNT = 16 / sizeof(T)>
struct Vector {
    enum { SIZE = COUNT };
    typedef typename Words<COUNT * sizeof(T)>::Type Loaded;
    T at[SIZE];

    __device__ __forceinline__ static Vector load(const T *from) {
        union {
            Loaded words;
            Vector vector;
        } both;
        both.words = *reinterpret_cast<const Loaded *>(from);
        return both.vector;
    }

    __device__ __forceinline__ void store(T *to) const {
        union {
            Loaded words;
            Vector vector;
        } both;
        both.vector = *this;
        store_global(to, both.words);
    }
};

// A lane's elements of a stretch of its warp. For every width of their type, each instruction of a lane loads or stores
// the neighbors of the other lanes' elements.
//
//   elements  0 … 3 | 4 … 7 | … | 124 … 127 | 128 … 131 | … | 252 … 255
//   lane        0   |   1   | … |    31     |     0     | … |    31
template <class T>
struct Fours {
    enum { SIZE = 8, STRETCH = SIZE * WARP };
    T at[SIZE];

    // The index of the lane's first element in the stretch, and of element k after that.
    __device__ __forceinline__ static int first() { return threadIdx.x % WARP * 4; }
    __device__ __forceinline__ static constexpr int behind(int k) { return k / 4 * WARP * 4 + k % 4; }

    // Loads from a stretch of `count` elements: elements after them are zero.
    __device__ __forceinline__ static Fours load(const T *from, int count) {
        Fours fours = {};
        from += first();
        if (count == STRETCH) {
#pragma unroll
            for (int k = 0; k < SIZE; k += 4) {
                Vector<T, 4> four = Vector<T, 4>::load(from + behind(k));
#pragma unroll
                for (int i = 0; i < 4; ++i) fours.at[k + i] = four.at[i];
            }
        } else {
            count -= first();
#pragma unroll
            for (int k = 0; k < SIZE; ++k)
                if (behind(k) < count) fours.at[k] = from[behind(k)];
        }
        return fours;
    }

    __device__ __forceinline__ void store(T *to, int count) const {
        to += first();
        if (count == STRETCH) {
#pragma unroll
            for (int k = 0; k < SIZE; k += 4) {
                Vector<T, 4> four;
#pragma unroll
                for (int i = 0; i < 4; ++i) four.at[i] = at[k + i];
                four.store(to + behind(k));
            }
        } else {
            count -= first();
#pragma unroll
            for (int k = 0; k < SIZE; ++k)
                if (behind(k) < count) to[behind(k)] = at[k];
        }
    }
};

// The sum over a warp, in every lane: pairs, then pairs of pairs.
__device__ __forceinline__ float warp_sum(float x) {
#pragma unroll
    for (int distance = WARP / 2; distance > 0; distance /= 2) x += __shfl_xor_sync(ALL_LANES, x, distance);
    return x;
}

// The sum over a block of whole warps, in every thread. `part` has an element for each warp.
__device__ __forceinline__ float block_sum(float x, float *part) {
    x = warp_sum(x);
#ifndef BUG_NO_BARRIER
    __syncthreads(); // all reads of the previous sum are done
#endif
    if (threadIdx.x % WARP == 0) part[threadIdx.x / WARP] = x;
    __syncthreads();
    float sum = 0.0f;
    for (int warp = 0; warp < blockDim.x / WARP; ++warp) sum += part[warp];
    return sum;
}

// Calls `f(i, count)` for this thread's stretch of up to a vector's size, of `count` elements.
template <int SIZE, class F>
__device__ __forceinline__ void each_vector(u64 elements, F f) {
    u64 i = ((u64)blockIdx.x * blockDim.x + threadIdx.x) * SIZE;
    if (i < elements) f(i, elements - i < SIZE ? (int)(elements - i) : SIZE);
}

// If rows are not a multiple of 16 bytes, their beginnings are not aligned: then elements are loaded one by one.
template <class T, class F>
__device__ __forceinline__ void each_column(const T *row, int columns, F f) {
    const int size = Vector<T>::SIZE;
    if (columns % size == 0) {
#pragma unroll 1
        for (int c = threadIdx.x * size; c < columns; c += blockDim.x * size) {
            Vector<T> v = Vector<T>::load(row + c);
#pragma unroll
            for (int k = 0; k < size; ++k) f(c + k, widen(v.at[k]));
        }
    } else {
#pragma unroll 1
        for (int c = threadIdx.x; c < columns; c += blockDim.x) f(c, widen(row[c]));
    }
}

// y = f(x) for each element. Launched with a thread for each vector of 16 bytes; y may overwrite x.
template <class T, class F>
__device__ __forceinline__ void map(const T *x, T *y, u64 elements, F f) {
    each_vector<Vector<T>::SIZE>(elements, [=](u64 i, int count) {
        if (count == Vector<T>::SIZE) {
            Vector<T> v = Vector<T>::load(x + i);
#pragma unroll
            for (int k = 0; k < Vector<T>::SIZE; ++k) v.at[k] = round_to<T>(f(widen(v.at[k])));
            v.store(y + i);
        } else {
#pragma unroll 1
            for (int k = 0; k < count; ++k) y[i + k] = round_to<T>(f(widen(x[i + k])));
        }
    });
}

// y = f(a, b) for each element, as `map`, with a thread for each COUNT of them; y may overwrite a or b.
template <int COUNT, class T, class F>
__device__ __forceinline__ void map(const T *a, const T *b, T *y, u64 elements, F f) {
    each_vector<COUNT>(elements, [=](u64 i, int count) {
        if (count == COUNT) {
            typedef Vector<T, COUNT> V;
            V va = V::load(a + i), vb = V::load(b + i);
#pragma unroll
            for (int k = 0; k < COUNT; ++k) va.at[k] = round_to<T>(f(widen(va.at[k]), widen(vb.at[k])));
            va.store(y + i);
        } else {
#pragma unroll 1
            for (int k = 0; k < count; ++k) y[i + k] = round_to<T>(f(widen(a[i + k]), widen(b[i + k])));
        }
    });
}

// Copies bytes with all threads of a block, in the largest units that addresses and size allow.
__device__ __forceinline__ void copy_bytes(const char *from, char *to, u64 bytes) {
    u64 bits = (u64)from | (u64)to | bytes;
    if (bits % 16 == 0) {
        for (u64 i = threadIdx.x * 16; i < bytes; i += blockDim.x * 16)
            *reinterpret_cast<uint4 *>(to + i) = *reinterpret_cast<const uint4 *>(from + i);
    } else if (bits % 4 == 0) {
        for (u64 i = threadIdx.x * 4; i < bytes; i += blockDim.x * 4)
            *reinterpret_cast<u32 *>(to + i) = *reinterpret_cast<const u32 *>(from + i);
    } else {
        for (u64 i = threadIdx.x; i < bytes; i += blockDim.x) to[i] = from[i];
    }
}

// Defines the kernels of a template for each type of float: `M(suffix of their names, type)`.
#define FOR_FLOATS(M) M(f32, float) M(f16, f16) M(bf16, bf16)
