//! The processor as a device: arenas with a hard byte budget, and the fast kernels on slices of them.
//!
//! Device and host share one memory here, but have separate arenas, so that plans run as on any other device. Steps run
//! one at a time in the order of their issue, so there is nothing to wait for.

use crate::arena::{FreeMemory, Supply};
use crate::host_runner::HostRunner;
use crate::{ArenaUse, Capabilities, Device, DeviceError, MemoryReport};
use plimsoll_graph::{DeviceKind, MemoryId, PerMemory, Scalars, TensorId};
use plimsoll_plan::{Plan, Region, Step};
use std::borrow::Cow;

/// The processor's cores and memory. Kernels run in the caller's rayon pool.
#[derive(Debug, Default)]
pub struct CpuDevice {
    runner: Option<HostRunner>,
    supply: Supply,
    arenas: PerMemory<ArenaUse>,
}

impl CpuDevice {
    /// A device without an arena, which allocates without checking the free memory.
    pub fn new() -> Self {
        Self::default()
    }

    /// A device without an arena, which allocates no more than is free: systems overcommit, and kill the process that
    /// then uses the memory.
    pub fn within(free: FreeMemory) -> Self {
        Self { supply: Supply::of(free), ..Self::default() }
    }

    fn runner(&mut self) -> &mut HostRunner {
        self.runner.as_mut().expect("a plan is loaded before anything runs")
    }

    fn touch(&mut self, memory: MemoryId, region: Region) {
        self.arenas[memory].touch(region.end());
    }
}

fn check_size(plan: &Plan, tensor: TensorId, found: usize) -> Result<Region, DeviceError> {
    let region = plan[tensor].region();
    if region.bytes == found as u64 {
        return Ok(region);
    }
    let tensor = plan[tensor].name.clone();
    Err(DeviceError::WrongSize { tensor, expected: region.bytes, found: found as u64 })
}

impl Device for CpuDevice {
    fn capabilities(&self) -> Capabilities {
        Capabilities { name: "CPU".to_owned(), kind: Some(DeviceKind::Cpu) }
    }

    fn load(&mut self, plan: &Plan) -> Result<(), DeviceError> {
        self.runner = None;
        let arenas = self.supply.reserve(&plan.arenas())?;
        self.arenas = arenas.map(|_, arena| ArenaUse::untouched(arena.size()));
        self.runner = Some(HostRunner::new(arenas));
        Ok(())
    }

    fn can_exchange(&self, loaded: &Plan, next: &Plan) -> bool {
        Supply::can_resize(&loaded.arenas(), &next.arenas())
    }

    fn exchange(&mut self, _: &Plan, next: &Plan) -> Result<(), DeviceError> {
        let runner = self.runner.as_mut().expect("a plan is loaded before another one");
        self.supply.resize(runner.arenas_mut(), &next.arenas())?;
        self.arenas = next.arenas().map(|_, &bytes| ArenaUse::untouched(bytes));
        Ok(())
    }

    fn write(&mut self, plan: &Plan, tensor: TensorId, bytes: &[u8]) -> Result<(), DeviceError> {
        let (memory, region) = (plan[tensor].memory, check_size(plan, tensor, bytes.len())?);
        self.touch(memory, region);
        self.runner().arena_mut(memory).bytes_mut(region).copy_from_slice(bytes);
        Ok(())
    }

    fn write_part(&mut self, plan: &Plan, tensor: TensorId, offset: u64, bytes: &[u8]) -> Result<(), DeviceError> {
        let (memory, whole) = (plan[tensor].memory, plan[tensor].region());
        let end = offset + bytes.len() as u64;
        if end > whole.bytes {
            let tensor = plan[tensor].name.clone();
            return Err(DeviceError::WrongSize { tensor, expected: whole.bytes, found: end });
        }
        let part = Region { offset: whole.offset + offset, bytes: bytes.len() as u64 };
        self.touch(memory, part);
        self.runner().arena_mut(memory).bytes_mut(part).copy_from_slice(bytes);
        Ok(())
    }

    fn read(&mut self, plan: &Plan, tensor: TensorId, bytes: &mut [u8]) -> Result<(), DeviceError> {
        let (memory, region) = (plan[tensor].memory, check_size(plan, tensor, bytes.len())?);
        self.touch(memory, region);
        bytes.copy_from_slice(self.runner().arena(memory).bytes(region));
        Ok(())
    }

    fn view(&self, plan: &Plan, tensor: TensorId) -> Result<Cow<'_, [u8]>, DeviceError> {
        let runner = self.runner.as_ref().expect("a plan is loaded before anything is read");
        Ok(Cow::Borrowed(runner.arena(plan[tensor].memory).bytes(plan[tensor].region())))
    }

    fn run(&mut self, plan: &Plan, step: &Step, scalars: &Scalars) -> Result<(), DeviceError> {
        for &id in step.inputs.iter().chain(&step.outputs) {
            self.touch(plan[id].memory, plan[id].region());
        }
        if let Some(region) = step.scratch {
            self.touch(step.memory, region);
        }
        self.runner().run(plan, step, scalars);
        Ok(())
    }

    fn memory(&self) -> MemoryReport {
        MemoryReport { arenas: self.arenas.clone(), allocations: self.supply.requests() }
    }

    fn resident_bytes(&self) -> Option<u64> {
        self.runner.as_ref()?.resident_bytes()
    }
}
