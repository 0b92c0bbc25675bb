//! The interface of a device. It is small, because the plan makes all decisions.

use crate::cuda::{CudaError, ProductChoices};
use plimsoll_graph::{DeviceKind, MemoryId, PerMemory, Scalars, TensorId};
use plimsoll_plan::{Plan, Step};
use plimsoll_units::Bytes;
use std::borrow::Cow;

/// Why a device failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DeviceError {
    /// Not enough memory for a plan's arenas.
    #[error("{needed} of memory is needed, {}", .available.map_or(reason.clone(), |free| short_of(*needed, free)))]
    NoRoom {
        /// Size of all arenas.
        needed: Bytes,
        /// Free memory at that time; `None` if the system does not report it.
        available: Option<Bytes>,
        /// The system's message.
        reason: String,
        /// The UUID of the card with that memory; `None` for the host's memory.
        card: Option<String>,
    },
    /// The system refused threads.
    #[error("{threads} threads could not be started: {reason}")]
    NoThreads {
        /// Number of threads.
        threads: usize,
        /// The system's message.
        reason: String,
    },
    /// A step accesses bytes that the plan does not assign to it: a bug of the planner.
    #[error("{step}: {problem}")]
    BadStep {
        /// The op's name.
        step: String,
        /// The problem.
        problem: String,
    },
    /// The plan is for another kind of device.
    #[error("the plan is for {planned:?}, but the device is {device}")]
    MadeForAnother {
        /// The plan's kind of device.
        planned: DeviceKind,
        /// The device's name, for messages.
        device: String,
    },
    /// A copy of data with the wrong size.
    #[error("`{tensor}` has {expected} bytes, but {found} were given")]
    WrongSize {
        /// The tensor.
        tensor: String,
        /// Its bytes.
        expected: u64,
        /// The size of the data.
        found: u64,
    },
    /// A card, or its driver, failed.
    #[error(transparent)]
    Cuda(#[from] CudaError),
}

/// The free memory, and the difference, since rounded sizes may look equal.
fn short_of(needed: Bytes, free: Bytes) -> String {
    format!("{free} is free (short {})", needed.saturating_sub(free))
}

impl DeviceError {
    /// Whether the device is unusable from now on.
    pub fn ends_the_device(&self) -> bool {
        matches!(self, Self::Cuda(CudaError::CardFailed { .. }))
    }
}

/// A device's own memory, over all processes, as its driver reports it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Room {
    /// Free memory.
    pub free: Bytes,
    /// Total memory.
    pub total: Bytes,
}

/// Properties of a device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Capabilities {
    /// Its name, for messages.
    pub name: String,
    /// The kind of device that its plans must be for; `None` for any.
    pub kind: Option<DeviceKind>,
}

/// A device's measurements of its arenas. The ends of regions come from the plan; [`Device::resident_bytes`] shows what
/// the device really uses.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MemoryReport {
    /// The arena in each memory; empty before a plan is loaded.
    pub arenas: PerMemory<ArenaUse>,
    /// Number of requests to the system for memory.
    pub allocations: u64,
}

impl MemoryReport {
    /// The arena in a memory: nothing before a plan is loaded.
    pub fn arena(&self, memory: MemoryId) -> ArenaUse {
        self.arenas.get(memory).copied().unwrap_or_default()
    }
}

/// A device's measurements of its arena in one memory.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ArenaUse {
    /// The size of the arena.
    pub reserved_bytes: u64,
    /// End of the highest region that a step or copy accessed.
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
/// A device may still work after a call has returned: `synchronize`, `read`, `write` and `view` wait for it. Any later
/// call may return the error of started work.
pub trait Device {
    /// Its properties.
    fn capabilities(&self) -> Capabilities;

    /// Free memory of its own, in addition to what it needs before a plan is loaded; `None` if it uses the host's
    /// memory.
    fn room(&self) -> Result<Option<Room>, DeviceError> {
        Ok(None)
    }

