// Updates by elementwise optimizers: the same arithmetic, random bits and codes as src/cpu/parameter_update. Reference:
// src/reference/parameter_update.rs.
//
// A warp for each 256 elements, of which each lane has two fours. Everything is updated in place.

#include "philox.cuh"
#include "remainder.cuh"

#define BLOCK 256
#define EACH Fours<float>::SIZE
#define THREADS 256
// Separates these draws of the generator from all others.
#define ROUNDING 0x524F554Eu

// The levels of codes, in ascending order, by value: of signed moments, and of nonnegative ones.
struct Levels {
    float at[2][256];
};

// Shared by all updates.
struct Rule {
    float beta1, beta2, eps, weight_decay, rate;
};

// Shared by all elements of an update.
struct Shared {
    float size;            // The learning rate, over 1 - beta1^t for AdamW.
    float root_correction; // 1 / sqrt(1 - beta2^t)
    float decay;           // Factor of a weight that applies its decay.
};

// In double precision, by squaring.
__device__ __forceinline__ double power(double x, u64 n) {
    double result = 1.0;
    for (; n; n >>= 1) {
        if (n & 1) result *= x;
        x *= x;
    }
    return result;
}

struct AdamW {
    enum { MOMENTS = 2 };
    __device__ __forceinline__ static Shared shared(const Rule &rule, const Scalars *scalars) {
        double rate = (double)rule.rate * (double)scalars->learning_rate;
        double first = 1.0 - power(rule.beta1, scalars->update), second = 1.0 - power(rule.beta2, scalars->update);
        return {(float)(rate / first), (float)(1.0 / sqrt(second)), (float)(1.0 - rate * (double)rule.weight_decay)};
    }
    // In the order of operations of src/cpu/parameter_update/adamw.rs.
    __device__ __forceinline__ static void update(const Rule &rule, const Shared &shared, float g, float &w,
                                                  float (&moments)[2]) {
        float &m = moments[0], &v = moments[1];
        m = fmaf(1.0f - rule.beta1, g - m, m);
        v = fmaf(1.0f - rule.beta2, g * g, rule.beta2 * v);
        float denominator = fmaf(sqrtf(v), shared.root_correction, rule.eps);
        w = fmaf(w, shared.decay, -shared.size * (m / denominator));
    }
};

struct Lion {
    enum { MOMENTS = 1 };
    __device__ __forceinline__ static Shared shared(const Rule &rule, const Scalars *scalars) {
        double rate = (double)rule.rate * (double)scalars->learning_rate;
        return {(float)rate, 0.0f, (float)(1.0 - rate * (double)rule.weight_decay)};
    }
    // In the order of operations of src/cpu/parameter_update/lion.rs. The sign of zero is zero.
    __device__ __forceinline__ static void update(const Rule &rule, const Shared &shared, float g, float &w,
                                                  float (&moments)[1]) {
        float &m = moments[0];
        float direction = fmaf(rule.beta1, m, (1.0f - rule.beta1) * g);
        float step = direction == 0.0f ? 0.0f : copysignf(shared.size, direction);
        w = fmaf(w, shared.decay, -step);
        m = fmaf(1.0f - rule.beta2, g - m, m);
    }
};

// Random bits for a lane's elements: each tensor has its own bits. Eight neighbors, which two lanes have, share a draw:
// of each pair the even lane draws for the first fours of both, the odd one for the second.
__device__ __forceinline__ uint4 bits(const Scalars *scalars, u64 block, u32 site, u32 which) {
    u32 lane = threadIdx.x % WARP, odd = lane % 2, eight = (u32)block * (BLOCK / 8) + odd * (WARP / 2) + lane / 2;
    uint4 counter = make_uint4(eight, 4 * site + which, (u32)scalars->update, ROUNDING);
    uint4 words = philox(counter, make_uint2((u32)scalars->seed, (u32)(scalars->seed >> 32)));
    u32 one = __shfl_xor_sync(ALL_LANES, odd ? words.x : words.z, 1);
    u32 other = __shfl_xor_sync(ALL_LANES, odd ? words.y : words.w, 1);
    return odd ? make_uint4(one, other, words.z, words.w) : make_uint4(words.x, words.y, one, other);
}

