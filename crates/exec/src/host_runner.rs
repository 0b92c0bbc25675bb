//! Runs steps with the processor's kernels, on slices of its arenas: all steps if the processor is the device, the
//! host's steps for any other device.

use crate::arena::Arena;
use crate::call::{Call, Input, Output};
use crate::cpu;
use plimsoll_graph::{DType, Io, MemoryId, PerMemory, Scalars, TensorId};
use plimsoll_plan::{Plan, Region, Step};

/// An arena for each memory; empty for memory that the processor cannot address, such as a card's.
#[derive(Debug)]
pub(crate) struct HostRunner {
    arenas: PerMemory<Arena>,
}

/// Regions of one arena that a step uses together.
#[derive(Default)]
struct Regions {
    shared: Vec<Region>,
    exclusive: Vec<Region>,
}

impl HostRunner {
    /// Runs steps on these arenas: the device's and the host's.
    pub(crate) fn new(arenas: PerMemory<Arena>) -> Self {
        Self { arenas }
    }

    /// The arena of a memory.
    pub(crate) fn arena(&self, memory: MemoryId) -> &Arena {
        &self.arenas[memory]
    }

    /// All arenas, mutable.
    pub(crate) fn arenas_mut(&mut self) -> &mut PerMemory<Arena> {
        &mut self.arenas
    }

    /// Bytes of all arenas that the system keeps in memory; `None` if it does not report them.
    pub(crate) fn resident_bytes(&self) -> Option<u64> {
        self.arenas.values().map(Arena::resident_bytes).sum()
    }

    /// The arena of a memory, mutable.
    pub(crate) fn arena_mut(&mut self, memory: MemoryId) -> &mut Arena {
        &mut self.arenas[memory]
    }

    /// Runs one step in the caller's rayon pool. Panics if it accesses bytes outside these arenas, or the same bytes
    /// twice.
    pub(crate) fn run(&mut self, plan: &Plan, step: &Step, scalars: &Scalars) {
        let place_of = |id: TensorId| (plan[id].memory, plan[id].region());
        let outputs = step.outputs.iter().map(|&id| place_of(id)).collect::<Vec<_>>();
        // An operand that shares the memory of an output gets no slice of its own.
        let in_output = |index: usize| {
            let here = place_of(step.inputs[index]);
            step.op.reuse().iter().any(|&(i, o)| i == index && outputs.get(o) == Some(&here))
        };
        let separate = (0..step.inputs.len()).filter(|&i| !in_output(i)).collect::<Vec<_>>();
        let mut regions = self.arenas.map(|_, _| Regions::default());
        for &index in &separate {
            let (memory, region) = place_of(step.inputs[index]);
            regions[memory].shared.push(region);
        }
        let scratch_place = step.scratch.map(|region| (step.memory, region));
        for (memory, region) in outputs.iter().copied().chain(scratch_place) {
            regions[memory].exclusive.push(region);
        }
        let (mut read, mut written) = (PerMemory::default(), PerMemory::default());
        for (arena, Regions { shared, exclusive }) in self.arenas.values_mut().zip(regions.values()) {
            let (of_shared, of_exclusive) = arena.split(shared, exclusive);
            read.push(of_shared.into_iter());
            written.push(of_exclusive.into_iter());
        }

        let mut inputs = vec![Input::InOutput; step.inputs.len()];
        for &index in &separate {
            let tensor = &plan[step.inputs[index]];
            let bytes = read[tensor.memory].next().expect("a slice for each operand");
            inputs[index] = match tensor.dtype() {
                DType::F32 => Input::F32(bytemuck::cast_slice(bytes)),
                DType::I32 => Input::I32(bytemuck::cast_slice(bytes)),
                DType::F16 | DType::Bf16 | DType::I16 | DType::U8 => Input::Raw(bytes),
            };
        }
        let outputs = step.outputs.iter().map(|&id| {
            let bytes = written[plan[id].memory].next().expect("a slice for each result");
            match plan[id].dtype() {
                DType::F32 => Output::F32(bytemuck::cast_slice_mut(bytes)),
                _ => Output::Raw(bytes),
            }
        });
        let outputs = outputs.collect();
        let scratch = scratch_place.and_then(|(memory, _)| written[memory].next()).map_or(&mut [][..], |bytes| {
            let whole = bytes.len() / 4 * 4;
            bytemuck::cast_slice_mut(&mut bytes[..whole])
        });
        let io = Io {
            inputs: step.inputs.iter().map(|&id| &plan[id].ty).collect(),
            outputs: step.outputs.iter().map(|&id| &plan[id].ty).collect(),
        };
        let threads = plan.target(step).threads();
        let scalars = &scalars.of(step.pass);
        cpu::run(&step.op, Call { inputs, outputs, scratch, io, scalars, threads });
    }
}
