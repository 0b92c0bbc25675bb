//! The picture of a plan: its arenas as maps, time across and offset up, with the curve of live bytes above them.
//!
//! ```text
//!   bytes ┤ ─ ─ ─ ─ ─ ─ ─ ─ ─ ─ ─ budget
//!         │      ▄▄▟▇▇▙▄▄             curve: the bytes that are held at each moment
//!   offset┤   ┌──┐┌─────┐┌─┐
//!         │ ┌─┴──┴┴┐ ┌──┴┴─┤          transients, from their birth to their death
//!         │ ├──────┴─┴─────┤
//!       0 ┴ └ persistent ──┘ ─── moments
//! ```
//!
//! This file turns a plan into a plain scene: rectangles in moments and bytes. Moment 0 is the feeding by the host,
//! step i runs at moment i + 1, and results are fetched at the last moment, as in `plimsoll_plan::validate`. `svg.rs` draws the
//! scene as a still picture; `program.rs` draws it as a chart that is as wide as a page, `html.rs` makes the page.

mod html;
mod program;
mod svg;

#[cfg(test)]
pub(crate) mod tests;

pub(super) use html::run_picture;
pub use html::{PlanPage, plan_html};
pub use svg::plan_svg;

use super::page::escape;
use plimsoll_graph::{MemoryId, Op, Pass, Role, Storage, TensorId, TensorType};
use plimsoll_plan::{ALIGNMENT, Alive, Plan, PlannedProgram, Region, Step, alike};
use plimsoll_units::Bytes;
use std::collections::BTreeMap;

/// The picture of a plan.
struct Scene<'p> {
    plan: &'p Plan,
    programs: Vec<ProgramScene<'p>>,
}

/// The picture of a program.
struct ProgramScene<'p> {
    plan: &'p Plan,
    program: &'p PlannedProgram,
    /// The part of the program that each moment belongs to.
    phases: Vec<Phase>,
    device: Map<'p>,
    host: Map<'p>,
}

/// An arena while a program runs.
struct Map<'p> {
    rects: Vec<Rect<'p>>,
    /// Bytes held at each moment, for each role in the order of [`ROLES`], sizes rounded up as packing does.
    live: Vec<[u64; ROLES.len()]>,
}

/// A tensor, or the working memory of a step.
struct Rect<'p> {
    name: &'p str,
    /// `None` is scratch, and `name` is the name of its op.
    tensor: Option<TensorId>,
    role: Role,
    region: Region,
    /// The moment of its birth.
    first: usize,
    /// The moment of its last use.
    last: usize,
    /// The moment from which its place is free: after the last use, or at it for a tensor whose place the
    /// last user reuses for its result.
    until: usize,
    /// Whether it outlives the program.
    stays: bool,
}

/// Parts of a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// The host writes inputs or reads results.
    Host,
    Forward,
    Backward,
    Recompute,
    Update,
    Transfer,
}

/// Roles in the order in which the curve stacks them.
const ROLES: [Role; 6] =
    [Role::Weight, Role::Optimizer, Role::Gradient, Role::Staging, Role::Activation, Role::Scratch];

/// Their colours.
const STACK: [&str; ROLES.len()] = ["weights", "optimizer", "gradients", "staging", "forward", "scratch"];

/// Colours by name, the same on light and dark backgrounds. Activations are shaded by the phase that creates them.
const PALETTE: [(&str, &str); 9] = [
    ("weights", "#4e79c7"),
    ("optimizer", "#3fa796"),
    ("gradients", "#e9a83b"),
    ("staging", "#8a8f98"),
    ("forward", "#dd5a4a"),
    ("recomputed", "#b0508f"),
    ("backward", "#eea3c4"),
    ("scratch", "#8b6fd0"),
    ("transfer", "#5f7f99"),
];

/// The legend's text for each colour.
const LEGEND: [(&str, &str); 9] = [
    ("weights", "weights"),
    ("optimizer", "optimizer state, update"),
    ("gradients", "gradients"),
    ("forward", "activations, forward"),
    ("recomputed", "recomputed"),
    ("backward", "backward"),
    ("scratch", "scratch"),
    ("staging", "staging"),
    ("transfer", "transfer"),
];

/// Whether text on this colour is dark.
fn is_light(colour: &str) -> bool {
    matches!(colour, "optimizer" | "gradients" | "staging" | "forward" | "backward")
}

