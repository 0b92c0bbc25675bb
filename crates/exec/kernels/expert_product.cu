// Products of experts of numbers of 16 bits on tensor cores. How: expert_product.cuh.

#include "expert_product.cuh"

OF(f16, f16, 64)
OF(f16, f16, 128)
#if __CUDA_ARCH__ >= 800
OF(bf16, bf16, 64)
OF(bf16, bf16, 128)
#endif
