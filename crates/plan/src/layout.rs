//! From a graph to places: persistent tensors at the bottom, carried ones above, each program's transients packed
//! on top; the same in the host's arena for what levers moved there.

use crate::budget::Budget;
use crate::lifetimes::{Lifetimes, lifetimes};
use crate::plan::{Breakdown, Plan, PlannedProgram, PlannedTensor, Region, Step};
use crate::queues::fill_in_waits;
use crate::request::Request;
use plimsoll_arena::{Buffer, Lifespan, LowerBound, Problem, lower_bound, pack, pack_quickly};
use plimsoll_graph::{Graph, Node, Place, Program, Role, Storage, Targets, Tensor};
use plimsoll_units::Bytes;
use std::cmp::Reverse;

/// Every tensor starts at a multiple of this, which suits vector loads and GPU transactions alike.
pub const ALIGNMENT: u64 = 256;

/// An arena that is higher than its lower bound by one part in so many is not packed any better.
const TOLERATED: u64 = 2000;

/// A quick packing whose transients are too large by more than one part in so many is not tried any further: more work takes off
/// less.
const FAR: u64 = 10;

/// How much is done to pack well.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Effort {
    /// Some milliseconds.
    Quick,
    /// Some hundred milliseconds where it is hard.
    Full,
}

/// Room for the run's scalars, where a device reads them from its memory.
const SCALARS_BYTES: u64 = ALIGNMENT;

const PLACES: [Place; 2] = [Place::Device, Place::Host];

/// What lies at the bottom of an arena in all programs.
#[derive(Default)]
struct Bottom {
    persistent: Breakdown,
    persistent_end: u64,
    /// Where carried tensors end.
    end: u64,
}

/// A program's transients with their places.
struct Packed {
    lifetimes: Lifetimes,
    /// First byte of each buffer, in the arena of its memory.
    offsets: Vec<u64>,
    /// For each memory.
    arenas: [Packing; 2],
}

/// A program in one arena.
#[derive(Default)]
struct Packing {
    base: u64,
    peak: u64,
    lower_bound: u64,
    fullest_moment: u64,
}

/// Places everything. The plan's budgets are unlimited and its batch sizes are zero: the caller knows them.
pub fn lay_out(graph: &Graph, targets: &Targets) -> Plan {
    Layout::new(graph, targets).plan(graph, targets)
}

/// The places of all that a graph's programs use.
pub(crate) struct Layout {
    /// First byte of each tensor that is not transient.
    offsets: Vec<u64>,
    bottoms: [Bottom; 2],
    packed: Vec<Packed>,
}

impl Layout {
    pub(crate) fn new(graph: &Graph, targets: &Targets) -> Self {
        Self::packed(graph, targets, Effort::Full)
    }

    fn packed(graph: &Graph, targets: &Targets, effort: Effort) -> Self {
        let mut offsets = vec![0; graph.tensors.len()];
        let bottoms = PLACES.map(|place| lay_bottom(graph, &mut offsets, place, scalars_in(place, targets)));
        let packed = pack_programs(graph, targets, &bottoms, effort);
        Self { offsets, bottoms, packed }
    }

    /// Of a request's candidate if it fits, else what the budget lacks. What does not is mostly known before packing, from
    /// what lives at once.
    pub(crate) fn within(request: &Request, graph: &Graph) -> Result<Self, [Bytes; 2]> {
        let bound = lacks_at_least(request, graph);
        if bound == [Bytes::ZERO; 2] { Self::packed_within(request, graph) } else { Err(bound) }
    }

    /// Like [`within`](Self::within), of a candidate of which is known that what lives at once fits. A cheap packing that fits is
    /// enough, and one that is far from it tells that no other does.
    pub(crate) fn packed_within(request: &Request, graph: &Graph) -> Result<Self, [Bytes; 2]> {
        let lacking = |layout: &Self| request.budget.lacking(layout.arenas());
        let quick = Self::packed(graph, &request.targets, Effort::Quick);
        let lacks = lacking(&quick);
        if lacks == [Bytes::ZERO; 2] {
            return Ok(quick);
        }
        if quick.is_far(lacks) {
            return Err(lacks);
        }
        let full = Self::new(graph, &request.targets);
        let lacks = lacking(&full);
        if lacks == [Bytes::ZERO; 2] { Ok(full) } else { Err(lacks) }
    }

