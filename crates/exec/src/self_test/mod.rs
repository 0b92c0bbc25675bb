//! The self-test of a device on a user's machine: kernels against their references (`kernels.rs`), rates (`speed.rs`),
//! and that memory is freed. As in a run, plans are loaded and their programs run. `train` compares losses of a model.

mod kernels;
mod node;
mod speed;

pub use kernels::{Cause, KernelCheck, KernelFailure, check_kernels, check_products};
pub use speed::{Rate, Speeds, Workload, measure_products, measure_speeds};

use crate::{Device, DeviceError, Room};
use plimsoll_graph::{Graph, Targets};
use plimsoll_plan::lay_out;

/// The device's memory with an empty plan loaded: the difference before and after some plans is the memory that they
/// did not free, plus changes by other processes. `None` if it uses the host's memory.
pub fn room_beside_nothing(device: &mut dyn Device, targets: &Targets) -> Result<Option<Room>, DeviceError> {
    device.load(&lay_out(&Graph::default(), targets))?;
    device.room()
}
