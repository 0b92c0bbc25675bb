//! NVIDIA cards. `launch.rs` says what a kernel is started with, `ops/` which kernels each op is, and
//! `modules.rs` holds their PTX. The kernels lie in `exec/kernels`, one file an op.

mod launch;
mod modules;
mod ops;

pub use launch::{Arguments, Launch, Operands, Scratch, device_scalars};
pub use modules::{module_names, ptx};
pub use ops::{launches, refusal};