    /// The same places, or better ones if more time finds some: within as many bytes as they take, the candidate is found to fit too.
    pub(crate) fn improved(self, request: &Request, graph: &Graph) -> Self {
        let full = Self::new(graph, &request.targets);
        let [device, host] = full.arenas();
        let exactly = Budget::Apart { device: Bytes(device), host: Bytes(host) };
        let fits = request.budget.lacking(full.arenas()) == [Bytes::ZERO; 2];
        if fits && !self.is_far(exactly.lacking(self.arenas())) { full } else { self }
    }

    /// Whether more work would not bring a quick packing down by what a budget lacks for it.
    fn is_far(&self, lacks: [Bytes; 2]) -> bool {
        lacks.into_iter().any(|lacks| lacks.0 > self.transients() / FAR)
    }

    /// Bytes of both arenas above what lies at the bottom.
    fn transients(&self) -> u64 {
        let of_place = |(arena, bottom): (u64, &Bottom)| arena.saturating_sub(bottom.end);
        self.arenas().into_iter().zip(&self.bottoms).map(of_place).sum()
    }

    /// The sizes of the arenas of device and host.
    pub(crate) fn arenas(&self) -> [u64; 2] {
        PLACES.map(|place| {
            let peaks = self.packed.iter().map(|packed| packed.arenas[place as usize].peak);
            peaks.max().unwrap_or(self.bottoms[place as usize].end)
        })
    }

    /// The plan of the graph that was laid out.
    pub(crate) fn plan(&self, graph: &Graph, targets: &Targets) -> Plan {
        let placed = graph.tensors.iter().zip(&self.offsets).map(|(t, &offset)| PlannedTensor {
            name: t.name.to_string(),
            ty: t.ty.clone(),
            role: t.role,
            storage: t.storage,
            place: t.place,
            offset,
        });
        let mut tensors = placed.collect::<Vec<_>>();
        let mut programs = Vec::with_capacity(self.packed.len());
        for (program, packed) in graph.programs.iter().zip(&self.packed) {
            for (id, buffer) in packed.lifetimes.of_tensor.iter() {
                tensors[id.index()].offset = packed.offsets[buffer];
            }
            let [device, host] = &packed.arenas;
            programs.push(PlannedProgram {
                name: program.name,
                peak_bytes: device.peak,
                host_peak_bytes: host.peak,
                lower_bound_bytes: device.lower_bound,
                fullest_step: device.fullest_moment.saturating_sub(1) as usize,
                steps: steps(graph, program, packed, &tensors),
                ports: program.ports.clone(),
            });
        }
        let (device, [peak, host]) = (&self.bottoms[Place::Device as usize], self.arenas());
        let highest = self.packed.iter().find(|p| p.arenas[Place::Device as usize].peak == peak);
        Plan {
            version: Plan::VERSION,
            budget_bytes: u64::MAX,
            peak_bytes: peak,
            lower_bound_bytes: programs.iter().map(|p| p.lower_bound_bytes).max().unwrap_or(device.end),
            host_budget_bytes: Some(u64::MAX),
            host_bytes: host,
            micro_batch: 0,
            accumulation: 0,
            global_batch: 0,
            seq_len: 0,
            target_len: None,
            targets: *targets,
            scalars: Some(Region { offset: 0, bytes: scalars_in(Place::Device, targets) }).filter(|s| s.bytes > 0),
            parameters: graph.parameter_count(),
            trained_parameters: graph.trained_parameter_count(),
            breakdown: highest.map_or(device.persistent, |packed| breakdown(device, packed)),
            tensors,
            programs,
        }
    }
}

/// What a request's budget lacks at the least for a candidate, however well it is packed.
pub(crate) fn lacks_at_least(request: &Request, graph: &Graph) -> [Bytes; 2] {
    request.budget.lacking(at_least(graph, &request.targets))
}

/// The fewest bytes that the device's and the host's arena can have, however well they are packed.
pub(crate) fn at_least(graph: &Graph, targets: &Targets) -> [u64; 2] {
    let mut least = [0; 2];
    for program in &graph.programs {
        let most_live = most_live(&lifetimes_of(graph, program, targets), program);
        for place in PLACES {
            let staying = scalars_in(place, targets) + staying_in(graph, program, place);
            let bytes = staying + tight(most_live[place as usize]);
            least[place as usize] = bytes.max(least[place as usize]);
        }
    }
    least
}

