// AdamW on weights and moments in single precision, all updated in place. Launched with a thread for each vector of 4.
// Reference: src/reference/adamw.rs.

#include "common.cuh"

// What changes from step to step lies in device memory, so that a captured step need not.
struct Step {
    float learning_rate;
    float correction1; // 1 - beta1^t
    float correction2; // 1 - beta2^t
};

// If the factor is not a number nothing is written.
KERNEL(256) adamw_f32(const float *gradient, const float *factor, const Step *step, float *weight, float *m, float *v,
                      u64 elements, float beta1, float beta2, float eps, float weight_decay, float rate) {
    float scale = *factor;
    if (scale != scale) return;
    float speed = rate * step->learning_rate;
    float decay = 1.0f - speed * weight_decay, size = speed / step->correction1;
    float root_correction = 1.0f / sqrtf(step->correction2);
    auto update = [=](float g, float &w, float &m, float &v) {
        g *= scale;
        m = beta1 * m + (1.0f - beta1) * g;
        v = beta2 * v + (1.0f - beta2) * g * g;
        w = w * decay - size * m / (sqrtf(v) * root_correction + eps);
    };
    each_vector<4>(elements, [=](u64 i, int count) {
        if (count == 4) {
            Vector<float> g = Vector<float>::load(gradient + i), w = Vector<float>::load(weight + i);
            Vector<float> first = Vector<float>::load(m + i), second = Vector<float>::load(v + i);
#pragma unroll
            for (int k = 0; k < 4; ++k) update(g.at[k], w.at[k], first.at[k], second.at[k]);
            w.store(weight + i);
            first.store(m + i);
            second.store(v + i);
        } else {
#pragma unroll 1
            for (int k = 0; k < count; ++k) update(gradient[i + k], weight[i + k], m[i + k], v[i + k]);
        }
    });
}