/// The purpose of a tensor of this colour.
fn role_words(colour: &'static str) -> &'static str {
    match colour {
        "optimizer" => "optimizer state",
        "forward" => "activations, forward",
        "recomputed" => "activations, recomputed",
        "backward" => "activations, backward",
        other => other,
    }
}

impl<'p> Scene<'p> {
    fn of(plan: &'p Plan) -> Self {
        Self { plan, programs: plan.programs.iter().map(|program| ProgramScene::of(plan, program)).collect() }
    }

    /// The program with the plan's peak.
    fn highest(&self) -> Option<&ProgramScene<'p>> {
        self.programs.iter().find(|scene| scene.program.peak_bytes() == self.plan.peak().0)
    }

    /// The end of the axis in bytes: the budget if it is not far above the peak, plus a margin.
    fn ceiling(&self) -> u64 {
        let (peak, budget) = (self.plan.peak().0.max(1), self.plan.budget().device().0);
        let highest = if budget <= peak + peak / 2 { peak.max(budget) } else { peak };
        highest + highest / 25
    }
}

impl<'p> ProgramScene<'p> {
    fn of(plan: &'p Plan, program: &'p PlannedProgram) -> Self {
        let moments = program.steps.len() + 2;
        let rects = rects(plan, program);
        let (device, host) = rects.into_iter().partition(|(memory, _)| *memory == MemoryId::DEVICE);
        let [device, host] =
            [device, host].map(|rects: Vec<_>| Map::of(rects.into_iter().map(|(_, rect)| rect).collect(), moments));
        Self { plan, program, phases: phases(program), device, host }
    }

    /// The runs of moments that belong to one phase: phase, first moment, one past the last moment.
    fn runs(&self) -> Vec<(Phase, usize, usize)> {
        let mut runs = Vec::<(Phase, usize, usize)>::new();
        for (moment, &phase) in self.phases.iter().enumerate() {
            match runs.last_mut() {
                Some(run) if run.0 == phase => run.2 = moment + 1,
                _ => runs.push((phase, moment, moment + 1)),
            }
        }
        runs
    }

    /// The moment at which the backward pass begins.
    fn backward(&self) -> Option<usize> {
        self.program
            .steps
            .iter()
            .position(|step| matches!(step.op, Op::HeadLossGrad(_) | Op::PairedHeadLossGrad(_)))
            .map(|step| step + 1)
    }

    /// The bytes of a zoomed view of the transients: from their lowest offset to a margin above them, or above the
    /// budget if that is near. `None` if they are a thin strip.
    fn transients(&self) -> Option<(u64, u64)> {
        let (staying, peak) = (self.device.staying_end(), self.program.peak_bytes());
        let (room, budget) = (peak.saturating_sub(staying), self.plan.budget().device().0);
        let top = if budget <= peak + room / 2 { peak.max(budget) } else { peak };
        (room > self.plan.peak().0 / 50).then(|| (staying, top + (top - staying) / 25))
    }

    /// The event at a moment, in words.
    fn moment(&self, moment: usize) -> String {
        match moment.checked_sub(1).map(|step| (step, self.program.steps.get(step))) {
            None => "before the first step: inputs are written".to_owned(),
            Some((_, None)) => "after the last step: results are read".to_owned(),
            Some((index, Some(step))) => {
                let makes = step.outputs.first().map_or_else(String::new, |&id| format!(": {}", self.plan[id].name));
                format!("step {index}, {}{makes}", step.op.name())
            }
        }
    }

    /// Whether something of the program has this colour.
    fn uses(&self, colour: &str) -> bool {
        let mut rects = self.device.rects.iter().chain(&self.host.rects);
        let mut phases = self.phases.iter().filter(|phase| **phase != Phase::Host);
        rects.any(|rect| self.colour(rect) == colour) || phases.any(|phase| phase.colour() == colour)
    }

    /// The colour of a rectangle.
    fn colour(&self, rect: &Rect) -> &'static str {
        match rect.role {
            Role::Weight => "weights",
            Role::Optimizer => "optimizer",
            Role::Gradient => "gradients",
            Role::Staging => "staging",
            Role::Scratch => "scratch",
            Role::Activation => match self.phases[rect.first] {
                phase @ (Phase::Backward | Phase::Recompute) => phase.colour(),
                _ => "forward",
            },
        }
    }
}

impl Phase {
    /// The name of its colour.
    fn colour(self) -> &'static str {
        match self {
            Self::Host | Self::Transfer => "transfer",
            Self::Forward => "forward",
            Self::Backward => "backward",
            Self::Recompute => "recomputed",
            Self::Update => "optimizer",
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Host => "host",
            Self::Forward => "forward",
            Self::Backward => "backward",
            Self::Recompute => "recomputed",
            Self::Update => "update",
            Self::Transfer => "transfer",
        }
    }
}

impl<'p> Map<'p> {
    fn of(rects: Vec<Rect<'p>>, moments: usize) -> Self {
        let mut live = vec![[0; ROLES.len()]; moments];
        for rect in &rects {
            let role = ROLES.iter().position(|role| *role == rect.role).unwrap_or_default();
            for sums in &mut live[rect.first..rect.until] {
                sums[role] += rect.region.bytes.next_multiple_of(ALIGNMENT);
            }
        }
        Self { rects, live }
    }