// One of the two nearest values, chosen at random so that the mean is exact.
__device__ __forceinline__ bf16 round_at_random(float x, u32 random) {
    u32 word = __float_as_uint(x);
    if (!isfinite(x)) return {(u16)(word >> 16 | (x != x ? 1 : 0))};
    return {(u16)((word + (random & 0xffff)) >> 16)};
}

__device__ __forceinline__ Fours<bf16> rounded_at_random(const Fours<float> &values, uint4 words) {
    u32 each[4] = {words.x, words.y, words.z, words.w};
    Fours<bf16> some;
#pragma unroll
    for (int k = 0; k < EACH; ++k) some.at[k] = round_at_random(values.at[k], each[k / 2] >> 16 * (k % 2));
    return some;
}

// The format of a weight or a moment.
enum Format { PLAIN, ROUNDED, CODES };

// The first `count` elements of a block without codes, joined with their remainders if there are any.
__device__ __forceinline__ Fours<float> decode_floats(const void *at, const short *remainders, int format, u64 block,
                                                      int count) {
    u64 first = block * BLOCK;
    if (format == PLAIN) return Fours<float>::load(static_cast<const float *>(at) + first, count);
    Fours<bf16> some = Fours<bf16>::load(static_cast<const bf16 *>(at) + first, count);
    Fours<short> lacks = {};
    if (remainders) lacks = Fours<short>::load(remainders + first, count);
    Fours<float> values;
#pragma unroll
    for (int k = 0; k < EACH; ++k) values.at[k] = joined(some.at[k], lacks.at[k]);
    return values;
}

// Rounds to nearest if there are remainders, else stochastically.
__device__ __forceinline__ void encode_floats(const Fours<float> &values, void *at, short *remainders, int format,
                                              u64 block, int count, const Scalars *scalars, u32 site, u32 which) {
    u64 first = block * BLOCK;
    if (format == PLAIN) return values.store(static_cast<float *>(at) + first, count);
    Fours<bf16> some;
    if (remainders) {
        Fours<short> lacks;
#pragma unroll
        for (int k = 0; k < EACH; ++k) lacks.at[k] = remainder_of(values.at[k]);
        lacks.store(remainders + first, count);
#pragma unroll
        for (int k = 0; k < EACH; ++k) some.at[k] = rounded_weight(values.at[k]);
    } else {
        some = rounded_at_random(values, bits(scalars, block, site, which));
    }
    some.store(static_cast<bf16 *>(at) + first, count);
}

// A moment: its address, and the scales and levels of its codes.
struct Kept {
    void *at;
    float *scales;
    const float *levels;
    int format;
};

__device__ __forceinline__ Fours<float> decode(const Kept &kept, u64 block, int count) {
    if (kept.format != CODES) return decode_floats(kept.at, nullptr, kept.format, block, count);
    u64 first = block * BLOCK;
    Fours<float> values;
    Fours<unsigned char> some = Fours<unsigned char>::load(static_cast<const unsigned char *>(kept.at) + first, count);
    float scale = kept.scales[block];
#pragma unroll
    for (int k = 0; k < EACH; ++k) values.at[k] = scale * kept.levels[some.at[k]];
    return values;
}

// The nearest level; of two, the upper. Positive values stay positive unless the moment `is_signed`.
__device__ __forceinline__ Fours<unsigned char> coded(const Fours<float> &values, const Kept &kept, u64 block,
                                                     bool is_signed) {
    // Elements after the end are zero.
    float largest = 0.0f, part[EACH];
#pragma unroll
    for (int k = 0; k < EACH; ++k) largest = fmaxf(largest, fabsf(values.at[k]));
#pragma unroll
    for (int distance = WARP / 2; distance > 0; distance /= 2)
        largest = fmaxf(largest, __shfl_xor_sync(ALL_LANES, largest, distance));
    __syncwarp(); // every lane has read the previous scale
    if (threadIdx.x % WARP == 0) kept.scales[block] = largest;
    float inverse = largest > 0.0f ? 1.0f / largest : 0.0f;
    int codes[EACH] = {};
#pragma unroll
    for (int k = 0; k < EACH; ++k) part[k] = values.at[k] * inverse;
#pragma unroll 1
    for (int step = 128; step > 0; step /= 2)
#pragma unroll
        for (int k = 0; k < EACH; ++k) {
            const float *level = kept.levels + codes[k] + step;
            if (0.5f * (level[-1] + level[0]) <= part[k]) codes[k] += step;
        }
    Fours<unsigned char> some;
#pragma unroll
    for (int k = 0; k < EACH; ++k) {
        bool lost = !is_signed && part[k] > 0.0f && kept.levels[codes[k]] == 0.0f;
        some.at[k] = (unsigned char)(codes[k] + lost);
    }
    return some;
}

