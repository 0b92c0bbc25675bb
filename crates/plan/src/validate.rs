//! Proves that a plan is sound, from the plan alone and the slow way. It shares no code with the solver, the layout or
//! the lifetimes that made the plan.

mod order;

use crate::budget::{Limit, PlannedMemory};
use crate::plan::{Plan, PlannedProgram, Region, Step};
use plimsoll_graph::{Access, Io, Memory, MemoryId, Op, Storage, TensorId};
use rayon::prelude::*;
use std::collections::BTreeMap;

/// What is wrong with a plan. Each is a bug of the planner, or a plan that was tampered with.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PlanViolation {
    /// Two tensors need the same bytes at the same time.
    #[error("program `{program}`: {first} and {second} overlap in space while both are live at plan step {step}")]
    Overlap {
        /// Program.
        program: String,
        /// Name and offset of one.
        first: String,
        /// Name and offset of the other.
        second: String,
        /// A step at which both are live.
        step: usize,
    },
    /// A tensor or scratch is outside the arena.
    #[error("{what} ends at byte {end}, the arena has {limit}")]
    OutOfBounds {
        /// Name.
        what: String,
        /// Where it ends.
        end: u64,
        /// Where it may end.
        limit: u64,
    },
    /// The arenas in a memory are larger than its budget.
    #[error("the plan needs {peak} bytes of the memory `{memory}`, but the budget is {budget}")]
    OverBudget {
        /// The memory.
        memory: MemoryId,
        /// Bytes of the arenas.
        peak: u64,
        /// Bytes allowed.
        budget: u64,
    },
    /// A tensor or a step names a memory that is not in the plan's table.
    #[error("{what} is in the memory `{memory}`, which the plan does not have")]
    UnknownMemory {
        /// Name.
        what: String,
        /// The memory.
        memory: MemoryId,
    },
    /// A tensor is read before anything wrote it.
    #[error("program `{program}`, plan step {step}: `{tensor}` is read before it is written")]
    ReadBeforeWrite {
        /// Program.
        program: String,
        /// Index of the step.
        step: usize,
        /// Name.
        tensor: String,
    },
    /// A step names a tensor that does not exist, or a type is not what its op takes or makes.
    #[error("program `{program}`, plan step {step}: {problem}")]
    IllTyped {
        /// Program.
        program: String,
        /// Index of the step.
        step: usize,
        /// What is wrong.
        problem: String,
    },
    /// A step waits for a step that is not before it, or that its own queue orders anyway.
    #[error(
        "program `{program}`, plan step {step}: waits for plan step {on}, which is not an earlier one of another queue"
    )]
    BadWait {
        /// Program.
        program: String,
        /// Index of the step.
        step: usize,
        /// Index of the other.
        on: u32,
    },
    /// Two steps of different queues touch the same bytes, and neither waits for the other.
    #[error(
        "program `{program}`: {first} and {second} touch the same bytes on different queues, and nothing orders them"
    )]
    Unordered {
        /// Program.
        program: String,
        /// Name of the one that is issued first.
        first: String,
        /// Name of the other.
        second: String,
    },
    /// An offset that vector loads can't use.
    #[error("{what} starts at byte {offset}, which is not a multiple of {alignment}")]
    Misaligned {
        /// Name.
        what: String,
        /// Its first byte.
        offset: u64,
        /// What the offset must be a multiple of.
        alignment: u64,
    },
}

/// A tensor, scratch or the scalars: bytes that are occupied from one step to another, both included.
struct Occupant {
    name: String,
    memory: MemoryId,
    region: Region,
    first: usize,
    last: usize,
    tensor: Option<TensorId>,
}