    /// The first moment at which the most bytes are held, and how many.
    fn fullest(&self) -> (usize, u64) {
        let sums = self.live.iter().map(|roles| roles.iter().sum::<u64>()).enumerate();
        sums.fold((0, 0), |most, (moment, bytes)| if bytes > most.1 { (moment, bytes) } else { most })
    }

    /// The end of the tensors that outlive the program.
    fn staying_end(&self) -> u64 {
        self.rects.iter().filter(|r| r.stays).map(|r| r.region.end()).max().unwrap_or_default()
    }
}

/// Everything that occupies bytes while the program runs, each with its memory.
fn rects<'p>(plan: &'p Plan, program: &'p PlannedProgram) -> Vec<(MemoryId, Rect<'p>)> {
    let end = program.steps.len() + 2;
    let outputs = || program.steps.iter().flat_map(|step| &step.outputs);
    let carries = outputs().any(|&id| plan[id].storage == Storage::Carried);
    let mut rects = Vec::new();
    let mut add = |id: TensorId, first, last, until| {
        let tensor = &plan[id];
        let (region, stays) = (tensor.region(), tensor.storage != Storage::Transient);
        let rect = Rect { name: &tensor.name, tensor: Some(id), role: tensor.role, region, first, last, until, stays };
        rects.push((tensor.memory, rect));
    };
    for (index, tensor) in plan.tensors.iter().enumerate() {
        if tensor.storage == Storage::Persistent || (carries && tensor.storage == Storage::Carried) {
            add(TensorId(index as u32), 0, end - 1, end);
        }
    }
    let lives = lives(plan, program);
    let taken_over = taken_over(plan, program, &lives);
    for (&id, &(first, last)) in &lives {
        add(id, first, last, if taken_over.contains(&id) { last } else { last + 1 });
    }
    for (index, step) in program.steps.iter().enumerate() {
        if let Some(region) = step.scratch {
            let (name, at) = (step.op.name(), index + 1);
            let (role, until) = (Role::Scratch, at + 1);
            rects.push((
                step.memory,
                Rect { name, tensor: None, role, region, first: at, last: at, until, stays: false },
            ));
        }
    }
    rects
}

/// The moments of the first write and the last use of each transient.
fn lives(plan: &Plan, program: &PlannedProgram) -> BTreeMap<TensorId, (usize, usize)> {
    let mut lives = BTreeMap::new();
    let mut uses = |id: TensorId, moment: usize| {
        if plan[id].storage == Storage::Transient {
            lives.entry(id).or_insert((moment, moment)).1 = moment;
        }
    };
    program.ports.fed().for_each(|id| uses(id, 0));
    for (index, step) in program.steps.iter().enumerate() {
        step.inputs.iter().chain(&step.outputs).for_each(|&id| uses(id, index + 1));
    }
    program.ports.fetched().for_each(|id| uses(id, program.steps.len() + 1));
    lives
}

/// Tensors whose last user writes its result over them.
fn taken_over(plan: &Plan, program: &PlannedProgram, lives: &BTreeMap<TensorId, (usize, usize)>) -> Vec<TensorId> {
    let place = |id: TensorId| (plan[id].memory, plan[id].region());
    let of_step = |(index, step): (usize, &Step)| {
        let pairs = step.op.reuse().iter().filter_map(|&(i, o)| Some((*step.inputs.get(i)?, *step.outputs.get(o)?)));
        let dies_here = |from: &TensorId| lives.get(from).is_some_and(|life| life.0 <= index && life.1 == index + 1);
        let born_here = |to: &TensorId| lives.get(to).is_some_and(|life| life.0 == index + 1);
        let reused = pairs.filter(|(from, to)| dies_here(from) && born_here(to) && place(*from) == place(*to));
        reused.map(|(from, _)| from).collect::<Vec<_>>()
    };
    program.steps.iter().enumerate().flat_map(of_step).collect()
}

/// The phase of each moment.
fn phases(program: &PlannedProgram) -> Vec<Phase> {
    let of_step = |step: &Step| match (&step.op, step.pass) {
        (Op::Transfer(_) | Op::AwaitTransfer(_), _) => Phase::Transfer,
        (_, Pass::Forward) => Phase::Forward,
        (_, Pass::Recompute) => Phase::Recompute,
        (_, Pass::Backward) => Phase::Backward,
        (_, Pass::Update | Pass::HostUpdate) => Phase::Update,
    };
    let steps = program.steps.iter().map(of_step).collect::<Vec<_>>();
    [&[Phase::Host], &steps[..], &[Phase::Host]].concat()
}

