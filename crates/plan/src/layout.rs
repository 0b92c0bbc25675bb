//! From a graph to places: persistent tensors at the bottom, carried ones above, each program's transients packed
//! on top; the same in the host's arena for what levers moved there.

use crate::arena::{Buffer, Lifespan, Problem, lower_bound, pack};
use crate::lifetimes::{Lifetimes, lifetimes};
use crate::plan::{Breakdown, Plan, PlannedProgram, PlannedTensor, Region, Step};
use graph::{Graph, Node, Program, Space, Storage, Target};

/// Every tensor starts at a multiple of this, which suits vector loads and GPU transactions alike.
pub const ALIGNMENT: u64 = 256;

const SPACES: [Space; 2] = [Space::Device, Space::Host];

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
struct Packing {
    base: u64,
    peak: u64,
    lower_bound: u64,
    fullest_moment: u64,
}

/// Places everything. The plan's budgets are unlimited and its batch sizes are zero: the caller knows them.
pub fn lay_out(graph: &Graph, target: &Target) -> Plan {
    let mut tensors = graph
        .tensors
        .iter()
        .map(|t| PlannedTensor {
            name: t.name.clone(),
            ty: t.ty.clone(),
            role: t.role,
            storage: t.storage,
            space: t.space,
            offset: 0,
        })
        .collect::<Vec<_>>();
    let bottoms = SPACES.map(|space| lay_bottom(&mut tensors, space));
    let packed = graph.programs.iter().map(|p| pack_program(graph, p, target, &bottoms)).collect::<Vec<_>>();
    let mut programs = Vec::with_capacity(packed.len());
    for (program, packed) in graph.programs.iter().zip(&packed) {
        for (id, &block) in &packed.lifetimes.of_tensor {
            tensors[id.index()].offset = packed.offsets[block];
        }
        let [device, host] = &packed.arenas;
        programs.push(PlannedProgram {
            name: program.name.clone(),
            peak_bytes: device.peak,
            host_peak_bytes: host.peak,
            lower_bound_bytes: device.lower_bound,
            fullest_step: device.fullest_moment.saturating_sub(1) as usize,
            steps: program.nodes.iter().enumerate().map(|(i, node)| step(graph, node, i, packed)).collect(),
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
        host_budget_bytes: u64::MAX,
        host_bytes: programs.iter().map(|p| p.host_peak_bytes).max().unwrap_or(host.end),
        micro_batch: 0,
        accumulation: 0,
        global_batch: 0,
        seq_len: 0,
        target_len: None,
        target: *target,
        parameters: graph.parameter_count(),
        breakdown: highest.map_or(device.persistent, |packed| breakdown(device, packed)),
        tensors,
        programs,
    }
}

/// The fewest bytes that the device's and the host's arena can have, however well they are packed.
pub(crate) fn at_least(graph: &Graph, target: &Target) -> [u64; 2] {
    let mut least = [0; 2];
    for program in &graph.programs {
        let lifetimes = lifetimes_of(graph, program, target);
        for space in SPACES {
            let (_, problem) = problem_of(&lifetimes, space);
            let bytes = staying_in(graph, program, space) + tight(lower_bound(&problem).bytes);
            least[space as usize] = bytes.max(least[space as usize]);
        }
    }
    least
}

/// The part of it that is there whatever a program computes: what stays from one program to the next.
pub(crate) fn staying(graph: &Graph) -> [u64; 2] {
    let in_space = |space| graph.programs.iter().map(|program| staying_in(graph, program, space)).max().unwrap_or(0);
    SPACES.map(in_space)
}

fn staying_in(graph: &Graph, program: &Program, space: Space) -> u64 {
    let carries = carries(graph, program);
    let stays = |storage| storage == Storage::Persistent || (carries && storage == Storage::Carried);
    let staying = graph.tensors.iter().filter(|t| t.space == space && stays(t.storage));
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

fn lifetimes_of(graph: &Graph, program: &Program, target: &Target) -> Lifetimes {
    lifetimes(graph, program, |index| {
        let node = &program.nodes[index];
        node.op.working_bytes(&graph.io(&node.inputs, &node.outputs), target).0
    })
}

/// Lays persistent and carried tensors one after the other.
fn lay_bottom(tensors: &mut [PlannedTensor], space: Space) -> Bottom {
    let mut bottom = Bottom::default();
    for storage in [Storage::Persistent, Storage::Carried] {
        for tensor in tensors.iter_mut().filter(|t| t.storage == storage && t.space == space) {
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

fn pack_program(graph: &Graph, program: &Program, target: &Target, bottoms: &[Bottom; 2]) -> Packed {
    let lifetimes = lifetimes_of(graph, program, target);
    let carries = carries(graph, program);
    let mut offsets = vec![0; lifetimes.blocks.len()];
    let arenas = SPACES.map(|space| {
        let bottom = &bottoms[space as usize];
        let base = if carries { bottom.end } else { bottom.persistent_end };
        pack_space(&lifetimes, space, base, &mut offsets)
    });
    Packed { lifetimes, offsets, arenas }
}

/// The blocks of one memory as a problem of packing, and the index of each.
fn problem_of(lifetimes: &Lifetimes, space: Space) -> (Vec<usize>, Problem) {
    let blocks = lifetimes.blocks.iter().enumerate().filter(|(_, block)| block.space == space);
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

/// Packs the blocks of one memory above `base`.
fn pack_space(lifetimes: &Lifetimes, space: Space, base: u64, offsets: &mut [u64]) -> Packing {
    let (indices, problem) = problem_of(lifetimes, space);
    let bound = lower_bound(&problem);
    let mut top = 0;
    for ((index, buffer), offset) in indices.into_iter().zip(&problem.buffers).zip(pack(&problem).offsets) {
        offsets[index] = base + offset;
        top = top.max(offset + buffer.size);
    }
    Packing { base, peak: base + top, lower_bound: base + tight(bound.bytes), fullest_moment: bound.at }
}

fn step(graph: &Graph, node: &Node, index: usize, packed: &Packed) -> Step {
    let scratch = packed.lifetimes.of_scratch.get(&index);
    Step {
        op: node.op.clone(),
        inputs: node.inputs.clone(),
        outputs: node.outputs.clone(),
        space: node.space(graph),
        scratch: scratch
            .map(|&block| Region { offset: packed.offsets[block], bytes: packed.lifetimes.blocks[block].bytes }),
    }
}

/// What is alive on the device at the fullest moment of the program with the highest peak.
fn breakdown(bottom: &Bottom, packed: &Packed) -> Breakdown {
    let device = &packed.arenas[Space::Device as usize];
    let mut result = bottom.persistent;
    result.activations_bytes += device.base - bottom.persistent_end;
    let moment = device.fullest_moment;
    let blocks = packed.lifetimes.blocks.iter().filter(|b| b.space == Space::Device);
    for block in blocks.filter(|b| b.lower <= moment && moment < b.upper) {
        result.add(block.role, block.bytes);
    }
    result.unused_bytes = device.peak - result.total();
    result
}
