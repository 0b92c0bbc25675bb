//! Tensors, ops, gradients and models: what is computed.
