//! NVIDIA cards. All that is needed is their driver, which is looked for when asked.
//!
//! `library.rs` finds the driver, `card.rs` its cards, `device.rs` is a card as a device: `loaded.rs` what it holds for a
//! plan, `program.rs` how steps become work of streams. `launch.rs` says what a kernel is started with, `ops/` which
//! kernels each op is, and `modules.rs` holds their PTX. The kernels lie in `exec/kernels`, one file an
//! op; `cublas_lt/` is the library that products are left to where there is one. `driver.rs` is the only way to the
//! driver's functions.

mod card;
mod context;
mod cublas_lt;
mod device;
mod driver;
mod error;
mod hooks;
mod host;
mod kernels;
mod launch;
mod library;
mod loaded;
mod memory;
mod modules;
mod ops;
mod program;
mod staging;
mod streams;

pub use card::{Card, ComputeMode, OLDEST_CAPABILITY};
pub use cublas_lt::{CUBLAS_LIBRARY, CublasLt, CublasLtError, OLDEST_CUBLAS_LT, ProductChoices, cublas_lt};
pub use device::{CudaDevice, CudaOptions};
pub use error::{CallError, CudaError, Fault};
pub use launch::{Arguments, Launch, Operands, Scratch, device_scalars};
pub use library::{Driver, LIBRARY};
pub use loaded::OwnMemory;
pub use modules::{in_f16, module_names, ptx};
pub use ops::{OLDEST_WITH_TF32, launches, refusal};
