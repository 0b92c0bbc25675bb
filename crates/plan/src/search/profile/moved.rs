//! What a share of the training state is that is moved to the host, and what is kept over the run once it is.

use crate::levers::{moved, resting};
use crate::settings::HostShare;
use plimsoll_graph::{
    ALIGNMENT, Graph, MemoryId, Node, Parameter, PerMemory, ProgramKind, Role, Storage, Tensor, TensorId, Training,
};

/// A share of the training state that is moved.
pub(super) struct Moved {
    /// Whose optimizer is, by the index of the parameter.
    pub(super) parameters: Vec<bool>,
    /// Which weights are, by the index of the tensor.
    pub(super) weights: Vec<bool>,
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
    pub(super) fn new(graph: &Graph, share: HostShare, mut state: PerMemory<u64>) -> Self {
        let (is_kept, bytes) = (is_kept(graph), kept_bytes);
        let mut parameters = vec![false; graph.parameters.len()];
        let mut weights = vec![false; graph.tensors.len()];
        for id in resting(graph, share.weights) {
            weights[id.index()] = true;
            state[MemoryId::DEVICE] -= bytes(&graph[id]);
            state[MemoryId::HOST] += bytes(&graph[id]);
        }
        for index in moved(graph, share.optimizer, |weight| weights[weight.index()]) {
            parameters[index] = true;
            let Parameter { tensor, training, .. } = &graph.parameters[index];
            let Training { gradient, master, remainder, state: moments, .. } =
                training.as_ref().expect("what is moved is trained");
            let moved = moments.iter().chain([gradient]).chain(master).chain(remainder);
            for &id in moved.filter(|id| is_kept(&graph[**id])) {
                state[MemoryId::DEVICE] -= bytes(&graph[id]);
                state[MemoryId::HOST] += bytes(&graph[id]);
            }
            // The master that it gets there, unless its weight is there.
            if master.is_none() && !weights[tensor.index()] {
                state[MemoryId::HOST] += bytes(&graph[*tensor]);
            }
        }
        Self { parameters, weights, state }
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
