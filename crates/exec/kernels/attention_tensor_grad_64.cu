// The gradient of attention on tensor cores for heads of up to 64 channels.

#define HEAD 64
#include "attention_tensor_grad.cuh"
