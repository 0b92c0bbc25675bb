//! Memory map of a plan: where each tensor is stored and when, while the program with the plan's peak runs. Time is
//! across, offsets are up. Not here: validation of plans (`plimsoll-plan`), the picture of all programs
//! (`plimsoll-render`, `picture/`).

use plimsoll_files::read_inside;
use plimsoll_graph::{MemoryId, Role, Storage, TensorId};
use plimsoll_plan::{Plan, PlannedProgram, PlannedTensor, Region};
use plimsoll_units::Bytes;
use plimsoll_watch::clean;
use serde::Serialize;
use std::collections::BTreeMap;
use std::io::{self, ErrorKind};
use std::path::Path;

/// Maximum size of `plan.json`; a plan of a model that fits a card is far smaller.
const LONGEST: Bytes = Bytes::mib(64);

/// Maximum number of rectangles that a page draws quickly; the smallest are left out.
const MOST: usize = 6_000;

/// Maximum length of a tensor's name.
const LONGEST_NAME: usize = 200;

/// A tensor or an op's scratch memory in the device's arena.
#[derive(Debug, Serialize)]
struct Rect {
    name: String,
    /// Index of its role in [`ROLES`].
    role: usize,
    offset: u64,
    bytes: u64,
    /// Moment of its first use. The host writes inputs at moment 0; step i runs at moment i + 1.
    first: usize,
    /// First moment at which its memory is free again.
    until: usize,
}

/// Memory map of one program of a plan.
#[derive(Debug, Serialize)]
pub(crate) struct Map {
    program: String,
    moments: usize,
    peak_bytes: u64,
    budget_bytes: u64,
    /// Moment with the most memory in use.
    fullest: usize,
    micro_batch: usize,
    accumulation: usize,
    roles: [&'static str; 6],
    rects: Vec<Rect>,
    /// Number of rectangles left out.
    more: usize,
}

/// Labels of the roles.
const ROLES: [&str; 6] = ["weights", "optimizer state", "gradients", "staging", "activations", "scratch"];

fn role_index(role: Role) -> usize {
    match role {
        Role::Weight => 0,
        Role::Optimizer => 1,
        Role::Gradient => 2,
        Role::Staging => 3,
        Role::Activation => 4,
        Role::Scratch => 5,
    }
}

/// Reads the map of the plan in a run's folder. Errors: the plan is missing or invalid.
pub(crate) fn map(run: &Path) -> io::Result<Map> {
    let bytes = read_inside(&run.join("plan.json"), 1, LONGEST)?;
    let plan: Plan = serde_json::from_slice(&bytes)?;
    let highest = plan.programs.iter().max_by_key(|program| program.peak_bytes());
    let program = highest.ok_or_else(|| io::Error::new(ErrorKind::InvalidData, "the plan has no program"))?;
    // Another user may have written the plan: check its tensor ids before use.
    let steps = program.steps.iter().flat_map(|step| step.inputs.iter().chain(&step.outputs).copied());
    let mut ids = steps.chain(program.ports.fed()).chain(program.ports.fetched());
    if ids.any(|id| id.index() >= plan.tensors.len()) {
        return Err(io::Error::new(ErrorKind::InvalidData, "the plan refers to tensors that do not exist"));
    }
    Ok(Map::of(&plan, program))
}

impl Map {
    fn of(plan: &Plan, program: &PlannedProgram) -> Self {
        let end = program.steps.len() + 2;
        let mut rects = Vec::new();
        let carries = program.steps.iter().flat_map(|step| &step.outputs);
        let carries = carries.into_iter().any(|&id| plan[id].storage == Storage::Carried);
        for tensor in &plan.tensors {
            let stays = tensor.storage == Storage::Persistent || (carries && tensor.storage == Storage::Carried);
            rects.extend(Some(tensor).filter(|_| stays).and_then(|tensor| rect(tensor, (0, end))));
        }
        let lives = lifetimes(plan, program);
        for (id, life) in &lives {
            rects.extend(rect(&plan[*id], *life));
        }
        for (index, step) in program.steps.iter().enumerate() {
            let Some(Region { offset, bytes }) = step.scratch.filter(|_| step.memory == MemoryId::DEVICE) else {
                continue;
            };
            let (name, role) = (step.op.name().to_owned(), role_index(Role::Scratch));
            rects.push(Rect { name, role, offset, bytes, first: index + 1, until: index + 2 });
        }
        let more = rects.len().saturating_sub(MOST);
        rects.sort_by_key(|rect| std::cmp::Reverse(rect.bytes));
        rects.truncate(MOST);
        rects.sort_by_key(|rect| (rect.first, rect.offset));
        Self {
            program: program.name.to_string(),
            moments: end,
            peak_bytes: plan.peak().0,
            budget_bytes: plan.budget().device().0,
            fullest: program.fullest_step.saturating_add(1).min(end - 1),
            micro_batch: plan.micro_batch,
            accumulation: plan.accumulation,
            roles: ROLES,
            rects,
            more,
        }
    }
}

/// Rectangle of a tensor; `None` if the tensor is on the host or its size overflows.
fn rect(tensor: &PlannedTensor, (first, until): (usize, usize)) -> Option<Rect> {
    let elements = tensor.ty.shape.iter().try_fold(1_u64, |product, &size| product.checked_mul(size as u64))?;
    let bytes = elements.checked_mul(tensor.ty.dtype.size_bytes())?;
    let is_on_device = tensor.memory == MemoryId::DEVICE && bytes > 0;
    let (name, role) = (clean(&tensor.name, LONGEST_NAME), role_index(tensor.role));
    is_on_device.then_some(Rect { name, role, offset: tensor.offset, bytes, first, until })
}

/// First use and end of each transient. The end is the moment after its last use, or the last use itself if that step
/// reuses its memory for a result.
fn lifetimes(plan: &Plan, program: &PlannedProgram) -> BTreeMap<TensorId, (usize, usize)> {
    let mut lives = BTreeMap::new();
    let mut uses = |id: TensorId, moment: usize| {
        if plan[id].storage == Storage::Transient {
            lives.entry(id).or_insert((moment, moment)).1 = moment + 1;
        }
    };
    program.ports.fed().for_each(|id| uses(id, 0));
    for (index, step) in program.steps.iter().enumerate() {
        step.inputs.iter().chain(&step.outputs).for_each(|&id| uses(id, index + 1));
    }
    program.ports.fetched().for_each(|id| uses(id, program.steps.len() + 1));
    for (index, step) in program.steps.iter().enumerate() {
        for &(input, output) in step.op.reuse() {
            let pair = step.inputs.get(input).zip(step.outputs.get(output));
            let Some((input, output)) = pair.filter(|(a, b)| a != b && plan[**a].offset == plan[**b].offset) else {
                continue;
            };
            let begins_here = lives.get(output).is_some_and(|life| life.0 == index + 1);
            if let Some(life) = lives.get_mut(input).filter(|life| begins_here && life.1 == index + 2) {
                life.1 = index + 1;
            }
        }
    }
    lives
}
