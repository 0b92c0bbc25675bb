//! What a device must be able to do. Small on purpose: all that matters was decided by the plan.

use crate::cuda::{CudaError, ProductChoices};
use plimsoll_graph::{DeviceKind, MemoryId, PerMemory, Scalars, TensorId};
use plimsoll_plan::{Plan, Step};
use plimsoll_units::Bytes;
use std::borrow::Cow;

/// Why a device could not go on.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DeviceError {
    /// The memory for a plan's arenas is not there.
    #[error("{needed} of memory is needed, {}", .available.map_or(reason.clone(), |free| short_of(*needed, free)))]
    NoRoom {
        /// Size of all arenas.
        needed: Bytes,
        /// What was available then; `None` where the system does not say.
        available: Option<Bytes>,
        /// What the system said.
        reason: String,
        /// The UUID of the card whose memory it is; `None` for the host's.
        card: Option<String>,
    },
    /// The system refused threads.
    #[error("{threads} threads could not be started: {reason}")]
    NoThreads {
        /// How many are needed.
        threads: usize,
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
    #[error("the plan is for {planned:?}, but the device is {device}")]
    MadeForAnother {
        /// What it was made for.
        planned: DeviceKind,
        /// The device's name, for people.
        device: String,
    },
    /// Data of the wrong size was to be copied.
    #[error("`{tensor}` has {expected} bytes, but {found} were given")]
    WrongSize {
        /// The tensor.
        tensor: String,
        /// Its bytes.
        expected: u64,
        /// Bytes that were given.
        found: u64,
    },
    /// A card, or its driver, failed.
    #[error(transparent)]
    Cuda(#[from] CudaError),
}

/// What is free, and the difference, without which two sizes may look the same.
fn short_of(needed: Bytes, free: Bytes) -> String {
    format!("{free} is free (short {})", needed.saturating_sub(free))
}

impl DeviceError {
    /// Whether the device can't be used any more, whatever is asked of it.
    pub fn ends_the_device(&self) -> bool {
        matches!(self, Self::Cuda(CudaError::CardFailed { .. }))
    }
}

/// Memory of a device's own, over all processes, as its driver tells it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Room {
    /// What can still be taken.
    pub free: Bytes,
    /// All of it.
    pub total: Bytes,
}

/// What a device is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Capabilities {
    /// Its name, for people.
    pub name: String,
    /// What a plan for it must have been made for; none: anything.
    pub kind: Option<DeviceKind>,
}

/// What a device knows about its arenas. Where regions end is the plan's word: that a device took no more from the
/// system is seen in [`Device::resident_bytes`].
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MemoryReport {
    /// The arena in each memory; empty before a plan is loaded.
    pub arenas: PerMemory<ArenaUse>,
    /// How often the device asked the system for memory, counted where it asks.
    pub allocations: u64,
}

impl MemoryReport {
    /// The arena in a memory: nothing before a plan is loaded.
    pub fn arena(&self, memory: MemoryId) -> ArenaUse {
        self.arenas.get(memory).copied().unwrap_or_default()
    }
}

/// What a device knows about its arena in one memory.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ArenaUse {
    /// The size of the arena.
    pub reserved_bytes: u64,
    /// End of the highest region that any step or copy touched.
    pub touched_bytes: u64,
}

impl ArenaUse {
    /// An arena of this size that nothing has touched.
    pub(crate) fn untouched(reserved_bytes: u64) -> Self {
        Self { reserved_bytes, touched_bytes: 0 }
    }

    /// A step or a copy touched bytes up to this one.
    pub(crate) fn touch(&mut self, end: u64) {
        self.touched_bytes = end.max(self.touched_bytes);
    }
}

/// Something that runs the steps of a plan.
///
/// A device may go on after a call has returned: `synchronize` waits for it, and so do `read`, `write` and `view`. An
/// error of what was started may be returned by any later call.
pub trait Device {
    /// What it is.
    fn capabilities(&self) -> Capabilities;

    /// What of its own memory is free now, beside all that it needs before a plan is loaded; `None` where its memory is
    /// the host's.
    fn room(&self) -> Result<Option<Room>, DeviceError> {
        Ok(None)
    }

    /// Reserves the plan's arenas, its own and the one around it, all that it ever takes, down to the last page.
    /// Persistent tensors are zero. Errors: `NoRoom`.
    fn load(&mut self, plan: &Plan) -> Result<(), DeviceError>;

    /// What a user should know of how the plan was loaded.
    fn notes(&self) -> Vec<String> {
        Vec::new()
    }

    /// How a library computes the products of the plan that is loaded: what a run keeps, to compute the same bits when it
    /// is resumed. None where no library does.
    fn product_choices(&self) -> Option<ProductChoices> {
        None
    }

    /// Copies bytes to a tensor.
    fn write(&mut self, plan: &Plan, tensor: TensorId, bytes: &[u8]) -> Result<(), DeviceError>;

    /// Copies bytes to a part of a tensor that begins so many bytes into it. Errors: `WrongSize` if they end behind it.
    fn write_part(&mut self, plan: &Plan, tensor: TensorId, offset: u64, bytes: &[u8]) -> Result<(), DeviceError>;

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

    /// What it knows about its arenas.
    fn memory(&self) -> MemoryReport;

    /// Bytes of the arenas' pages that are in memory now, as the system counts them: each arena rounded up to whole
    /// pages, unless some of it was swapped out. `None` where the system does not say, or counts other processes' memory too.
    fn resident_bytes(&self) -> Option<u64> {
        None
    }

    /// Those of them that are this process's memory: all, unless the device has memory of its own.
    fn resident_in_process_bytes(&self) -> Option<u64> {
        self.resident_bytes()
    }
}
