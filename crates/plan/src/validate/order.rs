//! Proves that steps of different queues which touch the same bytes are ordered by waits: it checks each pair that waits do
//! not order.

use super::PlanViolation;
use crate::plan::{Plan, PlannedProgram, Region, Step};
use crate::queue::Queue;
use plimsoll_graph::{MemoryId, Op};

/// A step, the queue that it runs on, and the bytes that it touches.
struct Touching {
    queue: Queue,
    reads: Vec<(MemoryId, Region)>,
    writes: Vec<(MemoryId, Region)>,
    /// What was sent, and may be overwritten from here on.
    awaits: Vec<(MemoryId, Region)>,
}

impl Touching {
    fn new(plan: &Plan, step: &Step) -> Self {
        let memory = |id: &plimsoll_graph::TensorId| (plan[*id].memory, plan[*id].region());
        let scratch = step.scratch.map(|region| (step.memory, region));
        let reads = step.inputs.iter().map(memory).collect::<Vec<_>>();
        let awaits = if matches!(step.op, Op::AwaitTransfer(_)) { reads.clone() } else { Vec::new() };
        let writes = step.outputs.iter().map(memory).chain(scratch).collect();
        Self { queue: plan.queue(step), reads, writes, awaits }
    }

    /// Whether this must wait for an earlier one that nothing else orders.
    fn needs(&self, earlier: &Self) -> bool {
        let meet = |a: &[(MemoryId, Region)], b: &[(MemoryId, Region)]| {
            a.iter().any(|(memory, x)| {
                b.iter().any(|(other, y)| memory == other && x.offset < y.end() && y.offset < x.end())
            })
        };
        meet(&self.writes, &earlier.writes)
            || meet(&self.writes, &earlier.reads)
            || meet(&self.reads, &earlier.writes)
            || meet(&self.awaits, &earlier.reads)
    }
}

/// For each queue, the last of its steps that is known to have finished.
type Done = [Option<usize>; Queue::ALL.len()];

/// Errors: `BadWait` for a wait on a later step or on one of the same queue, `Unordered` for two steps that touch the
/// same bytes, one of them writing, with nothing that orders them.
pub(super) fn check_order(plan: &Plan, program: &PlannedProgram) -> Result<(), PlanViolation> {
    let steps = program.steps.iter().map(|step| Touching::new(plan, step)).collect::<Vec<_>>();
    let mut of_queue = [const { Vec::<usize>::new() }; Queue::ALL.len()];
    // What has finished when the next step of a queue starts, and after each step.
    let mut at_start = [Done::default(); Queue::ALL.len()];
    let mut after = Vec::<Done>::with_capacity(steps.len());
    for (index, step) in steps.iter().enumerate() {
        let done = &mut at_start[step.queue as usize];
        for &on in &program.steps[index].waits {
            if on as usize >= index || steps[on as usize].queue == step.queue {
                return Err(PlanViolation::BadWait { program: program.name.to_string(), step: index, on });
            }
            for (queue, last) in after[on as usize].into_iter().enumerate() {
                done[queue] = done[queue].max(last);
            }
        }
        for other in Queue::ALL.into_iter().filter(|&queue| queue != step.queue) {
            let last_done = done[other as usize];
            let mut unordered = of_queue[other as usize].iter().rev().take_while(|&&earlier| Some(earlier) > last_done);
            if let Some(&earlier) = unordered.find(|&&earlier| step.needs(&steps[earlier])) {
                let name = |index: usize| format!("{} (plan step {index})", program.steps[index].op.name());
                let (first, second) = (name(earlier), name(index));
                return Err(PlanViolation::Unordered { program: program.name.to_string(), first, second });
            }
        }
        done[step.queue as usize] = Some(index);
        after.push(*done);
        of_queue[step.queue as usize].push(index);
    }
    Ok(())
}