__device__ __forceinline__ void encode(const Fours<float> &values, const Kept &kept, u64 block, int count,
                                       bool is_signed, const Scalars *scalars, u32 site, u32 which) {
    if (kept.format != CODES)
        return encode_floats(values, kept.at, nullptr, kept.format, block, count, scalars, site, which);
    u64 first = block * BLOCK;
    coded(values, kept, block, is_signed).store(static_cast<unsigned char *>(kept.at) + first, count);
}

// If the factor is NaN, nothing is written.
template <class R>
__device__ __forceinline__ void update(const float *gradient, const float *factor, const Scalars *scalars,
                                       void *weight, short *remainders, void *const (&moments)[2],
                                       float *const (&scales)[2], u64 elements, int weight_format, int state_format,
                                       u32 site, const Rule &rule, const Levels &levels) {
    __shared__ Shared shared;
    __shared__ float decoded[2][256];
    float scale = *factor;
    if (scale != scale) return;
    if (threadIdx.x == 0) shared = R::shared(rule, scalars);
    if (state_format == CODES)
        for (int set = 0; set < R::MOMENTS; ++set) decoded[set][threadIdx.x] = levels.at[set][threadIdx.x];
    __syncthreads();
    u64 block = (u64)blockIdx.x * (THREADS / WARP) + threadIdx.x / WARP;
    // Whole warps return.
    if (block * BLOCK >= elements) return;
    u64 first = block * BLOCK;
    int count = elements - first < BLOCK ? (int)(elements - first) : BLOCK;
    Fours<float> g = Fours<float>::load(gradient + first, count), m[R::MOMENTS];
    Fours<float> w = decode_floats(weight, remainders, weight_format, block, count);
#pragma unroll
    for (int i = 0; i < R::MOMENTS; ++i)
        m[i] = decode({moments[i], scales[i], decoded[i], state_format}, block, count);
#pragma unroll
    for (int k = 0; k < EACH; ++k) {
        float each[R::MOMENTS];
#pragma unroll
        for (int i = 0; i < R::MOMENTS; ++i) each[i] = m[i].at[k];
        R::update(rule, shared, g.at[k] * scale, w.at[k], each);
#pragma unroll
        for (int i = 0; i < R::MOMENTS; ++i) m[i].at[k] = Fours<float>::first() + Fours<float>::behind(k) < count ? each[i] : 0.0f;
    }
    encode_floats(w, weight, remainders, weight_format, block, count, scalars, site, 0);
#pragma unroll
    for (int i = 0; i < R::MOMENTS; ++i)
        encode(m[i], {moments[i], scales[i], decoded[i], state_format}, block, count, i == 0, scalars, site, 1 + i);
}

// Absent remainders, moments and scales are null.
#define KERNELS(name, R)                                                                                               \
    KERNEL(THREADS) name(const float *gradient, const float *factor, const Scalars *scalars, void *weight,             \
                         short *remainders, void *first, void *second, float *first_scales, float *second_scales,      \
                         u64 elements, int weight_format, int state_format, u32 site, Rule rule, Levels levels) {      \
        void *const moments[2] = {first, second};                                                                      \
        float *const scales[2] = {first_scales, second_scales};                                                        \
        update<R>(gradient, factor, scalars, weight, remainders, moments, scales, elements, weight_format,             \
                  state_format, site, rule, levels);                                                                   \
    }
KERNELS(adamw, AdamW)
KERNELS(lion, Lion)