/// Checks bounds, alignment, types, reads before writes, that no two tensors overlap in both time and space, and that
/// what different queues do with the same bytes is ordered by waits.
pub fn validate(plan: &Plan) -> Result<(), PlanViolation> {
    for (memory, planned) in plan.memories.iter() {
        let Limit::Own(budget) = planned.limit else { continue };
        let is_in_it =
            |(id, other): &(MemoryId, &PlannedMemory)| *id == memory || other.limit == Limit::SharedWith(memory);
        let arenas = plan.memories.iter().filter(is_in_it).map(|(_, other)| other.peak_bytes);
        let peak = arenas.fold(0, u64::saturating_add);
        if peak > budget.0 {
            return Err(PlanViolation::OverBudget { memory, peak, budget: budget.0 });
        }
    }
    for tensor in &plan.tensors {
        check_place(plan, &tensor.name, tensor.memory, tensor.region())?;
    }
    let checked = plan.programs.par_iter().map(|program| check_program(plan, program)).collect::<Vec<_>>();
    checked.into_iter().collect()
}

fn check_program(plan: &Plan, program: &PlannedProgram) -> Result<(), PlanViolation> {
    for (index, step) in program.steps.iter().enumerate() {
        check_types(plan, program, index, step)?;
    }
    let mut occupants = occupants(plan, program)?;
    for occupant in &occupants {
        check_place(plan, &occupant.name, occupant.memory, occupant.region)?;
    }
    // Sorted by first byte: once one begins after the end of `low`, no later one overlaps with it.
    occupants.sort_by_key(|occupant| (occupant.memory, occupant.region.offset));
    for (index, low) in occupants.iter().enumerate() {
        let meets = |high: &&Occupant| high.memory == low.memory && high.region.offset < low.region.end();
        for high in occupants[index + 1..].iter().take_while(meets) {
            check_pair(program, low, high)?;
        }
    }
    order::check_order(plan, program)
}

fn check_place(plan: &Plan, what: &str, memory: MemoryId, region: Region) -> Result<(), PlanViolation> {
    let Some(&PlannedMemory { memory: Memory { alignment, .. }, peak_bytes: limit, .. }) = plan.memories.get(memory)
    else {
        return Err(PlanViolation::UnknownMemory { what: what.to_owned(), memory });
    };
    let end = region.offset.saturating_add(region.bytes);
    if end > limit {
        return Err(PlanViolation::OutOfBounds { what: what.to_owned(), end, limit });
    }
    if !region.offset.is_multiple_of(alignment) {
        let offset = region.offset;
        return Err(PlanViolation::Misaligned { what: what.to_owned(), offset, alignment });
    }
    Ok(())
}

fn check_types(plan: &Plan, program: &PlannedProgram, index: usize, step: &Step) -> Result<(), PlanViolation> {
    let ill = |problem: String| PlanViolation::IllTyped { program: program.name.to_string(), step: index, problem };
    if let Some(id) = step.inputs.iter().chain(&step.outputs).find(|id| id.index() >= plan.tensors.len()) {
        return Err(ill(format!("tensor {} does not exist", id.index())));
    }
    if plan.memories.get(step.memory).is_none() {
        return Err(PlanViolation::UnknownMemory { what: step.op.name().to_owned(), memory: step.memory });
    }
    let moves = matches!(step.op, Op::Transfer(_) | Op::AwaitTransfer(_));
    if let Some(id) = step.inputs.iter().chain(&step.outputs).find(|id| !moves && plan[**id].memory != step.memory) {
        return Err(ill(format!("{} works in another memory than `{}` rests in", step.op.name(), plan[*id].name)));
    }
    let types = |ids: &[TensorId]| ids.iter().map(|&id| &plan[id].ty).collect();
    let io = Io { inputs: types(&step.inputs), outputs: types(&step.outputs) };
    let made = step.op.infer(&io.inputs).map_err(|e| ill(e.to_string()))?;
    if made.iter().ne(io.outputs.iter().copied()) {
        return Err(ill(format!("{} makes {made:?}, the plan has {:?}", step.op.name(), io.outputs)));
    }
    let needed = step.op.working_bytes(&io, plan.target(step)).0;
    let given = step.scratch.map_or(0, |s| s.bytes);
    if needed != given {
        return Err(ill(format!("{} declares {needed} bytes of scratch, the plan gives {given}", step.op.name())));
    }
    Ok(())
}