    /// Reserves the plan's arenas, on the device and on the host, with all pages in memory; no other memory is
    /// allocated later. Persistent tensors are zero. Errors: `NoRoom`.
    fn load(&mut self, plan: &Plan) -> Result<(), DeviceError>;

    /// Whether [`exchange`](Self::exchange) can replace the loaded plan by `next`, which
    /// [keeps its places](Plan::keeps_places_of).
    fn can_exchange(&self, _loaded: &Plan, _next: &Plan) -> bool {
        false
    }

    /// Replaces the loaded plan by `next`, for which [`can_exchange`](Self::can_exchange) is true, between two steps. Persistent
    /// tensors keep their contents, except gradients, and each arena grows or shrinks where it is. Errors: `NoRoom` and the
    /// device's; unless the device itself failed, `loaded` stays loaded.
    fn exchange(&mut self, _loaded: &Plan, _next: &Plan) -> Result<(), DeviceError> {
        let problem = "this device does not exchange plans".to_owned();
        Err(DeviceError::BadStep { step: "exchange".to_owned(), problem })
    }

    /// Bytes of the host's arena that the driver pinned, if that is not all of it: copies of the rest are slower.
    fn pinned_bytes(&self) -> Option<u64> {
        None
    }

    /// Notes for the user about the loaded plan.
    fn notes(&self) -> Vec<String> {
        Vec::new()
    }

    /// The algorithms of a library's products of the loaded plan, which a run stores to compute the same bits when it
    /// is resumed. `None` without a library.
    fn product_choices(&self) -> Option<ProductChoices> {
        None
    }

    /// Copies bytes to a tensor.
    fn write(&mut self, plan: &Plan, tensor: TensorId, bytes: &[u8]) -> Result<(), DeviceError>;

    /// Copies bytes to a part of a tensor that begins at this offset in bytes. Errors: `WrongSize` if they end after
    /// the tensor.
    fn write_part(&mut self, plan: &Plan, tensor: TensorId, offset: u64, bytes: &[u8]) -> Result<(), DeviceError>;

    /// Copies a tensor's bytes to the host.
    fn read(&mut self, plan: &Plan, tensor: TensorId, bytes: &mut [u8]) -> Result<(), DeviceError>;

    /// A tensor's bytes: borrowed if the host can access them, else a copy.
    fn view(&self, plan: &Plan, tensor: TensorId) -> Result<Cow<'_, [u8]>, DeviceError>;

    /// Announces the start of a program, so that a device that checks accesses can distinguish its tensors from another
    /// program's.
    fn begin(&mut self, _plan: &Plan, _program: usize) {}

    /// Starts a whole program: its queues run concurrently if the device has several, ordered by the steps' waits. By
    /// default the steps run one after the other, in the order of their issue.
    fn run_program(&mut self, plan: &Plan, program: usize, scalars: &Scalars) -> Result<(), DeviceError> {
        self.begin(plan, program);
        plan.programs[program].steps.iter().try_for_each(|step| self.run(plan, step, scalars))
    }

    /// Runs one step.
    fn run(&mut self, plan: &Plan, step: &Step, scalars: &Scalars) -> Result<(), DeviceError>;

    /// Waits until all started work is done.
    fn synchronize(&mut self) -> Result<(), DeviceError> {
        Ok(())
    }

    /// Its measurements of its arenas.
    fn memory(&self) -> MemoryReport;

    /// Bytes of the arenas' pages that are in memory now, as the system counts them: each arena rounded up to whole
    /// pages, unless some of it was swapped out. `None` if the system does not report them, or includes other
    /// processes' memory.
    fn resident_bytes(&self) -> Option<u64> {
        None
    }

    /// The part of them that is this process's memory: all, unless the device has its own memory.
    fn resident_in_process_bytes(&self) -> Option<u64> {
        self.resident_bytes()
    }
}
