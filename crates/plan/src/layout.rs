//! From a graph to places: persistent tensors at the bottom, carried ones above, each program's transients packed
//! on top; the same in the host's arena for what levers moved there.

use crate::arena::{Buffer, Lifespan, LowerBound, Problem, lower_bound, pack};
use crate::lifetimes::{Lifetimes, lifetimes};
use crate::plan::{Breakdown, Plan, PlannedProgram, PlannedTensor, Region, Step};
use crate::queues::fill_in_waits;
use plimsoll_graph::{Graph, Node, Place, Program, Role, Storage, Targets};
use std::cmp::Reverse;

/// Every tensor starts at a multiple of this, which suits vector loads and GPU transactions alike.
pub const ALIGNMENT: u64 = 256;

/// An arena that is higher than its lower bound by one part in so many is not packed any better.
const TOLERATED: u64 = 2000;

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
    /// First byte of each block, in the arena of its memory.
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
    let mut tensors = graph
        .tensors
        .iter()
        .map(|t| PlannedTensor {
            name: t.name.clone(),
            ty: t.ty.clone(),
            role: t.role,
            storage: t.storage,
            place: t.place,
            offset: 0,
        })
        .collect::<Vec<_>>();
    let bottoms = PLACES.map(|place| lay_bottom(&mut tensors, place, scalars_in(place, targets)));
    let packed = pack_programs(graph, targets, &bottoms);
    let mut programs = Vec::with_capacity(packed.len());
    for (program, packed) in graph.programs.iter().zip(&packed) {
        for (id, block) in packed.lifetimes.of_tensor.iter() {
            tensors[id.index()].offset = packed.offsets[block];
        }
        let [device, host] = &packed.arenas;
        programs.push(PlannedProgram {
            name: program.name.clone(),
            peak_bytes: device.peak,
            host_peak_bytes: host.peak,
            lower_bound_bytes: device.lower_bound,
            fullest_step: device.fullest_moment.saturating_sub(1) as usize,
            steps: steps(graph, program, packed, &tensors),
            ports: program.ports.clone(),
        });
    }
    let [device, host] = &bottoms;
    let peak = programs.iter().map(|p| p.peak_bytes).max().unwrap_or(device.end);
    let highest = packed.iter().find(|p| p.arenas[0].peak == peak);
    Plan {
        version: Plan::VERSION,
        budget_bytes: u64::MAX,
        peak_bytes: peak,
        lower_bound_bytes: programs.iter().map(|p| p.lower_bound_bytes).max().unwrap_or(device.end),
        host_budget_bytes: Some(u64::MAX),
        host_bytes: programs.iter().map(|p| p.host_peak_bytes).max().unwrap_or(host.end),
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

/// The largest sum of live bytes of a program in each memory: what `arena::lower_bound` finds by sorting, which is not
/// needed where times are small numbers.
fn most_live(lifetimes: &Lifetimes, program: &Program) -> [u64; 2] {
    let mut begins = vec![[0u64; 2]; program.nodes.len() + 3];
    let mut ends = begins.clone();
    for block in &lifetimes.blocks {
        let bytes = block.bytes.next_multiple_of(ALIGNMENT);
        begins[block.lower as usize][block.place as usize] += bytes;
        ends[block.upper as usize][block.place as usize] += bytes;
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

/// The part of it that is there whatever a program computes: what is kept over the run.
pub(crate) fn persistent(graph: &Graph) -> [u64; 2] {
    let mut bytes = [0; 2];
    for tensor in graph.tensors.iter().filter(|t| t.storage == Storage::Persistent) {
        bytes[tensor.place as usize] += tensor.ty.bytes().align_up(ALIGNMENT).0;
    }
    bytes
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

fn lifetimes_of(graph: &Graph, program: &Program, targets: &Targets) -> Lifetimes {
    lifetimes(graph, program, |index| {
        let node = &program.nodes[index];
        node.op.working_bytes(&graph.io(&node.inputs, &node.outputs), &targets[node.place(graph)]).0
    })
}

/// Room for the run's scalars at the bottom of an arena: a device whose programs are launched as a whole reads them from
/// its memory.
fn scalars_in(place: Place, targets: &Targets) -> u64 {
    if place == Place::Device && targets.overlaps() { SCALARS_BYTES } else { 0 }
}

/// Lays persistent and carried tensors one after the other, above the run's scalars.
fn lay_bottom(tensors: &mut [PlannedTensor], place: Place, scalars: u64) -> Bottom {
    let mut bottom = Bottom { persistent_end: scalars, end: scalars, ..Bottom::default() };
    bottom.persistent.add(Role::Staging, scalars);
    for storage in [Storage::Persistent, Storage::Carried] {
        for tensor in tensors.iter_mut().filter(|t| t.storage == storage && t.place == place) {
            tensor.offset = bottom.end;
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
fn pack_programs(graph: &Graph, targets: &Targets, bottoms: &[Bottom; 2]) -> Vec<Packed> {
    let prepare = |program: &Program| {
        let lifetimes = lifetimes_of(graph, program, targets);
        let offsets = vec![0; lifetimes.blocks.len()];
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
            packed.arenas[place as usize] = task.pack(&mut packed.offsets, &mut highest);
        }
    }
    packed
}

/// The blocks of one memory as a problem of packing, and the index of each.
fn problem_of(lifetimes: &Lifetimes, place: Place) -> (Vec<usize>, Problem) {
    let blocks = lifetimes.blocks.iter().enumerate().filter(|(_, block)| block.place == place);
    let (indices, buffers) = blocks
        .map(|(i, b)| (i, Buffer { lifespan: Lifespan { lower: b.lower, upper: b.upper }, size: b.bytes }))
        .unzip();
    (indices, Problem { buffers, alignment: ALIGNMENT })
}

/// A bound to the byte: what rounds up the topmost buffer's size is never touched, so it is neither in the peak nor,
/// since any buffer may come to lie on top, in the bound.
fn tight(bound: u64) -> u64 {
    bound.saturating_sub(ALIGNMENT - 1)
}

/// The blocks of a program in one memory, which are to be packed above what lies at the bottom.
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
    fn pack(&self, offsets: &mut [u64], highest: &mut u64) -> Packing {
        let below = highest.saturating_sub(self.base + ALIGNMENT);
        let enough = self.bound.bytes + (self.base + self.bound.bytes) / TOLERATED;
        let solution = pack(&self.problem, below, below.max(enough));
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
        inputs: node.inputs.clone(),
        outputs: node.outputs.clone(),
        place: node.place(graph),
        pass: node.pass,
        block: node.block,
        waits: Vec::new(),
        scratch: scratch
            .map(|&block| Region { offset: packed.offsets[block], bytes: packed.lifetimes.blocks[block].bytes }),
    }
}

/// What is alive on the device at the fullest moment of the program with the highest peak.
fn breakdown(bottom: &Bottom, packed: &Packed) -> Breakdown {
    let device = &packed.arenas[Place::Device as usize];
    let mut result = bottom.persistent;
    result.activations_bytes += device.base - bottom.persistent_end;
    let moment = device.fullest_moment;
    let blocks = packed.lifetimes.blocks.iter().filter(|b| b.place == Place::Device);
    for block in blocks.filter(|b| b.lower <= moment && moment < b.upper) {
        result.add(block.role, block.bytes);
    }
    result.unused_bytes = device.peak - result.total();
    result
}
