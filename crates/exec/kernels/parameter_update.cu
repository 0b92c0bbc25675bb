// Updates of parameters by elementwise optimizers: the same arithmetic, random bits and codes as src/cpu/parameter_update.
// Reference: src/reference/parameter_update.rs.
//
// A warp for each 256 elements of a parameter, of which each lane has two fours. Everything is updated in place.

#include "remainder.cuh"
#include "rounding.cuh"

#define BLOCK 256
#define EACH Fours<float>::SIZE
#define THREADS 256
// Separates these draws of the generator from all others.
#define ROUNDING 0x524F554Eu

// The levels of codes, in ascending order, by value: of signed moments, and of nonnegative ones.
struct Levels {
    float at[2][256];
};

// Parameters of a launch, so that it has no more than 4 KiB of arguments: `LISTED` of src/cuda/ops/parameter_update.rs.
#define LISTED 20

// A parameter: its tensors, of which absent ones are null; its first block among those of all parameters of the list; and the
// rule's factors for it.
struct Parameter {
    const void *gradient;
    void *weight;
    short *remainders;
    void *moments[2];
    float *scales[2];
    u64 elements, first;
    u32 site;
    float weight_decay, rate;
    int gradient_format;
};

struct List {
    Parameter at[LISTED];
    u64 count;
};

// Shared by all parameters.
struct Rule {
    float beta1, beta2, eps;
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
    __device__ __forceinline__ static Shared shared(const Rule &rule, const Parameter &parameter, const Scalars *scalars) {
        double rate = (double)parameter.rate * (double)scalars->learning_rate;
        double first = 1.0 - power(rule.beta1, scalars->update), second = 1.0 - power(rule.beta2, scalars->update);
        return {(float)(rate / first), (float)(1.0 / sqrt(second)), (float)(1.0 - rate * (double)parameter.weight_decay)};
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
    __device__ __forceinline__ static Shared shared(const Rule &rule, const Parameter &parameter, const Scalars *scalars) {
        double rate = (double)parameter.rate * (double)scalars->learning_rate;
        return {(float)rate, 0.0f, (float)(1.0 - rate * (double)parameter.weight_decay)};
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

// Random bits for a lane's elements: each tensor has its own bits.
__device__ __forceinline__ uint4 bits(const Scalars *scalars, u64 block, u32 site, u32 which) {
    uint3 rest = make_uint3(4 * site + which, (u32)scalars->update, ROUNDING);
    return lane_bits(block, rest, make_uint2((u32)scalars->seed, (u32)(scalars->seed >> 32)));
}

// The format of a gradient, a weight or a moment.
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

// The parameter with this block. The first blocks are in ascending order.
__device__ __forceinline__ const Parameter &with_block(const List &list, u64 block) {
    u32 at = 0;
    while (at + 1 < list.count && list.at[at + 1].first <= block) ++at;
    return list.at[at];
}

// If the factor is NaN, nothing is written.
template <class R>
__device__ __forceinline__ void update(const float *factor, const Scalars *scalars, int weight_format, int state_format,
                                       const Rule &rule, const Levels &levels, const List &list) {
    __shared__ Shared shared;
    __shared__ float decoded[2][256];
    float scale = *factor;
    if (scale != scale) return;
    const Parameter &parameter = with_block(list, blockIdx.x);
    if (threadIdx.x == 0) shared = R::shared(rule, parameter, scalars);
    if (state_format == CODES)
        for (int set = 0; set < R::MOMENTS; ++set) decoded[set][threadIdx.x] = levels.at[set][threadIdx.x];
    __syncthreads();
    u64 block = (blockIdx.x - parameter.first) * (THREADS / WARP) + threadIdx.x / WARP, elements = parameter.elements;
    // Whole warps return.
    if (block * BLOCK >= elements) return;
    u64 first = block * BLOCK;
    int count = elements - first < BLOCK ? (int)(elements - first) : BLOCK;
    Fours<float> g = decode_floats(parameter.gradient, nullptr, parameter.gradient_format, block, count), m[R::MOMENTS];
    Fours<float> w = decode_floats(parameter.weight, parameter.remainders, weight_format, block, count);
#pragma unroll
    for (int i = 0; i < R::MOMENTS; ++i)
        m[i] = decode({parameter.moments[i], parameter.scales[i], decoded[i], state_format}, block, count);
#pragma unroll
    for (int k = 0; k < EACH; ++k) {
        float each[R::MOMENTS];
#pragma unroll
        for (int i = 0; i < R::MOMENTS; ++i) each[i] = m[i].at[k];
        R::update(rule, shared, g.at[k] * scale, w.at[k], each);
#pragma unroll
        for (int i = 0; i < R::MOMENTS; ++i) m[i].at[k] = Fours<float>::first() + Fours<float>::behind(k) < count ? each[i] : 0.0f;
    }
    u32 site = parameter.site;
    encode_floats(w, parameter.weight, parameter.remainders, weight_format, block, count, scalars, site, 0);
#pragma unroll
    for (int i = 0; i < R::MOMENTS; ++i)
        encode(m[i], {parameter.moments[i], parameter.scales[i], decoded[i], state_format}, block, count, i == 0, scalars,
               site, 1 + i);
}

#define KERNELS(name, R)                                                                                               \
    KERNEL(THREADS) name(const float *factor, const Scalars *scalars, int weight_format, int state_format, Rule rule,  \
                         Levels levels, List list) {                                                                   \
        update<R>(factor, scalars, weight_format, state_format, rule, levels, list);                                   \
    }
KERNELS(adamw, AdamW)
KERNELS(lion, Lion)
