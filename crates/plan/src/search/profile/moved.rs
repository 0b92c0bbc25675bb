//! What a part of the optimizer is that is moved, and what is kept over the run once it is.

use crate::levers::moved;
use plimsoll_graph::{
    ALIGNMENT, DType, Graph, MemoryId, Node, Parameter, PerMemory, ProgramKind, Role, Storage, Tensor, TensorId,
    Training,
};

/// A part of the optimizer that is moved.
pub(super) struct Moved {
    /// Whose, by the index of the parameter.
    pub(super) parameters: Vec<bool>,
    /// Bytes that are kept over the run in each memory.
    pub(super) state: PerMemory<u64>,
}

/// Whether a tensor has bytes over the whole run: where a step has one micro-batch, gradients don't outlive it.
fn is_kept(graph: &Graph) -> impl Fn(&Tensor) -> bool + use<> {
    let keeps_gradients = graph.program(ProgramKind::MicroStepAdd).is_some();
    move |tensor| tensor.storage == Storage::Persistent && (keeps_gradients || tensor.role != Role::Gradient)
}

pub(super) fn kept_bytes(tensor: &Tensor) -> u64 {
    tensor.ty.bytes().align_up(ALIGNMENT).0
}

/// Bytes of each memory that tensors keep over the run.
pub(super) fn kept_over_the_run(graph: &Graph) -> PerMemory<u64> {
    let is_kept = is_kept(graph);
    let mut state = graph.memories.map(|_| 0);
    for tensor in graph.tensors.iter().filter(|tensor| is_kept(tensor)) {
        state[tensor.memory] += kept_bytes(tensor);
    }
    state
}

impl Moved {
    /// Of a graph in which nothing is moved, which keeps `state` in each memory.
    pub(super) fn new(graph: &Graph, part: f64, mut state: PerMemory<u64>) -> Self {
        let (is_kept, bytes) = (is_kept(graph), kept_bytes);
        let mut parameters = vec![false; graph.parameters.len()];
        for index in moved(graph, part) {
            parameters[index] = true;
            let Parameter { tensor, training, .. } = &graph.parameters[index];
            let Training { gradient, master, remainder, state: moments, .. } =
                training.as_ref().expect("what is moved is trained");
            for &id in moments.iter().chain([gradient]).chain(master).filter(|id| is_kept(&graph[**id])) {
                state[MemoryId::DEVICE] -= bytes(&graph[id]);
                state[MemoryId::HOST] += bytes(&graph[id]);
            }
            // The master that it gets there.
            match (master, remainder) {
                (Some(_), _) => {}
                (None, Some(remainder)) => {
                    state[MemoryId::DEVICE] -= bytes(&graph[*remainder]);
                    let ty = graph[*tensor].ty.with_dtype(DType::F32);
                    state[MemoryId::HOST] += ty.bytes().align_up(ALIGNMENT).0;
                }
                (None, None) => state[MemoryId::HOST] += bytes(&graph[*tensor]),
            }
        }
        Self { parameters, state }
    }
}

/// The parameter that each weight, master and gradient belongs to, by its index.
pub(super) struct Owners {
    of_weight: Vec<Option<u32>>,
    of_gradient: Vec<Option<u32>>,
}

impl Owners {
    pub(super) fn of(graph: &Graph) -> Self {
        let none = vec![None; graph.tensors.len()];
        let mut owners = Self { of_weight: none.clone(), of_gradient: none };
        for (parameter, index) in graph.parameters.iter().zip(0..) {
            owners.of_weight[parameter.tensor.index()] = Some(index);
            owners.of_weight[parameter.master().index()] = Some(index);
            if let Some(training) = &parameter.training {
                owners.of_gradient[training.gradient.index()] = Some(index);
            }
        }
        owners
    }

    pub(super) fn gradient(&self, id: TensorId) -> Option<usize> {
        self.of_gradient[id.index()].map(|index| index as usize)
    }

    /// The parameter that an optimizer's node updates.
    pub(super) fn updated(&self, node: &Node) -> Option<usize> {
        let update = node.op.update()?;
        self.of_weight[node.outputs[update.weight].index()].map(|index| index as usize)
    }
}
