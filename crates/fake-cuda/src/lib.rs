//! For tests: a library that stands in for that of NVIDIA's CUDA driver, on machines without card or driver. It runs
//! the kernels that it is handed, as PTX, and checks every access of every thread.

pub mod ptx;
pub mod shadow;
pub mod trace;
