// y = activation(gate) · up, and its gradient. Launched with a thread for each 4 elements, which have enough work. y
// may overwrite gate or up; dgate and dup may overwrite gate and up. Reference: src/reference/gated.rs.

#include "activation.cuh"

#define COUNT 4

template <class A, class T>
__device__ __forceinline__ void forward(const T *gate, const T *up, T *y, u64 elements) {
    map<COUNT>(gate, up, y, elements, [](float gate, float up) { return A::value(gate) * up; });
}

// Values in single precision are rounded once.
template <class A, class T>
__device__ __forceinline__ void backward(const T *dy, const T *gate, const T *up, T *dgate, T *dup, u64 elements) {
    each_vector<COUNT>(elements, [=](u64 i, int count) {
        if (count == COUNT) {
            typedef Vector<T, COUNT> V;
            V d = V::load(dy + i), g = V::load(gate + i), u = V::load(up + i);
#pragma unroll
            for (int k = 0; k < COUNT; ++k) {
                float slope = widen(d.at[k]), x = widen(g.at[k]);
                g.at[k] = round_to<T>(slope * widen(u.at[k]) * A::slope(x));
                u.at[k] = round_to<T>(slope * A::value(x));
            }
            g.store(dgate + i);
            u.store(dup + i);
        } else {
#pragma unroll 1
            for (int k = 0; k < count; ++k) {
                float slope = widen(dy[i + k]), x = widen(gate[i + k]), other = widen(up[i + k]);
                dgate[i + k] = round_to<T>(slope * other * A::slope(x));
                dup[i + k] = round_to<T>(slope * A::value(x));
            }
        }
    });
}

#define OF(name, A, suffix, T)                                                                                         \
    KERNEL(256) gated_##name##_##suffix(const T *gate, const T *up, T *y, u64 elements) {                              \
        forward<A>(gate, up, y, elements);                                                                             \
    }                                                                                                                  \
    KERNEL(256) gated_##name##_grad_##suffix(const T *dy, const T *gate, const T *up, T *dgate, T *dup,                \
                                             u64 elements) {                                                           \
        backward<A>(dy, gate, up, dgate, dup, elements);                                                               \
    }
#define KERNELS(suffix, T)                                                                                             \
    OF(silu, Silu, suffix, T)                                                                                          \
    OF(gelu_tanh, GeluTanh, suffix, T)                                                                                 \
    OF(gelu, Gelu, suffix, T)                                                                                          \
    OF(relu, Relu, suffix, T)
FOR_FLOATS(KERNELS)
