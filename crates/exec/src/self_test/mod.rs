//! What shows, on its owner's machine, that a device computes rightly and how fast it is: kernels against their
//! references (`kernels.rs`), rates (`speed.rs`), and memory that is given back. All of it goes the way of a run: plans
//! are loaded, and their programs run. Losses of a model are `train`'s to compare.

mod kernels;
mod node;
mod speed;

pub use kernels::{Cause, KernelCheck, KernelFailure, check_kernels, check_products};
pub use speed::{Rate, Speeds, Workload, measure_products, measure_speeds};

use crate::{Device, DeviceError, Room};
use plimsoll_graph::{Graph, Targets};
use plimsoll_plan::lay_out;

/// The device's memory while it holds a plan of nothing: what this says before and after some plans differs by what these
/// did not give back, and by what other processes took or gave meanwhile. `None` where its memory is the host's.
pub fn room_beside_nothing(device: &mut dyn Device, targets: &Targets) -> Result<Option<Room>, DeviceError> {
    device.load(&lay_out(&Graph::default(), targets))?;
    device.room()
}
