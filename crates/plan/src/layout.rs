//! From a graph to offsets: in the arena of each memory, persistent tensors at the bottom, carried ones above, each
//! program's transients packed on top.

use crate::budget::{Budget, Limit, PlannedMemory};
use crate::lifetimes::{Lifetimes, lifetimes};
use crate::plan::{Breakdown, Plan, PlannedProgram, PlannedTensor, Region, Step};
use crate::request::Request;
use crate::waits::fill_in_waits;
use plimsoll_arena::{Buffer, Lifespan, LowerBound, Problem, lower_bound, pack, pack_quickly};
use plimsoll_graph::{ALIGNMENT, Graph, MemoryId, Node, PerMemory, Program, Role, Storage, Targets, Tensor};
use plimsoll_units::Bytes;
use std::cmp::Reverse;

/// An arena that exceeds its lower bound by less than one part in this many is packed well enough.
const TOLERATED: u64 = 2000;

/// A quick packing whose transients are too large by more than one part in this many is given up: more work saves less.
const FAR: u64 = 10;

/// How much work a packing takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Effort {
    /// Some milliseconds.
    Quick,
    /// Some hundred milliseconds where it is hard.
    Full,
}

/// Room for the run's scalars, where a device reads them from its memory.
const SCALARS_BYTES: u64 = ALIGNMENT;

/// The bottom of an arena, which all programs share.
#[derive(Default)]
struct Bottom {
    persistent: Breakdown,
    persistent_end: End,
    /// Where carried tensors end.
    end: End,
}

/// The end of tensors that follow each other.
#[derive(Debug, Clone, Copy, Default)]
struct End {
    /// End of the last tensor's last byte.
    touched: u64,
    /// With the padding of the last tensor: where the next tensor starts.
    padded: u64,
}

/// A program's transients with their offsets.
struct Packed {
    lifetimes: Lifetimes,
    /// First byte of each buffer, in the arena of its memory.
    offsets: Vec<u64>,
    /// For each memory.
    arenas: PerMemory<Packing>,
}

/// A program in one arena.
#[derive(Default)]
struct Packing {
    base: u64,
    peak: u64,
    lower_bound: u64,
    fullest_moment: u64,
}

/// Gives every tensor an offset. The plan's limits are unlimited and its batch sizes are zero: the caller knows them.
pub fn lay_out(graph: &Graph, targets: &Targets) -> Plan {
    Layout::new(graph, targets).plan(graph, targets)
}

/// What a quick packing shows of a candidate.
pub(crate) enum Attempt {
    /// It fits.
    Fits(Box<Layout>),
    /// It may fit with more work: the budget lacks these bytes for the quick packing.
    Near(PerMemory<Bytes>),
    /// It does not fit.
    Far,
}

/// The offsets of all that a graph's programs use.
pub(crate) struct Layout {
    /// First byte of each tensor that is not transient.
    offsets: Vec<u64>,
    bottoms: PerMemory<Bottom>,
    packed: Vec<Packed>,
}

impl Layout {
    pub(crate) fn new(graph: &Graph, targets: &Targets) -> Self {
        Self::packed(graph, targets, Effort::Full)
    }

    fn packed(graph: &Graph, targets: &Targets, effort: Effort) -> Self {
        let mut offsets = vec![0; graph.tensors.len()];
        let bottoms = graph.memories.map(|memory| lay_bottom(graph, &mut offsets, memory, scalars_in(memory, targets)));
        let packed = pack_programs(graph, targets, &bottoms, effort);
        Self { offsets, bottoms, packed }
    }

    /// The layout of a request's candidate; `None` if it does not fit.
    pub(crate) fn within(request: &Request, graph: &Graph) -> Option<Self> {
        match Self::attempt(request, graph) {
            Attempt::Fits(layout) => Some(*layout),
            Attempt::Near(_) => Self::packed_within(request, graph),
            Attempt::Far => None,
        }
    }

    /// A first attempt, which takes some milliseconds. Mostly the live bytes show before anything is packed that a candidate
    /// does not fit.
    pub(crate) fn attempt(request: &Request, graph: &Graph) -> Attempt {
        if !request.budget.holds(&at_least(graph, &request.targets)) {
            return Attempt::Far;
        }
        let quick = Self::packed(graph, &request.targets, Effort::Quick);
        let lacking = request.budget.lacking(&quick.arenas());
        if lacking.values().all(|lacking| *lacking == Bytes::ZERO) {
            Attempt::Fits(Box::new(quick))
        } else if quick.is_far(&lacking) {
            Attempt::Far
        } else {
            Attempt::Near(lacking)
        }
    }

