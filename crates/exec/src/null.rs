//! A device without arithmetic. It checks every step of a plan against the bytes: bounds, and that operands still
//! contain the values that were written to them; and it measures the high-water mark.
//!
//! It tracks which tensor wrote each byte last, as a map from ranges to tensors, and shares no code with the planner.

use crate::{ArenaUse, Capabilities, Device, DeviceError, MemoryReport};
use plimsoll_graph::{Access, MemoryId, PerMemory, Scalars, Storage, TensorId};
use plimsoll_plan::{Plan, PlannedProgram, Queue, Region, Step};
use std::borrow::Cow;
use std::collections::BTreeMap;

/// The order of steps of different queues, as far as their waits allow. A plan must be correct in each.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Order {
    /// In the order of issue.
    #[default]
    Issued,
    /// Each queue as early as possible, the device's last.
    Eager,
    /// Each queue only when another one, or the program's end, waits for it; the device's first.
    Late,
}

/// The last writer of a range of bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Owner {
    Tensor(TensorId),
    Scratch,
    Scalars,
}

/// Checks instead of computing.
#[derive(Debug, Default)]
pub struct NullDevice {
    order: Order,
    /// For each memory: start of a range -> its end and its writer. Ranges don't overlap.
    written: PerMemory<BTreeMap<u64, (u64, Owner)>>,
    memory: MemoryReport,
    /// Whether the last program used carried tensors, which therefore still contain its values.
    carries: bool,
}

impl NullDevice {
    /// A device without an arena.
    pub fn new() -> Self {
        Self::default()
    }

    /// A device that runs queues in this order.
    pub fn with_order(order: Order) -> Self {
        Self { order, ..Self::default() }
    }

    /// Records that `owner` wrote `region`, which loses its previous contents.
    fn overwrite(&mut self, memory: MemoryId, region: Region, owner: Owner) {
        if region.bytes == 0 {
            return;
        }
        let (start, end) = (region.offset, region.end());
        if let Some((last, previous)) = self.written[memory].get_mut(&start)
            && *last == end
        {
            *previous = owner;
            return;
        }
        let overlapping = self.overlapping(memory, region).collect::<Vec<_>>();
        let written = &mut self.written[memory];
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

    fn overlapping(&self, memory: MemoryId, region: Region) -> impl Iterator<Item = (u64, (u64, Owner))> + '_ {
        let written = &self.written[memory];
        let before = written.range(..region.offset).next_back();
        let inside = written.range(region.offset..region.end());
        before.into_iter().chain(inside).map(|(&s, &v)| (s, v)).filter(move |(_, (end, _))| *end > region.offset)
    }

    /// Whether every byte of the region was last written by this owner.
    fn holds(&self, memory: MemoryId, region: Region, expected: Owner) -> bool {
        let mut reached = region.offset;
        for (start, (end, owner)) in self.overlapping(memory, region) {
            if start > reached || owner != expected {
                return false;
            }
            reached = end;
        }
        reached >= region.end()
    }

    fn touch(&mut self, what: &str, memory: MemoryId, region: Region) -> Result<(), DeviceError> {
        let arena = &mut self.memory.arenas[memory];
        if region.end() > arena.reserved_bytes {
            let problem = format!("{region:?} is outside the arena of {} bytes", arena.reserved_bytes);
            return Err(DeviceError::BadStep { step: what.to_owned(), problem });
        }
        arena.touch(region.end());
        Ok(())
    }

    fn expect(&mut self, what: &str, plan: &Plan, tensor: TensorId) -> Result<(), DeviceError> {
        let (memory, region) = (plan[tensor].memory, plan[tensor].region());
        self.touch(what, memory, region)?;
        if self.holds(memory, region, Owner::Tensor(tensor)) {
            return Ok(());
        }
        let problem = format!("`{}` does not contain the bytes written to it", plan[tensor].name);
        Err(DeviceError::BadStep { step: what.to_owned(), problem })
    }
}

/// The indices of a program's steps in an order that its waits allow. Errors: `BadStep` if they allow none.
fn ordered(plan: &Plan, program: &PlannedProgram, order: Order) -> Result<Vec<usize>, DeviceError> {
    let queues = program.steps.iter().map(|step| plan.queue(step)).collect::<Vec<_>>();
    let mut waiting =
        Queue::ALL.map(|queue| (0..queues.len()).filter(|&i| queues[i] == queue).rev().collect::<Vec<_>>());
    let mut done = vec![false; queues.len()];
    let mut result = Vec::with_capacity(queues.len());
    while result.len() < queues.len() {
        let may_run = |queue: &Queue| {
            let next = *waiting[*queue as usize].last()?;
            program.steps[next].waits.iter().all(|&wait| done.get(wait as usize) == Some(&true)).then_some(next)
        };
        let mut able = Queue::ALL.iter().filter_map(may_run);
        let next = match order {
            Order::Issued => able.min(),
            Order::Eager => able.next_back(),
            Order::Late => able.next(),
        };
        let Some(next) = next else {
            let problem = format!("{} of {} plan steps wait forever", queues.len() - result.len(), queues.len());
            return Err(DeviceError::BadStep { step: program.name.to_string(), problem });
        };
        waiting[queues[next] as usize].pop();
        done[next] = true;
        result.push(next);
    }
    Ok(result)
}

impl Device for NullDevice {
    fn capabilities(&self) -> Capabilities {
        Capabilities { name: "null".to_owned(), kind: None }
    }

    fn run_program(&mut self, plan: &Plan, program: usize, scalars: &Scalars) -> Result<(), DeviceError> {
        self.begin(plan, program);
        let program = &plan.programs[program];
        for index in ordered(plan, program, self.order)? {
            self.run(plan, &program.steps[index], scalars)?;
        }
        match plan.scalars {
            Some(region) if !self.holds(MemoryId::DEVICE, region, Owner::Scalars) => {
                let problem = format!("the run's scalars at {region:?} were overwritten");
                Err(DeviceError::BadStep { step: program.name.to_string(), problem })
            }
            _ => Ok(()),
        }
    }

