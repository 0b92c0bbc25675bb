//! The processor as a device: arenas with a hard byte budget, and the fast kernels on slices of them.
//!
//! The device's memory and the host's are the same here, but not the arenas: what a plan lays around the device lies
//! in an arena of its own, so that a plan is carried out as on any other device.

use crate::arena::Arena;
use crate::call::{Call, Input, Output};
use crate::{Device, DeviceError, MemoryReport, cpu};
use graph::{DType, Io, Scalars, Space, TensorId};
use plan::{Plan, Region, Step};
use std::borrow::Cow;

/// The processor's cores and memory. Kernels run in the rayon pool that the caller is in.
#[derive(Debug, Default)]
pub struct CpuDevice {
    arenas: Option<Arenas>,
    memory: MemoryReport,
}

/// One arena for each memory.
#[derive(Debug)]
struct Arenas {
    device: Arena,
    host: Arena,
}

/// Regions of one memory that a step uses together.
#[derive(Default)]
struct Regions {
    shared: Vec<Region>,
    exclusive: Vec<Region>,
}

impl CpuDevice {
    /// A device without an arena yet.
    pub fn new() -> Self {
        Self::default()
    }

    fn arena(&mut self, space: Space) -> &mut Arena {
        let arenas = self.arenas.as_mut().expect("a plan is loaded before anything runs");
        match space {
            Space::Device => &mut arenas.device,
            Space::Host => &mut arenas.host,
        }
    }

    fn touch(&mut self, space: Space, region: Region) {
        let mark = match space {
            Space::Device => &mut self.memory.high_water_bytes,
            Space::Host => &mut self.memory.host_high_water_bytes,
        };
        *mark = region.end().max(*mark);
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
        self.arenas = None;
        let device = Arena::reserve(plan.peak_bytes)?;
        self.arenas = Some(Arenas { device, host: Arena::reserve(plan.host_bytes)? });
        self.memory = MemoryReport {
            reserved_bytes: plan.peak_bytes,
            host_reserved_bytes: plan.host_bytes,
            allocations: self.memory.allocations + 1,
            ..MemoryReport::default()
        };
        Ok(())
    }

    fn write(&mut self, plan: &Plan, tensor: TensorId, bytes: &[u8]) -> Result<(), DeviceError> {
        let (space, region) = (plan[tensor].space, check_size(plan, tensor, bytes.len())?);
        self.touch(space, region);
        self.arena(space).bytes_mut(region).copy_from_slice(bytes);
        Ok(())
    }

    fn read(&mut self, plan: &Plan, tensor: TensorId, bytes: &mut [u8]) -> Result<(), DeviceError> {
        let (space, region) = (plan[tensor].space, check_size(plan, tensor, bytes.len())?);
        self.touch(space, region);
        bytes.copy_from_slice(self.arena(space).bytes(region));
        Ok(())
    }

    fn view(&self, plan: &Plan, tensor: TensorId) -> Result<Cow<'_, [u8]>, DeviceError> {
        let arenas = self.arenas.as_ref().expect("a plan is loaded before anything is read");
        let arena = match plan[tensor].space {
            Space::Device => &arenas.device,
            Space::Host => &arenas.host,
        };
        Ok(Cow::Borrowed(arena.bytes(plan[tensor].region())))
    }

    fn run(&mut self, plan: &Plan, step: &Step, scalars: &Scalars) -> Result<(), DeviceError> {
        let place = |id: TensorId| (plan[id].space, plan[id].region());
        let outputs = step.outputs.iter().map(|&id| place(id)).collect::<Vec<_>>();
        // An operand that lies exactly where one of the op's outputs lies is not handed out a second time.
        let in_output = |index: usize| {
            let here = place(step.inputs[index]);
            step.op.reuse().iter().any(|&(i, o)| i == index && outputs.get(o) == Some(&here))
        };
        let separate = (0..step.inputs.len()).filter(|&i| !in_output(i)).collect::<Vec<_>>();
        let mut regions = [Regions::default(), Regions::default()];
        for &index in &separate {
            let (space, region) = place(step.inputs[index]);
            self.touch(space, region);
            regions[space as usize].shared.push(region);
        }
        let scratch_place = step.scratch.map(|region| (step.space, region));
        for (space, region) in outputs.iter().copied().chain(scratch_place) {
            self.touch(space, region);
            regions[space as usize].exclusive.push(region);
        }
        let arenas = self.arenas.as_mut().expect("a plan is loaded before anything runs");
        let [of_device, of_host] = &regions;
        let (device_read, device_written) = arenas.device.split(&of_device.shared, &of_device.exclusive);
        let (host_read, host_written) = arenas.host.split(&of_host.shared, &of_host.exclusive);
        let mut read = [device_read.into_iter(), host_read.into_iter()];
        let mut written = [device_written.into_iter(), host_written.into_iter()];

        let mut inputs = vec![Input::InOutput; step.inputs.len()];
        for &index in &separate {
            let tensor = &plan[step.inputs[index]];
            let bytes = read[tensor.space as usize].next().expect("a slice for each operand");
            inputs[index] = match tensor.dtype() {
                DType::F32 => Input::F32(bytemuck::cast_slice(bytes)),
                DType::I32 => Input::I32(bytemuck::cast_slice(bytes)),
                DType::F16 | DType::Bf16 | DType::U8 => Input::Raw(bytes),
            };
        }
        let outputs = step.outputs.iter().map(|&id| {
            let bytes = written[plan[id].space as usize].next().expect("a slice for each result");
            match plan[id].dtype() {
                DType::F32 => Output::F32(bytemuck::cast_slice_mut(bytes)),
                _ => Output::Raw(bytes),
            }
        });
        let outputs = outputs.collect();
        let scratch =
            scratch_place.and_then(|(space, _)| written[space as usize].next()).map_or(&mut [][..], |bytes| {
                let whole = bytes.len() / 4 * 4;
                bytemuck::cast_slice_mut(&mut bytes[..whole])
            });
        let io = Io {
            inputs: step.inputs.iter().map(|&id| &plan[id].ty).collect(),
            outputs: step.outputs.iter().map(|&id| &plan[id].ty).collect(),
        };
        cpu::run(&step.op, Call { inputs, outputs, scratch, io, scalars, threads: plan.target.threads });
        Ok(())
    }

    fn memory(&self) -> MemoryReport {
        self.memory
    }
}
