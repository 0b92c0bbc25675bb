//! From a graph to places: persistent tensors at the bottom, carried ones above, each program's transients packed
//! on top.

use crate::arena::{Buffer, Lifespan, Problem, lower_bound, pack};
use crate::lifetimes::{Lifetimes, lifetimes};
use crate::plan::{Breakdown, Plan, PlannedProgram, PlannedTensor, Region, Step};
use graph::{Graph, Node, Program, Storage, Target};
use units::Bytes;

/// Every tensor starts at a multiple of this, which suits vector loads and GPU transactions alike.
pub const ALIGNMENT: u64 = 256;

/// A program's transients with their places.
struct Packed {
    lifetimes: Lifetimes,
    offsets: Vec<u64>,
    base: u64,
    peak: u64,
    lower_bound: u64,
    fullest_moment: u64,
}

/// Places everything. The plan's budget is unlimited and its batch sizes are zero: the caller knows them.
pub fn lay_out(graph: &Graph, target: &Target) -> Plan {
    let mut tensors = graph
        .tensors
        .iter()
        .map(|t| PlannedTensor { name: t.name.clone(), ty: t.ty.clone(), role: t.role, storage: t.storage, offset: 0 })
        .collect::<Vec<_>>();
    let mut end = 0;
    let mut bottom = Breakdown::default();
    for storage in [Storage::Persistent, Storage::Carried] {
        for tensor in tensors.iter_mut().filter(|t| t.storage == storage) {
            tensor.offset = end;
            let bytes = tensor.ty.bytes().align_up(ALIGNMENT).0;
            end += bytes;
            if storage == Storage::Persistent {
                bottom.add(tensor.role, bytes);
            }
        }
    }
    let persistent_end = bottom_bytes(&bottom);
    let bases = [persistent_end, end];
    let packed = graph.programs.iter().map(|p| pack_program(graph, p, target, bases)).collect::<Vec<_>>();
    let mut programs = Vec::with_capacity(packed.len());
    for (program, packed) in graph.programs.iter().zip(&packed) {
        for (id, &block) in &packed.lifetimes.of_tensor {
            tensors[id.index()].offset = packed.base + packed.offsets[block];
        }
        programs.push(PlannedProgram {
            name: program.name.clone(),
            peak_bytes: packed.peak,
            lower_bound_bytes: packed.lower_bound,
            steps: program.nodes.iter().enumerate().map(|(i, node)| step(node, i, packed)).collect(),
            ports: program.ports.clone(),
        });
    }
    let peak = programs.iter().map(|p| p.peak_bytes).max().unwrap_or(end);
    let highest = packed.iter().find(|p| p.peak == peak);
    Plan {
        version: Plan::VERSION,
        budget_bytes: u64::MAX,
        peak_bytes: peak,
        lower_bound_bytes: programs.iter().map(|p| p.lower_bound_bytes).max().unwrap_or(end),
        host_bytes: host_bytes(graph),
        micro_batch: 0,
        accumulation: 0,
        global_batch: 0,
        seq_len: 0,
        target: *target,
        parameters: graph.parameter_count(),
        breakdown: highest.map_or(bottom, |packed| breakdown(bottom, packed, persistent_end)),
        tensors,
        programs,
    }
}

fn bottom_bytes(b: &Breakdown) -> u64 {
    b.weights_bytes + b.gradients_bytes + b.optimizer_bytes + b.activations_bytes + b.scratch_bytes + b.staging_bytes
}

/// What crosses to and from the host, in buffers of the host's own.
fn host_bytes(graph: &Graph) -> u64 {
    let ports = graph.programs.iter().flat_map(|p| p.ports.fed().chain(p.ports.fetched()).collect::<Vec<_>>());
    let mut ids = ports.collect::<Vec<_>>();
    ids.sort_unstable();
    ids.dedup();
    ids.into_iter().map(|id| graph[id].ty.bytes()).sum::<Bytes>().0
}

fn pack_program(graph: &Graph, program: &Program, target: &Target, bases: [u64; 2]) -> Packed {
    let lifetimes = lifetimes(graph, program, |index| {
        let node = &program.nodes[index];
        node.op.scratch(&graph.io(&node.inputs, &node.outputs), target).0
    });
    let carries = program.nodes.iter().flat_map(|n| &n.outputs).any(|id| graph[*id].storage == Storage::Carried);
    let base = bases[usize::from(carries)];
    let buffers = lifetimes
        .blocks
        .iter()
        .map(|b| Buffer { lifespan: Lifespan { lower: b.lower, upper: b.upper }, size: b.bytes });
    let problem = Problem { buffers: buffers.collect(), alignment: ALIGNMENT };
    let bound = lower_bound(&problem);
    let offsets = pack(&problem).offsets;
    // To the byte: what rounds up the topmost buffer's size is never touched, so it is neither in the peak nor, since
    // any buffer may come to lie on top, in the bound.
    let top = problem.buffers.iter().zip(&offsets).map(|(buffer, offset)| offset + buffer.size).max().unwrap_or(0);
    Packed {
        lifetimes,
        offsets,
        base,
        peak: base + top,
        lower_bound: base + bound.bytes.saturating_sub(ALIGNMENT - 1),
        fullest_moment: bound.at,
    }
}

fn step(node: &Node, index: usize, packed: &Packed) -> Step {
    let scratch = packed.lifetimes.of_scratch.get(&index).map(|&block| Region {
        offset: packed.base + packed.offsets[block],
        bytes: packed.lifetimes.blocks[block].bytes,
    });
    Step { op: node.op.clone(), inputs: node.inputs.clone(), outputs: node.outputs.clone(), scratch }
}

/// What is alive at the fullest moment of the program with the highest peak.
fn breakdown(bottom: Breakdown, packed: &Packed, persistent_end: u64) -> Breakdown {
    let mut result = bottom;
    result.activations_bytes += packed.base - persistent_end;
    let moment = packed.fullest_moment;
    for block in packed.lifetimes.blocks.iter().filter(|b| b.lower <= moment && moment < b.upper) {
        result.add(block.role, block.bytes);
    }
    result.unused_bytes = packed.peak - bottom_bytes(&result);
    result
}
