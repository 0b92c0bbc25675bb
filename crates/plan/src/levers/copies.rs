//! Copies of tensors, for programs that are made of others: a transient tensor belongs to one program.

use plimsoll_graph::{Graph, Program, Storage, TensorId};
use rustc_hash::FxHashMap;

/// The copies that were made, by their originals.
#[derive(Default)]
pub(super) struct Copies(FxHashMap<TensorId, TensorId>);

impl Copies {
    /// The copy of a tensor.
    pub(super) fn of(&mut self, graph: &mut Graph, id: TensorId) -> TensorId {
        *self.0.entry(id).or_insert_with(|| {
            let tensor = graph[id].clone();
            let copy = graph.tensor(tensor.name, tensor.ty, tensor.role, tensor.storage);
            graph[copy].memory = tensor.memory;
            copy
        })
    }

    /// The same program on transients of its own.
    pub(super) fn program(&mut self, graph: &mut Graph, mut program: Program) -> Program {
        let of_nodes = program.nodes.iter_mut().flat_map(|node| node.inputs.iter_mut().chain(&mut node.outputs));
        for id in of_nodes.chain(program.ports.each_mut()) {
            if graph[*id].storage == Storage::Transient {
                *id = self.of(graph, *id);
            }
        }
        program
    }
}