    /// The layout that takes the most work; `None` if it does not fit either.
    pub(crate) fn packed_within(request: &Request, graph: &Graph) -> Option<Self> {
        Some(Self::new(graph, &request.targets)).filter(|full| request.budget.holds(&full.arenas()))
    }

    /// The same layout, or a better one if more time finds one. The better one is taken only if a search within just its
    /// bytes would also find that the candidate fits.
    pub(crate) fn improved(self, request: &Request, graph: &Graph) -> Self {
        let full = Self::new(graph, &request.targets);
        let lacking = Budget::exactly(&full.arenas()).lacking(&self.arenas());
        if request.budget.holds(&full.arenas()) && !self.is_far(&lacking) { full } else { self }
    }

    /// Whether more work would not make a quick packing smaller by what a budget lacks for it.
    fn is_far(&self, lacking: &PerMemory<Bytes>) -> bool {
        let far = self.transients() / FAR;
        lacking.values().any(|lacking| lacking.0 > far)
    }

    /// Bytes of all arenas above their bottoms.
    fn transients(&self) -> u64 {
        let arenas = self.arenas();
        arenas.iter().map(|(memory, arena)| arena.saturating_sub(self.bottoms[memory].end.padded)).sum()
    }

    /// The sizes of the arenas.
    pub(crate) fn arenas(&self) -> PerMemory<u64> {
        self.bottoms.map(|memory, bottom| {
            let peaks = self.packed.iter().map(|packed| packed.arenas[memory].peak);
            peaks.max().unwrap_or(bottom.end.touched)
        })
    }

    /// The plan of the graph with this layout.
    pub(crate) fn plan(&self, graph: &Graph, targets: &Targets) -> Plan {
        let placed = graph.tensors.iter().zip(&self.offsets).map(|(t, &offset)| PlannedTensor {
            name: t.name.to_string(),
            ty: t.ty.clone(),
            role: t.role,
            storage: t.storage,
            memory: t.memory,
            offset,
        });
        let mut tensors = placed.collect::<Vec<_>>();
        let mut programs = Vec::with_capacity(self.packed.len());
        for (program, packed) in graph.programs.iter().zip(&self.packed) {
            for (id, buffer) in packed.lifetimes.of_tensor.iter() {
                tensors[id.index()].offset = packed.offsets[buffer];
            }
            let device = &packed.arenas[MemoryId::DEVICE];
            programs.push(PlannedProgram {
                name: program.name,
                peaks: packed.arenas.map(|_, arena| arena.peak),
                lower_bound_bytes: device.lower_bound,
                fullest_step: device.fullest_moment.saturating_sub(1) as usize,
                steps: steps(graph, program, packed, &tensors),
                ports: program.ports.clone(),
            });
        }
        let (device, arenas) = (&self.bottoms[MemoryId::DEVICE], self.arenas());
        let peak = arenas[MemoryId::DEVICE];
        let highest = self.packed.iter().find(|p| p.arenas[MemoryId::DEVICE].peak == peak);
        Plan {
            version: Plan::VERSION,
            memories: arenas.map(|id, &peak_bytes| PlannedMemory {
                memory: graph.memories[id],
                limit: Limit::Own(Bytes(u64::MAX)),
                peak_bytes,
            }),
            lower_bound_bytes: programs.iter().map(|p| p.lower_bound_bytes).max().unwrap_or(device.end.touched),
            micro_batch: 0,
            accumulation: 0,
            global_batch: 0,
            seq_len: 0,
            target_len: None,
            targets: *targets,
            scalars: Some(Region { offset: 0, bytes: scalars_in(MemoryId::DEVICE, targets) }).filter(|s| s.bytes > 0),
            parameters: graph.parameter_count(),
            trained_parameters: graph.trained_parameter_count(),
            breakdown: highest.map_or(device.persistent, |packed| breakdown(device, packed)),
            tensors,
            programs,
        }
    }
}

