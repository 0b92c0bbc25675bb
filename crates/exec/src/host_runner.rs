//! Runs steps by the processor's kernels, on slices of arenas that it holds: all steps where the processor is the
//! device, those of the host beside any other device.

use crate::arena::Arena;
use crate::call::{Call, Input, Output};
use crate::cpu;
use plimsoll_graph::{DType, Io, Place, Scalars, TensorId};
use plimsoll_plan::{Plan, Region, Step};

/// The arenas of both places; that of the device is empty where the device keeps it elsewhere.
#[derive(Debug)]
pub(crate) struct HostRunner {
    arenas: [Arena; 2],
}

/// Regions of one arena that a step uses together.
#[derive(Default)]
struct Regions {
    shared: Vec<Region>,
    exclusive: Vec<Region>,
}

impl HostRunner {
    /// Runs on these: the device's and the host's.
    pub(crate) fn new(arenas: [Arena; 2]) -> Self {
        Self { arenas }
    }

    /// The arena of a place.
    pub(crate) fn arena(&self, place: Place) -> &Arena {
        &self.arenas[place as usize]
    }

    /// The arena of a place, to be written.
    pub(crate) fn arena_mut(&mut self, place: Place) -> &mut Arena {
        &mut self.arenas[place as usize]
    }

    /// Runs one step in the rayon pool of the caller. Panics if it touches bytes that no arena here has, or the same
    /// bytes twice.
    pub(crate) fn run(&mut self, plan: &Plan, step: &Step, scalars: &Scalars) {
        let place_of = |id: TensorId| (plan[id].place, plan[id].region());
        let outputs = step.outputs.iter().map(|&id| place_of(id)).collect::<Vec<_>>();
        // An operand that lies exactly where one of the op's outputs lies is not handed out a second time.
        let in_output = |index: usize| {
            let here = place_of(step.inputs[index]);
            step.op.reuse().iter().any(|&(i, o)| i == index && outputs.get(o) == Some(&here))
        };
        let separate = (0..step.inputs.len()).filter(|&i| !in_output(i)).collect::<Vec<_>>();
        let mut regions = [Regions::default(), Regions::default()];
        for &index in &separate {
            let (place, region) = place_of(step.inputs[index]);
            regions[place as usize].shared.push(region);
        }
        let scratch_place = step.scratch.map(|region| (step.place, region));
        for (place, region) in outputs.iter().copied().chain(scratch_place) {
            regions[place as usize].exclusive.push(region);
        }
        let [device, host] = &mut self.arenas;
        let [of_device, of_host] = &regions;
        let (device_read, device_written) = device.split(&of_device.shared, &of_device.exclusive);
        let (host_read, host_written) = host.split(&of_host.shared, &of_host.exclusive);
        let mut read = [device_read.into_iter(), host_read.into_iter()];
        let mut written = [device_written.into_iter(), host_written.into_iter()];

        let mut inputs = vec![Input::InOutput; step.inputs.len()];
        for &index in &separate {
            let tensor = &plan[step.inputs[index]];
            let bytes = read[tensor.place as usize].next().expect("a slice for each operand");
            inputs[index] = match tensor.dtype() {
                DType::F32 => Input::F32(bytemuck::cast_slice(bytes)),
                DType::I32 => Input::I32(bytemuck::cast_slice(bytes)),
                DType::F16 | DType::Bf16 | DType::I16 | DType::U8 => Input::Raw(bytes),
            };
        }
        let outputs = step.outputs.iter().map(|&id| {
            let bytes = written[plan[id].place as usize].next().expect("a slice for each result");
            match plan[id].dtype() {
                DType::F32 => Output::F32(bytemuck::cast_slice_mut(bytes)),
                _ => Output::Raw(bytes),
            }
        });
        let outputs = outputs.collect();
        let scratch =
            scratch_place.and_then(|(place, _)| written[place as usize].next()).map_or(&mut [][..], |bytes| {
                let whole = bytes.len() / 4 * 4;
                bytemuck::cast_slice_mut(&mut bytes[..whole])
            });
        let io = Io {
            inputs: step.inputs.iter().map(|&id| &plan[id].ty).collect(),
            outputs: step.outputs.iter().map(|&id| &plan[id].ty).collect(),
        };
        let threads = plan.targets[step.place].threads();
        cpu::run(&step.op, Call { inputs, outputs, scratch, io, scalars, threads });
    }
}
