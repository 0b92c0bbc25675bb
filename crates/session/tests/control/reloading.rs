//! The processor as a device that loads each plan again, so that a run saves its state when its plan changes.

use plimsoll_exec::{Capabilities, CpuDevice, Device, DeviceError, MemoryReport};
use plimsoll_graph::{Scalars, TensorId};
use plimsoll_plan::{Plan, Step};
use std::borrow::Cow;

#[derive(Default)]
pub struct Reloading(CpuDevice);

impl Device for Reloading {
    fn capabilities(&self) -> Capabilities {
        self.0.capabilities()
    }

    fn load(&mut self, plan: &Plan) -> Result<(), DeviceError> {
        self.0.load(plan)
    }

    fn write(&mut self, plan: &Plan, tensor: TensorId, bytes: &[u8]) -> Result<(), DeviceError> {
        self.0.write(plan, tensor, bytes)
    }

    fn write_part(&mut self, plan: &Plan, tensor: TensorId, offset: u64, bytes: &[u8]) -> Result<(), DeviceError> {
        self.0.write_part(plan, tensor, offset, bytes)
    }

    fn read(&mut self, plan: &Plan, tensor: TensorId, bytes: &mut [u8]) -> Result<(), DeviceError> {
        self.0.read(plan, tensor, bytes)
    }

    fn view(&self, plan: &Plan, tensor: TensorId) -> Result<Cow<'_, [u8]>, DeviceError> {
        self.0.view(plan, tensor)
    }

    fn run(&mut self, plan: &Plan, step: &Step, scalars: &Scalars) -> Result<(), DeviceError> {
        self.0.run(plan, step, scalars)
    }

    fn memory(&self) -> MemoryReport {
        self.0.memory()
    }
}
