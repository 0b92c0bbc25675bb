//! Proves that steps of different queues which touch the same bytes are ordered by waits: the slow way, each pair.

use super::PlanViolation;
use crate::plan::{Plan, PlannedProgram, Region, Step};
use crate::queues::Queue;
use graph::{Op, Place};

/// A step, the queue that it runs on, and the bytes that it touches.
struct Touching {
    queue: Queue,
    reads: Vec<(Place, Region)>,
    writes: Vec<(Place, Region)>,
    /// What was sent and may be written to from here on.
    awaits: Vec<(Place, Region)>,
}

impl Touching {
    fn new(plan: &Plan, step: &Step) -> Self {
        let place = |id: &graph::TensorId| (plan[*id].place, plan[*id].region());
        let scratch = step.scratch.map(|region| (step.place, region));
        let reads = step.inputs.iter().map(place).collect::<Vec<_>>();
        let awaits = if matches!(step.op, Op::AwaitTransfer(_)) { reads.clone() } else { Vec::new() };
        let writes = step.outputs.iter().map(place).chain(scratch).collect();
        Self { queue: plan.queue(step), reads, writes, awaits }
    }

    /// Whether this must come behind an earlier one, if nothing else orders them.
    fn needs(&self, earlier: &Self) -> bool {
        let meet = |a: &[(Place, Region)], b: &[(Place, Region)]| {
            a.iter()
                .any(|(place, x)| b.iter().any(|(other, y)| place == other && x.offset < y.end() && y.offset < x.end()))
        };
        meet(&self.writes, &earlier.writes)
            || meet(&self.writes, &earlier.reads)
            || meet(&self.reads, &earlier.writes)
            || meet(&self.awaits, &earlier.reads)
    }
}

/// Errors: `BadWait` for a wait on a later step or on one of the same queue, `Unordered` for two steps that touch the
/// same bytes, one of them writing, with nothing that orders them.
pub(super) fn check_order(plan: &Plan, program: &PlannedProgram) -> Result<(), PlanViolation> {
    let steps = program.steps.iter().map(|step| Touching::new(plan, step)).collect::<Vec<_>>();
    for (index, step) in program.steps.iter().enumerate() {
        let bad = |wait: &&u32| **wait as usize >= index || steps[**wait as usize].queue == steps[index].queue;
        if let Some(&on) = step.waits.iter().find(bad) {
            return Err(PlanViolation::BadWait { program: program.name.clone(), step: index, on });
        }
    }
    if steps.iter().all(|step| step.queue == Queue::Device) {
        return Ok(());
    }
    for (later, step) in steps.iter().enumerate() {
        let mut done_before = None;
        for (earlier, other) in steps[..later].iter().enumerate() {
            if other.queue == step.queue || !step.needs(other) {
                continue;
            }
            let done = done_before.get_or_insert_with(|| done_before_step(program, &steps, later));
            if !done[earlier] {
                let name = |index: usize| format!("{} (step {index})", program.steps[index].op.name());
                let (first, second) = (name(earlier), name(later));
                return Err(PlanViolation::Unordered { program: program.name.clone(), first, second });
            }
        }
    }
    Ok(())
}

/// Which steps are done when step `last` starts: those before it on its queue, those that it waits for, and so on.
fn done_before_step(program: &PlannedProgram, steps: &[Touching], last: usize) -> Vec<bool> {
    let mut done = vec![false; last];
    let mut open = vec![last];
    while let Some(step) = open.pop() {
        let before_it = (0..step).rev().find(|&earlier| steps[earlier].queue == steps[step].queue);
        let waits = program.steps[step].waits.iter().map(|&wait| wait as usize);
        for earlier in waits.chain(before_it) {
            if !std::mem::replace(&mut done[earlier], true) {
                open.push(earlier);
            }
        }
    }
    done
}