/// Whether a name belongs to a block with an odd number, such as `h3/mlp/gelu`. Blocks alternate between two shades, so that
/// tensors too thin for an edge can be distinguished.
fn is_of_odd_block(name: &str) -> bool {
    let mut numbers = name.split(|c: char| !c.is_ascii_digit()).filter(|digits| !digits.is_empty());
    numbers.next().is_some_and(|digits| digits.ends_with(['1', '3', '5', '7', '9']))
}

/// A tensor's type: `f32 (4, 1024, 768)`.
fn type_text(ty: &TensorType) -> String {
    let extents = ty.shape.iter().map(usize::to_string).collect::<Vec<_>>().join(", ");
    format!("{} ({extents})", format!("{:?}", ty.dtype).to_ascii_lowercase())
}

/// Name, type, size, place and time of a rectangle.
fn describe(program: &ProgramScene, rect: &Rect) -> String {
    let plan = program.plan;
    let head = match rect.tensor {
        Some(id) => format!("{}\n{}, {}", rect.name, type_text(&plan[id].ty), role_words(program.colour(rect))),
        None => format!("scratch of {}", rect.name),
    };
    let region = rect.region;
    let place = format!("{} ({} bytes) at offset {}", Bytes(region.bytes), region.bytes, region.offset);
    let time = match (rect.stays, rect.first == rect.last) {
        (true, _) => "stays when the program ends".to_owned(),
        (false, true) => format!("only in {}", program.moment(rect.first)),
        (false, false) => format!("from {}\nto {}", program.moment(rect.first), program.moment(rect.last)),
    };
    format!("{head}\n{place}\n{time}")
}

/// Persistent neighbours that are too thin to distinguish: the bytes of each role together, in place of all.
struct Band {
    colour: &'static str,
    region: Region,
    /// A description, and the largest of its tensors.
    what: String,
    /// A short description.
    name: String,
}

/// Tensors that a band's description lists.
const LISTED: usize = 8;

/// The bands of neighbours, which are in the order of their offsets.
fn bands(program: &ProgramScene, group: &[&Rect]) -> Vec<Band> {
    let mut bottom = group[0].region.offset;
    let end = group[group.len() - 1].region.end();
    let whole = group.iter().map(|r| r.region.bytes).sum::<u64>().max(1);
    let stretch = (end - bottom) as f64 / whole as f64;
    let range = format!("{} and {}", Bytes(bottom), Bytes(end));
    let mut bands = Vec::new();
    for role in ROLES {
        let members = group.iter().filter(|r| r.role == role).collect::<Vec<_>>();
        let Some(first) = members.first() else { continue };
        let (colour, count) = (program.colour(first), members.len());
        let bytes = members.iter().map(|r| r.region.bytes).sum::<u64>();
        let single = |r: &&&Rect| Alive { name: r.name.to_owned(), role, count: 1, bytes: r.region.bytes };
        let groups = alike(members.iter().map(single));
        let (shown, rest) = groups.split_at(groups.len().min(LISTED));
        let mut what =
            format!("{count} tensors, {}: {} between {range}, drawn together", role_words(colour), Bytes(bytes));
        shown.iter().for_each(|alive| what += &format!("\n{}: {}", alive.words(), Bytes(alive.bytes)));
        if !rest.is_empty() {
            what += &format!("\nand {} more", rest.iter().map(|alive| alive.count).sum::<usize>());
        }
        let top = bottom + (bytes as f64 * stretch) as u64;
        let name = format!("{count} × {}, {}", role_words(colour), Bytes(bytes));
        bands.push(Band { colour, region: Region { offset: bottom, bytes: top - bottom }, what, name });
        bottom = top;
    }
    bands
}

/// The budget of the host's arena: its own, or the rest of a budget that it shares with the device's arena.
fn host_room(plan: &Plan) -> u64 {
    let budget = plan.budget();
    budget.host().unwrap_or(budget.device().saturating_sub(plan.peak())).0
}

/// The caption of a picture: the model, its peak and the budget.
fn title(model: &str, plan: &Plan) -> String {
    let (peak, budget) = (plan.peak(), plan.budget().device());
    let lacking = plan.budget().lacking(&plan.arenas());
    let (lacking, host_lacking) = (lacking[MemoryId::DEVICE], lacking[MemoryId::HOST]);
    let on_host = match plan.budget().host() {
        None if plan.host() > Bytes::ZERO => format!(" and {} of host memory", plan.host()),
        _ => String::new(),
    };
    let on_device = match lacking > Bytes::ZERO {
        true => format!("{model}: peak {peak}{on_host}, {lacking} over the budget of {budget}"),
        false => format!("{model}: peak {peak}{on_host}, budget {budget}"),
    };
    match plan.budget().host() {
        Some(host) if host_lacking > Bytes::ZERO => format!("{on_device}; host {}, over {host}", plan.host()),
        _ => on_device,
    }
}
