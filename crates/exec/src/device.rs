//! What a device must be able to do. Small on purpose: all that matters was decided by the plan.

use graph::{DeviceKind, Scalars, TensorId};
use plan::{Plan, Step};
use std::borrow::Cow;

/// Why a device could not go on.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DeviceError {
    /// The arena could not be reserved.
    #[error("{bytes} bytes could not be reserved: {reason}")]
    Refused {
        /// Size of the arena.
        bytes: u64,
        /// What the system said.
        reason: String,
    },
    /// A step touches bytes that the plan does not give it. A bug of the planner.
    #[error("{step}: {problem}")]
    BadStep {
        /// The op's name.
        step: String,
        /// What is wrong.
        problem: String,
    },
    /// A plan that was made for another kind of device.
    #[error("the plan was made for {planned:?}, the device is {device}")]
    MadeForAnother {
        /// What it was made for.
        planned: DeviceKind,
        /// What people call the device.
        device: String,
    },
    /// Data of the wrong size was to be copied.
    #[error("`{tensor}` has {expected} bytes, {found} were given")]
    WrongSize {
        /// The tensor.
        tensor: String,
        /// Its bytes.
        expected: u64,
        /// Bytes that were handed over.
        found: u64,
    },
}

/// What a device is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Capabilities {
    /// What people call it.
    pub name: String,
    /// What a plan for it must have been made for; none: anything.
    pub kind: Option<DeviceKind>,
}

/// What a device measured about its memory.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MemoryReport {
    /// Bytes reserved.
    pub reserved_bytes: u64,
    /// End of the highest byte that any step or copy touched.
    pub high_water_bytes: u64,
    /// Bytes reserved of the memory around the device.
    pub host_reserved_bytes: u64,
    /// End of the highest byte of these that any step or copy touched.
    pub host_high_water_bytes: u64,
    /// How often the device asked the system for memory.
    pub allocations: u64,
}

/// Something that runs the steps of a plan.
///
/// A device may go on after a call has returned: `synchronize` waits for it, and so do `read`, `write` and `view`. An
/// error of what was started may be returned by any later call.
pub trait Device {
    /// What it is.
    fn capabilities(&self) -> Capabilities;

    /// Reserves the plan's arenas, its own and the one around it, all that it ever takes. Contents are zero.
    fn load(&mut self, plan: &Plan) -> Result<(), DeviceError>;

    /// Copies bytes to a tensor.
    fn write(&mut self, plan: &Plan, tensor: TensorId, bytes: &[u8]) -> Result<(), DeviceError>;

    /// Copies a tensor's bytes to the host.
    fn read(&mut self, plan: &Plan, tensor: TensorId, bytes: &mut [u8]) -> Result<(), DeviceError>;

    /// A tensor's bytes for reading at length: where they lie if the host can see them, else a copy.
    fn view(&self, plan: &Plan, tensor: TensorId) -> Result<Cow<'_, [u8]>, DeviceError>;

    /// Tells that a program begins, so that a device which checks can tell its tensors from another's.
    fn begin(&mut self, _plan: &Plan, _program: usize) {}

    /// Starts a whole program: its queues side by side where the device has several, ordered by the steps' waits.
    /// Unless a device knows better, the steps one after the other, in the order in which they are issued.
    fn run_program(&mut self, plan: &Plan, program: usize, scalars: &Scalars) -> Result<(), DeviceError> {
        self.begin(plan, program);
        plan.programs[program].steps.iter().try_for_each(|step| self.run(plan, step, scalars))
    }

    /// Runs one step.
    fn run(&mut self, plan: &Plan, step: &Step, scalars: &Scalars) -> Result<(), DeviceError>;

    /// Waits until everything that was started is done.
    fn synchronize(&mut self) -> Result<(), DeviceError> {
        Ok(())
    }

    /// What was measured.
    fn memory(&self) -> MemoryReport;
}
