//! Where a plan's bytes go: the moment of its peak, and what is alive then.

use crate::plan::{Plan, PlannedProgram, PlannedTensor};
use plimsoll_graph::{MemoryId, ProgramName, Role, Storage, TensorId};
use serde::Serialize;
use std::collections::BTreeMap;

/// The moment at which the most bytes of the device are live.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Moment {
    /// The program.
    pub program: ProgramName,
    /// Index of the step in it.
    pub step: usize,
    /// The step's op.
    pub op: String,
    /// What it makes, by name.
    pub makes: String,
    /// What is alive, the largest first.
    pub alive: Vec<Alive>,
}

/// Tensors that are alive: one, or those of several blocks that are alike.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Alive {
    /// Its name; of several, with `*` for their blocks' numbers.
    pub name: String,
    /// What it is for.
    pub role: Role,
    /// How many there are.
    pub count: usize,
    /// The size of all of them.
    pub bytes: u64,
}

/// Tensors of blocks whose names differ in the block's number alone, and that are as large and for the same, become one.
/// The largest first.
pub fn alike(tensors: impl Iterator<Item = Alive>) -> Vec<Alive> {
    let mut groups = BTreeMap::<(String, String, u64), Vec<Alive>>::new();
    for tensor in tensors {
        groups
            .entry((of_any_block(&tensor.name), format!("{:?}", tensor.role), tensor.bytes))
            .or_default()
            .push(tensor);
    }
    let joined = groups.into_iter().map(|((name, _, bytes), mut group)| match group.len() {
        1 => group.remove(0),
        count => Alive { name, role: group[0].role, count, bytes: bytes * count as u64 },
    });
    let mut joined = joined.collect::<Vec<_>>();
    joined.sort_by(|a, b| b.bytes.cmp(&a.bytes).then_with(|| a.name.cmp(&b.name)));
    joined
}

impl Alive {
    /// Its name, after the count if there are several: `24 × h*/mlp/gelu`.
    pub fn words(&self) -> String {
        if self.count > 1 { format!("{} × {}", self.count, self.name) } else { self.name.clone() }
    }
}

/// A name with `*` for a block's number: parameters have it between points, `transformer.h.3.ln_1.weight`; activations have it after
/// the letter of a block, `decoder/h3/mlp/relu`. A number at the end is that of an op's result.
fn of_any_block(name: &str) -> String {
    let is_block = |part: &str| part.strip_prefix('h').is_some_and(|number| number.parse::<u32>().is_ok());
    let paths = name.split('/').map(|part| if is_block(part) { "h*" } else { part });
    let name = paths.collect::<Vec<_>>().join("/");
    let last = name.rfind('.').unwrap_or(0);
    let (front, end) = name.split_at(last);
    let front = front.split('.').map(|part| if part.parse::<u32>().is_ok() { "*" } else { part });
    front.collect::<Vec<_>>().join(".") + end
}

/// The moment of a plan's peak, with the `most` largest lines of what is alive then. `None` for a plan without steps.
pub fn moment_of_peak(plan: &Plan, most: usize) -> Option<Moment> {
    let program = plan.programs.iter().find(|p| p.peak_bytes() == plan.peak().0)?;
    let step = program.fullest_step.min(program.steps.len().checked_sub(1)?);
    let now = &program.steps[step];
    let alive = alive_at(plan, program, step).map(|t| Alive {
        name: t.name.clone(),
        role: t.role,
        count: 1,
        bytes: t.region().bytes,
    });
    let scratch = now.scratch.map(|scratch| Alive {
        name: format!("scratch of {}", now.op.name()),
        role: Role::Scratch,
        count: 1,
        bytes: scratch.bytes,
    });
    let mut alive = alike(alive.chain(scratch));
    alive.truncate(most);
    Some(Moment {
        program: program.name,
        step,
        op: now.op.name().to_owned(),
        makes: now.outputs.first().map_or_else(String::new, |&id| plan[id].name.clone()),
        alive,
    })
}

fn alive_at<'p>(plan: &'p Plan, program: &'p PlannedProgram, step: usize) -> impl Iterator<Item = &'p PlannedTensor> {
    let mut lives = BTreeMap::<TensorId, (usize, usize)>::new();
    for id in program.ports.fed() {
        lives.insert(id, (0, 0));
    }
    for (index, step) in program.steps.iter().enumerate() {
        for &id in step.inputs.iter().chain(&step.outputs) {
            lives.entry(id).or_insert((index, index)).1 = index;
        }
    }
    let carries = lives.keys().any(|&id| plan[id].storage == Storage::Carried);
    plan.tensors.iter().enumerate().filter_map(move |(index, tensor)| {
        let alive = match tensor.storage {
            Storage::Persistent => true,
            Storage::Carried => carries,
            Storage::Transient => {
                lives.get(&TensorId(index as u32)).is_some_and(|&(first, last)| first <= step && step <= last)
            }
        };
        (alive && tensor.memory == MemoryId::DEVICE).then_some(tensor)
    })
}
