//! When the tensors of a program are live, and which of them take over the buffer of another.
//!
//! Time 0 is when the host feeds the program; node i runs at time i + 1; the host reads results at time n + 1.
//! Lifespans are half-open. A result that may overwrite a dying operand shares its buffer:
//!
//! ```text
//!   x ████████┐            one buffer, alive from the birth of x to the death of y
//!   y         └██████
//!      gelu_grad runs here
//! ```

use plimsoll_graph::{Access, Graph, MemoryId, Program, Role, Storage, TensorId};
use rustc_hash::FxHashMap;

/// Bytes that need one offset for a span of time: one or several tensors after each other, or scratch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Buffer {
    pub(crate) lower: u64,
    pub(crate) upper: u64,
    pub(crate) bytes: u64,
    pub(crate) role: Role,
    pub(crate) memory: MemoryId,
}

/// The buffer of each tensor that has one. A list and not a map, since the search looks up millions.
#[derive(Debug, Clone, Default)]
pub(crate) struct BufferOf(Vec<Option<u32>>);

impl BufferOf {
    fn of_none(graph: &Graph) -> Self {
        Self(vec![None; graph.tensors.len()])
    }

    fn get(&self, id: TensorId) -> Option<usize> {
        self.0[id.index()].map(|buffer| buffer as usize)
    }

    fn insert(&mut self, id: TensorId, buffer: usize) {
        self.0[id.index()] = Some(buffer as u32);
    }

    /// All tensors that have a buffer, with it.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (TensorId, usize)> {
        let of_each = self.0.iter().zip(0..);
        of_each.filter_map(|(buffer, id)| buffer.map(|buffer| (TensorId(id), buffer as usize)))
    }
}

/// The buffers of a program's transient tensors and scratch.
#[derive(Debug, Clone, Default)]
pub(crate) struct Lifetimes {
    pub(crate) buffers: Vec<Buffer>,
    /// The buffer of each transient tensor of the program.
    pub(crate) of_tensor: BufferOf,
    /// The buffer of each node's scratch.
    pub(crate) of_scratch: FxHashMap<usize, usize>,
}

/// Computes lifetimes. Calls `scratch_bytes(node)` once for each node.
pub(crate) fn lifetimes(graph: &Graph, program: &Program, scratch_bytes: impl Fn(usize) -> u64) -> Lifetimes {
    let end = program.nodes.len() as u64 + 2;
    let last_use = last_uses(graph, program);
    let mut result = Lifetimes { of_tensor: BufferOf::of_none(graph), ..Lifetimes::default() };
    for id in program.ports.fed() {
        let bytes = graph[id].ty.bytes().0;
        result.of_tensor.insert(id, result.buffers.len());
        let (role, memory) = (graph[id].role, graph[id].memory);
        result.buffers.push(Buffer { lower: 0, upper: last_use[id.index()] + 1, bytes, role, memory });
    }
    for (index, node) in program.nodes.iter().enumerate() {
        let time = index as u64 + 1;
        for (position, &output) in node.outputs.iter().enumerate() {
            if graph[output].storage != Storage::Transient || result.of_tensor.get(output).is_some() {
                continue;
            }
            let upper = last_use[output.index()] + 1;
            match place_to_take(graph, program, index, position, &last_use, &result) {
                Some(buffer) => {
                    result.buffers[buffer].upper = upper;
                    result.of_tensor.insert(output, buffer);
                }
                None => {
                    result.of_tensor.insert(output, result.buffers.len());
                    let (bytes, role) = (graph[output].ty.bytes().0, graph[output].role);
                    result.buffers.push(Buffer { lower: time, upper, bytes, role, memory: graph[output].memory });
                }
            }
        }
        let bytes = scratch_bytes(index);
        if bytes > 0 {
            result.of_scratch.insert(index, result.buffers.len());
            let memory = node.memory(graph);
            result.buffers.push(Buffer { lower: time, upper: time + 1, bytes, role: Role::Scratch, memory });
        }
    }
    debug_assert!(result.buffers.iter().all(|b| b.lower < b.upper && b.upper <= end));
    result
}

/// The last time at which each tensor is read, or written if no node reads it; 0 if the program does not have it.
fn last_uses(graph: &Graph, program: &Program) -> Vec<u64> {
    let mut last_use = vec![0; graph.tensors.len()];
    for (index, node) in program.nodes.iter().enumerate() {
        for &id in node.inputs.iter().chain(&node.outputs) {
            last_use[id.index()] = index as u64 + 1;
        }
    }
    for id in program.ports.fetched().filter(|id| graph[*id].storage == Storage::Transient) {
        last_use[id.index()] = program.nodes.len() as u64 + 1;
    }
    last_use
}

/// The buffer that output `position` of node `index` may take over: that of an operand which no node reads afterwards.
fn place_to_take(
    graph: &Graph,
    program: &Program,
    index: usize,
    position: usize,
    last_use: &[u64],
    so_far: &Lifetimes,
) -> Option<usize> {
    let node = &program.nodes[index];
    if node.op.access(position) == Access::ReadWrite {
        return None;
    }
    let (output, time) = (node.outputs[position], index as u64 + 1);
    node.op.reuse().iter().filter(|(_, to)| *to == position).find_map(|&(from, _)| {
        let operand = *node.inputs.get(from)?;
        let buffer = so_far.of_tensor.get(operand)?;
        let dies_here = last_use[operand.index()] == time && so_far.buffers[buffer].upper == time + 1;
        let only_once = node.inputs.iter().filter(|id| **id == operand).count() == 1;
        let same_size =
            graph[operand].ty.bytes() == graph[output].ty.bytes() && graph[operand].ty.dtype == graph[output].ty.dtype;
        let untaken = node.outputs.iter().all(|other| so_far.of_tensor.get(*other) != Some(buffer));
        (dies_here && only_once && same_size && untaken).then_some(buffer)
    })
}
