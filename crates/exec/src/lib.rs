//! Execution of plans: devices, their kernels, and the loop over a program's steps.
//!
//! A device reserves the plan's arenas once and never allocates memory again. Read next: `device.rs`, `executor.rs`,
//! `reference/mod.rs` (the definitions of the ops), `cpu/mod.rs` (the fast kernels), `null.rs` (checks without
//! arithmetic).

mod arena;
mod call;
pub mod cases;
mod cpu;
mod cpu_device;
pub mod cuda;
mod device;
mod executor;
mod host_runner;
mod null;
mod philox;
mod quantize;
pub mod reference;
pub mod self_test;
mod weight_codes;

pub use arena::FreeMemory;
pub use call::{Call, Input, Output};
pub use cpu::{
    Blas, BlasError, BlasLibrary, Ceilings, Instructions, blas_in_use, converted, instructions, joined, remainders,
    rounded_weight, run as run_cpu_kernel, use_blas,
};
pub use cpu_device::CpuDevice;
pub use device::{ArenaUse, Capabilities, Device, DeviceError, MemoryReport, Room};
pub use executor::{run_program, run_program_timed};
pub use null::{NullDevice, Order};
pub use philox::{dropout_bits, dropout_threshold, fill_normal, normal_pair, philox};
pub use quantize::Levels;
pub use weight_codes::{CodedMatrix, Encoder, nf4_levels};