/// What occupies the arena while the program runs. Step 0 is the feeding by the host, the last one the fetching.
fn occupants(plan: &Plan, program: &PlannedProgram) -> Result<Vec<Occupant>, PlanViolation> {
    let end = program.steps.len() + 1;
    let mut lives = BTreeMap::<TensorId, (usize, usize)>::new();
    let stays = |id: TensorId| plan[id].storage != Storage::Transient;
    for id in program.ports.fed() {
        lives.insert(id, (0, 0));
    }
    for (index, step) in program.steps.iter().enumerate() {
        let updated = (0..step.outputs.len()).filter(|&i| step.op.access(i) == Access::ReadWrite);
        for id in step.inputs.iter().copied().chain(updated.map(|i| step.outputs[i])) {
            match lives.get_mut(&id) {
                Some(life) => life.1 = index + 1,
                None if stays(id) => {}
                None => {
                    let (program, tensor) = (program.name.to_string(), plan[id].name.clone());
                    return Err(PlanViolation::ReadBeforeWrite { program, step: index, tensor });
                }
            }
        }
        for id in step.outputs.iter().copied().filter(|&id| !stays(id)) {
            lives.entry(id).or_insert((index + 1, index + 1)).1 = index + 1;
        }
    }
    for id in program.ports.fetched().filter(|&id| !stays(id)) {
        match lives.get_mut(&id) {
            Some(life) => life.1 = end,
            None => {
                let (program, tensor) = (program.name.to_string(), plan[id].name.clone());
                return Err(PlanViolation::ReadBeforeWrite { program, step: end, tensor });
            }
        }
    }
    let mut used = program.steps.iter().flat_map(|s| s.inputs.iter().chain(&s.outputs));
    let uses_carried = used.any(|&id| plan[id].storage == Storage::Carried);
    let name = |id: TensorId| format!("`{}` at {}", plan[id].name, plan[id].offset);
    let mut result = Vec::new();
    for (index, tensor) in plan.tensors.iter().enumerate() {
        let id = TensorId(index as u32);
        if tensor.storage == Storage::Persistent || (uses_carried && tensor.storage == Storage::Carried) {
            let region = tensor.region();
            let memory = tensor.memory;
            result.push(Occupant { name: name(id), memory, region, first: 0, last: end, tensor: Some(id) });
        }
    }
    for (id, (first, last)) in lives {
        let (memory, region) = (plan[id].memory, plan[id].region());
        result.push(Occupant { name: name(id), memory, region, first, last, tensor: Some(id) });
    }
    if let Some(region) = plan.scalars {
        let name = "the run's scalars".to_owned();
        result.push(Occupant { name, memory: MemoryId::DEVICE, region, first: 0, last: end, tensor: None });
    }
    for (index, step) in program.steps.iter().enumerate() {
        if let Some(region) = step.scratch {
            let name = format!("scratch of {} at {}", step.op.name(), region.offset);
            let (memory, at) = (step.memory, index + 1);
            result.push(Occupant { name, memory, region, first: at, last: at, tensor: None });
        }
    }
    Ok(result)
}

fn check_pair(program: &PlannedProgram, a: &Occupant, b: &Occupant) -> Result<(), PlanViolation> {
    let apart_in_space = a.memory != b.memory || a.region.end() <= b.region.offset || b.region.end() <= a.region.offset;
    let apart_in_time = a.last < b.first || b.last < a.first;
    if apart_in_space || apart_in_time || hands_over(program, a, b) || hands_over(program, b, a) {
        return Ok(());
    }
    Err(PlanViolation::Overlap {
        program: program.name.to_string(),
        first: a.name.clone(),
        second: b.name.clone(),
        step: a.first.max(b.first),
    })
}

/// Whether `old` dies in the step that makes `new` in the very same bytes, and the step's op allows that.
fn hands_over(program: &PlannedProgram, old: &Occupant, new: &Occupant) -> bool {
    let (Some(from), Some(to)) = (old.tensor, new.tensor) else { return false };
    if old.last != new.first || new.first == 0 || old.first == new.first || old.region != new.region {
        return false;
    }
    let Some(step) = program.steps.get(new.first - 1) else { return false };
    let uses = step.inputs.iter().filter(|id| **id == from).count();
    let allowed =
        step.op.reuse().iter().any(|&(i, o)| step.inputs.get(i) == Some(&from) && step.outputs.get(o) == Some(&to));
    uses == 1 && allowed
}
