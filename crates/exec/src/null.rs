//! A device without arithmetic. It checks every step of a plan against the bytes: bounds, that operands still hold
//! what was written, that nothing else was laid over them; and it measures the high-water mark.
//!
//! It knows who wrote each byte last, as a map from ranges to tensors, and shares no code with the planner.

use crate::{Device, DeviceError, MemoryReport};
use graph::{Access, Scalars, Space, Storage, TensorId};
use plan::{Plan, Region, Step};
use std::borrow::Cow;
use std::collections::BTreeMap;

/// Who wrote a range of bytes last.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Owner {
    Tensor(TensorId),
    Scratch,
}

/// Checks instead of computing.
#[derive(Debug, Default)]
pub struct NullDevice {
    /// For each memory: start of a range -> its end and who wrote it. Ranges don't overlap.
    written: [BTreeMap<u64, (u64, Owner)>; 2],
    memory: MemoryReport,
    /// Whether the last program used carried tensors, which therefore still hold what it wrote.
    carries: bool,
}

impl NullDevice {
    /// A device without an arena yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Records that `owner` wrote `region`: whatever was there is lost.
    fn overwrite(&mut self, space: Space, region: Region, owner: Owner) {
        if region.bytes == 0 {
            return;
        }
        let (start, end) = (region.offset, region.end());
        let overlapping = self.overlapping(space, region);
        let written = &mut self.written[space as usize];
        for (first, (last, previous)) in overlapping {
            written.remove(&first);
            if first < start {
                written.insert(first, (start, previous));
            }
            if last > end {
                written.insert(end, (last, previous));
            }
        }
        written.insert(start, (end, owner));
    }

    fn overlapping(&self, space: Space, region: Region) -> Vec<(u64, (u64, Owner))> {
        let written = &self.written[space as usize];
        let before = written.range(..region.offset).next_back();
        let inside = written.range(region.offset..region.end());
        before.into_iter().chain(inside).map(|(&s, &v)| (s, v)).filter(|(_, (end, _))| *end > region.offset).collect()
    }

    /// Whether every byte of the region was last written as this tensor.
    fn holds(&self, space: Space, region: Region, tensor: TensorId) -> bool {
        let mut reached = region.offset;
        for (start, (end, owner)) in self.overlapping(space, region) {
            if start > reached || owner != Owner::Tensor(tensor) {
                return false;
            }
            reached = end;
        }
        reached >= region.end()
    }

    fn touch(&mut self, what: &str, space: Space, region: Region) -> Result<(), DeviceError> {
        let (reserved, mark) = match space {
            Space::Device => (self.memory.reserved_bytes, &mut self.memory.high_water_bytes),
            Space::Host => (self.memory.host_reserved_bytes, &mut self.memory.host_high_water_bytes),
        };
        if region.end() > reserved {
            let problem = format!("{region:?} lies outside the arena of {reserved} bytes");
            return Err(DeviceError::BadStep { step: what.to_owned(), problem });
        }
        *mark = region.end().max(*mark);
        Ok(())
    }

    fn expect(&mut self, what: &str, plan: &Plan, tensor: TensorId) -> Result<(), DeviceError> {
        let (space, region) = (plan[tensor].space, plan[tensor].region());
        self.touch(what, space, region)?;
        if self.holds(space, region, tensor) {
            return Ok(());
        }
        let problem = format!("`{}` does not hold what was written to it", plan[tensor].name);
        Err(DeviceError::BadStep { step: what.to_owned(), problem })
    }
}

impl Device for NullDevice {
    /// The arena is zeroed like any other, so persistent tensors hold something from the start.
    fn load(&mut self, plan: &Plan) -> Result<(), DeviceError> {
        self.written = Default::default();
        self.memory = MemoryReport {
            reserved_bytes: plan.peak_bytes,
            host_reserved_bytes: plan.host_bytes,
            allocations: self.memory.allocations + 1,
            ..MemoryReport::default()
        };
        for (index, tensor) in plan.tensors.iter().enumerate() {
            if tensor.storage == Storage::Persistent {
                self.touch("load", tensor.space, tensor.region())?;
                self.overwrite(tensor.space, tensor.region(), Owner::Tensor(TensorId(index as u32)));
            }
        }
        Ok(())
    }

    fn write(&mut self, plan: &Plan, tensor: TensorId, _bytes: &[u8]) -> Result<(), DeviceError> {
        let (space, region) = (plan[tensor].space, plan[tensor].region());
        self.touch("write", space, region)?;
        self.overwrite(space, region, Owner::Tensor(tensor));
        Ok(())
    }

    fn read(&mut self, plan: &Plan, tensor: TensorId, _bytes: &mut [u8]) -> Result<(), DeviceError> {
        self.expect("read", plan, tensor)
    }

    fn view(&self, plan: &Plan, tensor: TensorId) -> Result<Cow<'_, [u8]>, DeviceError> {
        Ok(Cow::Owned(vec![0; plan[tensor].region().bytes as usize]))
    }

    /// A carried tensor that ops update in place may be used without having been written after a program that carries
    /// nothing: its op keeps track of what is in it. The next programs must find it as the last one left it.
    fn begin(&mut self, plan: &Plan, program: usize) {
        let is_carried = |id: &TensorId| plan[*id].storage == Storage::Carried;
        let mut used = plan.programs[program].steps.iter().flat_map(|s| s.inputs.iter().chain(&s.outputs));
        let carried_before = std::mem::replace(&mut self.carries, used.any(is_carried));
        if carried_before || !self.carries {
            return;
        }
        for step in plan.programs.iter().flat_map(|p| &p.steps) {
            let updated = step.outputs.iter().enumerate().filter(|(i, _)| step.op.access(*i) == Access::ReadWrite);
            for (_, &id) in updated.filter(|(_, id)| is_carried(id)) {
                self.overwrite(plan[id].space, plan[id].region(), Owner::Tensor(id));
            }
        }
    }

    fn run(&mut self, plan: &Plan, step: &Step, _scalars: &Scalars) -> Result<(), DeviceError> {
        let name = step.op.name();
        for &input in &step.inputs {
            self.expect(name, plan, input)?;
        }
        if let Some(region) = step.scratch {
            self.touch(name, step.space, region)?;
            self.overwrite(step.space, region, Owner::Scratch);
        }
        for (index, &output) in step.outputs.iter().enumerate() {
            if step.op.access(index) == Access::ReadWrite {
                self.expect(name, plan, output)?;
            }
            let (space, region) = (plan[output].space, plan[output].region());
            self.touch(name, space, region)?;
            self.overwrite(space, region, Owner::Tensor(output));
        }
        // Nothing that a step wrote, nor an operand that it may not consume, was destroyed by another output.
        for &output in &step.outputs {
            self.expect(name, plan, output)?;
        }
        for (index, &input) in step.inputs.iter().enumerate() {
            let consumed = step.op.reuse().iter().any(|&(i, o)| {
                let place = |id: TensorId| (plan[id].space, plan[id].region());
                i == index && step.outputs.get(o).is_some_and(|&out| place(out) == place(input))
            });
            if !consumed {
                self.expect(name, plan, input)?;
            }
        }
        Ok(())
    }

    fn memory(&self) -> MemoryReport {
        self.memory
    }
}
