//! The processor as a device: an arena with a hard byte budget, and the fast kernels on slices of it.

use crate::arena::Arena;
use crate::call::{Call, Input};
use crate::{Device, DeviceError, MemoryReport, cpu};
use graph::{DType, Io, Scalars, TensorId};
use plan::{Plan, Region, Step};
use std::borrow::Cow;

/// The processor's cores and memory. Kernels run in the rayon pool that the caller is in.
#[derive(Debug, Default)]
pub struct CpuDevice {
    arena: Option<Arena>,
    memory: MemoryReport,
}

impl CpuDevice {
    /// A device without an arena yet.
    pub fn new() -> Self {
        Self::default()
    }

    fn arena(&mut self) -> &mut Arena {
        self.arena.as_mut().expect("a plan is loaded before anything runs")
    }

    fn touch(&mut self, region: Region) {
        self.memory.high_water_bytes = self.memory.high_water_bytes.max(region.end());
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
    fn load(&mut self, plan: &Plan) -> Result<(), DeviceError> {
        self.arena = None;
        self.arena = Some(Arena::reserve(plan.peak_bytes)?);
        self.memory.reserved_bytes = plan.peak_bytes;
        self.memory.high_water_bytes = 0;
        self.memory.allocations += 1;
        Ok(())
    }

    fn write(&mut self, plan: &Plan, tensor: TensorId, bytes: &[u8]) -> Result<(), DeviceError> {
        let region = check_size(plan, tensor, bytes.len())?;
        self.touch(region);
        self.arena().bytes_mut(region).copy_from_slice(bytes);
        Ok(())
    }

    fn read(&mut self, plan: &Plan, tensor: TensorId, bytes: &mut [u8]) -> Result<(), DeviceError> {
        let region = check_size(plan, tensor, bytes.len())?;
        self.touch(region);
        bytes.copy_from_slice(self.arena().bytes(region));
        Ok(())
    }

    fn view(&self, plan: &Plan, tensor: TensorId) -> Result<Cow<'_, [u8]>, DeviceError> {
        let arena = self.arena.as_ref().expect("a plan is loaded before anything is read");
        Ok(Cow::Borrowed(arena.bytes(plan[tensor].region())))
    }

    fn run(&mut self, plan: &Plan, step: &Step, scalars: &Scalars) -> Result<(), DeviceError> {
        let outputs = step.outputs.iter().map(|&id| plan[id].region()).collect::<Vec<_>>();
        // An operand that lies exactly where one of the op's outputs lies is not handed out a second time.
        let in_output = |index: usize| {
            let region = plan[step.inputs[index]].region();
            step.op.reuse().iter().any(|&(i, o)| i == index && outputs.get(o) == Some(&region))
        };
        let separate = (0..step.inputs.len()).filter(|&i| !in_output(i)).collect::<Vec<_>>();
        let shared = separate.iter().map(|&i| plan[step.inputs[i]].region()).collect::<Vec<_>>();
        let mut exclusive = outputs;
        exclusive.extend(step.scratch);
        for region in shared.iter().chain(&exclusive) {
            self.touch(*region);
        }
        let (read, mut written) = self.arena().split(&shared, &exclusive);
        let scratch = if step.scratch.is_some() { written.pop() } else { None };
        let mut inputs = vec![Input::InOutput; step.inputs.len()];
        for (&index, bytes) in separate.iter().zip(read) {
            inputs[index] = match plan[step.inputs[index]].dtype() {
                DType::F32 => Input::F32(bytemuck::cast_slice(bytes)),
                DType::I32 => Input::I32(bytemuck::cast_slice(bytes)),
            };
        }
        let call = Call {
            inputs,
            outputs: written.into_iter().map(bytemuck::cast_slice_mut).collect(),
            scratch: scratch.map_or(&mut [], |bytes| {
                let whole = bytes.len() / 4 * 4;
                bytemuck::cast_slice_mut(&mut bytes[..whole])
            }),
            io: Io {
                inputs: step.inputs.iter().map(|&id| &plan[id].ty).collect(),
                outputs: step.outputs.iter().map(|&id| &plan[id].ty).collect(),
            },
            scalars,
            threads: plan.target.threads,
        };
        cpu::run(&step.op, call);
        Ok(())
    }

    fn memory(&self) -> MemoryReport {
        self.memory
    }
}
