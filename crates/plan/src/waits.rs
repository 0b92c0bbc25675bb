//! Which steps wait for which. A device with memory of its own runs four queues at the same time:
//!
//! ```text
//!   device     ████ norm ████ weight gradient ██████████████████     in order
//!   to host              ╲            ███ transfer                   in order
//!   host                  ╲ waits        ╲  █████ adamw              in order
//!   to device                             ╲       ╲ ██ transfer      in order
//! ```
//!
//! Steps of one queue run one after the other; those of different queues are ordered by [`Step::waits`] and by nothing
//! else. Waits are read off the bytes: where a step touches what another queue's step touches too, and one of them
//! writes, the later waits for the earlier. So they follow from the layout, which may give a tensor the bytes of an earlier one.

use crate::plan::{PlannedTensor, Region, Step};
use crate::queue::Queue;
use plimsoll_graph::{Memories, Op, PerMemory, TensorId};
use std::collections::BTreeMap;

/// For each queue, its last step that is known to have finished, or that must have.
type Clock = [Option<usize>; 4];

fn merge(clock: &mut Clock, other: &Clock) {
    for (mine, theirs) in clock.iter_mut().zip(other) {
        *mine = (*mine).max(*theirs);
    }
}

/// The last steps to touch some bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Touched {
    /// The step that wrote last: one at most.
    written: Clock,
    /// The steps that read what it wrote.
    read: Clock,
}

/// The last steps to touch each range of bytes. Ranges do not overlap: first byte -> the byte after the last, and the steps.
#[derive(Default)]
struct History(BTreeMap<u64, (u64, Touched)>);

impl History {
    /// Makes `region` a union of whole ranges, and calls `change` on each.
    fn touch(&mut self, region: Region, mut change: impl FnMut(&mut Touched)) {
        let (start, end) = (region.offset, region.end());
        if region.bytes == 0 {
            return;
        }
        for cut in [start, end] {
            let before = self.0.range(..cut).next_back().map(|(&from, &range)| (from, range));
            if let Some((from, (to, touched))) = before.filter(|(_, (to, _))| *to > cut) {
                self.0.insert(from, (cut, touched));
                self.0.insert(cut, (to, touched));
            }
        }
        let inside = self.0.range(start..end).map(|(&from, &(to, _))| (from, to)).collect::<Vec<_>>();
        let mut reached = start;
        for (from, to) in inside.into_iter().chain([(end, end)]) {
            if from > reached {
                self.0.insert(reached, (from, Touched::default()));
            }
            reached = to;
        }
        self.0.range_mut(start..end).for_each(|(_, (_, touched))| change(touched));
    }
}

/// Fills in the steps' waits. Those that others imply are left out.
pub(crate) fn fill_in_waits(steps: &mut [Step], tensors: &[PlannedTensor], memories: &Memories) {
    let queues = steps.iter().map(|step| queue_of(step, tensors, memories)).collect::<Vec<_>>();
    if queues.iter().all(|queue| *queue == Queue::Device) {
        return;
    }
    let mut history = memories.map(|_| History::default());
    // The steps that are known to have finished when the next step of a queue starts, and after each step.
    let mut known = [Clock::default(); 4];
    let mut done = Vec::<Clock>::with_capacity(steps.len());
    for (index, step) in steps.iter_mut().enumerate() {
        let queue = queues[index];
        let mut needed = touched_before(step, index, queue, tensors, &mut history);
        needed[queue as usize] = None;
        let mut needed = needed.into_iter().flatten().collect::<Vec<_>>();
        // The latest first: it may imply the others.
        needed.sort_unstable_by(|a, b| b.cmp(a));
        let clock = &mut known[queue as usize];
        for other in needed {
            if clock[queues[other] as usize] < Some(other) {
                step.waits.push(other as u32);
                merge(clock, &done[other]);
            }
        }
        clock[queue as usize] = Some(index);
        done.push(*clock);
    }
}

fn queue_of(step: &Step, tensors: &[PlannedTensor], memories: &Memories) -> Queue {
    let first = |ids: &[TensorId]| ids.first().map(|id| memories[tensors[id.index()].memory].kind);
    Queue::of(&step.op, memories[step.memory].kind, first(&step.inputs), first(&step.outputs))
}

