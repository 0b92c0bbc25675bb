// Products of experts in single precision, rounded to TF32, on tensor cores of compute capability 8.0 and newer. How:
// expert_product.cuh. A single size of tiles, since each kernel adds to the size of the program.

#include "expert_product.cuh"

#if __CUDA_ARCH__ >= 800
OF(tf32, float, 64)
#endif