/// The largest sum of live bytes of a program in each memory: what `plimsoll_arena::lower_bound` finds by sorting, which is not
/// needed where times are small numbers.
fn most_live(lifetimes: &Lifetimes, program: &Program) -> [u64; 2] {
    let mut begins = vec![[0u64; 2]; program.nodes.len() + 3];
    let mut ends = begins.clone();
    for buffer in &lifetimes.buffers {
        let bytes = buffer.bytes.next_multiple_of(ALIGNMENT);
        begins[buffer.lower as usize][buffer.place as usize] += bytes;
        ends[buffer.upper as usize][buffer.place as usize] += bytes;
    }
    let (mut live, mut most) = ([0; 2], [0; 2]);
    for (begins, ends) in begins.into_iter().zip(ends) {
        for place in PLACES.map(|place| place as usize) {
            live[place] = live[place] - ends[place] + begins[place];
            most[place] = most[place].max(live[place]);
        }
    }
    most
}

fn staying_in(graph: &Graph, program: &Program, place: Place) -> u64 {
    let carries = carries(graph, program);
    let stays = |storage| storage == Storage::Persistent || (carries && storage == Storage::Carried);
    let staying = graph.tensors.iter().filter(|t| t.place == place && stays(t.storage));
    staying.map(|t| t.ty.bytes().align_up(ALIGNMENT).0).sum()
}

/// Whether a program writes what is carried from one program to the next.
fn carries(graph: &Graph, program: &Program) -> bool {
    program
        .nodes
        .iter()
        .flat_map(|n| n.inputs.iter().chain(&n.outputs))
        .any(|id| graph[*id].storage == Storage::Carried)
}

pub(crate) fn lifetimes_of(graph: &Graph, program: &Program, targets: &Targets) -> Lifetimes {
    lifetimes(graph, program, |index| scratch_bytes(graph, &program.nodes[index], targets))
}

/// Working memory of a node.
pub(crate) fn scratch_bytes(graph: &Graph, node: &Node, targets: &Targets) -> u64 {
    node.op.working_bytes(&graph.io(&node.inputs, &node.outputs), &targets[node.place(graph)]).0
}

/// Room for the run's scalars at the bottom of an arena: a device whose programs are launched as a whole reads them from
/// its memory.
pub(crate) fn scalars_in(place: Place, targets: &Targets) -> u64 {
    if place == Place::Device && targets.overlaps() { SCALARS_BYTES } else { 0 }
}

/// Lays persistent and carried tensors one after the other, above the run's scalars.
fn lay_bottom(graph: &Graph, offsets: &mut [u64], place: Place, scalars: u64) -> Bottom {
    let mut bottom = Bottom { persistent_end: scalars, end: scalars, ..Bottom::default() };
    bottom.persistent.add(Role::Staging, scalars);
    for storage in [Storage::Persistent, Storage::Carried] {
        let stays = |tensor: &Tensor| tensor.storage == storage && tensor.place == place;
        for (tensor, offset) in graph.tensors.iter().zip(&mut *offsets).filter(|(tensor, _)| stays(tensor)) {
            *offset = bottom.end;
            let bytes = tensor.ty.bytes().align_up(ALIGNMENT).0;
            bottom.end += bytes;
            if storage == Storage::Persistent {
                bottom.persistent.add(tensor.role, bytes);
                bottom.persistent_end = bottom.end;
            }
        }
    }
    bottom
}

/// Packs all programs, in each memory those that may make its peak before the others.
fn pack_programs(graph: &Graph, targets: &Targets, bottoms: &[Bottom; 2], effort: Effort) -> Vec<Packed> {
    let prepare = |program: &Program| {
        let lifetimes = lifetimes_of(graph, program, targets);
        let offsets = vec![0; lifetimes.buffers.len()];
        Packed { lifetimes, offsets, arenas: Default::default() }
    };
    let mut packed = graph.programs.iter().map(prepare).collect::<Vec<_>>();
    for place in PLACES {
        let bottom = &bottoms[place as usize];
        let mut tasks = Vec::with_capacity(packed.len());
        for (index, (program, packed)) in graph.programs.iter().zip(&packed).enumerate() {
            let base = if carries(graph, program) { bottom.end } else { bottom.persistent_end };
            tasks.push((index, Task::new(&packed.lifetimes, place, base)));
        }
        tasks.sort_by_key(|(_, task)| Reverse(task.base + task.bound.bytes));
        let mut highest = 0;
        for (index, task) in tasks {
            let packed = &mut packed[index];
            packed.arenas[place as usize] = task.pack(&mut packed.offsets, &mut highest, effort);
        }
    }
    packed
}