    /// The arena is zeroed like any other, so persistent tensors have values from the start.
    fn load(&mut self, plan: &Plan) -> Result<(), DeviceError> {
        self.written = plan.memories.map(|_, _| BTreeMap::new());
        self.memory = MemoryReport {
            arenas: plan.memories.map(|_, planned| ArenaUse::untouched(planned.peak_bytes)),
            allocations: self.memory.allocations + 1,
        };
        for (index, tensor) in plan.tensors.iter().enumerate() {
            if tensor.storage == Storage::Persistent {
                self.touch("load", tensor.memory, tensor.region())?;
                self.overwrite(tensor.memory, tensor.region(), Owner::Tensor(TensorId(index as u32)));
            }
        }
        if let Some(region) = plan.scalars {
            self.touch("scalars", MemoryId::DEVICE, region)?;
            self.overwrite(MemoryId::DEVICE, region, Owner::Scalars);
        }
        Ok(())
    }

    fn can_exchange(&self, _: &Plan, _: &Plan) -> bool {
        true
    }

    /// What is not persistent is written again before it is read.
    fn exchange(&mut self, loaded: &Plan, next: &Plan) -> Result<(), DeviceError> {
        if !next.keeps_places_of(loaded) {
            let problem = "it does not keep the places of the loaded plan".to_owned();
            return Err(DeviceError::BadStep { step: "exchange".to_owned(), problem });
        }
        self.load(next)
    }

    fn write(&mut self, plan: &Plan, tensor: TensorId, _bytes: &[u8]) -> Result<(), DeviceError> {
        let (memory, region) = (plan[tensor].memory, plan[tensor].region());
        self.touch("write", memory, region)?;
        self.overwrite(memory, region, Owner::Tensor(tensor));
        Ok(())
    }

    fn write_part(&mut self, plan: &Plan, tensor: TensorId, offset: u64, bytes: &[u8]) -> Result<(), DeviceError> {
        let (memory, whole) = (plan[tensor].memory, plan[tensor].region());
        let part = Region { offset: whole.offset + offset, bytes: bytes.len() as u64 };
        if part.end() > whole.end() {
            let problem = format!("{part:?} ends after `{}`", plan[tensor].name);
            return Err(DeviceError::BadStep { step: "write".to_owned(), problem });
        }
        self.touch("write", memory, part)?;
        self.overwrite(memory, part, Owner::Tensor(tensor));
        Ok(())
    }

    fn read(&mut self, plan: &Plan, tensor: TensorId, _bytes: &mut [u8]) -> Result<(), DeviceError> {
        self.expect("read", plan, tensor)
    }

    fn view(&self, plan: &Plan, tensor: TensorId) -> Result<Cow<'_, [u8]>, DeviceError> {
        Ok(Cow::Owned(vec![0; plan[tensor].region().bytes as usize]))
    }

    /// A carried tensor that ops update in place may be used without being written after a program that carries
    /// nothing: its op tracks its contents. The next programs must find it unchanged.
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
                self.overwrite(plan[id].memory, plan[id].region(), Owner::Tensor(id));
            }
        }
    }

    fn run(&mut self, plan: &Plan, step: &Step, _scalars: &Scalars) -> Result<(), DeviceError> {
        let name = step.op.name();
        for &input in &step.inputs {
            self.expect(name, plan, input)?;
        }
        if let Some(region) = step.scratch {
            self.touch(name, step.memory, region)?;
            self.overwrite(step.memory, region, Owner::Scratch);
        }
        for (index, &output) in step.outputs.iter().enumerate() {
            if step.op.access(index) == Access::ReadWrite {
                self.expect(name, plan, output)?;
            }
            let (memory, region) = (plan[output].memory, plan[output].region());
            self.touch(name, memory, region)?;
            self.overwrite(memory, region, Owner::Tensor(output));
        }
        // No result of a step, and no operand that it may not consume, was overwritten by another output.
        for &output in &step.outputs {
            self.expect(name, plan, output)?;
        }
        for (index, &input) in step.inputs.iter().enumerate() {
            let consumed = step.op.reuse().iter().any(|&(i, o)| {
                let memory = |id: TensorId| (plan[id].memory, plan[id].region());
                i == index && step.outputs.get(o).is_some_and(|&out| memory(out) == memory(input))
            });
            if !consumed {
                self.expect(name, plan, input)?;
            }
        }
        Ok(())
    }

    fn memory(&self) -> MemoryReport {
        self.memory.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_a_range_around_an_overwritten_part_stay_valid() {
        let region = |offset, end| Region { offset, bytes: end - offset };
        let (first, second) = (Owner::Tensor(TensorId(1)), Owner::Tensor(TensorId(2)));
        let mut device =
            NullDevice { written: [BTreeMap::new(), BTreeMap::new()].into_iter().collect(), ..NullDevice::new() };
        device.overwrite(MemoryId::DEVICE, region(0, 100), first);
        device.overwrite(MemoryId::DEVICE, region(40, 60), second);
        let holds = |range: [u64; 2], owner| device.holds(MemoryId::DEVICE, region(range[0], range[1]), owner);
        assert!(holds([0, 40], first) && holds([40, 60], second) && holds([60, 100], first));
        assert!(!holds([0, 41], first) && !holds([59, 100], first) && !holds([39, 60], second));
        assert!(!holds([60, 101], first), "the last byte was never written");
        assert!(!device.holds(MemoryId::HOST, region(0, 40), first));
    }
}