/// Lower bounds on the arenas of a graph for any packing.
pub(crate) fn at_least(graph: &Graph, targets: &Targets) -> PerMemory<u64> {
    let mut least = graph.memories.map(|_| 0);
    for program in &graph.programs {
        let lifetimes = lifetimes_of(graph, program, targets);
        for memory in graph.memories.ids() {
            let alignment = graph.memories[memory].alignment;
            let staying = scalars_in(memory, targets) + staying_in(graph, program, memory);
            let bytes = tight(staying + most_live(&lifetimes, program, memory, alignment), alignment);
            least[memory] = bytes.max(least[memory]);
        }
    }
    least
}

/// The largest sum of live bytes of a program in each memory: `plimsoll_arena::lower_bound` finds it by sorting, which is not
/// needed where times are small numbers.
fn most_live(lifetimes: &Lifetimes, program: &Program, memory: MemoryId, alignment: u64) -> u64 {
    let mut changes = vec![0_i64; program.nodes.len() + 3];
    for buffer in lifetimes.buffers.iter().filter(|buffer| buffer.memory == memory) {
        let bytes = buffer.bytes.next_multiple_of(alignment) as i64;
        changes[buffer.lower as usize] += bytes;
        changes[buffer.upper as usize] -= bytes;
    }
    let (mut live, mut most) = (0, 0);
    for change in changes {
        live += change;
        most = live.max(most);
    }
    most as u64
}

fn staying_in(graph: &Graph, program: &Program, memory: MemoryId) -> u64 {
    let carries = carries(graph, program);
    let stays = |storage| storage == Storage::Persistent || (carries && storage == Storage::Carried);
    let staying = graph.tensors.iter().filter(|t| t.memory == memory && stays(t.storage));
    staying.map(|t| graph.memories[memory].padded(t.ty.bytes())).sum()
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
    node.op.working_bytes(&graph.io(&node.inputs, &node.outputs), &targets[graph.memories[node.memory(graph)].kind]).0
}

/// Room for the run's scalars at the bottom of an arena: a device whose programs are launched as a whole reads them from
/// its memory.
pub(crate) fn scalars_in(memory: MemoryId, targets: &Targets) -> u64 {
    if memory == MemoryId::DEVICE && targets.overlaps() { SCALARS_BYTES } else { 0 }
}

/// Puts persistent and carried tensors one after the other, above the run's scalars.
fn lay_bottom(graph: &Graph, offsets: &mut [u64], memory: MemoryId, scalars: u64) -> Bottom {
    let start = End { touched: scalars, padded: scalars };
    let mut bottom = Bottom { persistent_end: start, end: start, ..Bottom::default() };
    bottom.persistent.add(Role::Staging, scalars);
    for storage in [Storage::Persistent, Storage::Carried] {
        let stays = |tensor: &Tensor| tensor.storage == storage && tensor.memory == memory;
        for (tensor, offset) in graph.tensors.iter().zip(&mut *offsets).filter(|(tensor, _)| stays(tensor)) {
            *offset = bottom.end.padded;
            let bytes = graph.memories[memory].padded(tensor.ty.bytes());
            bottom.end = End { touched: *offset + tensor.ty.bytes().0, padded: *offset + bytes };
            if storage == Storage::Persistent {
                bottom.persistent.add(tensor.role, bytes);
                bottom.persistent_end = bottom.end;
            }
        }
    }
    bottom
}

/// Packs all programs; in each memory, the programs with the largest lower bounds first.
fn pack_programs(graph: &Graph, targets: &Targets, bottoms: &PerMemory<Bottom>, effort: Effort) -> Vec<Packed> {
    let prepare = |program: &Program| {
        let lifetimes = lifetimes_of(graph, program, targets);
        let offsets = vec![0; lifetimes.buffers.len()];
        Packed { lifetimes, offsets, arenas: graph.memories.map(|_| Packing::default()) }
    };
    let mut packed = graph.programs.iter().map(prepare).collect::<Vec<_>>();
    for memory in graph.memories.ids() {
        let bottom = &bottoms[memory];
        let mut tasks = Vec::with_capacity(packed.len());
        for (index, (program, packed)) in graph.programs.iter().zip(&packed).enumerate() {
            let below = if carries(graph, program) { bottom.end } else { bottom.persistent_end };
            tasks.push((index, Task::new(&packed.lifetimes, memory, graph.memories[memory].alignment, below)));
        }
        tasks.sort_by_key(|(_, task)| Reverse(task.bottom.padded + task.bound.bytes));
        let mut highest = 0;
        for (index, task) in tasks {
            let packed = &mut packed[index];
            packed.arenas[memory] = task.pack(&mut packed.offsets, &mut highest, effort);
        }
    }
    packed
}