/// The buffers of one memory as a problem of packing, and the index of each.
fn problem_of(lifetimes: &Lifetimes, place: Place) -> (Vec<usize>, Problem) {
    let buffers = lifetimes.buffers.iter().enumerate().filter(|(_, buffer)| buffer.place == place);
    let (indices, buffers) = buffers
        .map(|(i, b)| (i, Buffer { lifespan: Lifespan { lower: b.lower, upper: b.upper }, size: b.bytes }))
        .unzip();
    (indices, Problem { buffers, alignment: ALIGNMENT })
}

/// A bound to the byte: what rounds up the topmost buffer's size is never touched, so it is neither in the peak nor,
/// since any buffer may come to lie on top, in the bound.
pub(crate) fn tight(bound: u64) -> u64 {
    bound.saturating_sub(ALIGNMENT - 1)
}

/// The buffers of a program in one memory, which are to be packed above what lies at the bottom.
struct Task {
    base: u64,
    indices: Vec<usize>,
    problem: Problem,
    bound: LowerBound,
}

impl Task {
    fn new(lifetimes: &Lifetimes, place: Place, base: u64) -> Self {
        let (indices, problem) = problem_of(lifetimes, place);
        let bound = lower_bound(&problem);
        Self { base, indices, problem, bound }
    }

    /// Packs under what is the highest so far, where that can be; raises it otherwise. What does not make the peak
    /// stays below it, but no work is spent on how far.
    fn pack(&self, offsets: &mut [u64], highest: &mut u64, effort: Effort) -> Packing {
        let below = highest.saturating_sub(self.base + ALIGNMENT);
        let enough = self.bound.bytes + (self.base + self.bound.bytes) / TOLERATED;
        let solution = match effort {
            Effort::Quick => pack_quickly(&self.problem, below.max(enough)),
            Effort::Full => pack(&self.problem, below, below.max(enough)),
        };
        *highest = (self.base + solution.peak).max(*highest);
        let mut top = 0;
        for ((&index, buffer), offset) in self.indices.iter().zip(&self.problem.buffers).zip(solution.offsets) {
            offsets[index] = self.base + offset;
            top = top.max(offset + buffer.size);
        }
        Packing {
            base: self.base,
            peak: self.base + top,
            lower_bound: self.base + tight(self.bound.bytes),
            fullest_moment: self.bound.at,
        }
    }
}

fn steps(graph: &Graph, program: &Program, packed: &Packed, tensors: &[PlannedTensor]) -> Vec<Step> {
    let nodes = program.nodes.iter().enumerate();
    let mut steps = nodes.map(|(index, node)| step(graph, node, index, packed)).collect::<Vec<_>>();
    fill_in_waits(&mut steps, tensors);
    steps
}

fn step(graph: &Graph, node: &Node, index: usize, packed: &Packed) -> Step {
    let scratch = packed.lifetimes.of_scratch.get(&index);
    Step {
        op: node.op.clone(),
        inputs: node.inputs.to_vec(),
        outputs: node.outputs.to_vec(),
        place: node.place(graph),
        pass: node.pass,
        block: node.block,
        waits: Vec::new(),
        scratch: scratch
            .map(|&buffer| Region { offset: packed.offsets[buffer], bytes: packed.lifetimes.buffers[buffer].bytes }),
    }
}

/// What is alive on the device at the fullest moment of the program with the highest peak.
fn breakdown(bottom: &Bottom, packed: &Packed) -> Breakdown {
    let device = &packed.arenas[Place::Device as usize];
    let mut result = bottom.persistent;
    result.activations_bytes += device.base - bottom.persistent_end;
    let moment = device.fullest_moment;
    let buffers = packed.lifetimes.buffers.iter().filter(|b| b.place == Place::Device);
    for buffer in buffers.filter(|b| b.lower <= moment && moment < b.upper) {
        result.add(buffer.role, buffer.bytes);
    }
    result.unused_bytes = device.peak - result.total();
    result
}
