// The gradient of attention on tensor cores for heads of 65 to 256 channels.

#define HEAD 256
#include "attention_tensor_grad.cuh"