/// The buffers of one memory as a problem of packing, and the index of each.
fn problem_of(lifetimes: &Lifetimes, memory: MemoryId, alignment: u64) -> (Vec<usize>, Problem) {
    let buffers = lifetimes.buffers.iter().enumerate().filter(|(_, buffer)| buffer.memory == memory);
    let (indices, buffers) = buffers
        .map(|(i, b)| (i, Buffer { lifespan: Lifespan { lower: b.lower, upper: b.upper }, size: b.bytes }))
        .unzip();
    (indices, Problem { buffers, alignment })
}

/// A bound to the byte: the padding of the topmost buffer is never touched, so it is not in the peak and, since any buffer
/// may be the topmost, not in the bound.
pub(crate) fn tight(bound: u64, alignment: u64) -> u64 {
    bound.saturating_sub(alignment - 1)
}

/// The buffers of a program in one memory, to be packed above the bottom of its arena.
struct Task {
    bottom: End,
    indices: Vec<usize>,
    problem: Problem,
    bound: LowerBound,
}

impl Task {
    fn new(lifetimes: &Lifetimes, memory: MemoryId, alignment: u64, bottom: End) -> Self {
        let (indices, problem) = problem_of(lifetimes, memory, alignment);
        let bound = lower_bound(&problem);
        Self { bottom, indices, problem, bound }
    }

    /// Packs below `highest`, the peak so far, if that is possible, and raises it otherwise. Programs that do not make the peak
    /// stay below it; no work is spent on how far.
    fn pack(&self, offsets: &mut [u64], highest: &mut u64, effort: Effort) -> Packing {
        let base = self.bottom.padded;
        let below = highest.saturating_sub(base + self.problem.alignment);
        let enough = self.bound.bytes + (base + self.bound.bytes) / TOLERATED;
        let solution = match effort {
            Effort::Quick => pack_quickly(&self.problem, below.max(enough)),
            Effort::Full => pack(&self.problem, below, below.max(enough)),
        };
        *highest = (base + solution.peak).max(*highest);
        let mut peak = self.bottom.touched;
        for ((&index, buffer), offset) in self.indices.iter().zip(&self.problem.buffers).zip(solution.offsets) {
            offsets[index] = base + offset;
            peak = peak.max(offsets[index] + buffer.size);
        }
        Packing {
            base,
            peak,
            lower_bound: tight(base + self.bound.bytes, self.problem.alignment),
            fullest_moment: self.bound.at,
        }
    }
}

fn steps(graph: &Graph, program: &Program, packed: &Packed, tensors: &[PlannedTensor]) -> Vec<Step> {
    let nodes = program.nodes.iter().enumerate();
    let mut steps = nodes.map(|(index, node)| step(graph, node, index, packed)).collect::<Vec<_>>();
    fill_in_waits(&mut steps, tensors, &graph.memories);
    steps
}

fn step(graph: &Graph, node: &Node, index: usize, packed: &Packed) -> Step {
    let scratch = packed.lifetimes.of_scratch.get(&index);
    Step {
        op: node.op.clone(),
        inputs: node.inputs.to_vec(),
        outputs: node.outputs.to_vec(),
        memory: node.memory(graph),
        pass: node.pass,
        block: node.block,
        waits: Vec::new(),
        scratch: scratch
            .map(|&buffer| Region { offset: packed.offsets[buffer], bytes: packed.lifetimes.buffers[buffer].bytes }),
    }
}

/// What is alive on the device at the fullest moment of the program with the highest peak.
fn breakdown(bottom: &Bottom, packed: &Packed) -> Breakdown {
    let device = &packed.arenas[MemoryId::DEVICE];
    let mut result = bottom.persistent;
    result.activations_bytes += device.base - bottom.persistent_end.padded;
    let moment = device.fullest_moment;
    let buffers = packed.lifetimes.buffers.iter().filter(|b| b.memory == MemoryId::DEVICE);
    for buffer in buffers.filter(|b| b.lower <= moment && moment < b.upper) {
        result.add(buffer.role, buffer.bytes);
    }
    result.unused_bytes = device.peak.saturating_sub(result.total());
    result
}
