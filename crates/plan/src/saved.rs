//! What the forward pass leaves for the backward pass: the bytes that recomputation takes away from.

use crate::plan::Plan;
use plimsoll_graph::{MemoryId, Pass, Role, Storage, TensorId};
use plimsoll_units::Bytes;
use std::collections::BTreeSet;

/// Activations of a micro-batch on the device that its forward pass makes and what comes after it reads, without what rounds
/// sizes up to the alignment. Token batches and parameters' gradients are none.
pub fn saved_activations(plan: &Plan) -> Bytes {
    let Some(program) = plan.repeated_micro_step() else {
        return Bytes::ZERO;
    };
    let is_activation = |id: &TensorId| {
        let tensor = &plan[*id];
        tensor.role == Role::Activation && tensor.storage == Storage::Transient && tensor.memory == MemoryId::DEVICE
    };
    let (forward, later) = program.steps.iter().partition::<Vec<_>, _>(|step| step.pass == Pass::Forward);
    let made = forward.iter().flat_map(|step| &step.outputs).collect::<BTreeSet<_>>();
    let read = later.iter().flat_map(|step| &step.inputs).collect::<BTreeSet<_>>();
    made.intersection(&read).filter(|id| is_activation(id)).map(|id| Bytes(plan[**id].region().bytes)).sum()
}