/// Records what a step touches. Returns the last step of each queue that must finish before.
fn touched_before(
    step: &Step,
    index: usize,
    queue: Queue,
    tensors: &[PlannedTensor],
    history: &mut PerMemory<History>,
) -> Clock {
    let mut needed = Clock::default();
    let mut here = Clock::default();
    here[queue as usize] = Some(index);
    let place_of = |id: &TensorId| (tensors[id.index()].memory, tensors[id.index()].region());
    // A step that awaits a transfer does not write what was sent, but waits for its readers all the same.
    let awaits = matches!(step.op, Op::AwaitTransfer(_));
    for (memory, region) in step.inputs.iter().map(place_of) {
        history[memory].touch(region, |touched| {
            merge(&mut needed, &touched.written);
            if awaits {
                merge(&mut needed, &touched.read);
            }
            merge(&mut touched.read, &here);
        });
    }
    let scratch = step.scratch.map(|region| (step.memory, region));
    for (memory, region) in step.outputs.iter().map(place_of).chain(scratch) {
        history[memory].touch(region, |touched| {
            merge(&mut needed, &touched.written);
            merge(&mut needed, &touched.read);
            *touched = Touched { written: here, read: Clock::default() };
        });
    }
    needed
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_graph::MemoryId;
    use plimsoll_graph::ops::{Add, AwaitTransfer, Transfer};
    use plimsoll_graph::{Pass, Role, Storage, TensorType};

    fn tensor(memory: MemoryId, offset: u64) -> PlannedTensor {
        let (name, ty) = (format!("{memory:?} {offset}"), TensorType::f32(&[64]));
        PlannedTensor { name, ty, role: Role::Activation, storage: Storage::Transient, memory, offset }
    }

    fn step(op: impl Into<Op>, memory: MemoryId, inputs: &[u32], outputs: &[u32]) -> Step {
        let ids = |ids: &[u32]| ids.iter().map(|&id| TensorId(id)).collect();
        let (inputs, outputs) = (ids(inputs), ids(outputs));
        Step { op: op.into(), inputs, outputs, memory, scratch: None, pass: Pass::Forward, block: None, waits: vec![] }
    }

    fn waits(tensors: &[PlannedTensor], mut steps: Vec<Step>) -> Vec<Vec<u32>> {
        fill_in_waits(&mut steps, tensors, &Memories::default());
        steps.into_iter().map(|step| step.waits).collect()
    }

    #[test]
    fn readers_of_what_was_sent_wait_and_implied_waits_are_left_out() {
        let on = |memory| [0, 256, 512].map(|offset| tensor(memory, offset));
        // 0, 1, 2 on the device; 3, 4, 5 on the host.
        let tensors = [on(MemoryId::DEVICE), on(MemoryId::HOST)].concat();
        let steps = vec![
            step(Add, MemoryId::DEVICE, &[0, 0], &[1]),
            step(Transfer, MemoryId::DEVICE, &[1], &[3]),
            step(Add, MemoryId::HOST, &[3, 3], &[4]),
            step(Transfer, MemoryId::DEVICE, &[4], &[2]),
            // Reads 2, and writes 1, which the first transfer read: the second transfer knows that to be done.
            step(Add, MemoryId::DEVICE, &[2, 2], &[1]),
        ];
        assert_eq!(waits(&tensors, steps), [vec![], vec![0], vec![1], vec![2], vec![3]]);
    }

    #[test]
    fn steps_that_overwrite_bytes_wait_for_their_readers() {
        // 2 covers the end of 0 and the beginning of 1.
        let tensors = [
            tensor(MemoryId::DEVICE, 0),
            tensor(MemoryId::DEVICE, 256),
            tensor(MemoryId::DEVICE, 128),
            tensor(MemoryId::HOST, 0),
        ];
        let over = vec![
            step(Transfer, MemoryId::DEVICE, &[0], &[3]),
            step(Add, MemoryId::DEVICE, &[1, 1], &[2]),
            step(Transfer, MemoryId::DEVICE, &[3], &[1]),
        ];
        // The last waits for what was sent, and for the step that read and overwrote its destination.
        assert_eq!(waits(&tensors, over), [vec![], vec![0], vec![1]]);
    }

    #[test]
    fn awaiting_waits_for_the_transfer_and_nothing_waits_on_one_queue() {
        let tensors = [tensor(MemoryId::DEVICE, 0), tensor(MemoryId::HOST, 0), tensor(MemoryId::DEVICE, 256)];
        let steps = vec![
            step(Transfer, MemoryId::DEVICE, &[0], &[1]),
            step(AwaitTransfer, MemoryId::DEVICE, &[0], &[]),
            step(Add, MemoryId::DEVICE, &[2, 2], &[0]),
        ];
        assert_eq!(waits(&tensors, steps), [vec![], vec![0], vec![]]);
        let alone = vec![step(Add, MemoryId::DEVICE, &[0, 0], &[2]), step(Add, MemoryId::DEVICE, &[2, 2], &[0])];
        assert_eq!(waits(&tensors, alone), [[], []] as [[u32; 0]; 2]);
    }
}
