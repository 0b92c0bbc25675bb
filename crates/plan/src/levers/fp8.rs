//! Products in 8 bits: those of linear layers in blocks, and of their gradients, where steps and evaluation compute them. All tensors
//! stay as they are in bf16; the products round their factors.
//!
//! ```text
//!   linear               x, weight    ──►  fp8_linear               x, weight
//!   linear_input_grad    dy, weight   ──►  fp8_linear_input_grad    dy, weight
//!   linear_weight_grad   x, dy        ──►  fp8_linear_weight_grad   x, dy
//! ```
//! Adapters, routers, weights in codes and experts are not rounded: products with adapters are too thin to gain from it, a router's
//! rounding would send tokens to other experts, and the others have no kernels in 8 bits. Text is written without rounding, since a product with
//! one row is limited by reading its weight.

use plimsoll_graph::ops::Fp8Factors;
use plimsoll_graph::{ADAPTER_PREFIX, Graph, Op, ProgramKind, TensorId};
use std::collections::HashSet;

const PROGRAMS: [ProgramKind; 4] =
    [ProgramKind::MicroStep, ProgramKind::MicroStepAdd, ProgramKind::Evaluate, ProgramKind::EvaluateAverage];

/// Replaces the products of all linear layers in blocks whose extents are whole vectors of tensor cores.
pub fn fp8(graph: &mut Graph) {
    let routers = routers(graph);
    let is_rounded = |tensor: TensorId| {
        let (name, shape) = (&graph[tensor].name, &graph[tensor].ty.shape);
        let is_in_vectors = shape.iter().all(|extent| extent.is_multiple_of(Fp8Factors::ALIGNED));
        shape.len() == 2 && is_in_vectors && !name.starts_with(ADAPTER_PREFIX) && !routers.contains(&tensor)
    };
    let rounded = graph.parameters.iter().filter(|parameter| is_rounded(parameter.tensor)).collect::<Vec<_>>();
    let weights = rounded.iter().map(|parameter| parameter.tensor).collect::<HashSet<_>>();
    let gradients = rounded.iter().filter_map(|parameter| Some(parameter.training.as_ref()?.gradient));
    let gradients = gradients.collect::<HashSet<_>>();
    let programs = graph.programs.iter_mut().filter(|program| PROGRAMS.contains(&program.name.kind));
    for node in programs.flat_map(|program| &mut program.nodes).filter(|node| node.block.is_some()) {
        let reads = |index: usize| weights.contains(&node.inputs[index]);
        let writes = |index: usize| gradients.contains(&node.outputs[index]);
        if let Some(op) = node.op.in_fp8(&reads, &writes) {
            node.op = op;
        }
    }
}

/// The weights of layers whose results choose experts.
fn routers(graph: &Graph) -> HashSet<TensorId> {
    let nodes = || graph.programs.iter().flat_map(|program| &program.nodes);
    let choosing = nodes().filter(|node| matches!(node.op, Op::Route(_))).flat_map(|node| &node.inputs);
    let choosing = choosing.collect::<HashSet<_>>();
    let of_router = nodes().filter(|node| node.outputs.iter().any(|id| choosing.contains(id)));
    of_router.flat_map(|node| &node.inputs).copied().collect()
}
