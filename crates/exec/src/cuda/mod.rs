//! NVIDIA cards. They need nothing but their driver, which is searched on demand.
//!
//! `library.rs` finds the driver, `card.rs` its cards, and `device.rs` is a card as a device: `loaded.rs` is what it
//! allocates for a plan, `program.rs` turns steps into work of streams. `launch.rs` describes launches of kernels,
//! `ops/` has the launches of each op, and `modules.rs` the kernels' PTX. The kernels are in `exec/kernels`, with a
//! file per op; `cublas_lt/` is the library that computes products if it is there. `driver.rs` is the only access to
//! the driver's functions.

mod card;
mod context;
mod cublas_lt;
mod device;
mod driver;
mod error;
mod functions;
mod hooks;
mod host;
mod kernels;
mod launch;
mod launch_limit;
mod library;
mod loaded;
mod memory;
mod modules;
mod ops;
mod options;
mod pinning;
mod product;
mod program;
mod staging;
mod streams;

pub use card::{Card, ComputeMode, OLDEST_CAPABILITY};
pub use cublas_lt::{CUBLAS_LIBRARY, CublasLt, CublasLtError, OLDEST_CUBLAS_LT, ProductChoices, cublas_lt};
pub use device::CudaDevice;
pub use error::{CallError, CudaError, Fault};
pub use kernels::CompileNotice;
pub use launch::{Arguments, Launch, Operands, Scratch, device_scalars};
pub use library::{Driver, LIBRARY};
pub use loaded::OwnMemory;
pub use modules::{in_f16, ptx};
pub use ops::{OLDEST_WITH_TF32, launches, refusal};
pub use options::CudaOptions;
